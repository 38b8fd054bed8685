//! The master relation: from the guest's counter to its time, without rounding.

use chronovisor_abi::quantity::{Hertz, Nanos, Tsc, TscDelta};
use chronovisor_abi::wide;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A time in ns with a fraction of 64 bits: what one tick more or less can never hide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ExactNanos(u128);

impl ExactNanos {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// Whole ns.
    #[must_use]
    pub const fn from_nanos(time: Nanos) -> Self {
        // A u64 moved up by 64 bits fits; `as` because From is not const.
        Self((time.as_ns() as u128) << 64)
    }

    /// A time in units of 2^-64 ns.
    #[must_use]
    pub const fn from_raw(raw: u128) -> Self {
        Self(raw)
    }

    /// The time in units of 2^-64 ns.
    #[must_use]
    pub const fn as_raw(self) -> u128 {
        self.0
    }

    /// The whole ns at or below: error in (-1 ns, 0].
    #[must_use]
    pub const fn floor(self) -> Nanos {
        // The upper half of 128 bits; `as` because From is not const.
        Nanos::from_ns((self.0 >> 64) as u64)
    }

    /// The sum, held at 2^64 ns (584 years).
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, held at zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// How far this time lies after `other`, in 2^-64 ns; right for distances below 292 years.
    pub(crate) const fn wrapping_error(self, other: Self) -> i128 {
        // wrapping: the line of a record counts modulo 2^64 ns.
        self.0.wrapping_sub(other.0).cast_signed()
    }
}

/// One epoch of the master: an exact rational slope from a point.
///
/// The slope is exact; the point is the previous epoch's value at the instant of the change, cut to 2^-64 ns. So each change of the
/// rate costs less than 2^-64 ns, and nothing else costs anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    base: Tsc,
    time: ExactNanos,
    rate: Hertz,
}

impl Master {
    pub(crate) const fn new(base: Tsc, time: ExactNanos, rate: Hertz) -> Self {
        Self { base, time, rate }
    }

    pub(crate) const fn base(&self) -> Tsc {
        self.base
    }

    pub(crate) const fn rate(&self) -> Hertz {
        self.rate
    }

    /// The same relation for a counter that was moved `ahead`.
    pub(crate) const fn moved(&self, ahead: TscDelta) -> Self {
        Self::new(self.base.wrapping_add(ahead), self.time, self.rate) // wrapping: the counter itself wraps.
    }

    /// The time at `tsc`, which must not lie before the epoch's start (it is then taken as 2^64 ticks later); held at 2^64 ns.
    pub(crate) fn at(&self, tsc: Tsc) -> ExactNanos {
        self.time
            .saturating_add(advance(self.rate, tsc.wrapping_delta(self.base)))
    }

    /// The first counter value at or after the epoch's start where the time is at least `time`, or `None` if that is 2^64 ticks away.
    pub(crate) fn first_at_or_after(&self, time: ExactNanos) -> Option<Tsc> {
        let missing = time.saturating_sub(self.time).as_raw();
        // ticks = missing / 2^64 * n / (10^9 d), rounded up: first n / (10^9 d), exact within 2^-64 of a tick after the rounding below.
        let numerator = u128::from(self.rate.numerator());
        let per = NANOS_PER_SECOND * u128::from(self.rate.denominator());
        let product = wide::mul(missing, numerator);
        let whole = ((product.0 << 64) | (product.1 >> 64), product.1 << 64 != 0);
        if product.0 >> 64 != 0 {
            return None;
        }
        let ticks = (whole.0 + u128::from(whole.1)).div_ceil(per);
        let ticks = u64::try_from(ticks).ok()?;
        Some(self.base.wrapping_add(TscDelta::from_ticks(ticks)))
    }
}

