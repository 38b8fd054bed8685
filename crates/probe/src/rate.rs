//! How fast the counter and the clocks run against `CLOCK_MONOTONIC_RAW`, with an error that is a bound and not an estimate.
//!
//! # Theory
//!
//! Two bracketed readings, a window apart, bound the rate from both sides; nothing is assumed about noise.
//!
//! ```text
//! ticks in (before2 - after1, after2 - before1)      ns in (raw2 - raw1 - 1, raw2 - raw1 + 1)
//! rate  = middle of ticks / ns                       error <= half width / ticks + 1 / ns
//! ```
//!
//! # Practice
//!
//! [`Sample::take`] at both ends of whatever else a survey does, then [`tsc_rate`] and [`clock_rate`]. A bracket is some 30 ns wide, so a window of
//! one second gives about 50 ppb.
//!
//! # Caveats
//!
//! `CLOCK_MONOTONIC_RAW` is itself computed from the clock source with the kernel's multiplier. On the clock source `tsc` the result says what
//! the kernel believes, not what an outside clock would say.
//!
//! # References
//!
//! Linux `kernel/time/timekeeping.c` (the raw clock has the clock source's registered rate).

use chronovisor_abi::quantity::{Hertz, Nanos};
use chronovisor_diagnose::evidence::{Hz, Rate};
use chronovisor_guest::linux::os_clock::ClockId;

use crate::bracket::{Bracketed, Sandwich, narrowest};

/// Reads of which the narrowest is kept.
const TRIES: u32 = 40;

/// The clocks at one end of a window.
#[derive(Clone, Debug)]
pub struct Sample {
    raw: Bracketed<Nanos>,
    clocks: Vec<(&'static str, Sandwich)>,
}

impl Sample {
    /// Reads everything; `None` if `CLOCK_MONOTONIC_RAW` is refused.
    #[must_use]
    pub fn take() -> Option<Self> {
        let raw = || ClockId::MONOTONIC_RAW.now();
        let clocks = [
            ("monotonic", ClockId::MONOTONIC),
            ("boottime", ClockId::BOOTTIME),
            ("realtime", ClockId::REALTIME),
        ]
        .into_iter()
        .filter_map(|(name, clock)| {
            let sandwich = Sandwich::narrowest(TRIES, || clock.now(), raw)?;
            Some((name, sandwich))
        })
        .collect();
        Some(Self {
            raw: narrowest(TRIES, raw)?,
            clocks,
        })
    }

    /// `CLOCK_MONOTONIC_RAW` between its two looks at the counter.
    #[must_use]
    pub const fn raw(&self) -> &Bracketed<Nanos> {
        &self.raw
    }
}

/// A measured frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredRate {
    /// The middle of the possible rates.
    pub hertz: Hertz,
    /// The truth is within this many ppb of it.
    pub error_ppb: u64,
    /// Length of the window, in ns.
    pub window_ns: u64,
}

/// The counter's rate between two samples; `None` if no time passed or the counter went back.
#[must_use]
pub fn tsc_rate(first: &Bracketed<Nanos>, second: &Bracketed<Nanos>) -> Option<MeasuredRate> {
    let window_ns = second.value.checked_sub(first.value)?.as_ns();
    if second.before.is_before(first.after) {
        return None;
    }
    let least = u128::from(second.before.wrapping_delta(first.after).as_ticks());
    let most = u128::from(second.after.wrapping_delta(first.before).as_ticks());
    if window_ns < 2 || least == 0 {
        return None;
    }
    // The rate lies in (least / (ns + 1), most / (ns - 1)); its middle is not quite the middle of the ticks, hence the last 1.
    let hertz = Hertz::from_ratio_floor((least + most) * 1_000_000_000, 2 * u128::from(window_ns))?;
    let of_bracket = ((most - least) * 1_000_000_000).div_ceil(least + most);
    let of_clock = 1_000_000_000_u64.div_ceil(window_ns - 1);
    let cross_term = (of_bracket * u128::from(of_clock)).div_ceil(1_000_000_000);
    Some(MeasuredRate {
        hertz,
        error_ppb: u64::try_from(of_bracket + cross_term)
            .ok()?
            .checked_add(of_clock)?
            .checked_add(1)?,
        window_ns,
    })
}

/// The rate of a clock in ns against the reference of the sandwiches: its excess over 1 in ppb, the error of that in ppb, the window in ns.
/// `None` if the reference did not advance.
#[must_use]
pub fn clock_rate(first: &Sandwich, second: &Sandwich) -> Option<ClockRate> {
    let ns = |time: Nanos| i128::from(time.as_ns());
    let advance = ns(second.value) - ns(first.value);
    let least = ns(second.before) - ns(first.after);
    let most = ns(second.after) - ns(first.before);
    if least < 2 {
        return None;
    }
    let middle = (least + most) / 2;
    let excess_ppb = (advance - middle) * 1_000_000_000 / middle;
    // Half the bracket, and one ns each for the rounding of the clock, of the reference and of the middle.
    let error_ns = (most - least + 1) / 2 + 3;
    let error_ppb = error_ns * (1_000_000_000 + excess_ppb.abs()) / least + 1;
    Some(ClockRate {
        excess_ppb: i64::try_from(excess_ppb).ok()?,
        error_ppb: u64::try_from(error_ppb).ok()?,
        window_ns: u64::try_from(middle).ok()?,
    })
}

