//! vCPUs whose counters differ: what each record shows, with and without a guard that remembers the latest time.

mod support;

use chronovisor_abi::pvclock::Flags;
use chronovisor_abi::quantity::{Nanos, TscDelta};
use chronovisor_guest::guard::{GlobalGuard, Guard};
use chronovisor_host::kvmclock::VcpuTsc;
use chronovisor_host::partition_clock::Change;
use chronovisor_host::vmclock::Notification;
use support::partition::{GHZ_2_6, enabled, hz, page, pvclock, read, ticks, update, vcpu};

/// What the host believes of each counter, how far it may be off, and how far it is, in ticks.
const COUNTERS: [(u64, u64, i64); 4] = [
    (0, 100, 100),
    (5_000_000, 100, -100),
    (1 << 40, 2600, 2600),
    (77, 2600, -2599),
];
/// 2 * 2600 ticks at 2.1 GHz, and 3 ns of roundings.
const SKEW_NS: u64 = 2_477 + 3;

fn own(at: usize, now: u64) -> u64 {
    let (offset, _, error) = COUNTERS[at];
    (now + offset).wrapping_add_signed(error)
}

#[test]
fn records_agree_within_the_skew_and_a_guard_hides_it() {
    let (mut surface, memory) = enabled(4, hz(GHZ_2_6), 0);
    let mut now = GHZ_2_6;
    for (at, (offset, bound, _)) in (0..).zip(COUNTERS) {
        let tsc = VcpuTsc::Skewed {
            offset: TscDelta::from_ticks(offset),
            bound: TscDelta::from_ticks(bound),
        };
        update(
            &mut surface,
            Change::VcpuTsc {
                vcpu: vcpu(at),
                tsc,
            },
            now,
            &memory,
        );
    }
    assert!(
        memory
            .records
            .iter()
            .all(|record| !record.load().flags.contains(Flags::TSC_STABLE))
    );
    assert_eq!(page(&memory, now), None);
    assert!(
        !surface
            .clock_mut()
            .offer_vmclock(Notification::Absent, &memory)
    );

    let guard = GlobalGuard::new();
    let (mut unguarded, mut guarded, mut farthest_back) = (0, Nanos::ZERO, 0);
    for round in 0..20_000_u64 {
        now += round % 97;
        let at = usize::try_from(round % 4).unwrap();
        let time = pvclock(&memory, at, own(at, now));
        let master = surface.clock().exact_time_at(ticks(now)).floor().as_ns();
        assert!(time.abs_diff(master) <= SKEW_NS, "{time} {master}");
        // The guest's guard never goes back, and is never ahead of the truth by more than the skew.
        let given = guard.admit(Nanos::from_ns(time));
        assert!(
            given >= guarded && given.as_ns() <= master + SKEW_NS,
            "{given} after {guarded}"
        );
        guarded = given;
        // A reader without one goes back by the skew at most.
        farthest_back = farthest_back.max(unguarded - time.min(unguarded));
        unguarded = time;
        if round % 1000 == 999 {
            let rate = if round % 2000 == 999 {
                2_100_000_000
            } else {
                GHZ_2_6
            };
            update(&mut surface, Change::Frequency(hz(rate)), now, &memory);
        }
    }
    assert!(farthest_back > 0, "the test would not see a reader go back");
    assert!(farthest_back <= SKEW_NS, "{farthest_back}");
    // The counter MSR is strictly increasing all the same.
    let mut last = None;
    for round in 0..1000 {
        now += 1000;
        let at = usize::try_from(round % 4).unwrap();
        if let chronovisor_host::msr_surface::Answer::Value(value) = read(
            &mut surface,
            round % 4,
            chronovisor_abi::msr::Msr::HV_TIME_REF_COUNT,
            own(at, now),
            &memory,
        ) {
            assert!(last.is_none_or(|last| value > last));
            last = Some(value);
        }
    }
    assert!(last.is_some());
}
