//! Fixed-point multipliers: how a page tells its reader to turn counter ticks into time.
//!
//! # Theory
//!
//! Dividing by the counter's rate is too slow for a clock read, so each interface publishes a multiplier.
//!
//! ```text
//! pvclock:         ns  = ((ticks << shift) * mul) >> 32      (shift < 0: ticks >> -shift)     mul in [2^31, 2^32)
//! reference page:  100ns units = (tsc * scale) >> 64                                          scale = 2^64 * 10^7 / f
//! ```
//!
//! pvclock's multiplier has 32 significant bits: rounded to nearest it is off by at most 0.233 ppb (20 us a day), rounded
//! down by at most 0.466 ppb. The reference page's has 57 for a counter of 2.6 GHz: over the whole 64-bit range of the
//! counter the truncation is worth less than one unit of 100 ns.
//!
//! # Practice
//!
//! A host makes multipliers from a rate ([`PvclockScale::nearest`], [`ReferenceScale::from_frequency`]) and can ask for their
//! exact error; a guest takes them from a page ([`PvclockScale::from_raw`]), where any value may stand, applies them and reads the
//! rate back.
//!
//! # Migration
//!
//! A multiplier belongs to one host's counter rate. After a move to a host with another rate every page needs a new one, unless the
//! hardware scales the counter.
//!
//! # Caveats
//!
//! A left shift discards the top bits of the distance, as the interface demands. With the smallest possible shift, which
//! is what this module makes, that is after 380 years at 24 MHz; a larger shift brings it near.
//!
//! # References
//!
//! Linux `Documentation/virt/kvm/x86/msr.rst` and `arch/x86/include/asm/pvclock.h` (pvclock); Hyper-V TLFS,
//! "Reference TSC page".

use crate::quantity::{Hertz, Nanos, Ppb, Tsc, TscDelta};
use crate::wide;

const NANOS_PER_SECOND: u128 = 1_000_000_000;
const REF_TIME_PER_SECOND: u128 = 10_000_000;

/// Why a multiplier cannot be made or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    /// The counter is too slow for the reference page's 64-bit multiplier.
    #[error(
        "a counter of {rate} is too slow for the reference TSC page: its multiplier needs more than 10 MHz to fit 64 bits"
    )]
    TooSlowForReferencePage {
        /// The counter's rate.
        rate: Hertz,
    },
    /// No shift in -31..=31 brings the multiplier into 32 bits.
    #[error(
        "a counter of {rate} cannot be expressed as a pvclock multiplier and shift (0.5 Hz to 4.2e18 Hz can)"
    )]
    OutOfPvclockRange {
        /// The counter's rate.
        rate: Hertz,
    },
    /// A page says that time does not advance.
    #[error("the multiplier is 0: the page was never filled, or it is damaged")]
    ZeroMultiplier,
    /// A page names a shift beyond the width of the multiplication.
    #[error("shift {shift} is outside -31..=31: the record is damaged")]
    ShiftOutOfRange {
        /// The record's shift.
        shift: i8,
    },
    /// A page's multiplier and shift stand for a rate that no counter has.
    #[error(
        "multiplier {mul:#x} with shift {shift} stands for more than 4.6e18 Hz: the record is damaged"
    )]
    ImplausibleRate {
        /// The record's multiplier.
        mul: u32,
        /// The record's shift.
        shift: i8,
    },
}

/// Which way a multiplier that is not exact is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Down: the clock runs slow by at most 0.466 ppb.
    Floor,
    /// To nearest: within 0.233 ppb.
    Nearest,
    /// Up: the clock runs fast by at most 0.466 ppb.
    Ceil,
}

/// pvclock's multiplier (a fraction of 2^32) and shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PvclockScale {
    mul: u32,
    shift: i8,
}

impl PvclockScale {
    /// The largest error of a multiplier rounded to nearest.
    pub const MAX_ERROR_NEAREST: Ppb = Ppb::from_femto(232_831);
    /// The largest error of a multiplier rounded up or down.
    pub const MAX_ERROR_DIRECTED: Ppb = Ppb::from_femto(465_662);

