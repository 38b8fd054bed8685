//! Verdicts of the kernel's clock source watchdog: what accuses the counter, and what clears it.

pub(super) mod check;

use super::Facts;
use super::facts::{BootFacts, Declared, log_line};
use crate::code::Code;
use crate::evidence::ClockEvent;
use crate::finding::Finding;
use crate::forensics::watchdog::{Because, LATE_NS, SAME_RATE_PPM, to_seconds};
use crate::forensics::{registration, seconds};
use check::{Assessment, Check, Shown, assess};

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for boot in &facts.boots {
        for check in &boot.checks {
            let assessment = assess(check, boot);
            let found = explain(check, &assessment, boot)
                .or_else(|| wrapped_by_delta(check, boot))
                .map(|finding| in_boot(finding, boot));
            findings.extend(found);
        }
        findings.extend(late_and_skipped(boot).map(|finding| in_boot(finding, boot)));
        findings.extend(read_back(boot).map(|finding| in_boot(finding, boot)));
    }
    findings
}

pub(super) fn in_boot(mut finding: Finding, boot: &BootFacts<'_>) -> Finding {
    finding.boot = boot.number;
    finding
}

fn numbers(finding: Finding, check: &Check<'_>, reference: Option<&Declared>) -> Finding {
    let mut finding = finding;
    if let Some((block, line)) = check.reference {
        finding = finding.seen(
            format!(
                "{}: {:#x} -> {:#x}, {} ticks (mask {:#x}){}",
                block.name,
                block.last,
                block.now,
                block.now.wrapping_sub(block.last) & block.mask,
                block.mask,
                reference.map_or(String::new(), |rate| format!(
                    " at {:.6} MHz, {}",
                    rate.frequency.mhz(),
                    rate.what
                )),
            ),
            log_line(line),
        );
    }
    if let Some((block, line)) = check.counter {
        let moved = check.ticks().map_or_else(
            || "it went back".to_owned(),
            |ticks| format!("{ticks} ticks"),
        );
        finding = finding.seen(
            format!(
                "{}: {:#x} -> {:#x}, {moved}",
                block.name, block.last, block.now
            ),
            log_line(line),
        );
    }
    if let (Some((name, reference)), Some(counter)) = (check.reference_ns, check.counter_ns) {
        finding = finding.seen(
            format!("interval {reference} ns by {name}, {counter} ns by the accused"),
            log_line(check.line),
        );
    }
    finding
}