/// How much faster a clock runs than its reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockRate {
    /// The rate minus 1, in ppb.
    pub excess_ppb: i64,
    /// The truth is within this many ppb of it.
    pub error_ppb: u64,
    /// Length of the window, in ns of the reference.
    pub window_ns: u64,
}

/// The rates between two samples as evidence.
#[must_use]
pub fn rates(first: &Sample, second: &Sample) -> Vec<Rate> {
    let tsc = tsc_rate(&first.raw, &second.raw).map(|rate| Rate {
        clock: "tsc".to_owned(),
        hz: Some(as_hz(rate.hertz)),
        rate_ppb: None,
        error_ppb: rate.error_ppb,
        window_ns: rate.window_ns,
    });
    let clocks = first.clocks.iter().filter_map(|(clock, start)| {
        let (_, end) = second.clocks.iter().find(|(other, _)| other == clock)?;
        let rate = clock_rate(start, end)?;
        Some(Rate {
            clock: (*clock).to_owned(),
            hz: None,
            rate_ppb: Some(rate.excess_ppb),
            error_ppb: rate.error_ppb,
            window_ns: rate.window_ns,
        })
    });
    tsc.into_iter().chain(clocks).collect()
}

/// The evidence's form of a rate.
#[must_use]
pub const fn as_hz(rate: Hertz) -> Hz {
    Hz {
        numerator: rate.numerator(),
        denominator: rate.denominator(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronovisor_abi::quantity::Tsc;
    use proptest::prelude::*;

    #[test]
    fn a_window_without_time_or_backwards_gives_no_rate() {
        let at = |before, value, after| Bracketed {
            before: Tsc::from_ticks(before),
            value: Nanos::from_ns(value),
            after: Tsc::from_ticks(after),
        };
        let first = at(1_000, 500, 1_100);
        assert_eq!(tsc_rate(&first, &first), None);
        assert_eq!(
            tsc_rate(&first, &at(5_000, 499, 5_100)),
            None,
            "the clock went back"
        );
        assert_eq!(
            tsc_rate(&first, &at(10, 5_000, 20)),
            None,
            "the counter went back"
        );
        assert!(tsc_rate(&first, &at(5_000, 5_000, 5_100)).is_some());
    }

    proptest! {
        /// A counter of known rate, read at unknown places inside its brackets: the truth is always within the bound.
        #[test]
        fn the_true_rate_is_within_the_bound(
            hz in 1_000_000_u64..5_000_000_000, start in 0_u64..1 << 40, window in 1_000_000_u64..4_000_000_000,
            early in 0_u64..500, late in 0_u64..500, early2 in 0_u64..500, late2 in 0_u64..500,
        ) {
            // ticks at ns t = t * hz / 10^9; the clock is read at t exactly, the counter up to `early` ticks before and `late` after.
            let tick = |ns: u64| u64::try_from(u128::from(ns) * u128::from(hz) / 1_000_000_000).unwrap() + 1000;
            let at = |ns: u64, early: u64, late: u64| Bracketed {
                before: Tsc::from_ticks(tick(ns) - early), value: Nanos::from_ns(ns), after: Tsc::from_ticks(tick(ns) + late + 1),
            };
            let (first, second) = (at(start, early, late), at(start + window, early2, late2));
            if let Some(rate) = tsc_rate(&first, &second) {
                let error = Hertz::from_hz(hz).unwrap().error_against(rate.hertz).saturating_abs().as_femto();
                prop_assert!(i128::from(error) <= i128::from(rate.error_ppb) * 1_000_000, "{rate:?}, off by {error}e-15");
            }
        }

        /// The same for a clock in ns that runs at 1 + ppb.
        #[test]
        fn the_true_excess_is_within_the_bound(
            ppb in -1_000_000_i64..1_000_000, start in 0_u64..1 << 40, window in 1_000_000_u64..4_000_000_000,
            wide in 1_u64..3000, wide2 in 1_u64..3000, place in 0_u64..100, place2 in 0_u64..100,
        ) {
            let at = |from: u64, wide: u64, place: u64| {
                let truth = i128::from(from + wide * place / 100);
                let value = 10_000_000 + truth + truth * i128::from(ppb) / 1_000_000_000;
                Sandwich { before: Nanos::from_ns(from), value: Nanos::from_ns(u64::try_from(value).unwrap()), after: Nanos::from_ns(from + wide) }
            };
            let rate = clock_rate(&at(start, wide, place), &at(start + window, wide2, place2)).unwrap();
            prop_assert!(rate.excess_ppb.abs_diff(ppb) <= rate.error_ppb, "{rate:?} for {ppb}");
        }
    }
}