/// The time that `delta` takes at `rate`, rounded down to 2^-64 ns; held at 2^64 ns.
pub(crate) fn advance(rate: Hertz, delta: TscDelta) -> ExactNanos {
    let divisor = u128::from(rate.numerator());
    let product = wide::mul(
        u128::from(delta.as_ticks()),
        NANOS_PER_SECOND * u128::from(rate.denominator()),
    );
    let (whole, rest) = if product.0 == 0 {
        let whole = product.1 / divisor;
        (whole, product.1 - whole * divisor)
    } else {
        match wide::divide(product, divisor) {
            Some(parts) => parts,
            None => return ExactNanos(u128::MAX),
        }
    };
    if whole >> 64 != 0 {
        return ExactNanos(u128::MAX);
    }
    // rest < divisor < 2^64, so the quotient is below 2^64.
    ExactNanos((whole << 64) | ((rest << 64) / divisor))
}

/// Ticks until a quantity that stands at `error` and moves by `per_span` every `span` ticks leaves `-bound..=bound`; `None` if that is
/// more than 2^63 ticks away or it never does. Rounded down, so that it is inside the bound at that tick.
pub(crate) fn ticks_until(
    error: i128,
    per_span: i128,
    span: TscDelta,
    bound: i128,
) -> Option<TscDelta> {
    let room = if per_span >= 0 {
        bound.saturating_sub(error)
    } else {
        bound.saturating_add(error)
    };
    let ticks = match u128::try_from(room) {
        Ok(room) => {
            wide::mul_div_floor(room, u128::from(span.as_ticks()), per_span.unsigned_abs())?
        }
        Err(_) => 0,
    };
    u64::try_from(ticks)
        .ok()
        .filter(|ticks| *ticks < 1 << 63)
        .map(TscDelta::from_ticks)
}

/// A span over which to compare two slopes at `rate`: a power of two between 64 s and 128 s of ticks, where the counter has that many.
pub(crate) fn comparison_span(rate: Hertz) -> TscDelta {
    let ticks = (u128::from(rate.numerator()) * 64 / u128::from(rate.denominator())).max(1);
    let ticks = 1_u64 << (ticks.ilog2() + 1).clamp(8, 62);
    TscDelta::from_ticks(ticks)
}

/// `value / divisor`, rounded down, in divisions of 64 bits: the compiler's own of 128 bits takes several times as long.
pub(crate) const fn divide(value: u128, divisor: u32) -> u128 {
    // value = high * 2^64 + low; 2^64 = whole * divisor + part
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the two halves of 128 bits"
    )]
    let (high, low) = ((value >> 64) as u64, value as u64);
    let divisor = divisor as u64; // widening
    let (whole, part) = (u64::MAX / divisor, u64::MAX % divisor + 1);
    // part is at most the divisor, and then whole is one short: the sum below is right all the same.
    let rest = high % divisor;
    // rest * 2^64 + low = rest * whole * divisor + (rest * part + low); the last sum may carry.
    let (sum, carry) = (low % divisor + rest * part, low / divisor);
    (((high / divisor) as u128) << 64)
        + (rest as u128 * whole as u128)
        + carry as u128
        + (sum / divisor) as u128
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn division_in_halves_is_division(value: u128, cut in 0_u32..128, divisor in 1_u32..) {
            prop_assert_eq!(divide(value >> cut, divisor), (value >> cut) / u128::from(divisor));
        }

        /// at(first_at_or_after(t)) >= t, and one tick earlier it is not.
        #[test]
        fn the_first_tick_is_the_first(n in 1_u64..1 << 50, d in 1_u64..1000, base: u64, start: u64, ahead in 0_u64..1 << 60) {
            let Some(rate) = Hertz::from_ratio(u128::from(n), u128::from(d)) else { return Ok(()) };
            let master = Master::new(Tsc::from_ticks(base), ExactNanos::from_raw(u128::from(start)), rate);
            let target = ExactNanos::from_raw(u128::from(start) + (u128::from(ahead) << 40));
            let Some(first) = master.first_at_or_after(target) else { return Ok(()) };
            prop_assert!(master.at(first) >= target);
            if first != master.base() {
                let before = first.wrapping_sub(TscDelta::from_ticks(1));
                prop_assert!(master.at(before) < target);
            }
        }
    }
}
