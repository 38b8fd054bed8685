//! Exact guest time: what every clock is judged against.
//!
//! # Theory
//!
//! A guest's time is its counter over its rate, piece by piece:
//!
//! ```text
//! time(tsc) = time(tsc0) + (tsc - tsc0) * 10^9 / f          f an exact fraction
//! ```
//!
//! Within a piece nothing is rounded before the answer. Where a piece ends its value is kept to 2^-64 ns, so an answer is off by less than
//! 2^-64 ns (5 * 10^-20 ns) for each change of rate before it.
//!
//! # Practice
//!
//! The oracle is told of each change by the scenario, from the hosts' true parameters, not from what the code under test says.
//!
//! # Migration
//!
//! [`Oracle::go_on`] continues at another counter value and rate.
//!
//! # Caveats
//!
//! Time ends after 584 years.
//!
//! # References
//!
//! None: plain arithmetic. None of it is shared with the clocks under test but the 256-bit product of `chronovisor_abi::wide`.

use chronovisor_abi::quantity::{Hertz, Tsc, TscDelta};
use chronovisor_abi::wide;

/// A time in units of 2^-64 ns.
pub type Fine = u128;

/// The exact relation between a guest's counter and its time.
///
/// ```
/// use chronovisor_abi::quantity::{Hertz, Tsc};
/// use chronovisor_sim::oracle::Oracle;
///
/// let rate = Hertz::from_hz(3).expect("not zero");
/// let oracle = Oracle::new(Tsc::from_ticks(0), 0, rate);
/// assert_eq!(oracle.floor_ns(Tsc::from_ticks(1)), 333_333_333);
/// assert_eq!(oracle.floor_ns(Tsc::from_ticks(3)), 1_000_000_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oracle {
    from: Tsc,
    time: Fine,
    rate: Hertz,
}

impl Oracle {
    /// The relation that gives `time` (in 2^-64 ns) at `from` and goes on at `rate`.
    #[must_use]
    pub const fn new(from: Tsc, time: Fine, rate: Hertz) -> Self {
        Self { from, time, rate }
    }

    /// The time at `tsc`, at or after the piece's start, in 2^-64 ns, rounded down; held at 2^64 ns.
    #[must_use]
    pub fn at(&self, tsc: Tsc) -> Fine {
        self.time
            .saturating_add(span(tsc.wrapping_delta(self.from), self.rate))
    }

    /// The time at `tsc` in whole ns, rounded down.
    #[must_use]
    pub fn floor_ns(&self, tsc: Tsc) -> u64 {
        u64::try_from(self.at(tsc) >> 64).unwrap_or(u64::MAX)
    }

    /// Goes on from `tsc`, which is called `new_tsc` from now on, at `rate`.
    #[must_use]
    pub fn go_on(&self, tsc: Tsc, new_tsc: Tsc, rate: Hertz) -> Self {
        Self::new(new_tsc, self.at(tsc), rate)
    }

    /// How far a clock that shows `ns` at `tsc` lies behind (positive) or ahead, in 2^-64 ns.
    #[must_use]
    pub fn behind(&self, tsc: Tsc, ns: u64) -> i128 {
        // Both are below 2^128 and near each other; wrapping: as a signed distance.
        self.at(tsc)
            .wrapping_sub(u128::from(ns) << 64)
            .cast_signed()
    }
}

/// The time that `ticks` take at `rate`, in 2^-64 ns, rounded down; held at 2^64 ns.
#[must_use]
pub fn span(ticks: TscDelta, rate: Hertz) -> Fine {
    let numerator = u128::from(ticks.as_ticks()) * 1_000_000_000;
    let denominator = u128::from(rate.denominator()) << 64;
    wide::mul_div_floor(numerator, denominator, u128::from(rate.numerator())).unwrap_or(Fine::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// time * f <= ticks * 10^9 * 2^64 * d < (time + 1) * f, cross-multiplied without rounding.
        #[test]
        fn a_span_is_the_exact_one_rounded_down(ticks in 0_u64..1 << 50, n in 1_000_000_000_u64..20_000_000_000, d in 1_u64..1000) {
            let rate = Hertz::from_ratio(u128::from(n), u128::from(d)).unwrap();
            let time = span(TscDelta::from_ticks(ticks), rate);
            let exact = wide::mul(u128::from(ticks) * 1_000_000_000, u128::from(rate.denominator()) << 64);
            prop_assert!(wide::mul(time, u128::from(rate.numerator())) <= exact);
            prop_assert!(wide::mul(time + 1, u128::from(rate.numerator())) > exact);
        }

        /// A piece that goes on under the same rate is the same line, to 2^-64 ns.
        #[test]
        fn going_on_changes_nothing(middle in 0_u64..1 << 50, end in 0_u64..1 << 50, hz in 1_000_000_u64..20_000_000_000) {
            let rate = Hertz::from_hz(hz).unwrap();
            let whole = Oracle::new(Tsc::from_ticks(7), 0, rate);
            let at = Tsc::from_ticks(7 + middle);
            let pieces = whole.go_on(at, Tsc::from_ticks(1), rate);
            let (a, b) = (whole.at(Tsc::from_ticks(7 + middle + end)), pieces.at(Tsc::from_ticks(1 + end)));
            prop_assert!(a - b <= 1, "{a} {b}");
        }
    }

    /// 1 s at 2.6 GHz; a clock that shows 1 ns less is behind by 2^64.
    #[test]
    fn a_clock_is_behind_by_what_it_shows_too_little() {
        let oracle = Oracle::new(
            Tsc::from_ticks(0),
            0,
            Hertz::from_hz(2_600_000_000).unwrap(),
        );
        let second = Tsc::from_ticks(2_600_000_000);
        assert_eq!(oracle.behind(second, 999_999_999), 1 << 64);
        assert_eq!(oracle.behind(second, 1_000_000_001), -(1 << 64));
    }
}
