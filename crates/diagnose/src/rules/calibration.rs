//! The kernel found no reference at all for the TSC's frequency.

use super::Facts;
use super::facts::{BootFacts, log_line};
use super::watchdog::in_boot;
use crate::code::Code;
use crate::evidence::{Calibration, ClockEvent, DelayLoopSource, Outcome, UnstableReason};
use crate::finding::Finding;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    facts
        .boots
        .iter()
        .filter_map(|boot| failed(boot).map(|finding| in_boot(finding, boot)))
        .collect()
}

fn failed(boot: &BootFacts<'_>) -> Option<Finding> {
    let failures = boot.all(|event| match event {
        ClockEvent::Calibrated {
            method,
            outcome: Outcome::Failed,
        } => Some(
            match method {
                Calibration::FastPit => "the fast calibration against the PIT failed",
                Calibration::Pit => "no calibration against the PIT",
                Calibration::HpetOrPmTimer => "the calibration against HPET or PM timer failed",
                Calibration::NothingLeft => "no HPET and no PM timer to calibrate against",
            }
            .to_owned(),
        ),
        ClockEvent::TscUnstable(UnstableReason::NoFrequency) => {
            Some("the kernel could not calculate the TSC's frequency".to_owned())
        }
        _ => None,
    });
    let gave_up = boot
        .first(|event| {
            matches!(event, ClockEvent::TscUnstable(UnstableReason::NoFrequency)).then_some(())
        })
        .is_some();
    // A method that fails before another succeeds does not count, wherever the success shows.
    let succeeded = boot.events.iter().any(|logged| match &logged.event {
        ClockEvent::Calibrated {
            outcome: Outcome::Worked,
            ..
        } => true,
        ClockEvent::DetectedTsc { khz }
        | ClockEvent::DetectedProcessor { khz }
        | ClockEvent::Refined { khz } => *khz > 0,
        ClockEvent::Registered { name, .. } => name == "tsc" || name == "tsc-early",
        ClockEvent::Switched { name } => name == "tsc" || name == "tsc-early",
        _ => false,
    });
    let nothing_left = boot
        .first(|event| {
            matches!(
                event,
                ClockEvent::Calibrated {
                    method: Calibration::NothingLeft | Calibration::HpetOrPmTimer,
                    outcome: Outcome::Failed
                }
            )
            .then_some(())
        })
        .is_some();
    // With a frequency the boot CPU takes its loop from it; a loop that was measured shows that there was none.
    let loop_measured = boot
        .first(|event| {
            matches!(
                event,
                ClockEvent::DelayLoop {
                    source: DelayLoopSource::Measured,
                    ..
                }
            )
            .then_some(())
        })
        .is_some();
    if failures.is_empty() || (succeeded && !gave_up) || !(gave_up || nothing_left || loop_measured)
    {
        return None;
    }
    let mut finding = Finding::new(
        Code::CalibrationFailed,
        "the kernel got the TSC's frequency from no reference at all",
    );
    for (text, line) in &failures {
        finding = finding.seen(text.clone(), log_line(*line));
    }
    finding = finding.because("The machine offers no PIT, HPET or PM timer that works, and the hypervisor tells no frequency (CPUID 0x15 or 0x40000010, a paravirtual clock, or the Hyper-V frequency register).");
    let loops = boot.first(|event| match event {
        ClockEvent::DelayLoop { lpj: Some(lpj), .. } => Some(*lpj),
        _ => None,
    });
    if let Some((lpj, line)) = loops {
        finding = finding
            .seen(
                format!("the delay loop was measured instead: {lpj} loops a tick"),
                log_line(line),
            )
            .count("lpj", i128::from(lpj));
    }
    Some(finding)
}
