//! What a verdict of the kernel's clock source watchdog really shows.
//!
//! # Theory
//!
//! About every 0.5 s the watchdog compares the accused counter with a reference. The two pairs of values that it prints give
//! the rate which the accused would have if the reference were right:
//!
//! ```text
//! f = (cs_now - cs_last) * f_wd / ((wd_now - wd_last) & mask)
//! ```
//!
//! The reference may be wrong instead:
//!
//! - It wrapped: the true interval is `(dwd + k * (mask + 1)) / f_wd`, with the `k` for which the accused has its declared rate.
//!   Where no rate is declared, a true interval is a multiple of 0.5 s, because the check runs on a timer of that period.
//! - It counts interrupts and missed some: the accused is ahead by the time that was lost.
//!
//! Or the check came late and found nothing wrong but a fixed margin in ns that was meant for 0.5 s. Or the accused stands at a
//! new base: it was reset, and what it shows now is the time since.
//!
//! # Caveats
//!
//! A wrap count told from a declared rate is unique only while the uncertainty of that rate over the interval stays below half
//! a wrap; beyond that no count is told.
//!
//! # References
//!
//! Linux `kernel/time/clocksource.c`, `clocksource_watchdog`, over its three generations.

use super::{Frequency, real, seconds};

/// The period of the check, in ns.
pub const PERIOD_NS: u128 = 500_000_000;

/// From here on a check is late: 1 s.
pub const LATE_NS: u128 = 1_000_000_000;

/// Two rates within 0.5 % are one rate.
pub const SAME_RATE_PPM: u64 = 5_000;

/// No TSC of a machine counts faster, in Hz. Above it a rate needs another explanation.
const FASTEST_HZ: u64 = 7_000_000_000;

/// No TSC of a machine that runs Linux counts slower, in Hz.
const SLOWEST_HZ: u64 = 700_000_000;

/// Wraps that are tried where no rate is known.
const MOST_WRAPS: u64 = 256;

/// Largest distance of a true interval from a multiple of 0.5 s that still speaks for it, in ns.
const ON_THE_PERIOD_NS: u128 = 5_000_000;

/// The reference's side of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceSide {
    /// Value at the check before.
    pub last: u64,
    /// Value at the check.
    pub now: u64,
    /// Mask.
    pub mask: u64,
    /// Its frequency.
    pub frequency: Frequency,
}

impl ReferenceSide {
    /// Ticks between the checks, if it did not wrap.
    #[must_use]
    pub const fn ticks(self) -> u64 {
        self.now.wrapping_sub(self.last) & self.mask
    }

    /// The interval if it wrapped `wraps` times, in ns.
    #[must_use]
    pub fn interval_ns(self, wraps: u64) -> u128 {
        let ticks = u128::from(self.ticks()) + u128::from(wraps) * (u128::from(self.mask) + 1);
        // At most 2^64 wraps of 2^64 ticks: scaled down only where it has to be.
        ticks
            .checked_mul(1_000_000_000_000_000)
            .map_or(u128::MAX, |scaled| {
                scaled / u128::from(self.frequency.microhertz())
            })
    }

    /// Time from one wrap to the next, in ns.
    #[must_use]
    pub fn wrap_ns(self) -> u128 {
        (u128::from(self.mask) + 1)
            .checked_mul(1_000_000_000_000_000)
            .map_or(u128::MAX, |scaled| {
                scaled / u128::from(self.frequency.microhertz())
            })
    }
}

/// The rate that `ticks` in `interval_ns` make.
#[must_use]
pub fn implied_rate(ticks: u64, interval_ns: u128) -> Option<Frequency> {
    Frequency::from_ticks(ticks, interval_ns)
}

/// Why a number of wraps is preferred.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Because {
    /// With it the accused has its declared rate.
    DeclaredRate(Frequency),
    /// With it the accused has the rate at which it counted since the machine started.
    RateOverUptime(Frequency),
    /// Without a wrap no counter could be as fast, and with it the interval is a multiple of 0.5 s to within this many ns.
    OnThePeriod {
        /// Distance from the multiple, in ns.
        off_ns: u128,
    },
}

