//! The clock of this machine, whatever it offers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use chronovisor_abi::quantity::Nanos;

use crate::linux::Clock;
use crate::linux::os_clock::ClockId;

const READS: u32 = 1_000_000;

/// One thread hands its ordered readings over as fast as it can by plain stores; another takes one, reads, and demands not to be earlier. No locked
/// instruction stands between its load and its reading of the counter, so the processor may read the counter while the load is still waiting for the
/// cache line. Returns the largest step back that was seen, in ns.
fn largest_step_back(clock: &Clock, read: impl Fn() -> Nanos + Sync) -> u64 {
    let (handed, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                handed.store(clock.now_ordered().as_ns(), Ordering::Release);
            }
        });
        let mut worst = 0;
        for _ in 0..READS {
            let before = handed.load(Ordering::Acquire);
            worst = worst.max(before.saturating_sub(read().as_ns()));
        }
        stop.store(true, Ordering::Relaxed);
        worst
    })
}

#[test]
fn ordered_readings_never_go_back_between_threads() {
    let clock = Clock::new();
    assert_eq!(largest_step_back(&clock, || clock.now_ordered()), 0);
}

/// Unordered readings may seem early by what the processor looks ahead: less than 1 us.
#[test]
fn unordered_readings_go_back_by_less_than_a_microsecond_between_threads() {
    let clock = Clock::new();
    let worst = largest_step_back(&clock, || clock.now());
    std::eprintln!("largest step back between threads: {worst} ns");
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
