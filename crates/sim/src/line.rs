//! A counter or clock of a simulated machine: an exact straight line over true time, until something bends it.
//!
//! # Theory
//!
//! ```text
//! value(t) = value(t0) + (t - t0) * slope          in units of 2^-64, nothing rounded until it is read
//! ```
//!
//! The slope is a fraction of 2^64 per world unit, so a product of 128 bits is exact and a machine's rate is a number that it simply has.
//! Bending the line at an instant keeps its value there, fraction included: no clock of a simulated host ever steps by rounding.
//!
//! # Practice
//!
//! [`Line::at`] reads, [`Line::first_reaching`] finds the instant at which a value is reached, exact to the world unit.
//!
//! # Migration
//!
//! A line is a host's own; a guest that moves meets another line.
//!
//! # Caveats
//!
//! The rate that was asked for is rounded to 2^-64 per world unit: 1.4 * 10^-8 Hz.
//!
//! # References
//!
//! None: plain arithmetic.

use chronovisor_abi::quantity::{Hertz, Ppb};
use chronovisor_abi::wide;

use crate::world_time::{UNITS_PER_NS, WorldTime};

const UNITS_PER_SECOND: u128 = 1_000_000_000 * UNITS_PER_NS as u128;
const FEMTO: u128 = 1_000_000_000_000_000;

/// Ticks per world unit, a fraction of 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slope(u64);

impl Slope {
    /// Nanoseconds at the rate of true time.
    pub const TRUE_NS: Self = Self(1 << 56);

    /// The slope of a counter of `rate` whose crystal is off by `error`, rounded down to 2^-64 ticks per world unit; `None` at or
    /// above 256 GHz, or if the error is -100 % or less.
    #[must_use]
    pub fn of_counter(rate: Hertz, error: Ppb) -> Option<Self> {
        let exact = wide::mul_div_floor(
            u128::from(rate.numerator()),
            1 << 64,
            u128::from(rate.denominator()) * UNITS_PER_SECOND,
        )?;
        Self(u64::try_from(exact).ok()?).checked_adjust(error)
    }

    /// This slope made faster by `error` (slower if negative), rounded down to 2^-64; `None` if the result is zero, negative or too large.
    #[must_use]
    pub fn checked_adjust(self, error: Ppb) -> Option<Self> {
        let by = u128::from(error.as_femto().unsigned_abs());
        let factor = if error.as_femto() < 0 {
            FEMTO.checked_sub(by)?
        } else {
            FEMTO + by
        };
        let slope = wide::mul_div_floor(u128::from(self.0), factor, FEMTO)?;
        u64::try_from(slope).ok().filter(|s| *s > 0).map(Self)
    }

    /// The slope as a fraction of 2^64 ticks per world unit.
    #[must_use]
    pub const fn as_raw(self) -> u64 {
        self.0
    }
}

/// A value that grows along a straight line.
///
/// ```
/// use chronovisor_abi::quantity::{Hertz, Ppb};
/// use chronovisor_sim::{line::{Line, Slope}, world_time::{WorldSpan, WorldTime}};
///
/// let rate = Hertz::from_hz(2_600_000_000).expect("not zero");
/// let fast_by_5_ppm = Slope::of_counter(rate, Ppb::from_ppb_saturating(5_000)).expect("below 256 GHz");
/// let tsc = Line::new(WorldTime::ZERO, 1_000, fast_by_5_ppm);
/// let second = WorldTime::ZERO.saturating_add(WorldSpan::from_ns(1_000_000_000));
/// assert_eq!(tsc.at(second), 1_000 + 2_600_012_999); // one short: the slope is rounded down
/// assert_eq!(tsc.at(tsc.first_reaching(5_000)), 5_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    from: WorldTime,
    /// In 2^-64.
    value: u128,
    slope: Slope,
}

impl Line {
    /// The line through `value` at `from`.
    #[must_use]
    pub const fn new(from: WorldTime, value: u64, slope: Slope) -> Self {
        Self {
            from,
            value: (value as u128) << 64,
            slope,
        }
    }

