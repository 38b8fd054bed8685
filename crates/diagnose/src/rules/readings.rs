//! Single readings that cannot be, and libraries that part from the system clock.

use super::Facts;
use super::rates::compare;
use super::reset::passed_ns;
use crate::code::Code;
use crate::evidence::{Column, Samples};
use crate::finding::Finding;
use crate::forensics::quantised::{Truncation, truncation};
use crate::forensics::seconds;

/// A drift below this is within what a clock source itself does, in ppm.
const LEAST_DRIFT_PPM: f64 = 1.0;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(samples) = facts.evidence.samples.seen() else {
        return Vec::new();
    };
    truncated(samples)
        .into_iter()
        .chain(library_drift(samples))
        .collect()
}

fn truncated(samples: &Samples) -> Option<Finding> {
    let clocks = [
        Column::MonotonicNs,
        Column::MonotonicRawNs,
        Column::BoottimeNs,
        Column::CounterNs,
        Column::PageNs,
        Column::LibraryNs,
        Column::RealtimeNs,
    ];
    let mut best: Option<(Column, usize, Truncation)> = None;
    for clock in clocks {
        let Some(values) = samples.columns.get(&clock) else {
            continue;
        };
        for row in 1..values.len() {
            let (Some(before), Some(after)) = (values[row - 1], values[row]) else {
                continue;
            };
            // A wall clock may be set to anything; where a monotonic clock went on, that is what happened.
            let passed = passed_ns(samples, clock, row);
            if clock == Column::RealtimeNs && passed.is_some() {
                continue;
            }
            if let Some(found) = truncation(before, after, passed)
                && best
                    .as_ref()
                    .is_none_or(|(.., other)| found.jump_ns < other.jump_ns)
            {
                best = Some((clock, row, found));
            }
        }
    }
    let (clock, row, found) = best?;
    Some(
        Finding::new(
            Code::TruncatedNanoseconds,
            format!(
                "{} jumps back by {:.6} s: {} times 2^32 ns, less the time that passed",
                clock.name(),
                seconds(-found.jump_ns),
                found.multiple
            ),
        )
        .seen(
            format!(
                "{} ns; {} x 4294967296 ns is {} ns more",
                found.jump_ns, found.multiple, found.residual_ns
            ),
            format!("samples.csv row {}", row + 1),
        )
        .because("The upper half of a 64-bit time was lost: a product kept in 64 bits where 96 are needed, a 32-bit counter of ns, or halves read while they changed. A step of the clock would hit a multiple of 2^32 ns to within 10 ms once in 430 times.")
        .count("jump_ns", found.jump_ns)
        .count("multiple", found.multiple)
        .count("residual_ns", found.residual_ns),
    )
}

fn library_drift(samples: &Samples) -> Option<Finding> {
    let library = samples.columns.get(&Column::LibraryNs)?;
    let mut systems: Vec<(i128, Column)> = [
        Column::RealtimeNs,
        Column::MonotonicNs,
        Column::BoottimeNs,
        Column::MonotonicRawNs,
        Column::ReferenceNs,
        Column::HostRealtimeNs,
    ]
    .into_iter()
    .filter_map(|system| {
        let values = samples.columns.get(&system)?;
        let offset = library
            .iter()
            .zip(values)
            .find_map(|(l, s)| Some((*l)? - (*s)?))?;
        Some((offset.abs(), system))
    })
    .collect();
    // The clock with the nearest epoch is the one that the library stands for.
    systems.sort();
    for (_, system) in systems {
        let Some(comparison) = compare(samples, system, Column::LibraryNs, None, 1e6) else {
            continue;
        };
        let rate = comparison.rate;
        let (xs, ys) = super::rates::paired(samples, system, Column::LibraryNs)?;
        let first = ys.first()? - xs.first()?;
        let last = ys.last()? - xs.last()?;
        let parted = crate::forensics::real(last - first).abs();
        if !comparison.is_straight()
            || rate.ppm.abs() < LEAST_DRIFT_PPM
            || rate.ppm.abs() < 3.0 * rate.error_ppm
            || parted < 4.0 * comparison.noise_ns
        {
            continue;
        }
        return Some(
            Finding::new(
                Code::LibraryCalibrationDrift,
                format!("the library's clock parts from {} at {:+.3} ppm", system.name(), rate.ppm),
            )
            .seen(
                format!(
                    "library minus {}: {:.6} s in the first row, {:.6} s in the last, a straight line to {:.3} ms",
                    system.name(),
                    seconds(first),
                    seconds(last),
                    comparison.noise_ns / 1e6
                ),
                "samples.csv",
            )
            .because("The library measured the counter's rate once, over a short span, and counts on at that rate; the system clock is corrected and the library is not. A straight line is an error of the rate: a step or a pause would leave a corner.")
            .real("drift_ppm", rate.ppm)
            .real("first_offset_s", seconds(first))
            .real("last_offset_s", seconds(last)),
        );
    }
    None
}
