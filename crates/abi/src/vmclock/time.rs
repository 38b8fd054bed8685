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
mod tests {
    use super::*;
    use crate::vmclock::{LeapIndicator, Page, SmearingHint};
    use proptest::prelude::*;

    fn hz(hz: u64) -> Hertz {
        Hertz::from_hz(hz).expect("not zero")
    }

    /// period = 2^(64 + shift) / f, rounded to nearest
    #[test]
    fn known_periods() {
        for (rate, frac_sec, shift) in [
            (1_000_000_000, 0x8970_5F41_36B4_A597, 29),
            (2_600_000_000, 0xD371_CD9F_67DA_D75F, 31),
            (2, 1 << 63, 0),
            (1 << 63, 1 << 63, 62),
        ] {
            assert_eq!(
                Period::of(hz(rate)),
                Ok(Period { frac_sec, shift }),
                "{rate}"
            );
        }
        for rate in [Hertz::from_hz(1), Hertz::from_ratio(1, 3)] {
            assert!(Period::of(rate.unwrap()).is_err(), "{rate:?}");
        }
    }

    /// A reader that checks only the header would take the time of a page that has none.
    #[test]
    fn d89_a_page_without_time_is_refused_and_a_time_has_its_bounds() {
        let period = Period::of(hz(1_000_000_000)).unwrap();
        let good = Contents {
            status: ClockStatus::SYNCHRONIZED,
            flags: Flags::TIME_MAXERROR_VALID.union(Flags::PERIOD_MAXERROR_VALID),
            period_frac_sec: period.frac_sec,
            period_shift: period.shift,
            period_maxerror: period.frac_sec / 1_000_000, // 1 ppm
            time_sec: 100,
            time_maxerror_ns: 50,
            ..Contents::default()
        };
        assert_eq!(good.check(&Constants::X86_TAI), Ok(()));
        for (status, usable) in [
            (0, false),
            (1, false),
            (2, true),
            (3, true),
            (4, false),
            (5, false),
        ] {
            let page = Contents {
                status: ClockStatus(status),
                ..good
            };
            assert_eq!(
                page.check(&Constants::X86_TAI).is_ok(),
                usable,
                "status {status}"
            );
        }
        for constants in [
            Constants {
                counter_id: CounterId::INVALID,
                ..Constants::X86_TAI
            },
            Constants {
                time_type: TimeType(3),
                ..Constants::X86_TAI
            },
        ] {
            assert!(good.check(&constants).is_err());
        }
        let second_later = Tsc::from_ticks(1_000_000_000);
        // The period is rounded down, so the second is not quite over.
        assert_eq!(
            good.time_at(second_later)
                .map(|time| (time.sec, time.subsec_nanos())),
            Ok((100, 999_999_999))
        );
        // 50 ns and 1 ppm of 1 s, rounded up.
        assert_eq!(
            good.bounds_at(second_later),
            Bounds {
                estimated: None,
                maximum: Some(Nanos::from_ns(1050))
            }
        );
    }

    /// UTC = TAI - 37, not TAI + 37, which would be 74 s off.
    #[test]
    fn d90_utc_is_tai_less_the_offset() {
        // 2017-01-01T00:00:37 TAI is 2017-01-01T00:00:00 UTC.
        let tai = WallTime {
            sec: 1_483_228_837,
            frac_sec: 1 << 63,
        };
        let utc = tai.checked_sub_secs(37).unwrap();
        assert_eq!((utc.sec, utc.subsec_nanos()), (1_483_228_800, 500_000_000));
        assert_eq!(tai.checked_sub_secs(-37).unwrap().sec - utc.sec, 74);
    }

    proptest! {
        /// |2^(64 + shift) / f - period| <= 1/2, cross-multiplied
        #[test]
        fn a_period_is_nearest(n in 3_u64..1 << 62, cut in 0_u32..62, d in 1_u64..1000) {
            let rate = Hertz::from_ratio(u128::from((n >> cut).max(2001)), u128::from(d)).unwrap();
            if rate <= hz(2) { return Ok(()); }
            let period = Period::of(rate).unwrap();
            prop_assert!(period.frac_sec >> 63 == 1);
            let ours = wide::mul(2 * u128::from(period.frac_sec), u128::from(rate.numerator()));
            let exact = wide::mul(u128::from(rate.denominator()) << 1, 1 << (64 + u32::from(period.shift)));
            prop_assert!(wide::abs_diff(ours, exact) <= (0, u128::from(rate.numerator())));
        }

        /// Whatever a page holds, reading it does not panic.
        #[test]
        fn any_contents_are_safe(words: [u64; 12], small: [u8; 5], offset: i16, tsc: u64) {
            let page = Page::new();
            let contents = Contents {
                disruption_marker: words[0],
                flags: Flags::from_bits(words[1]),
                status: ClockStatus(small[0]),
                smearing_hint: SmearingHint(small[1]),
                tai_offset_sec: offset,
                leap_indicator: LeapIndicator(small[2]),
                period_shift: small[3],
                counter_value: Tsc::from_ticks(words[2]),
                period_frac_sec: words[3],
                period_esterror: words[4],
                period_maxerror: words[5],
                time_sec: words[6],
                time_frac_sec: words[7],
                time_esterror_ns: words[8],
                time_maxerror_ns: words[9],
                vm_generation_counter: words[10],
            };
            page.mark(3);
            page.store(&contents);
            page.publish(3);
            prop_assert_eq!(page.read(1, || ()), Ok((contents, ())));
            let _ = contents.bounds_at(Tsc::from_ticks(tsc));
            let _ = contents.check(&Constants { counter_id: CounterId(small[4]), ..Constants::X86_TAI });
            prop_assert_eq!(contents.time_at(Tsc::from_ticks(tsc)).is_err() && small[3] <= 63,
                small[3] <= 63 && contents.time_at(Tsc::from_ticks(tsc)) == Err(TimeError::OutOfRange));
        }

        #[test]
        fn a_header_is_read_as_it_was_written(size: u32, version: u16, counter: u8, time: u8) {
            let page = Page::new();
            prop_assert!(page.constants().is_err());
            let constants = Constants { size_bytes: size, version, counter_id: CounterId(counter), time_type: TimeType(time) };
            page.write_constants(&constants);
            match page.constants() {
                Ok(read) => prop_assert_eq!(read, constants),
                Err(_) => prop_assert!(version != 1 || !(112..=4096).contains(&size)),
            }
        }
    }
}
