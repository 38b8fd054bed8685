//! What the TSC code, the delay loop and the scheduler clock print.

use super::fields::{
    after, has, leading_hundredths, leading_number, leading_signed, leading_thousandths, number,
    signed,
};
use crate::evidence::{
    Calibration, ClockEvent, DelayLoopSource, Outcome, SchedClockLine, UnstableReason,
};

fn unstable_reason(text: &str) -> UnstableReason {
    let text = text.trim();
    match text {
        "clocksource watchdog" => UnstableReason::ClocksourceWatchdog,
        "check_tsc_sync_source failed" => UnstableReason::SyncCheckFailed,
        "running on Hyper-V" => UnstableReason::RunningOnHyperV,
        "could not calculate TSC khz" => UnstableReason::NoFrequency,
        "TSCs unsynchronized" => UnstableReason::Unsynchronised,
        "cpufreq changes" => UnstableReason::CpufreqChanges,
        "boot parameter" | "tsc=unstable" | "boot parameters" => UnstableReason::CommandLine,
        _ if has(text, "halts in") || has(text, "deep idle") => UnstableReason::HaltsInIdle,
        _ => UnstableReason::Other(text.chars().filter(|c| !c.is_control()).take(64).collect()),
    }
}

pub(super) fn tsc(line: &str) -> Option<ClockEvent> {
    // The common lines first, by what stands behind the prefix.
    if let Some((_, text)) = line.split_once("tsc: ") {
        if let Some(rest) = text.strip_prefix("Marking TSC unstable due to ") {
            return Some(ClockEvent::TscUnstable(unstable_reason(rest)));
        }
    } else if has(line, "TSC found unstable after boot") {
        return Some(ClockEvent::BrokenBiosRemark);
    }
    if let Some(rest) = after(line, "Marking TSC unstable due to") {
        return Some(ClockEvent::TscUnstable(unstable_reason(rest)));
    }
    if has(line, "TSC found unstable after boot") {
        return Some(ClockEvent::BrokenBiosRemark);
    }
    if let Some(cycles) = number(line, "Measured ")
        && has(line, "TSC warp between CPUs")
    {
        return Some(ClockEvent::Warp { cycles });
    }
    if has(line, "TSC warped randomly between CPUs") {
        return Some(ClockEvent::RandomWarp);
    }
    if let Some(rest) = after(line, "TSC ADJUST compensate: CPU") {
        let (cpu, rest) = leading_number(rest)?;
        let cycles = signed(rest, "observed ")?;
        return Some(ClockEvent::WarpCompensated { cpu, cycles });
    }
    if let Some(rest) = after(line, "TSC ADJUST differs: CPU") {
        let (cpu, _) = leading_number(rest)?;
        return Some(ClockEvent::AdjustDiffers { cpu });
    }
    if let Some(rest) = after(line, "Refined TSC clocksource calibration: ") {
        let (khz, rest) = leading_thousandths(rest)?;
        return rest
            .trim_start()
            .starts_with("MHz")
            .then_some(ClockEvent::Refined { khz });
    }
    if let Some(rest) = after(line, "Detected ") {
        let (khz, rest) = leading_thousandths(rest)?;
        let rest = rest.trim_start().strip_prefix("MHz")?.trim_start();
        if rest.starts_with("processor") {
            return Some(ClockEvent::DetectedProcessor { khz });
        }
        return rest
            .starts_with("TSC")
            .then_some(ClockEvent::DetectedTsc { khz });
    }
    if let Some(rest) = after(line, "Previous calibrated TSC freq:") {
        let (khz, _) = leading_thousandths(rest)?;
        return Some(ClockEvent::PreviousFrequency { khz });
    }
    if let Some(rest) = after(line, "TSC freq recalibrated by [") {
        let (khz, _) = leading_thousandths(after(rest, "]:")?)?;
        return Some(ClockEvent::Recalibrated { khz });
    }
    if has(line, "TSC freq calibrated by CPUID/MSR differs") {
        return Some(ClockEvent::CalibrationsDiffer);
    }
    calibration(line)
}

