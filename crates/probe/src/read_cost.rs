//! What one read of each clock costs here, by every path.
//!
//! # Practice
//!
//! Short batches of every clock are timed in turn, round after round, so that a neighbour's load falls on all of them alike; the median batch
//! counts. See [`timed_loop`](crate::timed_loop) for the loop.

use std::thread;

use chronovisor_abi::quantity::{Hertz, Nanos};
use chronovisor_diagnose::evidence::{ReadCost, ReadPath};
use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::counter::{self, Ordered};
use chronovisor_guest::linux::os_clock::ClockId;
use chronovisor_guest::linux::pages::PvclockPage;
use chronovisor_guest::pvclock::StableBit;
use chronovisor_stats::median;

use crate::resolution::{Steps, judge};
use crate::timed_loop::{Loop, Reads, reads_for};

/// Ticks of one batch: some 8 us.
const BATCH_TICKS: u64 = 20_000;
/// Rounds over all clocks.
const ROUNDS: usize = 101;
/// Successive values that are looked at for steps, for a clock that costs little.
const VALUES: u64 = 4096;
/// Ticks that collecting them may take.
const COLLECT_TICKS: u64 = 20_000_000;

/// A clock, ready to be read in a loop.
pub struct Subject {
    /// The clock's name.
    pub clock: &'static str,
    /// How it is read.
    pub path: ReadPath,
    /// What one of its values is worth.
    pub unit: Unit,
    /// The reads.
    pub reads: Box<dyn Reads>,
}

/// The unit of a clock's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Ticks of the counter.
    Ticks,
    /// Nanoseconds.
    Nanos,
    /// Units of 100 ns.
    HundredNanos,
}

impl Unit {
    /// `values` of this unit in ns, with the counter at `rate`.
    #[must_use]
    pub fn in_ns(self, values: f64, rate: Hertz) -> f64 {
        match self {
            Self::Ticks => values * ns_per_tick(rate),
            Self::Nanos => values,
            Self::HundredNanos => values * 100.0,
        }
    }
}

/// The length of a tick, in ns.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    reason = "costs need no more than 53 bits"
)]
pub fn ns_per_tick(rate: Hertz) -> f64 {
    rate.denominator() as f64 * 1e9 / rate.numerator() as f64
}

/// What was measured of one clock.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The clock's name.
    pub clock: &'static str,
    /// How it is read.
    pub path: ReadPath,
    /// Median ticks of one read.
    pub ticks: f64,
    /// The unit of `steps`.
    pub unit: Unit,
    /// What its values said.
    pub steps: Steps,
}

/// The clocks of any Linux machine, and the kernel's pvclock page if there is one.
#[must_use]
pub fn subjects(pvclock: Option<&PvclockPage>) -> Vec<Subject> {
    let mut subjects = vec![Subject {
        clock: "tsc",
        path: ReadPath::Rdtsc,
        unit: Unit::Ticks,
        reads: Box::new(Loop(|| counter::rdtsc().as_ticks())),
    }];
    if let Some(page) = pvclock {
        let clock = page.reader(Ordered::detect(), StableBit::Advertised);
        let reads: Box<dyn Reads> = if clock.read().is_ok() {
            Box::new(Loop(move || {
                clock.read().map_or(0, |reading| reading.time.as_ns())
            }))
        } else {
            // Not stable now: the time is of use on its own CPU only, and the read can still be timed.
            Box::new(Loop(move || {
                clock.observe().map_or(0, |seen| seen.reading.time.as_ns())
            }))
        };
        subjects.push(Subject {
            clock: "pvclock",
            path: ReadPath::Page,
            unit: Unit::Nanos,
            reads,
        });
    }
    for (clock, id) in [
        ("monotonic", ClockId::MONOTONIC),
        ("realtime", ClockId::REALTIME),
        ("monotonic-raw", ClockId::MONOTONIC_RAW),
        ("boottime", ClockId::BOOTTIME),
    ] {
        if id.now().is_none() {
            continue;
        }
        subjects.push(Subject {
            clock,
            path: ReadPath::Vdso,
            unit: Unit::Nanos,
            reads: Box::new(Loop(move || id.now().map_or(0, Nanos::as_ns))),
        });
        subjects.push(Subject {
            clock,
            path: ReadPath::Syscall,
            unit: Unit::Nanos,
            reads: Box::new(Loop(move || {
                id.now_by_system_call().map_or(0, Nanos::as_ns)
            })),
        });
    }
    subjects
}

