//! What a kernel prints about the machine under it: boot, hypervisor, sleep, stalls.

use super::calibration::tsc;
use super::fields::{after, has, hex, leading_number, number};
use crate::evidence::{ClockEvent, Interruption};

pub(super) fn kvm_clock(from_anchor: &str) -> Option<ClockEvent> {
    if let Some(offset_ns) = number(from_anchor, "using sched offset of ") {
        return Some(ClockEvent::KvmClockSchedOffset { offset_ns });
    }
    has(from_anchor, "sing msrs ").then_some(ClockEvent::KvmClockMsrs)
}

pub(super) fn hyper_v(line: &str) -> Option<ClockEvent> {
    if has(line, "Marking TSC unstable") {
        return tsc(line);
    }
    if has(line, "ypervisor detected: ") {
        return hypervisor(after(line, "Hypervisor detected: ").map_or(line, |_| line));
    }
    if has(line, "privilege flags low ") {
        return Some(ClockEvent::HyperVPrivileges {
            low: hex(line, "flags low ")?,
            high: hex(line, "high ").unwrap_or(0),
            hints: hex(line, "hints ").unwrap_or(0),
            misc: hex(line, "misc ").unwrap_or(0),
        });
    }
    if let Some(hz) = hex(line, "LAPIC Timer Frequency: ") {
        return Some(ClockEvent::HyperVApicFrequency { hz });
    }
    (has(line, "Host Build")).then_some(ClockEvent::HyperVHostBuild)
}

pub(super) fn boot(from_anchor: &str) -> Option<ClockEvent> {
    let rest = after(from_anchor, "Linux version ")?;
    let release: String = rest
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .take(24)
        .collect();
    (!release.is_empty()).then_some(ClockEvent::BootStarted { release })
}

/// The words of a command line that speak of clocks; all others stay out of the evidence.
pub(super) fn command_line(from_anchor: &str) -> Option<ClockEvent> {
    let rest = after(from_anchor, "ommand line: ")?;
    Some(ClockEvent::CommandLine {
        words: clock_words(rest),
    })
}

/// Whole words about clocks, up to a lone `--` behind which the words belong to the first program.
pub(crate) fn clock_words(command_line: &str) -> Vec<String> {
    command_line
        .split_ascii_whitespace()
        .take_while(|word| *word != "--")
        .filter(|word| is_clock_word(word))
        .map(|word| word.chars().take(64).collect())
        .take(32)
        .collect()
}

fn is_clock_word(word: &str) -> bool {
    let key = word.split_once('=').map_or(word, |(key, _)| key);
    matches!(
        key,
        "clocksource"
            | "clock"
            | "tsc"
            | "notsc"
            | "vdso"
            | "lpj"
            | "hpet"
            | "nohpet"
            | "no-kvmclock"
            | "no-kvmclock-vsyscall"
            | "no_kvmclock"
            | "nohz"
            | "nohz_full"
            | "isolcpus"
            | "highres"
            | "lapic"
            | "nolapic_timer"
            | "nolapic"
            | "noapictimer"
            | "apicpmtimer"
            | "nopv"
            | "nopvclock"
            | "tsc_early_khz"
            | "trust_clocksource"
            | "nosmp"
            | "maxcpus"
            | "nr_cpus"
            | "acpi_pm_good"
            | "pmtmr"
            | "processor.max_cstate"
            | "intel_idle.max_cstate"
            | "idle"
            | "acpi"
            | "noapic"
    ) || key.starts_with("clocksource.")
}

pub(super) fn hypervisor(from_anchor: &str) -> Option<ClockEvent> {
    let rest = after(from_anchor, "ypervisor detected: ")?;
    let name: String = rest
        .trim()
        .chars()
        .filter(|c| c.is_ascii_graphic() || *c == ' ')
        .take(32)
        .collect();
    (!name.is_empty()).then_some(ClockEvent::HypervisorDetected { name })
}

pub(super) fn power(from_anchor: &str) -> Option<ClockEvent> {
    let rest = from_anchor.strip_prefix("PM: ")?;
    let interruption =
        if rest.starts_with("suspend entry") || rest.starts_with("Syncing filesystems") {
            Interruption::SuspendEntry
        } else if rest.starts_with("suspend exit") || rest.starts_with("Finishing wakeup") {
            Interruption::SuspendExit
        } else if has(rest, "hibernation entry") {
            Interruption::HibernationEntry
        } else if has(rest, "hibernation exit")
            || has(rest, "Basic memory bitmaps freed")
            || has(rest, "Image restored successfully")
        {
            Interruption::HibernationExit
        } else {
            return rtc(rest);
        };
    Some(ClockEvent::Interrupted(interruption))
}

pub(super) fn rtc(text: &str) -> Option<ClockEvent> {
    let rest = match after(text, "system clock to ") {
        Some(rest) => rest,
        None => after(after(text, "RTC time: ")?, "date: ")?,
    };
    let (first, behind) = leading_number(rest)?;
    // `2023-06-03`, or `06/03/23` in older kernels.
    let year = if behind.starts_with('-') {
        first
    } else {
        let mut parts = rest.split(|c: char| !c.is_ascii_digit());
        let two_digits: u64 = parts.nth(2)?.parse().ok()?;
        if two_digits >= 70 {
            1900 + two_digits
        } else {
            2000 + two_digits
        }
    };
    (1970..=2500)
        .contains(&year)
        .then_some(ClockEvent::ClockSetFromRtc { year })
}

pub(super) fn stall(line: &str) -> Option<ClockEvent> {
    let kernel_says = has(line, "BUG: soft lockup")
        || has(line, "rcu") && has(line, "stall")
        || has(line, "INFO: ") && has(line, "stall");
    kernel_says.then(|| ClockEvent::CpuStalled {
        seconds: number(line, "stuck for "),
    })
}