/// A wrapped reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wrapped {
    /// How often.
    pub wraps: u64,
    /// True interval, in ns.
    pub interval_ns: u128,
    /// Rate of the accused over it.
    pub implied: Frequency,
    /// Rate of the accused if there were no wrap; `None` if no time at all would have passed.
    pub without: Option<Frequency>,
    /// Why.
    pub because: Because,
}

/// How often the reference wrapped, if the accused's ticks say that it did.
///
/// # Examples
///
/// A PM timer of 24 bits, and a counter that would run at 21.7 GHz without a wrap:
///
/// ```
/// use chronovisor_diagnose::forensics::{Frequency, watchdog};
///
/// let reference = watchdog::ReferenceSide {
///     last: 0x60e92e, now: 0x8d5199, mask: 0xff_ffff,
///     frequency: Frequency::from_hz(3_579_545).expect("not zero"),
/// };
/// let ticks = 0x1981c973dc9 - 0x1940283c820;
/// let found = watchdog::wrapped(reference, ticks, &[], None).expect("it wrapped");
/// assert_eq!(found.wraps, 1);
/// assert_eq!(found.implied.to_string(), "3203.149 MHz");
/// ```
#[must_use]
pub fn wrapped(
    reference: ReferenceSide,
    ticks: u64,
    declared: &[Frequency],
    over_uptime: Option<Frequency>,
) -> Option<Wrapped> {
    // A 64-bit reference wraps after centuries.
    if reference.mask >= u64::MAX / 2 {
        return None;
    }
    let without = implied_rate(ticks, reference.interval_ns(0));
    let fits_without = |rate: &Frequency| without.is_some_and(|w| w.within(*rate, SAME_RATE_PPM));
    if declared.iter().any(fits_without) {
        return None;
    }
    for rate in declared {
        if let Some(wraps) = count(reference, rate.ticks_to_ns(ticks)) {
            return found(reference, ticks, wraps, Because::DeclaredRate(*rate));
        }
    }
    if !declared.is_empty() {
        return None;
    }
    if let Some(rate) = over_uptime {
        if fits_without(&rate) {
            return None;
        }
        if let Some(wraps) = count(reference, rate.ticks_to_ns(ticks)) {
            return found(reference, ticks, wraps, Because::RateOverUptime(rate));
        }
    }
    on_the_period(reference, ticks, without)
}

fn found(reference: ReferenceSide, ticks: u64, wraps: u64, because: Because) -> Option<Wrapped> {
    let interval_ns = reference.interval_ns(wraps);
    Some(Wrapped {
        wraps,
        interval_ns,
        implied: implied_rate(ticks, interval_ns)?,
        without: implied_rate(ticks, reference.interval_ns(0)),
        because,
    })
}

/// The wraps that make the reference's interval `true_ns`, if a whole number does, and no other could.
fn count(reference: ReferenceSide, true_ns: u128) -> Option<u64> {
    let unwrapped = reference.interval_ns(0);
    let period = reference.wrap_ns();
    let missing = true_ns.checked_sub(unwrapped)?;
    let wraps = (missing + period / 2) / period;
    let off = missing.abs_diff(wraps * period);
    let tolerance = (true_ns * u128::from(SAME_RATE_PPM) / 1_000_000).min(period / 8);
    (wraps >= 1 && off <= tolerance)
        .then(|| u64::try_from(wraps).ok())
        .flatten()
}