    /// The multiplier nearest to `rate`, with the smallest shift that keeps all 32 of its bits.
    ///
    /// # Errors
    ///
    /// [`ScaleError::OutOfPvclockRange`] below 0.5 Hz and above 4.2 * 10^18 Hz.
    ///
    /// ```
    /// # use chronovisor_abi::{quantity::Hertz, scale::PvclockScale};
    /// let scale = PvclockScale::nearest(Hertz::from_hz(2_600_000_000).expect("not zero"))?;
    /// assert_eq!((scale.mul(), scale.shift()), (0xC4EC_4EC5, -1));
    /// # Ok::<(), chronovisor_abi::scale::ScaleError>(())
    /// ```
    pub fn nearest(rate: Hertz) -> Result<Self, ScaleError> {
        Self::from_frequency(rate, Rounding::Nearest)
    }

    /// The multiplier for `rate` rounded as asked, with the smallest shift that keeps all 32 of its bits.
    ///
    /// # Errors
    ///
    /// [`ScaleError::OutOfPvclockRange`] below 0.5 Hz and above 4.2 * 10^18 Hz.
    pub fn from_frequency(rate: Hertz, rounding: Rounding) -> Result<Self, ScaleError> {
        let exact = ExactMultiplier::of(rate)?;
        exact.rounded(match rounding {
            Rounding::Floor => Up::No,
            Rounding::Nearest => exact.nearest(),
            Rounding::Ceil => exact.ceil(),
        })
    }

    /// The multipliers for `rate` rounded down, to nearest and up, for the cost of one: see [`Self::from_frequency`].
    ///
    /// # Errors
    ///
    /// [`ScaleError::OutOfPvclockRange`] below 0.5 Hz and above 4.2 * 10^18 Hz.
    ///
    /// ```
    /// # use chronovisor_abi::{quantity::Hertz, scale::PvclockScale};
    /// let scales = PvclockScale::bracket(Hertz::from_hz(2_600_000_000).expect("not zero"))?;
    /// assert_eq!(scales.map(PvclockScale::mul), [0xC4EC_4EC4, 0xC4EC_4EC5, 0xC4EC_4EC5]);
    /// # Ok::<(), chronovisor_abi::scale::ScaleError>(())
    /// ```
    pub fn bracket(rate: Hertz) -> Result<[Self; 3], ScaleError> {
        let exact = ExactMultiplier::of(rate)?;
        Ok([
            exact.rounded(Up::No)?,
            exact.rounded(exact.nearest())?,
            exact.rounded(exact.ceil())?,
        ])
    }

    /// The multiplier and shift that a record holds, checked.
    ///
    /// # Errors
    ///
    /// [`ScaleError::ZeroMultiplier`] and [`ScaleError::ShiftOutOfRange`]: no time can be told from such a record.
    pub const fn from_raw(mul: u32, shift: i8) -> Result<Self, ScaleError> {
        if mul == 0 {
            Err(ScaleError::ZeroMultiplier)
        } else if shift < -31 || shift > 31 {
            Err(ScaleError::ShiftOutOfRange { shift })
        } else {
            Ok(Self { mul, shift })
        }
    }

    /// The multiplier, a fraction of 2^32.
    #[must_use]
    pub const fn mul(self) -> u32 {
        self.mul
    }

    /// The shift: left if positive.
    #[must_use]
    pub const fn shift(self) -> i8 {
        self.shift
    }

    /// The time that `delta` takes, exactly as the interface defines it: the shift drops low bits, the product is 96 bits wide
    /// and rounded down. At most `2^-shift` ticks plus 1 ns below the exact line of the multiplier, never above it.
    #[must_use]
    #[inline]
    pub const fn nanos(self, delta: TscDelta) -> Nanos {
        let shifted = if self.shift >= 0 {
            delta.as_ticks() << (self.shift.unsigned_abs() & 63)
        } else {
            delta.as_ticks() >> (self.shift.unsigned_abs() & 63)
        };
        if cfg!(target_pointer_width = "64") {
            // One multiplication between the counter and the time: floor(shifted * mul * 2^32 / 2^64).
            return Nanos::from_ns(mul_high(shifted, widen(self.mul) << 32));
        }
        // 64 bits times 32 bits in two halves; each product fits 64 bits and so does the sum.
        Nanos::from_ns(mul_32(shifted, self.mul))
    }

    /// The counter's rate that this multiplier stands for, `10^9 * 2^(32 - shift) / mul`: exact, or below it by less than 2^-61 of it
    /// where the fraction needs more than 64 bits.
    ///
    /// # Errors
    ///
    /// [`ScaleError::ImplausibleRate`] above 4.6 * 10^18 Hz: the record is damaged.
    pub fn frequency(self) -> Result<Hertz, ScaleError> {
        let numerator = NANOS_PER_SECOND << (32 - i32::from(self.shift));
        Hertz::from_ratio_floor(numerator, u128::from(self.mul)).ok_or(
            ScaleError::ImplausibleRate {
                mul: self.mul,
                shift: self.shift,
            },
        )
    }

