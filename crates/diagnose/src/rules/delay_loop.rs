//! Delay loops that do not fit the TSC, and the tick behind them.

use super::Facts;
use super::facts::{BootFacts, log_line};
use super::watchdog::in_boot;
use crate::code::Code;
use crate::evidence::{ClockEvent, DelayLoopSource};
use crate::finding::Finding;
use crate::forensics::delay_loop::{bogomips_hundredths, wrong_ratio};
use crate::forensics::real;

/// CPUs that were measured against one wrong tick agree this well: 1 %.
const AGREEMENT: f64 = 0.01;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings = by_cpu_lines(facts);
    for boot in &facts.boots {
        if findings.is_empty() {
            findings.extend(
                by_log(boot)
                    .into_iter()
                    .map(|finding| in_boot(finding, boot)),
            );
        }
        findings.extend(by_pm_timer(boot).map(|finding| in_boot(finding, boot)));
    }
    findings
}

fn mean(values: &[f64]) -> f64 {
    let n = real(i128::try_from(values.len()).unwrap_or(1)).max(1.0);
    values.iter().sum::<f64>() / n
}

fn agree(ratios: &[f64]) -> bool {
    let middle = mean(ratios);
    ratios
        .iter()
        .all(|ratio| (ratio - middle).abs() <= AGREEMENT * middle)
}

fn hundredths(value: u64) -> String {
    format!("{}.{:02}", value / 100, value % 100)
}

fn by_cpu_lines(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(cpus) = facts.evidence.cpu_lines.seen() else {
        return Vec::new();
    };
    let measured: Vec<(u32, u64)> = cpus
        .iter()
        .filter_map(|cpu| Some((cpu.processor, cpu.bogomips_hundredths?)))
        .filter(|(_, value)| *value > 0)
        .collect();
    let Some(&(_, first)) = measured
        .iter()
        .find(|(processor, _)| *processor == 0)
        .or(measured.first())
    else {
        return Vec::new();
    };
    // A TSC that the kernel declared; `cpu MHz` is the core's current speed and tells the TSC only inside a guest.
    let declared = facts
        .current_boot()
        .tsc
        .iter()
        .find(|rate| rate.source != "proc/cpuinfo" && !rate.what.contains("BogoMIPS"))
        .or_else(|| {
            facts
                .current_boot()
                .tsc
                .iter()
                .find(|rate| rate.source == "proc/cpuinfo" && facts.is_guest())
        });
    let by_tsc = declared.map(|rate| (bogomips_hundredths(rate.frequency), rate));
    let (right, reason) = match by_tsc {
        Some((right, rate)) => (
            right,
            format!("twice the TSC ({}, {})", rate.frequency, rate.what),
        ),
        None => (first, "CPU 0".to_owned()),
    };
    let wrong: Vec<(u32, u64, f64)> = measured
        .iter()
        .filter_map(|(cpu, seen)| Some((*cpu, *seen, wrong_ratio(*seen, right)?)))
        .collect();
    if wrong.is_empty() {
        return Vec::new();
    }
    let ratios: Vec<f64> = wrong.iter().map(|(.., ratio)| *ratio).collect();
    let ratio = mean(&ratios);
    let list = wrong
        .iter()
        .take(8)
        .map(|(cpu, seen, ratio)| format!("CPU {cpu}: {} ({ratio:.4})", hundredths(*seen)))
        .collect::<Vec<_>>()
        .join(", ");
    let evidence = format!(
        "{list}{}; right by {reason}: {}",
        if wrong.len() > 8 { ", .." } else { "" },
        hundredths(right)
    );
    let one_tick = wrong.len() >= 2 && agree(&ratios);
    let mut findings = vec![
        Finding::new(
            Code::WrongLpj,
            format!("the delay loop of {} of {} CPUs does not fit the TSC", wrong.len(), measured.len()),
        )
        .seen(evidence.clone(), "proc/cpuinfo")
        .because(if one_tick {
            "These CPUs measured their loop against a tick that is wrong by one ratio, see the finding beside this.".to_owned()
        } else if wrong.len() == 1 {
            "This CPU measured its loop by itself. With one CPU it cannot be told whether the tick was wrong or the measurement was disturbed, for example by a neighbour on the host.".to_owned()
        } else {
            "These CPUs measured their loop by themselves and got different answers: the measurement was disturbed, as on a busy host.".to_owned()
        })
        .count("wrong_cpus", i128::try_from(wrong.len()).unwrap_or(i128::MAX))
        .real("ratio", ratio),
    ];
    if one_tick {
        findings.push(
            Finding::new(
                Code::ApicTimerMiscalibrated,
                format!("what is measured against the local timer's tick is off by one ratio, {ratio:.4}"),
            )
            .seen(evidence, "proc/cpuinfo")
            .because(format!(
                "The wrong CPUs agree with each other to 1 %, so the tick that they measured against is off by one fixed ratio: the local timer's frequency was taken from a channel that does not describe it (a host's crystal in CPUID 0x15 for a virtual timer of another rate gives such a ratio, 24/128 = 0.1875 for example). Disturbed measurements would scatter. The ratio seen is {ratio:.4}."
            ))
            .real("ratio", ratio),
        );
    }
    findings
}

