//! Verdicts of the watchdog, made from what really happened.

use std::fmt::Write;

/// A generation of the watchdog's messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Generation {
    /// With commas, without prefix.
    Oldest,
    First,
    /// With ns.
    Second,
    /// Only ns.
    Third,
}

pub(super) const GENERATIONS: [Generation; 4] = [
    Generation::Oldest,
    Generation::First,
    Generation::Second,
    Generation::Third,
];

/// A verdict, made from what really happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdicts {
    pub(super) generation: Generation,
    pub(super) reference: &'static str,
    pub(super) reference_hz: u64,
    pub(super) mask: u64,
    pub(super) wd_last: u64,
    /// Time that really passed, in ns.
    pub(super) passed_ns: u64,
    /// Time that the reference counted, in ns.
    pub(super) counted_ns: u64,
    pub(super) tsc_hz: u64,
    pub(super) cs_last: u64,
    pub(super) uptime_s: u64,
    pub(super) stamped: bool,
}

impl Default for Verdicts {
    fn default() -> Self {
        Self {
            generation: Generation::First,
            reference: "acpi_pm",
            reference_hz: 3_579_545,
            mask: 0xff_ffff,
            wd_last: 0x12_3456,
            passed_ns: 500_000_000,
            counted_ns: 500_000_000,
            tsc_hz: 2_600_000_000,
            cs_last: 2_600_000_000 * 1000,
            uptime_s: 1000,
            stamped: true,
        }
    }
}

pub(super) fn ticks(ns: u64, hz: u64) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(hz) / 1_000_000_000).unwrap()
}

impl Verdicts {
    pub(super) fn log(&self) -> String {
        let wd = ticks(self.counted_ns, self.reference_hz);
        let wd_now = self.wd_last.wrapping_add(wd) & self.mask;
        let cs_now = self.cs_last + ticks(self.passed_ns, self.tsc_hz);
        let seen_ns = u128::from(wd & self.mask) * 1_000_000_000 / u128::from(self.reference_hz);
        let (reference, mask, wd_last) = (self.reference, self.mask, self.wd_last);
        let cs_last = self.cs_last;
        let passed = self.passed_ns;
        let full = u64::MAX;
        let lines = match self.generation {
            Generation::Oldest => vec![
                "timekeeping watchdog: Marking clocksource 'tsc' as unstable, because the skew is too large:".to_owned(),
                format!("\t'{reference}' wd_now: {wd_now:x} wd_last: {wd_last:x} mask: {mask:x}"),
                format!("\t'tsc' cs_now: {cs_now:x} cs_last: {cs_last:x} mask: {full:x}"),
            ],
            Generation::First => vec![
                "clocksource: timekeeping watchdog on CPU2: Marking clocksource 'tsc' as unstable because the skew is too large:".to_owned(),
                format!("clocksource:                       '{reference}' wd_now: {wd_now:x} wd_last: {wd_last:x} mask: {mask:x}"),
                format!("clocksource:                       'tsc' cs_now: {cs_now:x} cs_last: {cs_last:x} mask: {full:x}"),
            ],
            Generation::Second => vec![
                "clocksource: timekeeping watchdog on CPU2: Marking clocksource 'tsc' as unstable because the skew is too large:".to_owned(),
                format!("clocksource:                       '{reference}' wd_nsec: {seen_ns} wd_now: {wd_now:x} wd_last: {wd_last:x} mask: {mask:x}"),
                format!("clocksource:                       'tsc' cs_nsec: {passed} cs_now: {cs_now:x} cs_last: {cs_last:x} mask: {full:x}"),
                format!("clocksource:                       Clocksource 'tsc' skewed 5 ns (0 ms) over watchdog '{reference}' interval of {seen_ns} ns (0 ms)"),
                "clocksource:                       'tsc' is current clocksource.".to_owned(),
            ],
            Generation::Third => vec![
                "clocksource: Marking clocksource tsc unstable due to frequency skew".to_owned(),
                format!("clocksource: Watchdog    {reference:>20} interval: {seen_ns:>16}ns"),
                format!("clocksource: Clocksource {:>20} interval: {passed:>16}ns", "tsc"),
            ],
        };
        let mut log = String::new();
        for (i, line) in lines.into_iter().enumerate() {
            if self.stamped {
                let _ = writeln!(log, "[{:>5}.{i:06}] {line}", self.uptime_s);
            } else {
                let _ = writeln!(log, "{line}");
            }
        }
        log
    }
}

pub(super) fn detected(hz: u64) -> String {
    format!(
        "[    0.000000] tsc: Detected {}.{:03} MHz processor\n",
        hz / 1_000_000,
        hz / 1000 % 1000
    )
}

pub(super) const HPET_LINE: &str = "[    0.000000] clocksource: hpet: mask: 0xffffffff max_cycles: 0xffffffff, max_idle_ns: 19112604467 ns\n";
