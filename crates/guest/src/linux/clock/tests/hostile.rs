//! Sources that break their promises: the clock does not go back, says what happened, and ends each read.

use super::*;
use crate::linux::clock::source::Unusable;
use chronovisor_abi::quantity::Ppb;
use chronovisor_abi::scale::ScaleError;
use proptest::prelude::*;

/// KVM's clock was seen to step by 4.5 ms at the hot-plug of a vCPU. Back: the clock goes on from where it was, on the same time base. Forward: it
/// follows.
#[test]
fn d79_a_step_back_is_held_on_the_same_clock() {
    let world = World::new();
    let host = Host::new(&world);
    let clock = clock(&world, host.source());
    world.pass(5_000_000_000);
    let before = read(&clock, &world);
    host.stepped_ns.set(-4_500_000);
    host.publish(&world);
    let after = read(&clock, &world);
    assert!(
        after >= before && after - before < 500,
        "{before} then {after}"
    );
    let events = clock.report().events;
    assert_eq!(
        (events.updates, events.fall_backs, events.forward_ns),
        (1, 0, 0)
    );
    assert!(
        (4_499_900..=4_500_100).contains(&events.held_ns),
        "{events:?}"
    );
    host.stepped_ns.set(0);
    host.publish(&world);
    let forward = read(&clock, &world) - after;
    assert!((4_500_000..4_500_500).contains(&forward), "{forward}");
    assert!((4_499_900..=4_500_100).contains(&clock.report().events.forward_ns));
}

/// A counter that is a little lower than before is no restart: nothing is added to the time.
#[test]
fn d84_a_small_backward_step_of_the_counter_is_no_reset() {
    let world = World::new();
    let host = Host::new(&world);
    let clock = clock(&world, host.source());
    world.pass(3_600_000_000_000);
    let before = read(&clock, &world);
    // The counter goes back by 10 us without any sign, then with an update.
    for update in [false, true] {
        let back = world.tsc().as_ticks() - 26_000;
        world.set_tsc(back, HZ);
        if update {
            host.publish(&world);
        }
        let after = read(&clock, &world);
        assert!(after.abs_diff(before) < 30_000, "{before} then {after}");
    }
}

/// The counter starts again at 0 and the page says so: the clock follows the page.
#[test]
fn a_counter_that_restarts_is_bridged_by_the_page() {
    let world = World::new();
    let host = Host::new(&world);
    let clock = clock(&world, host.source());
    let origin = world.now_ns.get() - read(&clock, &world);
    for (tsc, hz) in [
        (0, HZ),
        (1 << 62, HZ),
        (7, 2_100_000_000),
        (u64::MAX - 5, HZ),
    ] {
        world.pass(60_000_000_000);
        let before = read(&clock, &world);
        world.set_tsc(tsc, hz);
        host.publish(&world);
        let after = read(&clock, &world);
        assert!(after >= before, "{before} then {after} at {tsc:#x}");
        let off = i128::from(after) - i128::from(world.now_ns.get() - origin);
        assert!(off.abs() < 500, "{off} ns off at {tsc:#x}");
    }
}

/// Counter and kernel clock are fine, the page's rate is not: it is not chosen.
#[test]
fn a_page_with_a_wrong_rate_is_not_chosen() {
    let world = World::new();
    let host = Host::new(&world);
    world.set_tsc(world.tsc().as_ticks(), HZ + HZ / 100);
    let clock = clock(&world, host.source());
    let report = clock.report();
    assert_eq!(report.rejected.len(), 1);
    assert!(report.rejected[0].why.contains("ppm off"), "{report:?}");
    assert!(matches!(
        report.fallen_back,
        Some(Unusable::RateDisagrees { .. })
    ));
    let before = read(&clock, &world);
    world.pass(900_000);
    let span = read(&clock, &world) - before;
    assert!((900_000..900_100).contains(&span), "{span}");
    // It is given another chance when its page changes.
    host.publish(&world);
    read(&clock, &world);
    assert_eq!(clock.report().fallen_back, None);
}

/// The counter's rate changes and nobody writes the page: after three checks the operating system's clock takes over, without a step.
#[test]
fn d76_a_page_that_is_no_longer_right_loses_the_trust_until_it_changes() {
    let world = World::new();
    let host = Host::new(&world);
    let clock = clock(&world, host.source());
    world.pass(1_000_000_000);
    let mut last = read(&clock, &world);
    world.set_tsc(world.tsc().as_ticks(), 2_000_000_000);
    for _ in 0..300 {
        world.pass(1_000_000_000);
        let time = read(&clock, &world);
        assert!(time >= last);
        last = time;
    }
    let report = clock.report();
    assert!(
        matches!(
            report.fallen_back,
            Some(Unusable::RateDisagrees {
                ppm: ..-1_000,
                checks: 3
            })
        ),
        "{report:?}"
    );
    // An update that is right brings it back.
    host.publish(&world);
    let time = read(&clock, &world);
    assert!(time >= last && time - last < 500);
    assert_eq!(clock.report().fallen_back, None);
}