/// Measures all subjects on a thread that stays on `cpu` (or where it is put, if that is refused).
#[must_use]
pub fn measure(mut subjects: Vec<Subject>, cpu: Option<usize>) -> Vec<Measured> {
    let work = move || {
        if let Some(cpu) = cpu {
            // A refusal makes the figures noisier, not wrong.
            let _ = crate::cpus::pin_to(cpu);
        }
        measure_here(&mut subjects)
    };
    thread::scope(|scope| scope.spawn(work).join().unwrap_or_default())
}

fn measure_here(subjects: &mut [Subject]) -> Vec<Measured> {
    let counts: Vec<u32> = subjects
        .iter_mut()
        .map(|subject| reads_for(BATCH_TICKS, subject.reads.as_mut()))
        .collect();
    let mut batches = vec![Vec::with_capacity(ROUNDS); subjects.len()];
    for _ in 0..ROUNDS {
        for ((subject, count), batches) in subjects.iter_mut().zip(&counts).zip(&mut batches) {
            batches.push(ticks_per_read(subject.reads.as_mut(), *count));
        }
    }
    subjects
        .iter_mut()
        .zip(&batches)
        .map(|(subject, batches)| {
            let ticks = median(batches).unwrap_or(0.0);
            Measured {
                clock: subject.clock,
                path: subject.path,
                ticks,
                unit: subject.unit,
                steps: judge(&collect(subject.reads.as_mut(), ticks)),
            }
        })
        .collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a batch is far below 2^53 ticks"
)]
fn ticks_per_read(reads: &mut dyn Reads, count: u32) -> f64 {
    reads.time(count).as_ticks() as f64 / f64::from(count.max(1))
}

/// Successive values, fewer of a slow clock.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float above 1 below 2^53, rounded down on purpose"
)]
fn collect(reads: &mut dyn Reads, ticks: f64) -> Vec<u64> {
    let count = (COLLECT_TICKS / ticks.max(1.0) as u64).clamp(64, VALUES);
    let mut values = vec![0; usize::try_from(count).unwrap_or(64)];
    reads.collect(&mut values);
    values
}

/// The measurements as evidence, with the counter at `rate`.
#[must_use]
pub fn costs(measured: &[Measured], rate: Hertz) -> Vec<ReadCost> {
    measured
        .iter()
        .map(|one| ReadCost {
            clock: one.clock.to_owned(),
            ns_per_read: one.ticks * ns_per_tick(rate),
            path: one.path,
            cycles: Some(one.ticks),
            resolution_ns: one
                .steps
                .resolution
                .map(|steps| whole_ns(one.unit, steps, rate)),
            stalls: Some(one.steps.stalls),
            regressions: Some(one.steps.regressions),
        })
        .collect()
}

/// A step in whole ns, rounded up: a tick of 0.4 ns is told as 1 ns.
fn whole_ns(unit: Unit, steps: u64, rate: Hertz) -> u64 {
    match unit {
        Unit::Nanos => steps,
        Unit::HundredNanos => steps.saturating_mul(100),
        Unit::Ticks => {
            let ns = (u128::from(steps) * 1_000_000_000 * u128::from(rate.denominator()))
                .div_ceil(u128::from(rate.numerator()));
            u64::try_from(ns).unwrap_or(u64::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_call_costs_more_than_the_counter() {
        let measured = measure(subjects(None), None);
        let ticks = |clock, path| {
            measured
                .iter()
                .find(|one| one.clock == clock && one.path == path)
                .map(|one| one.ticks)
                .unwrap()
        };
        assert!(ticks("monotonic", ReadPath::Syscall) > 2.0 * ticks("tsc", ReadPath::Rdtsc));
        for one in &measured {
            assert!(one.ticks > 0.0, "{one:?}");
            assert!(
                one.clock == "realtime" || one.steps.regressions == 0,
                "{one:?}"
            );
        }
    }

    #[test]
    fn a_tick_is_told_as_a_whole_ns_and_100_ns_as_100() {
        let rate = Hertz::from_hz(2_600_000_000).unwrap();
        assert_eq!(whole_ns(Unit::Ticks, 1, rate), 1);
        assert_eq!(whole_ns(Unit::Ticks, 26, rate), 10);
        assert_eq!(whole_ns(Unit::Ticks, 27, rate), 11);
        assert_eq!(whole_ns(Unit::HundredNanos, 1, rate), 100);
        assert_eq!(whole_ns(Unit::Nanos, 7, rate), 7);
    }
}