/// Without any known rate: the wraps that make a possible rate and an interval on the check's period.
fn on_the_period(
    reference: ReferenceSide,
    ticks: u64,
    without: Option<Frequency>,
) -> Option<Wrapped> {
    let fastest = Frequency::from_hz(FASTEST_HZ)?;
    let slowest = Frequency::from_hz(SLOWEST_HZ)?;
    if without.is_some_and(|rate| rate <= fastest) {
        return None;
    }
    // Two numbers of wraps that both fit settle nothing.
    let mut fitting = (1..=MOST_WRAPS).filter_map(|wraps| {
        let interval = reference.interval_ns(wraps);
        let rate = implied_rate(ticks, interval)?;
        let past = interval % PERIOD_NS;
        let off_ns = past.min(PERIOD_NS - past);
        let possible = (slowest..=fastest).contains(&rate) && off_ns <= ON_THE_PERIOD_NS;
        possible.then_some((off_ns, wraps))
    });
    let (off_ns, wraps) = fitting.next()?;
    if fitting.next().is_some() {
        return None;
    }
    found(reference, ticks, wraps, Because::OnThePeriod { off_ns })
}

/// A counter at a new base.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reset {
    /// The value now, as a signed number.
    pub now_signed: i64,
    /// Time since the reset, in ns, if the rate is known and the counter started near zero.
    pub since_ns: Option<u128>,
}

/// Whether a counter that read `last` and then `now` was set to a new base: near zero, or negative. A small step back is not.
///
/// `interval_ns` is the time between the two reads. Near zero means: it counted no longer than twice that time since it was
/// zero, or, where no rate is known, it lost at least seven eighths of its value.
#[must_use]
pub fn reset(
    last: u64,
    now: u64,
    interval_ns: Option<u128>,
    rate: Option<Frequency>,
) -> Option<Reset> {
    let now_signed = now.cast_signed();
    let was_positive = last.cast_signed() >= 0;
    if now_signed < 0 && was_positive {
        // From the middle of the range it could have counted on; only a jump of a quarter of the range is a new base.
        return (now.wrapping_sub(last) > 1 << 62).then_some(Reset {
            now_signed,
            since_ns: None,
        });
    }
    if now >= last {
        return None;
    }
    if !was_positive
        && let Some(interval) = interval_ns
        && counted_on(now.wrapping_sub(last), interval, rate)
    {
        // From below zero through it.
        return None;
    }
    let since_ns = rate.map(|rate| rate.ticks_to_ns(now));
    let near_zero = match (since_ns, interval_ns) {
        (Some(since), Some(interval)) => since <= interval * 2 + PERIOD_NS || now < last / 8,
        _ => now < last / 8,
    };
    // A small step back close to a machine's start is not a reset either.
    let dropped_ns = rate.map(|rate| rate.ticks_to_ns(last - now));
    let large = match (dropped_ns, interval_ns) {
        (Some(dropped), _) => dropped > 1_000_000,
        (None, _) => now < last / 8,
    };
    (near_zero && large).then_some(Reset {
        now_signed,
        since_ns,
    })
}

/// Whether a counter can have counted so far in the time, at its rate or at any that a TSC may have.
fn counted_on(ticks: u64, interval_ns: u128, rate: Option<Frequency>) -> bool {
    let (slowest, fastest) = match rate {
        Some(rate) => (rate.hz() / 2.0, rate.hz() * 2.0),
        None => (
            real(i128::from(SLOWEST_HZ)) / 2.0,
            real(i128::from(FASTEST_HZ)),
        ),
    };
    let passed_s = to_seconds(interval_ns);
    (passed_s * slowest..=passed_s * fastest).contains(&real(i128::from(ticks)))
}

/// The rate of a counter that started with the machine: its value over the uptime. Right only for such a counter.
#[must_use]
pub fn rate_over_uptime(value: u64, uptime_us: u64) -> Option<Frequency> {
    Frequency::from_ticks(value, u128::from(uptime_us) * 1000)
}

/// Parts per million over an interval that a fixed margin in ns allows.
#[must_use]
pub fn ppm_to_trip(margin_ns: u64, interval_ns: u128) -> f64 {
    let interval = i128::try_from(interval_ns).unwrap_or(i128::MAX);
    if interval == 0 {
        return 0.0;
    }
    real(i128::from(margin_ns)) / real(interval) * 1e6
}

/// `ns` as seconds, for a figure.
#[must_use]
pub fn to_seconds(ns: u128) -> f64 {
    seconds(i128::try_from(ns).unwrap_or(i128::MAX))
}

#[cfg(test)]
mod tests;
