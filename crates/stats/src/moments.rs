//! Count, sum and sum of squares, exact.
//!
//! # Theory
//!
//! ```text
//! mean = S1 / n        deviation = sqrt(n * S2 - S1^2) / n        S1 = sum of v, S2 = sum of v^2
//! ```
//!
//! In floats the difference under the root cancels: values near 10^9 with a spread of 1 lose every digit. Here it is an
//! integer of 256 bits, so the only rounding is that of the last three operations, and merging is a plain addition: in
//! whatever order shards are merged, the result is the same to the last bit.

use chronovisor_abi::wide;

use crate::float;

/// The first two power sums of up to 2^64 values of 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moments {
    pub(crate) count: u64,
    pub(crate) sum: u128,
    /// The sum of squares: `squares_high * 2^128 + squares_low`.
    pub(crate) squares_high: u64,
    pub(crate) squares_low: u128,
}

impl Moments {
    /// Adds `count` times `value`; nothing is added beyond 2^64 values, and the answer says so.
    #[must_use]
    pub(crate) fn add(&mut self, value: u64, count: u64) -> bool {
        let (value, times) = (u128::from(value), u128::from(count));
        // The square has 128 bits, times the count 192.
        let (high, low) = wide::mul(value * value, times);
        self.merge(&Self {
            count,
            sum: value * times,
            squares_high: u64::try_from(high).unwrap_or(u64::MAX),
            squares_low: low,
        })
    }

    /// Adds all values of `other`; nothing is added beyond 2^64 values, and the answer says so.
    #[must_use]
    pub(crate) fn merge(&mut self, other: &Self) -> bool {
        let Some(count) = self.count.checked_add(other.count) else {
            return false;
        };
        // With fewer than 2^64 values below 2^64 the sum stays below 2^128 and the squares below 2^192.
        let (Some(sum), (squares_low, carry)) = (
            self.sum.checked_add(other.sum),
            self.squares_low.overflowing_add(other.squares_low),
        ) else {
            return false;
        };
        let Some(squares_high) = self
            .squares_high
            .checked_add(other.squares_high)
            .and_then(|high| high.checked_add(u64::from(carry)))
        else {
            return false;
        };
        *self = Self {
            count,
            sum,
            squares_high,
            squares_low,
        };
        true
    }

    /// The mean; `None` without values.
    pub(crate) fn mean(&self) -> Option<f64> {
        let whole = u128::from(self.count);
        // The whole part and the rest apart: a mean near 2^53 keeps its fraction as far as a float can.
        let (quotient, rest) = (self.sum.checked_div(whole)?, self.sum % whole);
        Some(float::from_u128(quotient) + float::from_u128(rest) / float::from_u128(whole))
    }

    /// The population's standard deviation; `None` without values.
    pub(crate) fn deviation(&self) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let count = u128::from(self.count);
        let (carry, low) = wide::mul(self.squares_low, count);
        let left = (u128::from(self.squares_high) * count + carry, low);
        let (high, low) = wide::abs_diff(left, wide::mul(self.sum, self.sum));
        let two_to_128 = 2.0_f64.powi(128);
        Some(
            (float::from_u128(high) * two_to_128 + float::from_u128(low)).sqrt()
                / float::from_u128(count),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[u64]) -> Moments {
        let mut moments = Moments::default();
        for value in values {
            assert!(moments.add(*value, 1));
        }
        moments
    }

    /// deviation = sqrt(sum((v - mean)^2) / n)
    #[test]
    fn known_moments() {
        for (values, mean, deviation) in [
            (&[5_u64][..], 5.0, 0.0),
            (&[2, 4, 4, 4, 5, 5, 7, 9], 5.0, 2.0),
            // A float of 53 bits sees no spread here at all when it squares.
            (
                &[4_000_000_000_000_000_000, 4_000_000_000_000_001_024],
                4_000_000_000_000_000_512.0,
                512.0,
            ),
            (&[u64::MAX, u64::MAX], 18_446_744_073_709_551_616.0, 0.0),
            (
                &[0, u64::MAX],
                9_223_372_036_854_775_808.0,
                9_223_372_036_854_775_808.0,
            ),
        ] {
            assert_eq!(of(values).mean(), Some(mean), "{values:?}");
            assert_eq!(of(values).deviation(), Some(deviation), "{values:?}");
        }
        assert_eq!(Moments::default().mean(), None);
        assert_eq!(Moments::default().deviation(), None);
    }

    #[test]
    fn too_many_values_are_refused_and_change_nothing() {
        let mut moments = Moments::default();
        assert!(moments.add(u64::MAX, u64::MAX));
        let full = moments;
        assert!(!moments.add(1, 1));
        assert_eq!(moments, full);
        assert_eq!(moments.deviation(), Some(0.0));
    }

    proptest! {
        #[test]
        fn a_merge_equals_one_pass_in_any_order(a: Vec<u64>, b: Vec<u64>) {
            let (mut ab, mut ba) = (of(&a), of(&b));
            prop_assert!(ab.merge(&of(&b)) && ba.merge(&of(&a)));
            prop_assert_eq!(ab, ba);
            prop_assert_eq!(ab, of(&[a, b].concat()));
        }

        #[test]
        fn a_repeated_value_equals_its_repetition(value: u64, count in 0_u64..100) {
            let mut at_once = Moments::default();
            prop_assert!(at_once.add(value, count));
            prop_assert_eq!(at_once, of(&vec![value; usize::try_from(count).unwrap()]));
        }
    }
}
