//! The clock of this machine, whatever it offers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use chronovisor_abi::quantity::Nanos;

use crate::linux::Clock;
use crate::linux::os_clock::ClockId;

const READS: u32 = 200_000;

/// Each thread hands its reading to all others and demands that its own next one is not before what it was handed. Returns the largest
/// step back that was seen, in ns.
fn largest_step_back(read: impl Fn() -> Nanos + Sync) -> u64 {
    let (shared, worst) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..READS {
                    let handed = shared.load(Ordering::Acquire);
                    let time = read().as_ns();
                    worst.fetch_max(handed.saturating_sub(time), Ordering::Relaxed);
                    shared.fetch_max(time, Ordering::AcqRel);
                }
            });
        }
    });
    worst.into_inner()
}

#[test]
fn ordered_readings_never_go_back_between_threads() {
    let clock = Clock::new();
    assert_eq!(largest_step_back(|| clock.now_ordered()), 0);
}

/// Unordered readings may seem early by what the processor looks ahead: less than 1 us.
#[test]
fn unordered_readings_go_back_by_less_than_a_microsecond_between_threads() {
    let clock = Clock::new();
    let worst = largest_step_back(|| clock.now());
    assert!(worst < 1_000, "{worst} ns back");
}

#[test]
fn one_threads_unordered_readings_never_go_back() {
    let clock = Clock::new();
    let mut last = clock.now();
    for _ in 0..READS {
        let time = clock.now();
        assert!(time >= last, "{time} after {last}");
        last = time;
    }
}

/// Over 20 ms the clock agrees with MONOTONIC_RAW to 1000 ppm and the brackets.
#[test]
fn it_keeps_time_with_the_operating_system() {
    let clock = Clock::of_process();
    let raw = || ClockId::MONOTONIC_RAW.now().unwrap();
    let (raw_0, time) = (raw(), clock.now_ordered());
    let raw_1 = raw();
    while raw().saturating_sub(raw_1).as_ns() < 20_000_000 {}
    let (raw_2, elapsed) = (raw(), clock.elapsed_since(time).as_ns());
    let raw_3 = raw();
    let (least, most) = (
        raw_2.saturating_sub(raw_1).as_ns(),
        raw_3.saturating_sub(raw_0).as_ns(),
    );
    assert!(
        elapsed >= least - least / 1_000 && elapsed <= most + most / 1_000,
        "{least} <= {elapsed} <= {most}"
    );
    assert!(clock.report().events.checks > 0);
}

#[test]
fn it_is_paired_with_the_wall_clock() {
    let clock = Clock::new();
    let before = SystemTime::now();
    let pair = clock.to_realtime().unwrap();
    let after = SystemTime::now();
    let slack = Duration::from_nanos(pair.uncertainty.as_ns());
    let wall = pair.at(pair.time).unwrap();
    assert!(wall + slack >= before && wall <= after + slack, "{pair:?}");
    assert_eq!(
        pair.at(pair.time.checked_add(Nanos::from_ns(1_500)).unwrap())
            .unwrap(),
        wall + Duration::from_nanos(1_500)
    );
}

/// Whatever was chosen, the report says why nothing better was.
#[test]
fn the_report_names_the_source_and_what_was_passed_over() {
    let report = Clock::new().report();
    for rejected in &report.rejected {
        assert_ne!(rejected.source, report.source, "{report:?}");
        assert!(!rejected.why.is_empty());
    }
    assert!(report.fallen_back.is_some() || report.rate.is_some());
}
