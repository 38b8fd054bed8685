//! What the clock source core and its watchdog print, in all generations.

use super::calibration::tsc;
use super::fields::{
    after, between, first_name, hex, leading_hex, leading_number, name, number, quoted_name, signed,
};
use crate::evidence::{ClockEvent, WatchdogBlock};

pub(super) fn clocksource(line: &str, from_anchor: &str) -> Option<ClockEvent> {
    if let Some(rest) = after(line, "witched to clocksource ") {
        return first_name(rest).map(|name| ClockEvent::Switched { name });
    }
    if line.contains("max_cycles: ") {
        return registered(from_anchor);
    }
    if line.contains("wd_now: ") || line.contains("cs_now: ") {
        return watchdog_numbers(line);
    }
    if let Some(rest) = after(from_anchor, "locksource '")
        && let Some(skew_ns) = signed(rest, "' skewed ")
    {
        return Some(ClockEvent::WatchdogSkewed {
            name: name(rest.split_once('\'')?.0)?,
            skew_ns,
            watchdog: name(between(rest, "over watchdog '", "'")?)?,
            interval_ns: signed(rest, "interval of ")?,
        });
    }
    if let Some(rest) = after(line, "Marking clocksource ") {
        if rest.contains("unstable due to frequency skew") {
            return first_name(rest).map(|name| ClockEvent::FrequencySkewVerdict { name });
        }
        if rest.contains("unstable due to inter CPU skew") {
            return first_name(rest).map(|name| ClockEvent::CpuSkewVerdict { name });
        }
    }
    if let Some(event) = watchdog_verdict(line).or_else(|| read_back(line)) {
        return Some(event);
    }
    if line.contains(" interval: ") {
        return newest_interval(line);
    }
    if line.contains(" (cycles)") {
        return cpu_skew(line);
    }
    if line.contains(" for clocksource ")
        && (line.contains(" ahead of CPU ") || line.contains(" behind CPU "))
    {
        return first_name(after(line, " for clocksource ")?)
            .map(|name| ClockEvent::CpusApart { name });
    }
    if let Some(delta_ns) = signed(line, " unstable (delta = ") {
        let rest = after(line, "locksource ")?;
        return first_name(rest).map(|name| ClockEvent::OldVerdict { name, delta_ns });
    }
    if line.contains("clocksource watchdog") {
        return tsc(line);
    }
    None
}

/// `clocksource: NAME: mask: ..`, or without the first colon in older kernels.
fn registered(from_anchor: &str) -> Option<ClockEvent> {
    let rest = from_anchor.strip_prefix("locksource")?;
    let (name_part, numbers) = rest.split_once(": mask: ")?;
    Some(ClockEvent::Registered {
        name: name(name_part.trim_start_matches(':'))?,
        mask: leading_hex(numbers)?,
        max_cycles: hex(numbers, "max_cycles: ")?,
        max_idle_ns: number(numbers, "max_idle_ns: ")?,
    })
}

pub(super) fn watchdog_verdict(line: &str) -> Option<ClockEvent> {
    let rest = after(line, "Marking clocksource ")?;
    if !rest.contains("unstable") || !rest.contains("skew is too large") {
        return None;
    }
    quoted_name(rest).map(|name| ClockEvent::WatchdogVerdict { name })
}

pub(super) fn watchdog_numbers(line: &str) -> Option<ClockEvent> {
    let block = |prefix: &str| -> Option<WatchdogBlock> {
        let key = |field: &str| format!("{prefix}_{field}: ");
        let before = line.split_once(&format!("{prefix}_"))?.0;
        let mut quotes = before.rsplitn(3, '\'');
        let _behind = quotes.next()?;
        Some(WatchdogBlock {
            name: name(quotes.next()?)?,
            nsec: signed(line, &key("nsec")),
            now: hex(line, &key("now"))?,
            last: hex(line, &key("last"))?,
            mask: hex(line, "mask: ")?,
        })
    };
    if line.contains("wd_now: ") {
        block("wd").map(ClockEvent::WatchdogReference)
    } else {
        block("cs").map(ClockEvent::WatchdogAccused)
    }
}

fn newest_interval(line: &str) -> Option<ClockEvent> {
    let (before, behind) = line.rsplit_once(" interval: ")?;
    let (interval_ns, _) = leading_number(behind)?;
    let name = name(before.split_whitespace().next_back()?)?;
    if before.contains("Watchdog") {
        Some(ClockEvent::WatchdogInterval { name, interval_ns })
    } else {
        before
            .contains("Clocksource")
            .then_some(ClockEvent::AccusedInterval { name, interval_ns })
    }
}

/// `CPUa N < CPUb M (cycles)`.
fn cpu_skew(line: &str) -> Option<ClockEvent> {
    let (left, right) = line.split_once(" < CPU")?;
    let lower = left.split_whitespace().next_back()?.parse().ok()?;
    let higher = right.split_whitespace().nth(1)?.parse().ok()?;
    Some(ClockEvent::CpuSkew { lower, higher })
}

pub(super) fn read_back(line: &str) -> Option<ClockEvent> {
    if line.contains("read timed out") {
        return (line.contains("Watchdog")).then(|| ClockEvent::ReadTimedOut {
            delay_ns: number(line, "Readout sequence took: "),
        });
    }
    if line.contains("print_freq_timeout") {
        let before = line.split_once(" callbacks suppressed")?.0;
        let count = before.split_whitespace().next_back()?.parse().ok()?;
        return Some(ClockEvent::ReadTimeoutsSuppressed { count });
    }
    if let Some(attempts) = number(line, " retried ") {
        return line
            .contains("before success")
            .then_some(ClockEvent::ReadRetried { attempts });
    }
    if line.contains("Long readout interval") {
        return Some(ClockEvent::LongInterval {
            accused_ns: signed(line, "cs_nsec: ")?,
            reference_ns: signed(line, "wd_nsec: ")?,
        });
    }
    let delay_ns = number(line, "read-back delay of ")?;
    if line.contains("marking") && line.contains("unstable") {
        return Some(ClockEvent::ReadBackVerdict {
            delay_ns,
            reference_ns: number(line, "wd-wd read-back delay only "),
        });
    }
    if line.contains("clock-skew test skipped") {
        return Some(ClockEvent::ReadBackSkipped { delay_ns });
    }
    line.contains("wd-wd read-back delay")
        .then_some(ClockEvent::ReadBackReference { delay_ns })
}
