//! A counter that stands at a new base: a step, not a drift.

use super::Facts;
use super::facts::log_line;
use super::watchdog::check::{Shown, assess};
use super::watchdog::in_boot;
use crate::code::Code;
use crate::evidence::Column;
use crate::finding::Finding;
use crate::forensics::watchdog::{reset, to_seconds};
use crate::forensics::{Frequency, quantised, seconds};

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings = by_watchdog(facts);
    findings.extend(in_samples(facts));
    findings
}

fn by_watchdog(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for boot in &facts.boots {
        for check in &boot.checks {
            let done = assess(check, boot);
            let (Shown::Reset(found), Some((block, line))) = (&done.shown, check.counter) else {
                continue;
            };
            let name = &block.name;
            let mut finding = Finding::new(
                Code::CounterReset,
                match found.since_ns {
                    Some(ns) => format!(
                        "{name} started again from zero about {:.2} s before the check",
                        to_seconds(ns)
                    ),
                    None => format!("{name} was set to a new base"),
                },
            )
            .seen(
                format!(
                    "{name}: {:#x} -> {:#x} ({} as a signed number)",
                    block.last, block.now, found.now_signed
                ),
                log_line(line),
            );
            if let (Some((reference, line)), Some(interval)) = (check.reference, done.interval_ns) {
                finding = finding
                    .seen(
                        format!(
                            "{} went forward by {:.6} s in the same time",
                            reference.name,
                            to_seconds(interval)
                        ),
                        log_line(line),
                    )
                    .real("interval_s", to_seconds(interval));
            }
            let declared = boot.tsc.first().map(|rate| rate.frequency);
            if let Some(rate) = done.over_uptime {
                finding = finding
                    .seen(
                        format!("its last good value over the uptime is {rate}, right for a counter that started with the machine"),
                        "computed",
                    )
                    .real("estimated_hz", rate.hz());
            } else if let Some(rate) = declared {
                finding = finding.seen(format!("declared rate {rate}"), "kernel log");
            }
            finding = finding
                .because("Somebody wrote the counter: a host that slept or was restored and set the TSC of the guest anew, a migration without TSC offset, or firmware at a resume. A drift would not bring it back to zero.")
                .real_if("since_reset_s", found.since_ns.map(to_seconds))
                .count("cs_now_signed", i128::from(found.now_signed));
            findings.push(in_boot(finding, boot));
        }
    }
    findings
}

/// A counter in the samples that falls to near zero, or below, while other clocks go on.
fn in_samples(facts: &Facts<'_>) -> Option<Finding> {
    let samples = facts.evidence.samples.seen()?;
    let counters = [
        (Column::Tsc, facts.tsc().map(|rate| rate.frequency)),
        (Column::CounterNs, Frequency::from_hz(1_000_000_000)),
        (Column::PageNs, Frequency::from_hz(1_000_000_000)),
    ];
    for (column, declared) in counters {
        let Some(values) = samples.columns.get(&column) else {
            continue;
        };
        for row in 1..values.len() {
            let (Some(last), Some(now)) = (values[row - 1], values[row]) else {
                continue;
            };
            if now >= last {
                continue;
            }
            let passed = passed_ns(samples, column, row);
            if column != Column::Tsc && quantised::truncation(last, now, passed).is_some() {
                continue;
            }
            let (Ok(last_raw), Ok(now_raw)) = (raw(last), raw(now)) else {
                continue;
            };
            let measured = declared.or_else(|| rate_before(samples, column, row));
            let interval = passed.and_then(|ns| u128::try_from(ns).ok());
            let Some(found) = reset(last_raw, now_raw, interval, measured) else {
                continue;
            };
            let mut finding = Finding::new(
                Code::CounterReset,
                format!("{} went back to a new base", column.name()),
            )
            .seen(
                format!("{} -> {}", last, now),
                format!("samples.csv row {}", row + 1),
            )
            .because("The other clocks of the same rows went on, so the counter was set anew: by a restore, a migration without offset, or a resume from hibernation.")
            .real_if("interval_s", passed.map(seconds))
            .count("cs_now_signed", i128::from(found.now_signed));
            finding = finding
                .real_if("since_reset_s", found.since_ns.map(to_seconds))
                .real_if("estimated_hz", uptime_rate(samples, column, row));
            return Some(finding);
        }
    }
    None
}

/// A cell as the 64 bits of the counter.
fn raw(value: i128) -> Result<u64, core::num::TryFromIntError> {
    if value < 0 {
        i64::try_from(value).map(i64::cast_unsigned)
    } else {
        u64::try_from(value)
    }
}

use crate::evidence::Samples;

/// What another clock saw pass between a row and the one before it, in ns.
pub(super) fn passed_ns(samples: &Samples, not: Column, row: usize) -> Option<i128> {
    let clocks = [
        Column::ReferenceNs,
        Column::HostRealtimeNs,
        Column::MonotonicRawNs,
        Column::MonotonicNs,
        Column::BoottimeNs,
        Column::RealtimeNs,
        Column::HpetNs,
        Column::CounterNs,
        Column::PageNs,
    ];
    clocks
        .into_iter()
        .filter(|column| *column != not)
        .find_map(|column| {
            let values = samples.columns.get(&column)?;
            let passed = values.get(row).copied()?? - values.get(row - 1).copied()??;
            (passed >= 0).then_some(passed)
        })
}

/// The counter's rate over the rows before, against another clock.
fn rate_before(samples: &Samples, column: Column, row: usize) -> Option<Frequency> {
    let values = samples.columns.get(&column)?;
    let mut ticks: i128 = 0;
    let mut ns: i128 = 0;
    for i in 1..row {
        ticks += values.get(i).copied()?? - values.get(i - 1).copied()??;
        ns += passed_ns(samples, column, i)?;
    }
    Frequency::from_ticks(u64::try_from(ticks).ok()?, u128::try_from(ns).ok()?)
}

/// The last good value over the uptime at that moment.
fn uptime_rate(samples: &Samples, column: Column, row: usize) -> Option<f64> {
    if column != Column::Tsc {
        return None;
    }
    let value = samples.columns.get(&column)?.get(row - 1).copied()??;
    let uptime = [
        Column::BoottimeNs,
        Column::MonotonicNs,
        Column::MonotonicRawNs,
    ]
    .into_iter()
    .find_map(|clock| samples.columns.get(&clock)?.get(row - 1).copied()?)?;
    Frequency::from_ticks(u64::try_from(value).ok()?, u128::try_from(uptime).ok()?)
        .map(|rate| rate.hz())
}