fn explain(check: &Check<'_>, done: &Assessment, boot: &BootFacts<'_>) -> Option<Finding> {
    let accused = check.accused.unwrap_or("a clock source");
    let reference = check.reference_name().unwrap_or("the reference");
    match &done.shown {
        Shown::Wrapped(found) => {
            let why = match found.because {
                Because::DeclaredRate(rate) => format!(
                    "with {} wrap(s) {accused} runs at {}, its declared {rate}",
                    found.wraps, found.implied
                ),
                Because::RateOverUptime(rate) => format!(
                    "with {} wrap(s) {accused} runs at {}, and since the machine started it ran at {rate}; that rests on one assumption, that the counter started with the machine",
                    found.wraps, found.implied
                ),
                Because::OnThePeriod { off_ns } => format!(
                    "without a wrap no such counter exists; with {} the interval is {:.6} s, which is a multiple of the check's 0.5 s to within {} us. The log names no rate to compare with",
                    found.wraps,
                    to_seconds(found.interval_ns),
                    off_ns / 1000
                ),
            };
            let finding = Finding::new(
                Code::WatchdogWrapped,
                format!(
                    "{reference} wrapped {} time(s) between two checks: {accused} is innocent",
                    found.wraps
                ),
            );
            Some(
                numbers(finding, check, done.reference.as_ref())
                    .seen(
                        format!(
                            "{} wrap(s): {:.6} s, {:.3} MHz; without: {}",
                            found.wraps,
                            to_seconds(found.interval_ns),
                            found.implied.mhz(),
                            found.without.map_or("no time at all".to_owned(), |rate| {
                                format!("{:.3} MHz", rate.mhz())
                            })
                        ),
                        "computed",
                    )
                    .because(format!(
                        "The guest did not run its checks for {:.3} s, longer than {reference} counts before it starts again, so the kernel saw too short an interval and blamed {accused}: {why}.",
                        to_seconds(found.interval_ns)
                    ))
                    .count("wraps", i128::from(found.wraps))
                    .real("interval_s", to_seconds(found.interval_ns))
                    .real("implied_hz", found.implied.hz())
                    .real_if("implied_hz_without_wrap", found.without.map(|rate| rate.hz())),
            )
        }
        Shown::Late { agrees_with } => {
            let interval = done.interval_ns?;
            let implied = done.implied;
            let finding = Finding::new(
                Code::WatchdogIntervalStretched,
                format!(
                    "a check of {accused} came {:.3} s after the one before instead of 0.5 s, and its rate is right",
                    to_seconds(interval)
                ),
            );
            Some(
                numbers(finding, check, done.reference.as_ref())
                    .seen(
                        format!(
                            "{:.6} s{}; {} is {:.3} MHz",
                            to_seconds(interval),
                            implied.map_or(String::new(), |rate| format!(
                                ", so {:.3} MHz",
                                rate.mhz()
                            )),
                            agrees_with.what,
                            agrees_with.frequency.mhz()
                        ),
                        agrees_with.source.clone(),
                    )
                    .because(format!(
                        "The vCPU that runs the check did not get to it in time. The kernel allows a fixed number of ns for a check that should span 0.5 s; over {:.1} s a rate that is right to a few hundred ppm exceeds it. No wrap is needed to explain the numbers.",
                        to_seconds(interval)
                    ))
                    .real("interval_s", to_seconds(interval))
                    .real_if("implied_hz", implied.map(|rate| rate.hz())),
            )
        }
        Shown::LostTicks { lost_ns } => {
            let interval = done.interval_ns?;
            let counter = done.counter_ns?;
            let rate = boot.tsc.first();
            let finding = Finding::new(
                Code::ReferenceLostTicks,
                format!(
                    "{reference} missed {:.3} s of ticks, so {accused} looked fast",
                    to_seconds(*lost_ns)
                ),
            );
            let mut finding = numbers(finding, check, done.reference.as_ref());
            if let Some(rate) = rate {
                finding = finding.seen(
                    format!(
                        "{accused} at {:.3} MHz, {}",
                        rate.frequency.mhz(),
                        rate.what
                    ),
                    rate.source.clone(),
                );
            }
            Some(
                finding
                    .seen(
                        format!(
                            "{:.6} s by {reference}, {:.6} s by {accused}",
                            to_seconds(interval),
                            to_seconds(counter)
                        ),
                        "computed",
                    )
                    .because(format!(
                        "{reference} counts timer interrupts. Where the vCPU is not run for a while, ticks merge or are lost and the count falls behind; {accused} counted on."
                    ))
                    .real("reference_s", to_seconds(interval))
                    .real("counter_s", to_seconds(counter))
                    .real("lost_s", to_seconds(*lost_ns)),
            )
        }
        // Told where all resets are told.
        Shown::Reset(_) | Shown::Unexplained | Shown::WrongRate { .. } => None,
    }
}

/// The oldest form prints only the difference: a whole number of wraps of the PM timer is one.
fn wrapped_by_delta(check: &Check<'_>, boot: &BootFacts<'_>) -> Option<Finding> {
    let delta = u128::try_from(check.delta_ns?).ok()?;
    if check.counter.is_some() || !check.accuses_tsc() {
        return None;
    }
    let after = boot.events.iter().find_map(|logged| match &logged.event {
        ClockEvent::Switched { name } if logged.line > check.line => Some(name.as_str()),
        _ => None,
    });
    if after != Some("acpi_pm") {
        return None;
    }
    let pm_timer = registration::fixed_frequency("acpi_pm")?;
    let wrap_ns = pm_timer.ticks_to_ns(1 << 24);
    let wraps = (delta + wrap_ns / 2) / wrap_ns;
    let off = delta.abs_diff(wraps * wrap_ns);
    // One check in a hundred would come as close by chance.
    if !(1..=64).contains(&wraps) || off > wrap_ns / 200 {
        return None;
    }
    Some(
        Finding::new(
            Code::WatchdogWrapped,
            format!("the difference of {delta} ns is {wraps} wrap(s) of the PM timer"),
        )
        .seen(
            format!("delta = {delta} ns; {wraps} x {wrap_ns} ns is {off} ns away"),
            log_line(check.line),
        )
        .because("The line does not name the reference. That it was the PM timer, to which the kernel switched afterwards, is an assumption; with it the difference is a whole number of wraps and the TSC is innocent.")
        .count("wraps", i128::try_from(wraps).unwrap_or(i128::MAX)),
    )
}

