//! Two things at once: what no single clock can tell apart must still not take the clock back.

use super::*;
use crate::linux::clock::source::Unusable;
use crate::linux::clock::tests::healthy::kernel_page;
use crate::linux::time_data::TimeDataPage;
use proptest::prelude::*;

/// Reads once a second until checks are a minute apart and the last one is 20 s ago; returns the last reading.
fn run_long(clock: &Engine<&World>, world: &World) -> u64 {
    let (mut last, mut since_check, mut checks) = (0, 0, 0);
    for second in 0.. {
        world.pass(1_000_000_000);
        let time = read(clock, world);
        assert!(time >= last, "{time} after {last}");
        last = time;
        let so_far = clock.report().events.checks;
        since_check = if so_far == checks { since_check + 1 } else { 0 };
        checks = so_far;
        if second > 200 && since_check == 20 {
            break;
        }
    }
    last
}

/// A guest that sleeps while its TSC goes on: MONOTONIC_RAW stands still, and readings between the resume and the next check have counted the sleep.
#[test]
fn a_suspend_that_the_counter_counts_is_not_taken_back_at_the_next_check() {
    let world = World::new();
    let page = TimeDataPage::recognise(kernel_page(6_452_775)).expect("a known layout");
    let clock = clock(&world, Source::KernelTsc(page));
    run_long(&clock, &world);
    world.suspend(20_000_000_000);
    let mut last = read(&clock, &world);
    for _ in 0..200 {
        world.pass(1_000_000_000);
        let time = read(&clock, &world);
        let span = time.wrapping_sub(last);
        assert!((1_000_000_000..1_000_001_000).contains(&span), "{span}");
        last = time;
    }
    let report = clock.report();
    assert_eq!((report.events.disagreements, report.fallen_back), (0, None));
    let off = report
        .rate
        .unwrap()
        .error_against(Hertz::from_hz(HZ).unwrap());
    assert!(off.saturating_abs() <= report.rate_bound.unwrap(), "{off}");
}

/// The same on a page that becomes unusable before the next check.
#[test]
fn a_suspend_before_a_fall_back_is_not_taken_back() {
    for sleep_ns in [50_000_000, 20_000_000_000, 3_600_000_000_000] {
        let world = World::new();
        let host = Host::new(&world);
        let clock = clock(&world, host.source());
        run_long(&clock, &world);
        world.suspend(sleep_ns);
        let before = read(&clock, &world);
        host.flags.set(Flags::NONE);
        host.publish(&world);
        let after = read(&clock, &world);
        assert!(
            after >= before && after - before < 500,
            "{before} then {after}"
        );
    }
}

/// Hyper-V's migration: the counter moves and the page becomes unusable in one step. The operating system's clock, which runs at another rate than the page,
/// bridges it.
#[test]
fn a_counter_that_moves_with_its_page_gone_does_not_take_the_clock_back() {
    for ppm in [0, -40, 40] {
        for move_ns in [
            -3_600_000_000_000_i64,
            -50_000_000,
            -200_000,
            3_600_000_000_000,
        ] {
            let world = World::new();
            world.raw_ppm.set(ppm);
            let host = Host::new(&world);
            let clock = clock(&world, host.source());
            let before = run_long(&clock, &world);
            let ticks = i128::from(move_ns) * i128::from(HZ) / 1_000_000_000;
            let moved = world
                .tsc()
                .as_ticks()
                .wrapping_add_signed(i64::try_from(ticks).unwrap());
            world.set_tsc(moved, HZ);
            host.flags.set(Flags::NONE);
            host.publish(&world);
            let after = read(&clock, &world);
            assert!(
                after >= before && after - before < 1_000,
                "{before} then {after} at {ppm} ppm, moved by {move_ns} ns"
            );
        }
    }
}

/// A counter that runs faster than its page says, read often: when the trust ends, the readings given so far stand.
#[test]
fn a_page_that_runs_fast_loses_the_trust_without_a_step_back() {
    for faster in [HZ / 500, HZ / 10, 2 * HZ] {
        let world = World::new();
        let host = Host::new(&world);
        let clock = clock(&world, host.source());
        run_long(&clock, &world);
        world.set_tsc(world.tsc().as_ticks(), HZ + faster);
        let mut last = read(&clock, &world);
        for _ in 0..20_000 {
            world.pass(20_000);
            let time = read(&clock, &world);
            assert!(time >= last, "{time} after {last}");
            last = time;
        }
        world.pass(200_000_000_000);
        read(&clock, &world);
        for _ in 0..1_000 {
            world.pass(50_000);
            let time = read(&clock, &world);
            assert!(time >= last, "{time} after {last}");
            last = time;
        }
        assert!(matches!(
            clock.report().fallen_back,
            Some(Unusable::RateDisagrees { ppm: 1_000.., .. })
        ));
    }
}

