//! A straight line from counter to nanoseconds, in the form that is cheapest to evaluate: one 64-by-64-bit multiplication.
//!
//! ```text
//! ns = base + (((tsc - anchor) << shift) * mul >> 64)        mul a fraction of 2^64, shift 0 for counters above 1 GHz
//! ```
//!
//! pvclock's multiplier and shift go into this form without loss: `mul << (32 + shift)`. The reference page's 0.64 multiplier stands for 100 ns,
//! so it is multiplied by 100 and re-anchored where the page was read.

use chronovisor_abi::pvclock::Contents;
use chronovisor_abi::quantity::{Hertz, Tsc};
use chronovisor_abi::reference_tsc::Parameters;
use chronovisor_abi::scale::{ScaleError, mul_high};
use chronovisor_abi::wide;

/// ns as a function of the counter; the ns count modulo 2^64, so that an origin can be subtracted at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) anchor: Tsc,
    pub(crate) base_ns: u64,
    pub(crate) mul: u64,
    pub(crate) shift: u32,
}

/// The line's value `delta` ticks behind its anchor, modulo 2^64 ns; rounded down. The whole hot path's arithmetic.
#[inline]
pub(crate) fn evaluate(base_ns: u64, delta: u64, shift: u32, mul: u64) -> u64 {
    // A branch that is predicted, not a shift by 0 on the path from the counter to the time, which `rdtscp` waits for at the next read.
    let delta = if shift == 0 {
        delta
    } else {
        shifted(delta, shift)
    };
    base_ns.wrapping_add(mul_high(delta, mul)) // wrapping: the base is modulo 2^64.
}

/// The distance for a counter at or below 1 GHz; the limit that each reader tests keeps it below 2^64.
#[cold]
#[inline(never)]
fn shifted(delta: u64, shift: u32) -> u64 {
    delta.wrapping_shl(shift) // wrapping: shifts are below 64, which a reader's torn copy may not be.
}

impl Line {
    /// The record's line, without loss: never below the interface's own formula, and less than `2^-shift` ticks + 1 ns above it, as no bit
    /// of the distance is shifted out.
    pub(crate) fn from_pvclock(contents: &Contents) -> Result<Self, ScaleError> {
        let scale = contents.scale()?;
        let (mul, exponent) = (u64::from(scale.mul()), scale.shift());
        let (mul, shift) = match u32::try_from(exponent) {
            Ok(left) => (mul << 32, left),
            // -31..=-1: 1 to 31 bits remain, so nothing is lost.
            Err(_) => (mul << (32 - u32::from(exponent.unsigned_abs())), 0),
        };
        Ok(Self {
            anchor: contents.tsc_timestamp,
            base_ns: contents.system_time.as_ns(),
            mul,
            shift,
        })
    }

    /// The reference page's line in ns, anchored at `at`.
    pub(crate) fn from_reference(page: &Parameters, at: Tsc) -> Result<Self, ScaleError> {
        let scale = page.scale.as_raw();
        if scale == 0 {
            return Err(ScaleError::ZeroMultiplier);
        }
        let product = u128::from(at.as_ticks()) * u128::from(scale);
        let (units, fraction) = (low_u64(product >> 64), low_u64(product));
        // wrapping: the interface adds its offset modulo 2^64, and so do the ns.
        let units = units.wrapping_add_signed(page.offset);
        let below_100 = mul_high(fraction, 100);
        let (mul, shift) = normalised(u128::from(scale) * 100);
        Ok(Self {
            anchor: at,
            base_ns: units.wrapping_mul(100).wrapping_add(below_100),
            mul,
            shift,
        })
    }

    /// The line of a counter of `rate` that has the value `base_ns` at `anchor`; `None` for a rate below 1 Hz or above 10^18 Hz.
    pub(crate) fn from_rate(anchor: Tsc, base_ns: u64, rate: Hertz) -> Option<Self> {
        if !(1..=1_000_000_000_000_000_000).contains(&rate.floor_hz()) {
            return None;
        }
        let numerator = 1_000_000_000 * u128::from(rate.denominator());
        let ns_per_tick = wide::mul_div_floor(numerator, 1 << 64, u128::from(rate.numerator()))?;
        let (mul, shift) = normalised(ns_per_tick);
        (mul > 0).then_some(Self {
            anchor,
            base_ns,
            mul,
            shift,
        })
    }

