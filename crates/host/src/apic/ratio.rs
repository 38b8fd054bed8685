//! How many bus ticks one TSC tick is worth, as an exact fraction.

use chronovisor_abi::quantity::Hertz;
use chronovisor_abi::wide;

/// Both terms of the fraction stay below 2^63, so that a term, a divider of 128 and 2^56 counter ticks multiply within 128 bits.
const TERM_BITS: u32 = 63;

/// Why a pair of rates cannot drive a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// The TSC's rate is not one that a counter has.
    #[error("a TSC of {tsc} cannot drive a timer: 1 kHz to 1 THz can")]
    ImplausibleTsc {
        /// The TSC's rate.
        tsc: Hertz,
    },
    /// The bus is too slow or too fast for the TSC that it is measured with.
    #[error(
        "a bus of {bus} cannot be timed by a TSC of {tsc}: 2^-20 to 16 times the TSC's rate can"
    )]
    BusTooFarFromTsc {
        /// The bus clock's rate.
        bus: Hertz,
        /// The TSC's rate.
        tsc: Hertz,
    },
}

/// Bus ticks per TSC tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BusRatio {
    numerator: u64,
    denominator: u64,
}

impl BusRatio {
    /// `bus / tsc`: exact if the reduced fraction has two 63-bit terms, as every pair of whole rates has; else the last convergent
    /// that has, which is off by less than one bus tick in 2^63 TSC ticks (112 years at 2.6 GHz; 2^59 if the bus is the faster one).
    pub(super) fn new(bus: Hertz, tsc: Hertz) -> Result<Self, RateError> {
        if !(1_000..=1_000_000_000_000).contains(&tsc.rounded_hz()) {
            return Err(RateError::ImplausibleTsc { tsc });
        }
        let numerator = u128::from(bus.numerator()) * u128::from(tsc.denominator());
        let denominator = u128::from(bus.denominator()) * u128::from(tsc.numerator());
        if numerator / 16 > denominator || denominator >> 20 > numerator {
            return Err(RateError::BusTooFarFromTsc { bus, tsc });
        }
        Ok(Self::last_convergent(numerator, denominator))
    }

    /// Continued fraction of `numerator / denominator`, up to the last convergent with terms below 2^63 (the value itself if it fits).
    fn last_convergent(mut numerator: u128, mut denominator: u128) -> Self {
        // |x - p/q| < 1 / (q * next q), and the next q is too large: that is the bound.
        let (mut before, mut last) = ((0_u128, 1_u128), (1_u128, 0_u128));
        while denominator != 0 {
            let quotient = numerator / denominator;
            (numerator, denominator) = (denominator, numerator % denominator);
            let term = |before: u128, last: u128| {
                let next = quotient.checked_mul(last)?.checked_add(before)?;
                (next < 1 << TERM_BITS).then_some(next)
            };
            let (Some(p), Some(q)) = (term(before.0, last.0), term(before.1, last.1)) else {
                break;
            };
            (before, last) = (last, (p, q));
        }
        Self {
            numerator: narrow(last.0),
            denominator: narrow(last.1),
        }
    }

    /// Bus ticks in [`Self::denominator`] TSC ticks.
    pub(super) const fn numerator(self) -> u64 {
        self.numerator
    }

    /// TSC ticks in [`Self::numerator`] bus ticks.
    pub(super) const fn denominator(self) -> u64 {
        self.denominator
    }

    /// The same ratio with terms enlarged so that `part / whole` is a whole number of denominators, and that number times `grain`.
    ///
    /// Exact if the terms stay below 2^63, else rounded down by less than one part in the enlarged denominator, which is then
    /// above 2^57.
    pub(super) fn fitting(self, part: u128, whole: u128, grain: u64) -> (Self, u128) {
        let divisor = gcd(part, whole).max(1);
        let needed = whole / divisor;
        let unit = u128::from(self.denominator) * u128::from(grain);
        let factor = needed / gcd(needed, unit).max(1);
        let most = (1 << TERM_BITS) / u128::from(self.numerator.max(self.denominator)).max(1);
        let factor = narrow(factor.min(most).max(1));
        let scaled = Self {
            numerator: self.numerator * factor,
            denominator: self.denominator * factor,
        };
        let unit = u128::from(scaled.denominator) * u128::from(grain);
        let part = wide::mul_div_floor(part, unit, whole).unwrap_or(0);
        (scaled, part)
    }
}