    /// How far a clock with this multiplier runs fast (positive) or slow of one with the exact `rate`; [`Ppb::MAX`] if the
    /// multiplier stands for no plausible rate.
    #[must_use]
    pub fn error(self, rate: Hertz) -> Ppb {
        // The clock's speed is f * mul / (10^9 * 2^(32-shift)), that is f over the rate that the multiplier stands for.
        self.frequency()
            .map_or(Ppb::MAX, |stands_for| rate.error_against(stands_for))
    }
}

/// A multiplier before it is rounded: `quotient + remainder / divisor`.
#[derive(Clone, Copy)]
struct ExactMultiplier {
    rate: Hertz,
    shift: i8,
    quotient: u128,
    remainder: u128,
    divisor: u128,
}

/// Whether a fraction is rounded up.
#[derive(Clone, Copy)]
enum Up {
    No,
    Yes,
}

impl ExactMultiplier {
    fn of(rate: Hertz) -> Result<Self, ScaleError> {
        let out_of_range = ScaleError::OutOfPvclockRange { rate };
        // ns per tick = numerator / divisor
        let (numerator, divisor) = (
            NANOS_PER_SECOND * u128::from(rate.denominator()),
            u128::from(rate.numerator()),
        );
        // 2^(shift-1) <= ns per tick < 2^shift, found from the bit lengths and corrected by one.
        let mut shift = i64::from(numerator.ilog2()) - i64::from(divisor.ilog2()) + 1;
        if !at_least_power_of_two(numerator, divisor, shift - 1) {
            shift -= 1;
        }
        let shift = i8::try_from(shift)
            .ok()
            .filter(|s| (-31..=31).contains(s))
            .ok_or(out_of_range)?;
        // mul = ns per tick * 2^(32 - shift), 1 <= 32 - shift <= 63; the numerator has 94 bits.
        let factor = 1_u128 << (32 - i32::from(shift));
        let (quotient, remainder) =
            wide::divide(wide::mul(numerator, factor), divisor).ok_or(out_of_range)?;
        Ok(Self {
            rate,
            shift,
            quotient,
            remainder,
            divisor,
        })
    }

    fn nearest(&self) -> Up {
        if self.remainder >= self.divisor - self.remainder {
            Up::Yes
        } else {
            Up::No
        }
    }

    fn ceil(&self) -> Up {
        if self.remainder > 0 { Up::Yes } else { Up::No }
    }

    fn rounded(&self, up: Up) -> Result<PvclockScale, ScaleError> {
        let shift = self.shift;
        match u32::try_from(self.quotient + u128::from(matches!(up, Up::Yes))) {
            Ok(mul) => Ok(PvclockScale { mul, shift }),
            // Rounding up reached 2^32: the same value one shift higher.
            Err(_) if shift < 31 => Ok(PvclockScale {
                mul: 1 << 31,
                shift: shift + 1,
            }),
            Err(_) => Err(ScaleError::OutOfPvclockRange { rate: self.rate }),
        }
    }
}

/// The reference TSC page's multiplier: units of 100 ns per tick, a fraction of 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ReferenceScale(u64);

impl ReferenceScale {
    /// The multiplier for a counter of `rate`, rounded down: `2^64 * 10^7 / rate`.
    ///
    /// # Errors
    ///
    /// [`ScaleError::TooSlowForReferencePage`] at or below 10 MHz, where the multiplier does not fit: keep the page's sequence at 0.
    ///
    /// ```
    /// # use chronovisor_abi::{quantity::Hertz, scale::ReferenceScale};
    /// let scale = ReferenceScale::from_frequency(Hertz::from_hz(2_600_000_000).expect("not zero"))?;
    /// assert_eq!(scale.as_raw(), 0x00FC_0FC0_FC0F_C0FC);
    /// assert!(ReferenceScale::from_frequency(Hertz::from_hz(10_000_000).expect("not zero")).is_err());
    /// # Ok::<(), chronovisor_abi::scale::ScaleError>(())
    /// ```
    pub fn from_frequency(rate: Hertz) -> Result<Self, ScaleError> {
        let numerator = REF_TIME_PER_SECOND * u128::from(rate.denominator());
        wide::mul_div_floor(numerator, 1 << 64, u128::from(rate.numerator()))
            .and_then(|scale| u64::try_from(scale).ok())
            // A rate above 1.8e26 Hz would give 0; Hertz cannot hold one.
            .map(Self)
            .ok_or(ScaleError::TooSlowForReferencePage { rate })
    }

