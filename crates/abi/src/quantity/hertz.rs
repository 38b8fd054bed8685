//! Rates as exact fractions.

use core::cmp::Ordering;
use core::fmt;
use core::num::NonZeroU64;

use super::Ppb;
use crate::wide;

/// An exact positive rate in hertz: a reduced fraction of two 64-bit numbers.
///
/// Rates in this field are rarely whole: a 400/3 MHz bus clock, a TSC scaled by 48 fraction bits, a crystal times a
/// ratio. Truncating them to kHz loses up to 666 ppb (57 ms a day), so nothing here is in kHz.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hertz {
    numerator: NonZeroU64,
    denominator: NonZeroU64,
}

impl Hertz {
    /// `hz` whole hertz, or `None` for zero.
    #[must_use]
    pub const fn from_hz(hz: u64) -> Option<Self> {
        match NonZeroU64::new(hz) {
            Some(numerator) => Some(Self {
                numerator,
                denominator: NonZeroU64::MIN,
            }),
            None => None,
        }
    }

    /// `khz` whole kilohertz, or `None` for zero. A kHz value that an interface reports is itself truncated: see the
    /// error bounds of the frequency channels.
    #[must_use]
    pub const fn from_khz(khz: u32) -> Option<Self> {
        // A u32 times 1000 fits 42 bits; `as` because From is not const.
        Self::from_hz(khz as u64 * 1000)
    }

    /// `numerator / denominator` Hz, exact, or `None` if either is zero or the reduced fraction needs more than 64 bits.
    ///
    /// ```
    /// # use chronovisor_abi::quantity::Hertz;
    /// let bus = Hertz::from_ratio(400_000_000, 3).expect("positive");
    /// assert_eq!(bus.rounded_hz(), 133_333_333);
    /// assert_eq!(Hertz::from_ratio(0, 3), None);
    /// ```
    #[must_use]
    pub fn from_ratio(numerator: u128, denominator: u128) -> Option<Self> {
        let divisor = gcd(numerator, denominator)?;
        Some(Self {
            numerator: NonZeroU64::new(u64::try_from(numerator / divisor).ok()?)?,
            denominator: NonZeroU64::new(u64::try_from(denominator / divisor).ok()?)?,
        })
    }

    /// `numerator / denominator` Hz, exact where [`Self::from_ratio`] is, else rounded down to a fraction that fits: relative
    /// error in (-2^-61, 0]. `None` if either is zero or an inexact rate lies outside 2 Hz to 2^62 Hz.
    #[must_use]
    pub fn from_ratio_floor(numerator: u128, denominator: u128) -> Option<Self> {
        if let Some(exact) = Self::from_ratio(numerator, denominator) {
            return Some(exact);
        }
        if numerator == 0 || denominator == 0 {
            return None;
        }
        // The rate as m / 2^k with m in [2^61, 2^63): one unit of m is at most 2^-61 of the rate.
        let magnitude = i64::from(numerator.ilog2()) - i64::from(denominator.ilog2());
        let k = u32::try_from(62 - magnitude).ok().filter(|k| *k < 62)?;
        Self::from_ratio(wide::mul_div_floor(numerator, 1 << k, denominator)?, 1 << k)
    }

    /// The reduced fraction's numerator.
    #[must_use]
    pub const fn numerator(self) -> u64 {
        self.numerator.get()
    }

    /// The reduced fraction's denominator.
    #[must_use]
    pub const fn denominator(self) -> u64 {
        self.denominator.get()
    }

    /// The rate in whole Hz, rounded to nearest (half up): error at most 0.5 Hz.
    #[must_use]
    pub fn rounded_hz(self) -> u64 {
        let (n, d) = (u128::from(self.numerator()), u128::from(self.denominator()));
        u64::try_from((2 * n + d) / (2 * d)).unwrap_or(u64::MAX)
    }

    /// The rate in whole Hz, rounded down: error in (-1 Hz, 0].
    #[must_use]
    pub const fn floor_hz(self) -> u64 {
        self.numerator.get() / self.denominator.get()
    }

    /// The rate times `multiplier / divisor`, exact, or `None` if a factor is zero or the result needs more than 64 bits.
    ///
    /// ```
    /// # use chronovisor_abi::quantity::Hertz;
    /// // A host TSC of 2.1 GHz scaled by a ratio with 32 fraction bits.
    /// let guest = Hertz::from_hz(2_100_000_000).and_then(|host| host.checked_scale(3 << 31, 1 << 32)).expect("fits");
    /// assert_eq!(guest.rounded_hz(), 3_150_000_000);
    /// ```
    #[must_use]
    pub fn checked_scale(self, multiplier: u64, divisor: u64) -> Option<Self> {
        Self::from_ratio(
            u128::from(self.numerator()) * u128::from(multiplier),
            u128::from(self.denominator()) * u128::from(divisor),
        )
    }

