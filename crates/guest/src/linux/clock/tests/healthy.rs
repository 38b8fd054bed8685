//! Sources that keep their promises: the clock is right, to the nanoseconds that the brackets and multipliers cost.

use super::*;
use crate::linux::clock::source::{SourceKind, Unusable};
use crate::linux::time_data::{ClockMode, TimeDataPage, Words};
use chronovisor_abi::quantity::Ppb;
use chronovisor_abi::seqlock::ReadError;
use chronovisor_abi::seqlock::sync::{AtomicU32, Ordering};
use proptest::prelude::*;

#[test]
fn it_counts_from_its_creation_at_the_pages_rate() {
    let world = World::new();
    let host = Host::new(&world);
    let start = world.now_ns.get();
    let clock = clock(&world, host.source());
    for _ in 0..100 {
        world.pass(977_777_777);
        let time = read(&clock, &world);
        let truth = world.now_ns.get() - start;
        // The origin lies within the first brackets and the probation's start; the multiplier is 0.02 ppb off.
        assert!(time <= truth && truth - time < 200, "{time} at {truth}");
    }
    let report = clock.report();
    assert_eq!(report.source, SourceKind::Pvclock);
    assert_eq!(
        (report.events.disagreements, report.events.fall_backs),
        (0, 0)
    );
    assert!(report.events.checks > 10);
    assert_eq!(report.rate.map(Hertz::rounded_hz), Some(HZ));
    assert_eq!(report.rate_bound, Some(Ppb::ZERO));
}

/// The stable flag goes away and comes back: the operating system's clock answers in between, and the clock is continuous at both switches.
#[test]
fn d80_a_flag_that_goes_away_at_run_time_is_a_counted_and_continuous_fall_back() {
    let world = World::new();
    let host = Host::new(&world);
    let clock = clock(&world, host.source());
    let origin = world.now_ns.get() - read(&clock, &world);
    for round in 1..=3 {
        for (flags, fallen_back) in [(Flags::NONE, true), (Flags::TSC_STABLE, false)] {
            world.pass(3_000_000_000);
            host.flags.set(flags);
            host.publish(&world);
            for _ in 0..3 {
                let time = read(&clock, &world);
                let off = i128::from(time) - i128::from(world.now_ns.get() - origin);
                assert!(off.abs() < 200, "round {round}: {off} ns off");
            }
            assert_eq!(clock.report().fallen_back.is_some(), fallen_back);
            // What is reported is what was taken: it leads from the clock underneath to this one.
            let underneath = if fallen_back {
                world.raw_ahead_ns.get()
            } else {
                0
            } + world.now_ns.get();
            let by_offset = underneath.wrapping_add(clock.report().offset_ns);
            assert!(
                by_offset.abs_diff(read(&clock, &world)) < 100,
                "round {round}"
            );
        }
        let events = clock.report().events;
        assert_eq!((events.fall_backs, events.returns), (round, round));
    }
    host.flags.set(Flags::NONE);
    host.publish(&world);
    read(&clock, &world);
    let report = clock.report();
    assert!(matches!(
        report.fallen_back,
        Some(Unusable::NotStable {
            flags: Flags::NONE,
            ..
        })
    ));
    assert_eq!((report.rate, report.rate_bound), (None, None));
}

/// A page that is unusable at first is used as soon as it is usable.
#[test]
fn a_clock_made_while_the_page_is_unusable_waits_for_it() {
    let world = World::new();
    let host = HypervHost::new(&world);
    host.page.mark();
    let clock = clock(&world, Source::ReferencePage(host.page));
    assert_eq!(
        clock.report().fallen_back,
        Some(Unusable::Inconsistent(ReadError::Invalid {
            sequence: 0,
            tries: 1
        }))
    );
    assert_eq!(clock.report().rejected.len(), 1);
    let before = read(&clock, &world);
    host.publish(&world);
    let after = read(&clock, &world);
    assert!(
        after > before && after - before < 500,
        "{before} then {after}"
    );
    let report = clock.report();
    assert_eq!((report.fallen_back, report.events.returns), (None, 1));
}