/// A number known to fit 64 bits.
fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// The greatest common divisor; that of 0 and `b` is `b`.
fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hz(hz: u64) -> Hertz {
        Hertz::from_hz(hz).unwrap()
    }

    /// bus / tsc, reduced
    #[test]
    fn known_ratios() {
        for (bus, tsc, numerator, denominator) in [
            (hz(1_000_000_000), hz(2_600_000_000), 5, 13),
            (hz(24_000_000), hz(2_600_000_000), 3, 325),
            (hz(25_000_000), hz(2_400_000_000), 1, 96),
            (hz(38_400_000), hz(2_599_999_500), 25_600, 1_733_333),
            (
                Hertz::from_ratio(400_000_000, 3).unwrap(),
                hz(2_600_000_000),
                2,
                39,
            ),
        ] {
            let ratio = BusRatio::new(bus, tsc).unwrap();
            assert_eq!(
                (ratio.numerator, ratio.denominator),
                (numerator, denominator),
                "{bus} / {tsc}"
            );
        }
    }

    #[test]
    fn implausible_rates_are_refused_with_their_values() {
        let (slow, tsc) = (hz(1), hz(2_600_000_000));
        assert_eq!(
            BusRatio::new(slow, tsc),
            Err(RateError::BusTooFarFromTsc { bus: slow, tsc })
        );
        let fast = hz(50_000_000_000);
        assert_eq!(
            BusRatio::new(fast, tsc),
            Err(RateError::BusTooFarFromTsc { bus: fast, tsc })
        );
        let tsc = hz(u64::MAX);
        assert_eq!(
            BusRatio::new(fast, tsc),
            Err(RateError::ImplausibleTsc { tsc })
        );
    }

    proptest! {
        /// Exact for whole rates; within 1 tick in 2^63 (2^59 for a bus that is the faster one) for any.
        #[test]
        fn the_ratio_is_the_rates_quotient(
            bn in 24_000_000_u64..1 << 62, bd in 1_u64..1 << 31, tn in 1_000_000_000_u64.., td in 1_u64..1 << 32,
        ) {
            let (bus, tsc) = (Hertz::from_ratio(bn.into(), bd.into()).unwrap(), Hertz::from_ratio(tn.into(), td.into()).unwrap());
            if let Ok(ratio) = BusRatio::new(bus, tsc) {
                // |N/D - n/d| <= 2^-63  <=>  |N d - n D| <= D d / 2^63, products of 192 bits.
                let (n, d) = (u128::from(bus.numerator()) * u128::from(tsc.denominator()), u128::from(bus.denominator()) * u128::from(tsc.numerator()));
                let distance = wide::abs_diff(wide::mul(n, u128::from(ratio.denominator)), wide::mul(d, u128::from(ratio.numerator)));
                let (high, low) = wide::mul(d, u128::from(ratio.denominator));
                let bits = if bus <= tsc { 63 } else { 59 };
                prop_assert!(distance <= (high >> bits, (high << (128 - bits)) | (low >> bits)));
                if bus.denominator() == 1 && tsc.denominator() == 1 {
                    prop_assert_eq!(distance, (0, 0));
                }
            }
        }

        /// A fraction keeps its value: exactly if there is room, else less than one part lower.
        #[test]
        fn a_fraction_survives_a_change_of_rates(tsc in 1_000_000_000_u64..4_000_000_000, part in 0_u64..u64::MAX, whole in 1_u64.., small in 1_u64..1 << 20) {
            let ratio = BusRatio::new(hz(1_000_000_000), hz(tsc)).unwrap();
            for whole in [whole, small] {
                let part = u128::from(part % whole);
                let (scaled, moved) = ratio.fitting(part, u128::from(whole), 128);
                prop_assert_eq!(u128::from(scaled.numerator) * u128::from(ratio.denominator), u128::from(scaled.denominator) * u128::from(ratio.numerator));
                let unit = u128::from(scaled.denominator) * 128;
                let ours = wide::mul(moved, u128::from(whole));
                let theirs = wide::mul(part, unit);
                prop_assert!(ours <= theirs);
                let lost = wide::abs_diff(ours, theirs);
                prop_assert!(lost.0 == 0 && lost.1 < u128::from(whole));
                if whole < 1 << 20 {
                    prop_assert_eq!(lost.1, 0);
                } else {
                    prop_assert!(lost.1 == 0 || scaled.denominator > 1 << 57);
                }
            }
        }
    }
}
