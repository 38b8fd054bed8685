//! The plain observation that the kernel withdrew the TSC. Why stands in the cause codes beside it.

use super::Facts;
use super::facts::{BootFacts, log_line};
use super::watchdog::check::{Shown, assess};
use super::watchdog::in_boot;
use crate::code::Code;
use crate::evidence::{ClockEvent, UnstableReason};
use crate::finding::Finding;
use crate::forensics::sched_clock;
use crate::forensics::watchdog::to_seconds;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    facts
        .boots
        .iter()
        .filter_map(|boot| observed(boot).map(|finding| in_boot(finding, boot)))
        .collect()
}

fn observed(boot: &BootFacts<'_>) -> Option<Finding> {
    let said = boot.all(withdrawal);
    let (first, line) = said.first()?;
    let mut finding = Finding::new(
        Code::TscMarkedUnstable,
        "the kernel withdrew the TSC as a clock source",
    )
    .seen(first.clone(), log_line(*line));
    for (text, line) in said.iter().skip(1).take(3) {
        finding = finding.seen(text.clone(), log_line(*line));
    }
    if boot
        .first(|event| matches!(event, ClockEvent::BrokenBiosRemark).then_some(()))
        .is_some()
    {
        finding = finding.because(
            "This is what the kernel concluded, not a cause; in a virtual machine its remark about a broken BIOS is almost never right.",
        );
    } else {
        finding = finding.because("This is what the kernel concluded, not a cause.");
    }
    if let Some(check) = boot.checks.iter().find(|check| check.accuses_tsc()) {
        let done = assess(check, boot);
        finding = finding.real_if("interval_s", done.interval_ns.map(to_seconds));
        if !matches!(done.shown, Shown::Reset(_)) {
            finding = finding
                .real_if("implied_hz", done.implied.map(|rate| rate.hz()))
                .real_if("counter_s", done.counter_ns.map(to_seconds));
        }
        if matches!(done.shown, Shown::Unexplained | Shown::WrongRate { .. })
            && let Some(interval) = done.interval_ns
        {
            finding = finding.seen(
                format!(
                    "{:.6} s by {}, {}{}: no wrap, reset or lost tick explains it",
                    to_seconds(interval),
                    check.reference_name().unwrap_or("the reference"),
                    done.counter_ns.map_or_else(
                        || "no declared rate of the TSC".to_owned(),
                        |ns| format!("{:.6} s by the TSC", to_seconds(ns))
                    ),
                    done.implied
                        .map_or(String::new(), |rate| format!(" (implied {rate})")),
                ),
                "computed",
            );
        }
    }
    let unstable = boot.first(|event| match event {
        ClockEvent::SchedClockUnstable(line) => Some(*line),
        _ => None,
    });
    if let Some((unstable, line)) = unstable {
        let stable = boot.first(|event| match event {
            ClockEvent::SchedClockStable(line) => Some(*line),
            _ => None,
        });
        if let Some(ppm) = sched_clock::drift_ppm(unstable, stable.map(|(line, _)| line)) {
            finding = finding
                .seen(
                    format!(
                        "the scheduler clock parted from the ticks by {:.6} s in {:.1} s, {ppm:.3} ppm",
                        to_signed_seconds(unstable.ticks_offset_ns)
                            - stable.map_or(0.0, |(line, _)| to_signed_seconds(
                                line.ticks_offset_ns
                            )),
                        to_signed_seconds(unstable.ticks_ns),
                    ),
                    log_line(line),
                )
                .real("sched_clock_drift_ppm", ppm);
        }
    }
    Some(finding)
}

fn to_signed_seconds(ns: i64) -> f64 {
    crate::forensics::seconds(i128::from(ns))
}

/// What a line says, if it withdraws the TSC after a check or a failed calibration.
fn withdrawal(event: &ClockEvent) -> Option<String> {
    let tsc = |name: &str| matches!(name, "tsc" | "tsc-early");
    Some(match event {
        ClockEvent::WatchdogVerdict { name } if tsc(name) => {
            format!("the watchdog marked {name} as unstable: the skew is too large")
        }
        ClockEvent::FrequencySkewVerdict { name } if tsc(name) => {
            format!("the watchdog marked {name} as unstable: frequency skew")
        }
        ClockEvent::CpuSkewVerdict { name } if tsc(name) => {
            format!("the watchdog marked {name} as unstable: skew between CPUs")
        }
        ClockEvent::OldVerdict { name, delta_ns } if tsc(name) => {
            format!("{name} unstable, {delta_ns} ns against the reference")
        }
        ClockEvent::Warp { cycles } => {
            format!("the boot test measured a warp of {cycles} cycles and turned the TSC off")
        }
        ClockEvent::TscUnstable(reason) => match reason {
            // Rules of the kernel and wishes of the command line are no observation.
            UnstableReason::RunningOnHyperV
            | UnstableReason::CommandLine
            | UnstableReason::CpufreqChanges
            | UnstableReason::HaltsInIdle => return None,
            UnstableReason::ClocksourceWatchdog => "reason given: clocksource watchdog".to_owned(),
            UnstableReason::SyncCheckFailed => {
                "reason given: check_tsc_sync_source failed".to_owned()
            }
            UnstableReason::NoFrequency => "reason given: could not calculate TSC khz".to_owned(),
            UnstableReason::Unsynchronised => "reason given: TSCs unsynchronized".to_owned(),
            UnstableReason::Other(text) => format!("reason given: {text}"),
        },
        ClockEvent::BrokenBiosRemark => "TSC found unstable after boot".to_owned(),
        _ => return None,
    })
}
