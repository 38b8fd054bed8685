//! From a counter value to time, with its error bounds.

use super::{ClockStatus, Constants, Contents, CounterId, Flags, TimeType};
use crate::quantity::{Hertz, Nanos, Tsc, TscDelta};
use crate::wide;

/// A time of day: whole seconds since 1970 and a fraction of 2^-64 s. Which scale (TAI or UTC) the page's time type says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WallTime {
    /// Seconds since 1970-01-01.
    pub sec: u64,
    /// Fraction of a second, in 2^-64 s.
    pub frac_sec: u64,
}

impl WallTime {
    /// The fraction in ns, rounded down: error in (-1 ns, 0].
    #[must_use]
    pub const fn subsec_nanos(self) -> u32 {
        // The upper half of a 64-bit fraction times 10^9 is below 10^9; `as` because From is not const.
        #[expect(clippy::cast_possible_truncation, reason = "below 10^9")]
        let ns = crate::scale::mul_high(self.frac_sec, 1_000_000_000) as u32;
        ns
    }

    /// The time in 2^-64 s.
    #[must_use]
    pub const fn as_frac(self) -> u128 {
        ((self.sec as u128) << 64) | self.frac_sec as u128
    }

    /// The time of `frac` in 2^-64 s.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the two halves of 128 bits"
    )]
    pub const fn from_frac(frac: u128) -> Self {
        Self {
            sec: (frac >> 64) as u64,
            frac_sec: frac as u64,
        }
    }

    /// The time `sec` seconds earlier (later if negative), or `None` outside 1970 to 2^64 s: UTC is TAI less the page's TAI offset.
    ///
    /// ```
    /// # use chronovisor_abi::vmclock::WallTime;
    /// let tai = WallTime { sec: 1_800_000_037, frac_sec: 0 };
    /// assert_eq!(tai.checked_sub_secs(37).map(|utc| utc.sec), Some(1_800_000_000));
    /// ```
    #[must_use]
    pub const fn checked_sub_secs(self, sec: i16) -> Option<Self> {
        // `as` because From is not const; an i16 fits.
        match self.sec.checked_sub_signed(sec as i64) {
            Some(sec) => Some(Self { sec, ..self }),
            None => None,
        }
    }
}

/// How far a time may be off; each is `None` if the page does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Bounds {
    /// The estimated error, rounded up.
    pub estimated: Option<Nanos>,
    /// The maximum error, rounded up.
    pub maximum: Option<Nanos>,
}

/// Why a page gives no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// The page is not about the TSC.
    #[error("the page's counter is {} (the TSC is 1): it carries no time for this counter", counter_id.0)]
    OtherCounter {
        /// The page's counter.
        counter_id: CounterId,
    },
    /// The page's time is neither UTC nor TAI nor monotonic.
    #[error("the page's time type {} is smeared or unknown", time_type.0)]
    UnknownTimeType {
        /// The page's time type.
        time_type: TimeType,
    },
    /// The clock is not set, or broken.
    #[error("the page's clock status is {} (2 synchronized and 3 free-running give time)", status.0)]
    NotUsable {
        /// The page's status.
        status: ClockStatus,
    },
    /// The page's period has an impossible shift.
    #[error("the page's period shift {shift} is above 63: the page is damaged")]
    BadShift {
        /// The page's shift.
        shift: u8,
    },
    /// The page's period is 0: its time stands still.
    #[error("the page's period is 0: the page was never filled, or it is damaged")]
    ZeroPeriod,
    /// The time does not fit 64 bits of seconds.
    #[error("the page's time at this counter value lies beyond 2^64 s: the page is damaged")]
    OutOfRange,
}

impl Contents {
    /// Whether time can be told from the page at all.
    ///
    /// # Errors
    ///
    /// [`TimeError`], all but its last case.
    pub const fn check(&self, constants: &Constants) -> Result<(), TimeError> {
        if constants.counter_id.0 != CounterId::X86_TSC.0 {
            return Err(TimeError::OtherCounter {
                counter_id: constants.counter_id,
            });
        }
        if constants.time_type.0 > TimeType::MONOTONIC.0 {
            return Err(TimeError::UnknownTimeType {
                time_type: constants.time_type,
            });
        }
        if self.status.0 != ClockStatus::SYNCHRONIZED.0
            && self.status.0 != ClockStatus::FREERUNNING.0
        {
            return Err(TimeError::NotUsable {
                status: self.status,
            });
        }
        if self.period_frac_sec == 0 {
            return Err(TimeError::ZeroPeriod);
        }
        if self.period_shift > 63 {
            return Err(TimeError::BadShift {
                shift: self.period_shift,
            });
        }
        Ok(())
    }