    /// The same line `ns` higher, modulo 2^64.
    pub(crate) fn raised(self, ns: u64) -> Self {
        Self {
            base_ns: self.base_ns.wrapping_add(ns), // wrapping: the base is modulo 2^64.
            ..self
        }
    }

    /// The value at `tsc`, also before the anchor (rounded up there, so that the line stays monotonic), modulo 2^64 ns.
    pub(crate) fn at(&self, tsc: Tsc) -> u64 {
        if tsc.is_before(self.anchor) {
            let back = self.span(self.anchor.wrapping_delta(tsc).as_ticks());
            self.base_ns.wrapping_sub(back) // wrapping: the base is modulo 2^64.
        } else {
            let forth = self.span(tsc.wrapping_delta(self.anchor).as_ticks());
            self.base_ns.wrapping_add(forth) // wrapping: the base is modulo 2^64.
        }
    }

    /// The same line, anchored at `tsc` if its anchor is later: the published form has no value before its anchor.
    pub(crate) fn usable_from(self, tsc: Tsc) -> Self {
        if tsc.is_before(self.anchor) {
            Self {
                anchor: tsc,
                base_ns: self.at(tsc),
                ..self
            }
        } else {
            self
        }
    }

    /// What `ticks` are worth, in ns, rounded down and modulo 2^64; any distance.
    pub(crate) fn span(&self, ticks: u64) -> u64 {
        let (high, low) = wide::mul(u128::from(ticks) << self.shift, u128::from(self.mul));
        // The upper bits beyond 2^64 ns (584 years) are dropped, as the base's are.
        low_u64((high << 64) | (low >> 64))
    }

    /// How many ticks `ns` take, rounded down, held at the largest distance that the line can evaluate.
    pub(crate) fn ticks_saturating(&self, ns: u64) -> u64 {
        let ticks = wide::mul_div_floor(u128::from(ns), 1 << 64, u128::from(self.mul))
            .map_or(u64::MAX, |shifted| {
                u64::try_from(shifted >> self.shift).unwrap_or(u64::MAX)
            });
        ticks.min(self.max_delta())
    }

    /// The largest distance from the anchor whose shifted value fits 64 bits.
    pub(crate) fn max_delta(&self) -> u64 {
        u64::MAX >> self.shift
    }

    /// The counter's rate that the line stands for.
    pub(crate) fn frequency(&self) -> Option<Hertz> {
        // 10^9 * 2^64 / (mul * 2^shift)
        Hertz::from_ratio_floor(1_000_000_000 << 64, u128::from(self.mul) << self.shift)
    }
}

/// A multiplier of 64 fraction bits as 64 bits and the left shift that they were divided by.
fn normalised(mul: u128) -> (u64, u32) {
    let shift = 64_u32.saturating_sub(mul.leading_zeros());
    (low_u64(mul >> shift), shift)
}