/// Delay loops in the log: those taken from the TSC or preset, and those measured.
fn by_log(boot: &BootFacts<'_>) -> Vec<Finding> {
    let declared = boot
        .tsc
        .iter()
        .find(|rate| !rate.what.contains("BogoMIPS"))
        .map(|rate| (bogomips_hundredths(rate.frequency), rate.what.clone()));
    let from_tsc = boot.first(|event| match event {
        ClockEvent::DelayLoop {
            source: DelayLoopSource::TimerFrequency | DelayLoopSource::Preset,
            bogomips_hundredths,
            ..
        } => Some(*bogomips_hundredths),
        _ => None,
    });
    let Some((right, what)) =
        declared.or(from_tsc.map(|(value, _)| (value, "the boot CPU".to_owned())))
    else {
        return Vec::new();
    };
    let measured = boot.all(|event| match event {
        ClockEvent::DelayLoop {
            source: DelayLoopSource::Measured,
            bogomips_hundredths,
            ..
        } => Some(*bogomips_hundredths),
        _ => None,
    });
    let wrong: Vec<(u64, f64, u64)> = measured
        .iter()
        .filter_map(|(seen, line)| Some((*seen, wrong_ratio(*seen, right)?, *line)))
        .collect();
    if let Some((_, _, line)) = wrong.first() {
        let ratios: Vec<f64> = wrong.iter().map(|(_, ratio, _)| *ratio).collect();
        let ratio = mean(&ratios);
        let mut findings = vec![
            Finding::new(
                Code::WrongLpj,
                format!("{} delay loop(s) were measured wrong, {ratio:.4} of what fits the TSC", wrong.len()),
            )
            .seen(
                format!("{} where {} ({what}) is right", hundredths(wrong[0].0), hundredths(right)),
                log_line(*line),
            )
            .because("A delay loop that is measured on a busy host, or against a wrong tick, comes out wrong; delays are then too short or too long.")
            .count("wrong_cpus", i128::try_from(wrong.len()).unwrap_or(i128::MAX))
            .real("ratio", ratio),
        ];
        if wrong.len() >= 2 && agree(&ratios) {
            findings.push(
                Finding::new(
                    Code::ApicTimerMiscalibrated,
                    format!("what is measured against the tick is off by one ratio, {ratio:.4}"),
                )
                .seen(format!("{} measurements agree to 1 %", wrong.len()), log_line(*line))
                .because("Disturbed measurements would scatter; these agree, so the tick itself is off by one ratio.")
                .real("ratio", ratio),
            );
        }
        return findings;
    }
    // The sum over all CPUs tells that some are wrong, not how many.
    let total = boot.first(|event| match event {
        ClockEvent::TotalBogomips {
            cpus,
            bogomips_hundredths,
        } => Some((*cpus, *bogomips_hundredths)),
        _ => None,
    });
    let Some(((cpus, sum), line)) = total else {
        return Vec::new();
    };
    let Some(mean) = sum.checked_div(cpus) else {
        return Vec::new();
    };
    if wrong_ratio(mean, right).is_none() {
        return Vec::new();
    }
    vec![
        Finding::new(
            Code::WrongLpj,
            format!("the BogoMIPS of {cpus} CPUs do not add up to what the TSC gives"),
        )
        .seen(
            format!(
                "{} over {cpus} CPUs is {} each, where {} ({what}) is right",
                hundredths(sum),
                hundredths(mean),
                hundredths(right)
            ),
            log_line(line),
        )
        .because("At least one CPU measured its delay loop wrong. The log gives the sum only, so not which and how far."),
    ]
}

/// The kernel compared its APIC calibration with the PM timer.
fn by_pm_timer(boot: &BootFacts<'_>) -> Option<Finding> {
    let (measured_ms, line) = boot.first(|event| match event {
        ClockEvent::ApicInconsistent { measured_ms } => Some(*measured_ms),
        _ => None,
    })?;
    let ratio = real(i128::from(measured_ms)) / 100.0;
    Some(
        Finding::new(
            Code::ApicTimerMiscalibrated,
            format!("100 ms of ticks took {measured_ms} ms by the PM timer"),
        )
        .seen(
            format!("APIC calibration not consistent with PM-Timer: {measured_ms} ms instead of 100 ms"),
            log_line(line),
        )
        .because("The local timer was calibrated over ticks that were not 10 ms long, or the vCPU was not run in between. The kernel corrects the value by the PM timer if that looks sane.")
        .real("ratio", ratio),
    )
}