#[test]
fn a_record_left_odd_or_damaged_is_answered_by_the_operating_system() {
    let world = World::new();
    let host = Host::new(&world);
    let clock = clock(&world, host.source());
    let mut last = read(&clock, &world);
    let version = host.record.version();
    host.record.mark(version);
    for _ in 0..3 {
        let time = read(&clock, &world);
        assert!(time > last && time - last < 500, "{last} then {time}");
        last = time;
    }
    assert!(matches!(
        clock.report().fallen_back,
        Some(Unusable::Inconsistent(_))
    ));
    host.record.store(&Contents {
        flags: Flags::TSC_STABLE,
        ..Contents::default()
    });
    host.record.publish(version);
    assert!(read(&clock, &world) > last);
    assert_eq!(
        clock.report().fallen_back,
        Some(Unusable::Damaged(ScaleError::ZeroMultiplier))
    );
}

#[test]
fn a_stopped_guest_is_counted_once_for_each_stop() {
    let world = World::new();
    let host = Host::new(&world);
    let clock = clock(&world, host.source());
    let stopped = Flags::TSC_STABLE.union(Flags::GUEST_STOPPED);
    for flags in [stopped, stopped, Flags::TSC_STABLE, stopped] {
        host.flags.set(flags);
        host.publish(&world);
        read(&clock, &world);
    }
    assert_eq!(clock.report().events.guest_stops, 2);
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The hypervisor's clock steps; the counter goes on.
    PageSteps(i64),
    /// The counter is set elsewhere; the hypervisor's clock goes on.
    CounterMoves(u64),
    Flags(u8),
    LeftOdd,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (-900_000_000_i64..4_000_000_000).prop_map(Event::PageSteps),
        any::<u64>().prop_map(Event::CounterMoves),
        any::<u8>().prop_map(Event::Flags),
        Just(Event::LeftOdd),
    ]
}

proptest! {
    /// As long as each single event leaves one of the two clocks whole, no reading is before an earlier one, and the time is never more than
    /// 1 % and 5 ms ahead of the latest that the hypervisor's clock can have said.
    #[test]
    fn never_back_whatever_breaks_alone(events in prop::collection::vec((event(), 1_u64..3_000_000_000), 1..40)) {
        let world = World::new();
        let host = Host::new(&world);
        let clock = clock(&world, host.source());
        let origin = world.now_ns.get() - read(&clock, &world);
        let (mut last, mut ahead) = (read(&clock, &world), 0_i64);
        for (event, ns) in events {
            world.pass(ns);
            let time = read(&clock, &world);
            prop_assert!(time >= last, "before {event:?}: {time} after {last}");
            last = time;
            match event {
                Event::PageSteps(by) => {
                    ahead = ahead.max(ahead + by);
                    host.stepped_ns.set(host.stepped_ns.get() + by);
                    // A hypervisor's clock does not start before 0.
                    world.pass(1_000_000_000);
                    host.publish(&world);
                }
                Event::CounterMoves(tsc) => {
                    world.set_tsc(tsc, HZ);
                    host.publish(&world);
                }
                Event::Flags(bits) => {
                    host.flags.set(Flags::from_bits(bits));
                    host.publish(&world);
                }
                Event::LeftOdd => host.record.mark(host.record.version()),
            }
            for _ in 0..3 {
                let time = read(&clock, &world);
                prop_assert!(time >= last, "after {event:?}: {time} after {last}");
                last = time;
            }
            let most = i128::from(world.now_ns.get() - origin) + i128::from(ahead);
            prop_assert!(i128::from(last) <= most + most / 100 + 5_000_000, "after {event:?}: {last} of at most {most}");
        }
    }

    /// A host that writes anything: each read ends, nothing panics.
    #[test]
    fn any_page_is_safe(writes in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u32>(), any::<i8>(), any::<u8>(), any::<u64>()), 1..20)) {
        let world = World::new();
        let host = Host::new(&world);
        let clock = clock(&world, host.source());
        for (timestamp, time, mul, shift, flags, pass) in writes {
            world.pass(pass % 100_000_000_000);
            let version = host.record.version();
            host.record.mark(version);
            host.record.store(&Contents {
                tsc_timestamp: Tsc::from_ticks(timestamp),
                system_time: Nanos::from_ns(time),
                mul,
                shift,
                flags: Flags::from_bits(flags | 1),
            });
            host.record.publish(version);
            read(&clock, &world);
            read(&clock, &world);
            let report = clock.report();
            prop_assert!(report.rate_bound.is_none_or(|bound| bound == Ppb::ZERO));
        }
    }
}