/// A record whose multiplier stands for a counter of 16 kHz or of 10^18 Hz: time would run off or stand still until a check that never comes.
#[test]
fn a_line_that_no_counter_has_is_refused_at_once() {
    let world = World::new();
    let host = Host::new(&world);
    let clock = clock(&world, host.source());
    for (mul, shift) in [
        (1, 0),
        (1, -31),
        (u32::MAX, 16),
        (u32::MAX, 31),
        (1 << 31, -20),
    ] {
        world.pass(1_000_000_000);
        let before = read(&clock, &world);
        let version = host.record.version();
        host.record.mark(version);
        host.record.store(&Contents {
            tsc_timestamp: world.tsc(),
            system_time: Nanos::from_ns(world.now_ns.get()),
            mul,
            shift,
            flags: Flags::TSC_STABLE,
        });
        host.record.publish(version);
        world.pass(1_000_000_000);
        let span = read(&clock, &world) - before;
        assert!(
            (1_000_000_000..1_000_000_500).contains(&span),
            "{span} with {mul:#x} {shift}"
        );
        assert!(matches!(
            clock.report().fallen_back,
            Some(Unusable::ImplausibleRate { .. })
        ));
    }
    let page: &'static ReferenceTscPage = Box::leak(Box::new(ReferenceTscPage::new()));
    page.mark();
    page.store(&Parameters {
        scale: chronovisor_abi::scale::ReferenceScale::from_raw(1),
        offset: 0,
    });
    page.publish(7);
    let clock = super::clock(&world, Source::ReferencePage(page));
    assert!(matches!(
        clock.report().fallen_back,
        Some(Unusable::ImplausibleRate { hz: u64::MAX })
    ));
}

/// The stop is told with the update that makes the record usable again.
#[test]
fn a_stop_that_is_told_at_the_return_counts() {
    let world = World::new();
    let host = Host::new(&world);
    let clock = clock(&world, host.source());
    for flags in [
        Flags::NONE,
        Flags::TSC_STABLE.union(Flags::GUEST_STOPPED),
        Flags::GUEST_STOPPED,
        Flags::TSC_STABLE.union(Flags::GUEST_STOPPED),
    ] {
        host.flags.set(flags);
        host.publish(&world);
        read(&clock, &world);
    }
    let events = clock.report().events;
    assert_eq!((events.returns, events.guest_stops), (2, 1));
}

/// A sandbox whose clock stands still: the check of the rate ends all the same.
#[test]
fn a_standing_operating_system_clock_ends_the_probation() {
    let world = World::new();
    world.raw_stands.set(true);
    let host = Host::new(&world);
    let clock = clock(&world, host.source());
    assert_eq!(clock.report().rejected.len(), 1);
}

proptest! {
    /// Sleeps, updates and spells without a page in any order: never back.
    #[test]
    fn never_back_over_suspends(steps in prop::collection::vec((0_u8..4, 1_u64..100_000_000_000, -100_i64..=100), 1..60)) {
        let world = World::new();
        world.raw_ahead_ns.set(100_000_000_000);
        let host = Host::new(&world);
        let clock = clock(&world, host.source());
        let mut last = 0;
        for (what, ns, ppm) in steps {
            world.pass(ns % 3_000_000_000);
            for _ in 0..2 {
                let time = read(&clock, &world);
                prop_assert!(time >= last, "{time} after {last}");
                last = time;
            }
            match what {
                0 => host.publish(&world),
                1 => {
                    let flags = host.flags.get();
                    host.flags.set(if flags == Flags::NONE { Flags::TSC_STABLE } else { Flags::NONE });
                    host.publish(&world);
                }
                2 => world.suspend(ns),
                _ => {
                    // The kernel refines its clock's rate, without a step.
                    let raw = (&world).raw().as_ns();
                    world.raw_ppm.set(ppm);
                    let stepped = (&world).raw().as_ns();
                    world.raw_ahead_ns.set(world.raw_ahead_ns.get() + raw - stepped);
                }
            }
            for _ in 0..2 {
                let time = read(&clock, &world);
                prop_assert!(time >= last, "after {what}: {time} after {last}");
                last = time;
            }
        }
    }
}