pub(super) fn calibration(line: &str) -> Option<ClockEvent> {
    use Calibration::{FastPit, HpetOrPmTimer, NothingLeft, Pit};
    use Outcome::{Failed, Worked};
    let templates = [
        ("Fast TSC calibration using PIT", FastPit, Worked),
        ("Fast TSC calibration failed", FastPit, Failed),
        ("Unable to calibrate against PIT", Pit, Failed),
        // Before the plain failure of the two: here the PIT's value was taken.
        ("PMTIMER calibration failed. Using PIT", Pit, Worked),
        ("PMTIMER calibration failed - using PIT", Pit, Worked),
        ("PMTIMER calibration failed", HpetOrPmTimer, Failed),
        ("No reference (HPET/PMTIMER) available", NothingLeft, Failed),
        ("using HPET reference calibration", HpetOrPmTimer, Worked),
        ("using PMTIMER reference calibration", HpetOrPmTimer, Worked),
        ("PIT calibration matches", Pit, Worked),
        ("PIT calibration deviates", HpetOrPmTimer, Worked),
        ("Using PIT calibration value", Pit, Worked),
        ("TSC calibrated against HPET", HpetOrPmTimer, Worked),
        ("TSC calibrated against PM_TIMER", HpetOrPmTimer, Worked),
        ("TSC: HPET calibration failed", HpetOrPmTimer, Failed),
    ];
    templates
        .into_iter()
        .find(|(text, ..)| has(line, text))
        .map(|(_, method, outcome)| ClockEvent::Calibrated { method, outcome })
}

pub(super) fn delay_loop(line: &str) -> Option<ClockEvent> {
    if let Some(cpus) = number(line, "Total of ") {
        let (bogomips_hundredths, _) = leading_hundredths(after(line, "activated (")?)?;
        return Some(ClockEvent::TotalBogomips {
            cpus,
            bogomips_hundredths,
        });
    }
    let rest = after(line, "Calibrating delay")?;
    let before = rest.split_once(" BogoMIPS")?.0;
    let printed = before.split(['.', ' ']).filter(|word| !word.is_empty());
    let mut tail: Vec<&str> = printed.collect();
    let fraction = tail.pop()?;
    let whole = tail.pop()?;
    let (bogomips_hundredths, _) = leading_hundredths(&format!("{whole}.{fraction}"))?;
    let source = if has(rest, "preset value") {
        DelayLoopSource::Preset
    } else if has(rest, "using timer frequency") {
        DelayLoopSource::TimerFrequency
    } else if has(rest, "already calibrated") {
        DelayLoopSource::Kept
    } else {
        DelayLoopSource::Measured
    };
    Some(ClockEvent::DelayLoop {
        source,
        bogomips_hundredths,
        lpj: number(rest, "lpj="),
    })
}

/// `hpet0: 3 comparators, 64-bit 100.000000 MHz counter`.
pub(super) fn hpet(line: &str) -> Option<ClockEvent> {
    let before = line.split_once(" MHz counter")?.0;
    let figure = before.split_whitespace().next_back()?;
    let (whole, fraction) = figure.split_once('.')?;
    if fraction.len() > 6 || fraction.is_empty() {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let places = u32::try_from(fraction.len()).ok()?;
    let fraction: u64 = fraction.parse().ok()?;
    let hz = whole
        .checked_mul(1_000_000)?
        .checked_add(fraction * 10_u64.pow(6 - places))?;
    Some(ClockEvent::HpetFrequency { hz })
}

pub(super) fn sched_clock(from_anchor: &str) -> Option<ClockEvent> {
    let stable = has(from_anchor, "Marking stable");
    let mut rest = from_anchor;
    let mut next = |key: &str| -> Option<i64> {
        let (value, behind) = leading_signed(after(rest, key)?)?;
        rest = behind;
        Some(value)
    };
    let numbers = SchedClockLine {
        ticks_ns: next("(")?,
        ticks_offset_ns: next(",")?,
        raw_ns: next("(")?,
        raw_offset_ns: next(",")?,
    };
    Some(if stable {
        ClockEvent::SchedClockStable(numbers)
    } else {
        ClockEvent::SchedClockUnstable(numbers)
    })
}