/// The low half.
fn low_u64(value: u128) -> u64 {
    u64::try_from(value & u128::from(u64::MAX)).expect("masked to 64 bits")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use chronovisor_abi::pvclock::Flags;
    use chronovisor_abi::quantity::{Nanos, RefTime};
    use chronovisor_abi::scale::PvclockScale;
    use proptest::prelude::*;

    fn hz(hz: u64) -> Hertz {
        Hertz::from_hz(hz).expect("not zero")
    }

    proptest! {
        /// ns = system_time + floor(ticks * mul / 2^(32 - shift)), exact.
        #[test]
        fn a_pvclock_line_is_the_records_exact_line(rate in 20_000_000_u64..20_000_000_000, at: u64, base: u64, ticks in 0_u64..1 << 55) {
            let scale = PvclockScale::nearest(hz(rate)).unwrap();
            let contents = Contents::new(Tsc::from_ticks(at), Nanos::from_ns(base), scale, Flags::NONE);
            let line = Line::from_pvclock(&contents).unwrap();
            prop_assume!(ticks <= line.max_delta());
            let tsc = Tsc::from_ticks(at.wrapping_add(ticks));
            let width = u32::try_from(32 - i32::from(scale.shift())).unwrap();
            let exact = low_u64((u128::from(ticks) * u128::from(scale.mul())) >> width);
            prop_assert_eq!(line.at(tsc), base.wrapping_add(exact));
            prop_assert_eq!(line.at(tsc), evaluate(line.base_ns, ticks, line.shift, line.mul));
            // Against the interface's own formula, which drops bits of the distance before it multiplies.
            let by_interface = contents.time_at(tsc).unwrap().as_ns();
            prop_assert!(line.at(tsc).wrapping_sub(by_interface) <= 1);
        }

        /// The line in ns and the page in units of 100 ns are one clock: floor(ns / 100) is the page's value, or one unit above it,
        /// where the page's multiplication dropped a fraction that the finer one keeps.
        #[test]
        fn a_reference_line_is_the_pages(rate in 10_000_001_u64..20_000_000_000, at in 0_u64..1 << 60, time in 0_u64..1 << 56, ticks in 0_u64..1 << 45) {
            let page = Parameters::through(Tsc::from_ticks(at), RefTime::from_100ns(time), hz(rate)).unwrap();
            let line = Line::from_reference(&page, Tsc::from_ticks(at)).unwrap();
            let tsc = Tsc::from_ticks(at + ticks);
            let (ours, theirs) = (line.at(tsc), page.time_at(tsc).as_100ns());
            let off = i128::from(ours) - i128::from(theirs) * 100;
            prop_assert!((-1..101).contains(&off), "{ours} ns against {theirs} x 100 ns");
        }

        /// The value advances by ticks * 10^9 / rate, rounded down; at most 1 ns below the exact quotient within 2^45 ticks.
        #[test]
        fn a_line_of_a_rate_has_it(rate in 1_000_000_u64..20_000_000_000, ticks in 0_u64..1 << 45) {
            let line = Line::from_rate(Tsc::from_ticks(9), 5, hz(rate)).unwrap();
            let exact = u128::from(ticks) * 1_000_000_000 / u128::from(rate);
            let ours = u128::from(line.at(Tsc::from_ticks(9 + ticks)) - 5);
            prop_assert!(ours <= exact && exact - ours <= 1, "{ours} against {exact}");
            let stands_for = line.frequency().unwrap();
            prop_assert!(stands_for.error_against(hz(rate)).saturating_abs().as_femto() <= 1_000);
        }

        /// Before the anchor and behind it the line never falls.
        #[test]
        fn a_line_is_monotonic_over_its_anchor(rate in 1_000_000_u64..20_000_000_000, from in -1_000_000_000_i64..1_000_000_000, by in 0_u64..1_000_000_000) {
            let anchor = 1_u64 << 40;
            let line = Line::from_rate(Tsc::from_ticks(anchor), 1 << 50, hz(rate)).unwrap();
            let first = anchor.checked_add_signed(from).unwrap();
            prop_assert!(line.at(Tsc::from_ticks(first)) <= line.at(Tsc::from_ticks(first + by)));
        }

        /// ticks * ns per tick <= ns, and one tick more would reach it.
        #[test]
        fn a_span_in_ticks_is_not_longer(rate in 1_000_000_u64..20_000_000_000, ns in 0_u64..1 << 40) {
            let line = Line::from_rate(Tsc::from_ticks(0), 0, hz(rate)).unwrap();
            let ticks = line.ticks_saturating(ns);
            prop_assert!(line.span(ticks) <= ns);
            prop_assert!(line.span(ticks + 2) >= ns);
        }
    }

    #[test]
    fn what_is_no_rate_is_no_line() {
        let at = Tsc::from_ticks(0);
        assert_eq!(
            Line::from_rate(at, 0, Hertz::from_ratio(1, 2).unwrap()),
            None
        );
        assert_eq!(Line::from_rate(at, 0, hz(u64::MAX)), None);
        assert!(Line::from_pvclock(&Contents::default()).is_err());
        let page = Parameters {
            scale: chronovisor_abi::scale::ReferenceScale::from_raw(0),
            offset: 1,
        };
        assert!(Line::from_reference(&page, at).is_err());
    }
}
