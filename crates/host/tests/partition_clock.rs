//! The partition clock against exact rational time.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use chronovisor_abi::quantity::{Hertz, Nanos, RefTime, Tsc};
use chronovisor_host::partition_clock::{Change, Config, CounterRead, PartitionClock, VcpuIndex};
use chronovisor_host::vmclock::Notification;
use proptest::prelude::*;
use support::partition::time_of_day;
use support::{Memory, PAGE};

fn hz(hz: u64) -> Hertz {
    Hertz::from_hz(hz).unwrap()
}

fn ticks(ticks: u64) -> Tsc {
    Tsc::from_ticks(ticks)
}

/// Exact ns of `ticks` at `rate` Hz, as a fraction of 2^32.
fn enabled(vcpus: u32, rate: u64, now: u64) -> (PartitionClock, Memory) {
    let memory = Memory::new(vcpus as usize);
    let mut clock = PartitionClock::start(Config::for_vcpus(vcpus), hz(rate), ticks(now)).unwrap();
    for vcpu in 0..vcpus {
        assert!(clock.write_system_time_register(
            VcpuIndex(vcpu),
            Memory::record_register(vcpu),
            &memory
        ));
    }
    assert!(clock.write_reference_tsc_register(PAGE | 1, &memory));
    (clock, memory)
}

fn pvclock(memory: &Memory, vcpu: usize, now: u64) -> u64 {
    let (contents, now) = memory.records[vcpu].read(1, || ticks(now)).unwrap();
    contents.time_at(now).unwrap().as_ns()
}

fn page(memory: &Memory, now: u64) -> u64 {
    let (line, now) = memory.page.read(1, || ticks(now)).unwrap();
    line.time_at(now).as_100ns()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Old and new line agree at the update, over any change of rate; afterwards every encoding is the master's.
    #[test]
    fn a_change_of_rate_joins_every_encoding(
        first in 10_000_001_u64..6_000_000_000,
        rates in prop::collection::vec(10_000_001_u64..6_000_000_000, 1..30),
        start in 0_u64..1 << 50,
        gaps in prop::collection::vec((0_u64..1 << 36, 0..36_u32).prop_map(|(gap, cut)| gap >> cut), 30),
    ) {
        let (mut clock, memory) = enabled(2, first, start);
        let mut now = start;
        for (rate, gap) in rates.into_iter().zip(gaps) {
            now += gap;
            while let Some(due) = clock.next_rebase().filter(|due| !ticks(now).is_before(*due)) {
                let (p, r) = (clock.pvclock_at(due), clock.reference_at(due));
                clock.begin_update(Change::Rebase, &memory).unwrap().publish(due).unwrap();
                prop_assert!(clock.pvclock_at(due).as_ns() - p.as_ns() <= 1);
                prop_assert_eq!(clock.reference_at(due), r);
            }
            let (p, r) = (pvclock(&memory, 0, now), page(&memory, now));
            clock.begin_update(Change::Frequency(hz(rate)), &memory).unwrap().publish(ticks(now)).unwrap();
            prop_assert!(pvclock(&memory, 1, now) - p <= 1, "{} to {}", p, pvclock(&memory, 1, now));
            prop_assert_eq!(page(&memory, now), r);
            let due = clock.next_rebase();
            for later in [0, 1, 7, 1000, gap] {
                if due.is_some_and(|due| due.is_before(ticks(now + later))) {
                    continue;
                }
                let exact = clock.exact_time_at(ticks(now + later)).as_raw();
                let p = u128::from(pvclock(&memory, 0, now + later)) << 64;
                let r = (u128::from(page(&memory, now + later)) * 100) << 64;
                prop_assert!(p <= exact + (100 << 64) && exact < p + (102 << 64));
                prop_assert!(r <= exact + (100 << 64) && exact < r + (200 << 64), "{} {}", r >> 64, exact >> 64);
            }
        }
    }
}

#[test]
fn counter_reads_are_strictly_increasing_and_say_when() {
    let (mut clock, _) = enabled(1, 2_600_000_000, 0);
    let vcpu = VcpuIndex(0);
    assert_eq!(
        clock.read_reference_counter(vcpu, ticks(260)),
        CounterRead::Time(RefTime::from_100ns(0))
    );
    assert_eq!(
        clock.read_reference_counter(vcpu, ticks(260)),
        CounterRead::NotBefore(ticks(261))
    );
    assert_eq!(
        clock.read_reference_counter(vcpu, ticks(261)),
        CounterRead::Time(RefTime::from_100ns(1))
    );
    assert_eq!(
        clock.pvclock_at(ticks(2_600_000_000)),
        Nanos::from_ns(1_000_000_000)
    );
}

/// A VMM that re-bases while one is due comes to an end, whatever the budget, the rate and the state of the line.
#[test]
fn rebasing_while_one_is_due_ends() {
    for rate in [500_000, 1_000_000, 10_000_001, 2_600_000_000, 2_899_999_499] {
        for budget in [0, 1, 2, 4, 100] {
            let memory = Memory::new(1);
            let config = Config {
                drift_budget: Nanos::from_ns(budget),
                ..Config::for_vcpus(1)
            };
            let mut clock = PartitionClock::start(config, hz(rate), ticks(1 << 20)).unwrap();
            clock.offer_vmclock(Notification::Absent, &memory);
            let mut now = 1 << 20;
            for round in 1..200 {
                now += rate * round / 7;
                let mut rebases = 0;
                while clock
                    .next_rebase()
                    .is_some_and(|due| !ticks(now).is_before(due))
                {
                    clock
                        .begin_update(Change::Rebase, &memory)
                        .unwrap()
                        .publish(ticks(now))
                        .unwrap();
                    rebases += 1;
                    assert!(rebases < 10, "{rate} Hz, budget {budget} ns");
                }
                // The time of day comes and goes by half a ns to half a ms.
                let told = time_of_day(now, 1_800_000_000 + now / rate - round % 2);
                clock
                    .begin_update(Change::TimeOfDay(told), &memory)
                    .unwrap()
                    .publish(ticks(now))
                    .unwrap();
            }
        }
    }
}