    /// The multiplier that a page holds; 0 is one that never advances.
    #[must_use]
    pub const fn from_raw(scale: u64) -> Self {
        Self(scale)
    }

    /// The multiplier, a fraction of 2^64.
    #[must_use]
    pub const fn as_raw(self) -> u64 {
        self.0
    }

    /// The upper half of `tsc * scale`: units of 100 ns before the page's offset is added, rounded down.
    /// At most 2 units below the exact line of the rate over the whole range of the counter, never above it.
    #[must_use]
    #[inline]
    pub fn ticks(self, tsc: Tsc) -> u64 {
        mul_high(tsc.as_ticks(), self.0)
    }

    /// The counter's rate that this multiplier stands for, `10^7 * 2^64 / scale`: exact, or below it by less than 2^-61 of it.
    ///
    /// # Errors
    ///
    /// [`ScaleError::ZeroMultiplier`] if the page's multiplier is 0.
    pub fn frequency(self) -> Result<Hertz, ScaleError> {
        Hertz::from_ratio_floor(REF_TIME_PER_SECOND << 64, u128::from(self.0))
            .ok_or(ScaleError::ZeroMultiplier)
    }

    /// The largest relative error of this multiplier: one unit in its last place, rounded up. 10^-15 for each counter above 10 MHz and
    /// below 18 GHz, which is the smallest error that [`Ppb`] can hold.
    #[must_use]
    pub fn max_error(self) -> Ppb {
        let femto = 1_000_000_000_000_000_u64.div_ceil(self.0.max(1));
        Ppb::from_femto(i64::try_from(femto).unwrap_or(i64::MAX))
    }
}

/// The upper 64 bits of a 64-by-64-bit product: the machine's wide multiply where it has one, 32-bit limbs elsewhere.
#[must_use]
#[inline]
pub const fn mul_high(a: u64, b: u64) -> u64 {
    if cfg!(target_pointer_width = "64") {
        // The upper half of 128 bits; `as` because From is not const.
        ((a as u128 * b as u128) >> 64) as u64
    } else {
        mul_limbs(a, b).0
    }
}

/// `a * mul >> 32` for 32-bit guests, from two products of 32-bit limbs.
const fn mul_32(a: u64, mul: u32) -> u64 {
    let (high, low, mul) = (a >> 32, a & 0xffff_ffff, widen(mul));
    high * mul + ((low * mul) >> 32)
}

/// The product of two 64-bit numbers as `(high, low)`, from four products of 32-bit limbs: for 32-bit guests, whose
/// compiler would otherwise call a routine that multiplies 128 by 128 bits.
///
/// ```
/// # use chronovisor_abi::scale::mul_limbs;
/// assert_eq!(mul_limbs(u64::MAX, u64::MAX), (0xFFFF_FFFF_FFFF_FFFE, 1));
/// ```
#[must_use]
#[inline]
pub const fn mul_limbs(a: u64, b: u64) -> (u64, u64) {
    const LOW: u64 = 0xffff_ffff;
    let (a1, a0, b1, b0) = (a >> 32, a & LOW, b >> 32, b & LOW);
    let (p00, p01, p10, p11) = (a0 * b0, a0 * b1, a1 * b0, a1 * b1);
    // At most 3 * (2^32 - 1): no overflow.
    let middle = (p00 >> 32) + (p01 & LOW) + (p10 & LOW);
    let high = p11 + (p01 >> 32) + (p10 >> 32) + (middle >> 32);
    (high, (middle << 32) | (p00 & LOW))
}

/// `as` because From is not const.
const fn widen(mul: u32) -> u64 {
    mul as u64
}

/// Whether `numerator / denominator >= 2^exponent`; the operands have at most 94 bits, |exponent| at most 95.
fn at_least_power_of_two(numerator: u128, denominator: u128, exponent: i64) -> bool {
    let power = |e: i64| 1_u128 << e.unsigned_abs().min(127);
    if exponent >= 0 {
        (0, numerator) >= wide::mul(denominator, power(exponent))
    } else {
        wide::mul(numerator, power(exponent)) >= (0, denominator)
    }
}

#[cfg(test)]
mod tests;