proptest! {
    /// Updates without a step, pauses of any length, spells without a usable page: right to within what the brackets cost, never back.
    #[test]
    fn a_healthy_machine_is_followed(steps in prop::collection::vec((0_u8..4, 1_u64..20_000_000_000), 1..40)) {
        let world = World::new();
        let host = Host::new(&world);
        let clock = clock(&world, host.source());
        let origin = world.now_ns.get() - read(&clock, &world);
        let (mut last, mut switches) = (0, 0);
        for (what, ns) in steps {
            world.pass(ns);
            match what {
                0 => host.publish(&world),
                1 => {
                    let flags = host.flags.get();
                    host.flags.set(if flags == Flags::NONE { Flags::TSC_STABLE } else { Flags::NONE });
                    host.publish(&world);
                    switches += 1;
                }
                2 => {
                    // A migration to a host with another counter and rate; the pvclock goes on.
                    world.set_tsc(ns, if ns % 2 == 0 { HZ } else { 2_100_000_000 });
                    host.publish(&world);
                }
                _ => {}
            }
            let time = read(&clock, &world);
            prop_assert!(time >= last, "{time} after {last}");
            last = time;
            let off = i128::from(time) - i128::from(world.now_ns.get() - origin);
            // Each switch is exact to half a bracket, and each line to its multiplier's 0.25 ppb.
            prop_assert!(off.abs() < 300 + 20 * switches + i128::from(world.now_ns.get()) / 4_000_000_000, "{off} ns off");
        }
        prop_assert_eq!(clock.report().events.counter_moves, 0);
    }

    /// The same for the Hyper-V page: 100 ns of granularity at each publication.
    #[test]
    fn a_healthy_hyperv_machine_is_followed(steps in prop::collection::vec((0_u8..4, 1_u64..20_000_000_000), 1..40)) {
        let world = World::new();
        let host = HypervHost::new(&world);
        let clock = clock(&world, Source::ReferencePage(host.page));
        let origin = world.now_ns.get() - read(&clock, &world);
        let (mut last, mut switches) = (0, 0);
        for (what, ns) in steps {
            world.pass(ns);
            match what {
                0 => host.publish(&world),
                1 => {
                    host.page.mark();
                    switches += 1;
                }
                2 => {
                    world.set_tsc(ns, if ns % 2 == 0 { HZ } else { 2_100_000_000 });
                    host.publish(&world);
                    switches += 1;
                }
                _ => {}
            }
            let time = read(&clock, &world);
            prop_assert!(time >= last, "{time} after {last}");
            last = time;
            let off = i128::from(time) - i128::from(world.now_ns.get() - origin);
            prop_assert!(off.abs() < 500 + 120 * switches, "{off} ns off after {switches} switches");
        }
    }
}

/// Time data whose multiplier is 400 ppm off, as a time daemon may have it.
pub(super) fn kernel_page(mult: u32) -> &'static Words {
    let page: &'static Words = Box::leak(Box::new([const { AtomicU32::new(0) }; 1024]));
    for (at, word) in [
        (0, 8),
        (1, ClockMode::TSC.0),
        (6, u32::MAX),
        (7, u32::MAX),
        (8, mult),
        (9, 24),
    ] {
        page[at].store(word, Ordering::Relaxed);
    }
    page
}

/// A rate that was measured once, at start, and never again drifts for ever; ours is measured again over a growing span, and says how far it can be off.
#[test]
fn d76_a_measured_rate_is_measured_again_and_states_its_error() {
    let world = World::new();
    // 10^9 * 2^24 / 2.6e9 = 6452775.4; 400 ppm more:
    let page = TimeDataPage::recognise(kernel_page(6_455_356)).expect("a known layout");
    let clock = clock(&world, Source::KernelTsc(page));
    let at_first = clock.report();
    assert_eq!(at_first.source, SourceKind::KernelTsc);
    let exact = Hertz::from_hz(HZ).unwrap();
    let error =
        |report: &super::super::Report| report.rate.unwrap().error_against(exact).saturating_abs();
    assert!(at_first.rate_bound.unwrap() > Ppb::from_ppb_saturating(100_000));
    assert!(error(&at_first) <= at_first.rate_bound.unwrap());
    let mut last = read(&clock, &world);
    for _ in 0..5_000 {
        world.pass(20_000_000);
        let time = read(&clock, &world);
        assert!(time >= last);
        last = time;
        let now = clock.report();
        assert!(error(&now) <= now.rate_bound.unwrap(), "{now:?}");
    }
    let now = clock.report();
    assert!(error(&now) < Ppb::from_ppb_saturating(10), "{now:?}");
    assert!(
        now.rate_bound.unwrap() < Ppb::from_ppb_saturating(10),
        "{now:?}"
    );
    // A span of 10 s is now right to 10 ppb and two reads.
    let before = read(&clock, &world);
    world.pass(10_000_000_000);
    let span = read(&clock, &world) - before;
    assert!((10_000_000_000..10_000_000_200).contains(&span), "{span}");
}

/// When the kernel gives the TSC up, the clock goes with it.
#[test]
fn the_kernels_mode_is_watched() {
    let world = World::new();
    let words = kernel_page(6_452_775);
    let clock = clock(
        &world,
        Source::KernelTsc(TimeDataPage::recognise(words).expect("a known layout")),
    );
    let before = read(&clock, &world);
    words[1].store(ClockMode::NONE.0, Ordering::Relaxed);
    let after = read(&clock, &world);
    assert!(after >= before && after - before < 500);
    assert_eq!(
        clock.report().fallen_back,
        Some(Unusable::KernelMode(ClockMode::NONE))
    );
    words[1].store(ClockMode::TSC.0, Ordering::Relaxed);
    let back = read(&clock, &world);
    assert!(back >= after && back - after < 500);
    assert_eq!(clock.report().events.returns, 1);
}