    /// How far this rate lies above (positive) or below `reference`, rounded to the nearest 10^-6 ppb; held at the ends of [`Ppb`].
    #[must_use]
    pub fn error_against(self, reference: Self) -> Ppb {
        // (a/b - c/d) / (c/d) = (a d - c b) / (c b)
        let ad = u128::from(self.numerator()) * u128::from(reference.denominator());
        let cb = u128::from(reference.numerator()) * u128::from(self.denominator());
        Ppb::from_fraction(ad.abs_diff(cb), cb, ad < cb)
    }
}

impl Ord for Hertz {
    fn cmp(&self, other: &Self) -> Ordering {
        let left = u128::from(self.numerator()) * u128::from(other.denominator());
        left.cmp(&(u128::from(other.numerator()) * u128::from(self.denominator())))
    }
}

impl PartialOrd for Hertz {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// In MHz with six decimals (whole hertz, rounded), as the field prints TSC rates.
impl fmt::Display for Hertz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hz = self.rounded_hz();
        write!(f, "{}.{:06} MHz", hz / 1_000_000, hz % 1_000_000)
    }
}

/// The greatest common divisor, or `None` if either number is zero.
fn gcd(mut a: u128, mut b: u128) -> Option<u128> {
    if a == 0 || b == 0 {
        return None;
    }
    while b != 0 {
        (a, b) = (b, a % b);
    }
    Some(a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_zero_is_no_rate() {
        assert_eq!(Hertz::from_hz(0), None);
        assert_eq!(Hertz::from_ratio(1, 0), None);
        assert_eq!(Hertz::from_ratio_floor(0, 1), None);
        assert_eq!(Hertz::from_ratio_floor(1, 0), None);
    }

    /// error = (a - b) / b, in 10^-6 ppb
    #[test]
    fn known_errors() {
        for (a, b, femto) in [
            (2_593_000_000_u64, 2_593_906_000, -349_280_197_509_i64), // whole MHz: 349 ppm
            (2_600_000_000, 2_600_000_000, 0),
            (2_600_000_001, 2_600_000_000, 384_615),
        ] {
            let error = Hertz::from_hz(a)
                .zip(Hertz::from_hz(b))
                .map(|(a, b)| a.error_against(b));
            assert_eq!(error, Some(Ppb::from_femto(femto)), "{a} against {b}");
        }
    }

    proptest! {
        #[test]
        fn a_fraction_is_reduced_and_exact(n in 1_u64.., d in 1_u64.., k in 1_u64..) {
            let plain = Hertz::from_ratio(u128::from(n), u128::from(d)).unwrap();
            let scaled = Hertz::from_ratio(u128::from(n) * u128::from(k), u128::from(d) * u128::from(k)).unwrap();
            prop_assert_eq!(plain, scaled);
            prop_assert_eq!(u128::from(plain.numerator()) * u128::from(d), u128::from(n) * u128::from(plain.denominator()));
        }

        /// 0 <= exact - floor < exact * 2^-61, cross-multiplied in 256 bits.
        #[test]
        fn a_floored_fraction_is_within_its_bound(n in 1_u128 << 64..1 << 90, d in 1_u128 << 40..1 << 62) {
            let rate = Hertz::from_ratio_floor(n, d).unwrap();
            let ours = wide::mul(u128::from(rate.numerator()), d);
            let exact = wide::mul(u128::from(rate.denominator()), n);
            prop_assert!(ours <= exact, "{rate:?} is above {n}/{d}");
            let bound = ((exact.0 >> 61), (exact.0 << 67) | (exact.1 >> 61));
            prop_assert!(wide::abs_diff(ours, exact) <= bound, "{rate:?} for {n}/{d}");
        }

        #[test]
        fn order_is_that_of_the_exact_values(a in 1_u64.., b in 1_u64.., c in 1_u64.., d in 1_u64..) {
            let x = Hertz::from_ratio(u128::from(a), u128::from(b)).unwrap();
            let y = Hertz::from_ratio(u128::from(c), u128::from(d)).unwrap();
            prop_assert_eq!(x.cmp(&y), (u128::from(a) * u128::from(d)).cmp(&(u128::from(c) * u128::from(b))));
            prop_assert_eq!(x.cmp(&y), y.cmp(&x).reverse());
        }
    }
}
