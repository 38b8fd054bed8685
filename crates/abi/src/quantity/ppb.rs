//! Relative errors.

use core::fmt;

use crate::wide;

/// A signed relative error, kept in units of 10^-6 ppb (10^-15), so that the 0.023 ppb of a rounded multiplier is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ppb(i64);

impl Ppb {
    /// No error.
    pub const ZERO: Self = Self(0);
    /// The largest error that can be written: 9223 times the true value.
    pub const MAX: Self = Self(i64::MAX);

    /// An error of `femto` times 10^-15.
    #[must_use]
    pub const fn from_femto(femto: i64) -> Self {
        Self(femto)
    }

    /// An error of `ppb` whole parts per billion, held at the ends of the range (9.2 * 10^12 ppb).
    #[must_use]
    pub const fn from_ppb_saturating(ppb: i64) -> Self {
        Self(ppb.saturating_mul(1_000_000))
    }

    /// The error in units of 10^-15.
    #[must_use]
    pub const fn as_femto(self) -> i64 {
        self.0
    }

    /// The error without its sign.
    #[must_use]
    pub const fn saturating_abs(self) -> Self {
        Self(self.0.saturating_abs())
    }

    /// The error in parts per million, for display and statistics only (a float).
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "for display: 53 bits are enough"
    )]
    pub const fn as_ppm_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// `difference / whole`, rounded to the nearest 10^-15, negative if `negative`; held at the ends of the range.
    #[must_use]
    pub(crate) fn from_fraction(difference: u128, whole: u128, negative: bool) -> Self {
        let doubled =
            wide::mul_div_floor(difference, 2_000_000_000_000_000, whole).unwrap_or(u128::MAX);
        let femto = i64::try_from(doubled.div_ceil(2)).unwrap_or(i64::MAX);
        Self(if negative { -femto } else { femto })
    }
}

/// In ppb with six decimals, every digit exact: `-0.278900 ppb`.
impl fmt::Display for Ppb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let femto = self.0.unsigned_abs();
        write!(
            f,
            "{sign}{}.{:06} ppb",
            femto / 1_000_000,
            femto % 1_000_000
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn every_digit_is_shown() {
        assert_eq!(format!("{}", Ppb::from_femto(-278_900)), "-0.278900 ppb");
        assert_eq!(
            format!("{}", Ppb::from_ppb_saturating(349_280)),
            "349280.000000 ppb"
        );
    }

    #[test]
    fn a_fraction_rounds_to_nearest_and_holds_at_the_ends() {
        assert_eq!(
            Ppb::from_fraction(1, 2_000_000_000_000_000, false).as_femto(),
            1
        );
        assert_eq!(
            Ppb::from_fraction(1, 2_000_000_000_000_001, true).as_femto(),
            0
        );
        assert_eq!(
            Ppb::from_fraction(1, 3, true).as_femto(),
            -333_333_333_333_333
        );
        assert_eq!(Ppb::from_fraction(u128::MAX, 1, true).as_femto(), -i64::MAX);
        assert_eq!(Ppb::from_fraction(1, 0, false).as_femto(), i64::MAX);
    }
}