    /// The value at `time`, rounded down; that of the line's start before it. Modulo 2^64.
    #[must_use]
    #[inline]
    pub const fn at(&self, time: WorldTime) -> u64 {
        (self.exact_at(time) >> 64) as u64
    }

    /// The value at `time` in units of 2^-64, exact. Modulo 2^128.
    #[must_use]
    #[inline]
    pub const fn exact_at(&self, time: WorldTime) -> u128 {
        let span = time.saturating_since(self.from).as_units() as u128;
        // wrapping: a counter wraps at 2^64.
        self.value.wrapping_add(span * self.slope.0 as u128)
    }

    /// The first instant at which the value is `value` or more: the line's start if it is so already, the end of the world if it never is.
    #[must_use]
    #[inline]
    pub fn first_reaching(&self, value: u64) -> WorldTime {
        let Some(missing) = (u128::from(value) << 64).checked_sub(self.value) else {
            return self.from;
        };
        let units = missing.div_ceil(u128::from(self.slope.0));
        u64::try_from(units).map_or(WorldTime::MAX, |units| {
            WorldTime::from_units(self.from.as_units().saturating_add(units))
        })
    }

    /// The same line up to `time`, and from there on with `slope`: continuous to the last bit.
    #[must_use]
    pub const fn bent(&self, time: WorldTime, slope: Slope) -> Self {
        Self {
            value: self.exact_at(time),
            from: time,
            slope,
        }
    }

    /// The slope.
    #[must_use]
    pub const fn slope(&self) -> Slope {
        self.slope
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world_time::WorldSpan;
    use proptest::prelude::*;

    fn line() -> impl Strategy<Value = Line> {
        (
            any::<u32>(),
            any::<u64>(),
            1_000_000_u64..200_000_000_000,
            -500_000_i64..500_000,
        )
            .prop_map(|(from, value, hz, ppb)| {
                let rate = Hertz::from_hz(hz).unwrap();
                let slope = Slope::of_counter(rate, Ppb::from_ppb_saturating(ppb)).unwrap();
                Line::new(WorldTime::from_units(from.into()), value >> 2, slope)
            })
    }

    proptest! {
        /// value(first_reaching(v)) >= v, and it was less one unit before.
        #[test]
        fn the_instant_of_a_value_is_its_first(line in line(), ahead in 0_u64..1 << 50) {
            let value = (line.value >> 64) as u64 + ahead;
            let time = line.first_reaching(value);
            prop_assert!(line.at(time) >= value);
            if time > line.from {
                prop_assert!(line.at(WorldTime::from_units(time.as_units() - 1)) < value);
            }
        }

        /// Bent to its own slope a line is unchanged, whatever the instant; bent to another it goes through the same point.
        #[test]
        fn bending_keeps_the_value(line in line(), at in 0_u64..1 << 40, later in 0_u64..1 << 40, by in -1_000_000_i64..1_000_000) {
            let time = line.from.saturating_add(WorldSpan::from_units(at));
            let after = time.saturating_add(WorldSpan::from_units(later));
            prop_assert_eq!(line.bent(time, line.slope()).exact_at(after), line.exact_at(after));
            let bent = line.bent(time, line.slope().checked_adjust(Ppb::from_ppb_saturating(by)).unwrap());
            prop_assert_eq!(bent.exact_at(time), line.exact_at(time));
            prop_assert_eq!(bent.exact_at(after) >= line.exact_at(after), by >= 0 || later == 0);
        }
    }

    #[test]
    fn impossible_rates_are_refused() {
        let rate = |hz| Hertz::from_hz(hz).unwrap();
        assert_eq!(Slope::of_counter(rate(256_000_000_000), Ppb::ZERO), None);
        let all = Ppb::from_ppb_saturating(-1_000_000_000);
        assert_eq!(Slope::of_counter(rate(1_000), all), None);
    }
}