/// Late checks that a newer kernel skipped instead of judging.
fn late_and_skipped(boot: &BootFacts<'_>) -> Option<Finding> {
    let late: Vec<((u128, u128), u64)> = boot.all(|event| match event {
        ClockEvent::LongInterval {
            accused_ns,
            reference_ns,
        } => {
            let accused = u128::try_from(*accused_ns).ok()?;
            let reference = u128::try_from(*reference_ns).ok()?;
            let same =
                accused.abs_diff(reference) * 1_000_000 <= reference * u128::from(SAME_RATE_PPM);
            (same && reference >= LATE_NS).then_some((accused, reference))
        }
        _ => None,
    });
    let ((accused, reference), line) = *late.iter().max_by_key(|((_, reference), _)| *reference)?;
    let implied = boot
        .tsc
        .first()
        .and_then(|rate| {
            crate::forensics::Frequency::from_microhertz(
                (u128::from(rate.frequency.microhertz()) * accused).checked_div(reference)?,
            )
        })
        .map(|rate| rate.hz());
    Some(
        Finding::new(
            Code::WatchdogIntervalStretched,
            format!(
                "{} check(s) of the clock source came late, the latest after {:.3} s, and the rate is right",
                late.len(),
                to_seconds(reference)
            ),
        )
        .seen(
            format!("{accused} ns by the counter, {reference} ns by the reference"),
            log_line(line),
        )
        .because("The vCPU that runs the check did not get to it in time. This kernel skips such a check, so no clock was accused.")
        .real("interval_s", to_seconds(reference))
        .real_if("implied_hz", implied),
    )
}

/// Checks that were skipped because the reference took too long to read.
fn read_back(boot: &BootFacts<'_>) -> Option<Finding> {
    let mut skipped: u64 = 0;
    let mut verdicts = 0;
    let mut reference_ns: Option<u64> = None;
    let mut between_ns: Option<u64> = None;
    let mut first = None;
    for logged in &boot.events {
        match &logged.event {
            ClockEvent::ReadBackReference { delay_ns } => {
                reference_ns = reference_ns.max(Some(*delay_ns));
            }
            ClockEvent::ReadBackSkipped { delay_ns } => {
                skipped += 1;
                between_ns = between_ns.max(Some(*delay_ns));
            }
            ClockEvent::ReadTimedOut { delay_ns } => {
                skipped += 1;
                between_ns = between_ns.max(*delay_ns);
            }
            ClockEvent::ReadTimeoutsSuppressed { count } => {
                skipped = skipped.saturating_add(*count);
            }
            ClockEvent::ReadBackVerdict {
                delay_ns,
                reference_ns: alone,
            } => {
                verdicts += 1;
                between_ns = between_ns.max(Some(*delay_ns));
                reference_ns = reference_ns.max(*alone);
            }
            _ => continue,
        }
        first = first.or(Some(logged.line));
    }
    if skipped + verdicts == 0 {
        return None;
    }
    let line = first?;
    let count = |ns: Option<u64>| ns.map(|ns| format!("{:.1} us", seconds(i128::from(ns)) * 1e6));
    let mut finding = Finding::new(
        Code::WatchdogReadbackNoise,
        format!("reading the watchdog's reference was too slow {} time(s)", skipped + verdicts),
    )
    .seen(
        format!(
            "{skipped} check(s) skipped{}; longest read of the reference alone {}, with the counter in between {}",
            if verdicts > 0 { format!(", {verdicts} ended in a verdict for that reason alone") } else { String::new() },
            count(reference_ns).unwrap_or_else(|| "not printed".to_owned()),
            count(between_ns).unwrap_or_else(|| "not printed".to_owned()),
        ),
        format!("{} and after", log_line(line)),
    )
    .because("Each read of the reference is a VM exit, and the vCPU can be preempted in the middle of it. The delay is that of the reference; it says nothing about the TSC.")
    .count("skipped", i128::from(skipped));
    if let Some(ns) = reference_ns {
        finding = finding.count("max_wd_wd_ns", i128::from(ns));
    }
    if let Some(ns) = between_ns {
        finding = finding.count("max_wd_cs_wd_ns", i128::from(ns));
    }
    Some(finding)
}