    /// The time at `tsc`, rounded down to 2^-64 s. The page must have passed [`Self::check`].
    ///
    /// # Errors
    ///
    /// [`TimeError::BadShift`] and [`TimeError::OutOfRange`].
    ///
    /// ```
    /// # use chronovisor_abi::{quantity::{Hertz, Tsc}, vmclock::{Contents, Period, WallTime}};
    /// let period = Period::of(Hertz::from_hz(1_000_000_000).expect("not zero")).expect("in range");
    /// let page = Contents {
    ///     counter_value: Tsc::from_ticks(5),
    ///     period_frac_sec: period.frac_sec,
    ///     period_shift: period.shift,
    ///     time_sec: 1_800_000_000,
    ///     ..Contents::default()
    /// };
    /// let time = page.time_at(Tsc::from_ticks(2_500_000_005))?;
    /// assert_eq!((time.sec, time.subsec_nanos()), (1_800_000_002, 499_999_999));
    /// # Ok::<(), chronovisor_abi::vmclock::TimeError>(())
    /// ```
    pub const fn time_at(&self, tsc: Tsc) -> Result<WallTime, TimeError> {
        if self.period_shift > 63 {
            return Err(TimeError::BadShift {
                shift: self.period_shift,
            });
        }
        let passed = self.scaled(tsc.wrapping_delta(self.counter_value), self.period_frac_sec);
        let reference = WallTime {
            sec: self.time_sec,
            frac_sec: self.time_frac_sec,
        };
        match reference.as_frac().checked_add(passed) {
            Some(time) => Ok(WallTime::from_frac(time)),
            None => Err(TimeError::OutOfRange),
        }
    }

    /// How far [`Self::time_at`] may be off at `tsc`.
    #[must_use]
    pub fn bounds_at(&self, tsc: Tsc) -> Bounds {
        let delta = tsc.wrapping_delta(self.counter_value);
        let bound = |time_flag, error_ns: u64, period_flag, rate: u64| {
            let valid = self.flags.contains(time_flag) && self.flags.contains(period_flag);
            valid.then(|| {
                let grown = frac_to_nanos_ceil(self.scaled(delta, rate));
                Nanos::from_ns(error_ns).saturating_add(grown)
            })
        };
        Bounds {
            estimated: bound(
                Flags::TIME_ESTERROR_VALID,
                self.time_esterror_ns,
                Flags::PERIOD_ESTERROR_VALID,
                self.period_esterror,
            ),
            maximum: bound(
                Flags::TIME_MAXERROR_VALID,
                self.time_maxerror_ns,
                Flags::PERIOD_MAXERROR_VALID,
                self.period_maxerror,
            ),
        }
    }

    /// `delta * per_tick / 2^shift`, in 2^-64 s, rounded down.
    const fn scaled(&self, delta: TscDelta, per_tick: u64) -> u128 {
        let product = delta.as_ticks() as u128 * per_tick as u128;
        product >> (self.period_shift & 63)
    }
}

/// A time of `frac` 2^-64 s in ns, rounded up, held at 2^64 ns.
fn frac_to_nanos_ceil(frac: u128) -> Nanos {
    let ns = wide::mul_div_ceil(frac, 1_000_000_000, 1 << 64).unwrap_or(u128::MAX);
    Nanos::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// One tick of a counter as the page states it: `frac_sec / 2^(64 + shift)` s, with all 64 bits of the fraction used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Period {
    /// The period, in 2^-(64 + shift) s.
    pub frac_sec: u64,
    /// The shift.
    pub shift: u8,
}

/// The rate has no period that the page could state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a counter of {rate} has no VMClock period: it needs more than 1 Hz")]
pub struct PeriodError {
    /// The counter's rate.
    pub rate: Hertz,
}

impl Period {
    /// The period of `rate`, rounded to nearest: relative error below 6 * 10^-20.
    ///
    /// # Errors
    ///
    /// [`PeriodError`] at or below 1 Hz.
    ///
    /// ```
    /// # use chronovisor_abi::{quantity::Hertz, vmclock::Period};
    /// let period = Period::of(Hertz::from_hz(2_600_000_000).expect("not zero"))?;
    /// assert_eq!((period.frac_sec, period.shift), (0xD371_CD9F_67DA_D75F, 31));
    /// # Ok::<(), chronovisor_abi::vmclock::PeriodError>(())
    /// ```
    pub fn of(rate: Hertz) -> Result<Self, PeriodError> {
        let error = PeriodError { rate };
        let (n, d) = (u128::from(rate.numerator()), u128::from(rate.denominator()));
        // period = 2^(64 + shift) * d / n in [2^63, 2^64): the largest shift that fits, found from the bit lengths within one.
        let highest = (n.ilog2() + 1).saturating_sub(d.ilog2()).min(63);
        let highest = u8::try_from(highest).unwrap_or(63);
        for shift in (0..=highest).rev() {
            let Some((quotient, rest)) =
                wide::divide(wide::mul(d, 1 << (64 + u32::from(shift))), n)
            else {
                continue;
            };
            let rounded = quotient + u128::from(rest >= n - rest);
            if let Ok(frac_sec) = u64::try_from(rounded) {
                return if frac_sec >> 63 == 0 {
                    Err(error)
                } else {
                    Ok(Self { frac_sec, shift })
                };
            }
        }
        Err(error)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
