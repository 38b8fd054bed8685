//! What the clock source core and its watchdog print, in all generations.

use super::calibration::tsc;
use super::fields::{
    after, between, first_name, has, hex, leading_hex, leading_number, name, number, quoted_name,
    signed,
};
use crate::evidence::{ClockEvent, WatchdogBlock};

pub(super) fn clocksource(line: &str, from_anchor: &str) -> Option<ClockEvent> {
    by_first_letter(from_anchor).or_else(|| by_any_text(line, from_anchor))
}

/// The usual form, `clocksource: ` and a text whose first letter nearly tells which.
fn by_first_letter(from_anchor: &str) -> Option<ClockEvent> {
    let text = from_anchor.strip_prefix("locksource: ")?.trim_start();
    match text.as_bytes().first()? {
        b'\'' => watchdog_numbers(text),
        b'S' => first_name(text.strip_prefix("Switched to clocksource ")?)
            .map(|name| ClockEvent::Switched { name }),
        b't' if text.starts_with("timekeeping") => {
            watchdog_verdict(text).or_else(|| read_back(text))
        }
        b'w' if text.starts_with("wd-") => read_back(text),
        b'M' | b'W' | b'C' | b'L' => None,
        _ => registered(from_anchor),
    }
}

/// Any other form: older texts, and lines that were cut or pasted.
fn by_any_text(line: &str, from_anchor: &str) -> Option<ClockEvent> {
    if let Some(rest) = after(line, "witched to clocksource ") {
        return first_name(rest).map(|name| ClockEvent::Switched { name });
    }
    if has(line, "max_cycles: ") {
        return registered(from_anchor);
    }
    if has(line, "wd_now: ") || has(line, "cs_now: ") {
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
        if has(rest, "unstable due to frequency skew") {
            return first_name(rest).map(|name| ClockEvent::FrequencySkewVerdict { name });
        }
        if has(rest, "unstable due to inter CPU skew") {
            return first_name(rest).map(|name| ClockEvent::CpuSkewVerdict { name });
        }
    }
    if let Some(event) = watchdog_verdict(line).or_else(|| read_back(line)) {
        return Some(event);
    }
    if has(line, " interval: ") {
        return newest_interval(line);
    }
    if has(line, " (cycles)") {
        return cpu_skew(line);
    }
    if has(line, " for clocksource ") && (has(line, " ahead of CPU ") || has(line, " behind CPU "))
    {
        return first_name(after(line, " for clocksource ")?)
            .map(|name| ClockEvent::CpusApart { name });
    }
    if let Some(delta_ns) = signed(line, " unstable (delta = ") {
        let rest = after(line, "locksource ")?;
        return first_name(rest).map(|name| ClockEvent::OldVerdict { name, delta_ns });
    }
    if has(line, "clocksource watchdog") {
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
    if !has(rest, "unstable") || !has(rest, "skew is too large") {
        return None;
    }
    quoted_name(rest).map(|name| ClockEvent::WatchdogVerdict { name })
}

pub(super) fn watchdog_numbers(line: &str) -> Option<ClockEvent> {
    let block = |start: &str, nsec: &str, now: &str, last: &str| -> Option<WatchdogBlock> {
        let (before, _) = line.split_once(start)?;
        let mut quotes = before.rsplitn(3, '\'');
        let _behind = quotes.next()?;
        let numbers = line.get(before.len()..)?;
        Some(WatchdogBlock {
            name: name(quotes.next()?)?,
            nsec: signed(numbers, nsec),
            now: hex(numbers, now)?,
            last: hex(numbers, last)?,
            mask: hex(numbers, "mask: ")?,
        })
    };
    if let Some(found) = block("wd_n", "wd_nsec: ", "wd_now: ", "wd_last: ") {
        return Some(ClockEvent::WatchdogReference(found));
    }
    block("cs_n", "cs_nsec: ", "cs_now: ", "cs_last: ").map(ClockEvent::WatchdogAccused)
}

fn newest_interval(line: &str) -> Option<ClockEvent> {
    let (before, behind) = line.rsplit_once(" interval: ")?;
    let (interval_ns, _) = leading_number(behind)?;
    let name = name(before.split_whitespace().next_back()?)?;
    if has(before, "Watchdog") {
        Some(ClockEvent::WatchdogInterval { name, interval_ns })
    } else {
        has(before, "Clocksource").then_some(ClockEvent::AccusedInterval { name, interval_ns })
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
    if has(line, "read timed out") {
        return (has(line, "Watchdog")).then(|| ClockEvent::ReadTimedOut {
            delay_ns: number(line, "Readout sequence took: "),
        });
    }
    if has(line, "print_freq_timeout") {
        let before = line.split_once(" callbacks suppressed")?.0;
        let count = before.split_whitespace().next_back()?.parse().ok()?;
        return Some(ClockEvent::ReadTimeoutsSuppressed { count });
    }
    if let Some(attempts) = number(line, " retried ") {
        return has(line, "before success").then_some(ClockEvent::ReadRetried { attempts });
    }
    if has(line, "Long readout interval") {
        return Some(ClockEvent::LongInterval {
            accused_ns: signed(line, "cs_nsec: ")?,
            reference_ns: signed(line, "wd_nsec: ")?,
        });
    }
    let delay_ns = number(line, "read-back delay of ")?;
    if has(line, "marking") && has(line, "unstable") {
        return Some(ClockEvent::ReadBackVerdict {
            delay_ns,
            reference_ns: number(line, "wd-wd read-back delay only "),
        });
    }
    if has(line, "clock-skew test skipped") {
        return Some(ClockEvent::ReadBackSkipped { delay_ns });
    }
    has(line, "wd-wd read-back delay").then_some(ClockEvent::ReadBackReference { delay_ns })
}
