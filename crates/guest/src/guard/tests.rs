use super::*;
use crate::counter::CpuCounter;
use crate::pvclock::PerCpuRecords;
use chronovisor_abi::pvclock::{Contents, Slot};
use chronovisor_abi::quantity::Tsc;
use proptest::prelude::*;
use std::sync::atomic::AtomicU64 as PlainAtomic;
use std::vec::Vec;

fn ns(ns: u64) -> Nanos {
    Nanos::from_ns(ns)
}

/// Two vCPUs whose records disagree by 5 us.
fn slots() -> [Slot; 2] {
    [5_000, 0].map(|ahead| {
        let slot = Slot::default();
        slot.record.mark(0);
        slot.record.store(&Contents {
            system_time: ns(1_000_000 + ahead),
            mul: 0x8000_0000,
            shift: 1,
            ..Contents::default()
        });
        slot.record.publish(0);
        slot
    })
}

/// Records without a guard go back by microseconds when a thread changes CPU; with one they stand.
#[test]
fn d82_per_cpu_records_go_back_between_cpus_unless_guarded() {
    let slots = slots();
    let on = |cpu| PerCpuRecords::new(&slots, move || (Tsc::from_ticks(100), cpu));
    let bare: Vec<_> = [0, 1]
        .map(|cpu| on(cpu).read().unwrap().time.as_ns())
        .into();
    assert_eq!(bare, [1_005_100, 1_000_100], "5 us back");
    let guard = GlobalGuard::new();
    let guarded: Vec<_> = [0, 1]
        .map(|cpu| Guarded::new(on(cpu), &guard).read().unwrap().time.as_ns())
        .into();
    assert_eq!(guarded, [1_005_100, 1_005_100], "a stall");
    let coarse = CoarseGuard::with_quantum_of_2_to_the::<10>();
    let guarded: Vec<_> = [0, 1]
        .map(|cpu| Guarded::new(on(cpu), &coarse).read().unwrap().time.as_ns())
        .into();
    assert_eq!(
        guarded,
        [1_005_100 / 1_024 * 1_024, 1_005_100 / 1_024 * 1_024]
    );
}

/// After a resume the clock starts low; a guard that still holds the last value before it freezes the clock.
#[test]
fn d74_a_guard_is_zeroed_before_the_first_read_after_a_resume() {
    let guard = GlobalGuard::new();
    assert_eq!(guard.admit(ns(1_000_000)), ns(1_000_000));
    assert_eq!(guard.admit(ns(20)), ns(1_000_000), "frozen");
    guard.reset();
    assert_eq!(guard.admit(ns(20)), ns(20));
    let slots = slots();
    let clock = Guarded::new(
        PerCpuRecords::new(&slots, || (Tsc::from_ticks(0), 1)),
        &guard,
    );
    guard.admit(ns(u64::MAX));
    clock.resumed();
    assert_eq!(clock.read().map(|reading| reading.time), Ok(ns(1_000_000)));
}

#[test]
fn a_quantum_is_what_it_says() {
    assert_eq!(
        CoarseGuard::with_quantum_of_2_to_the::<0>().quantum(),
        ns(1)
    );
    assert_eq!(
        CoarseGuard::with_quantum_of_2_to_the::<20>().quantum(),
        ns(1_048_576)
    );
}

proptest! {
    /// admitted = max(asked so far), and for the coarse one the same of the quanta: at most one quantum behind.
    #[test]
    fn a_guard_is_the_running_maximum(times: Vec<u64>) {
        let (global, coarse) = (GlobalGuard::new(), CoarseGuard::with_quantum_of_2_to_the::<16>());
        let mut most = 0;
        for time in times {
            most = most.max(time);
            prop_assert_eq!(global.admit(ns(time)), ns(most));
            prop_assert_eq!(coarse.admit(ns(time)), ns(most & !0xffff));
        }
    }
}

/// Threads with clocks that disagree by up to 3 us hand their times to each other: nobody sees an earlier one than it was handed.
fn never_back_between_threads(guard: &(impl Guard + Sync)) {
    let (handed, ticks) = (PlainAtomic::new(0), PlainAtomic::new(0));
    std::thread::scope(|scope| {
        for ahead in [0, 1_000, 3_000, 500] {
            let (handed, ticks) = (&handed, &ticks);
            scope.spawn(move || {
                for _ in 0..50_000 {
                    let before = handed.load(std::sync::atomic::Ordering::Acquire);
                    let clock = ticks.fetch_add(10, std::sync::atomic::Ordering::Relaxed) + ahead;
                    let time = guard.admit(ns(clock)).as_ns();
                    assert!(time >= before, "{time} after {before}");
                    handed.fetch_max(time, std::sync::atomic::Ordering::Release);
                }
            });
        }
    });
}

#[test]
fn the_global_guard_never_goes_back_between_threads() {
    never_back_between_threads(&GlobalGuard::new());
}

#[test]
fn the_coarse_guard_never_goes_back_between_threads() {
    never_back_between_threads(&CoarseGuard::with_quantum_of_2_to_the::<10>());
}

/// A closure is a counter with a CPU.
#[test]
fn a_closure_is_a_cpu_counter() {
    assert_eq!(
        (|| (Tsc::from_ticks(1), 2)).read_on_cpu(),
        (Tsc::from_ticks(1), 2)
    );
}
