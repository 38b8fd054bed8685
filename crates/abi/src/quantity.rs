//! Quantities of time, each a type of its own.
//!
//! # Theory
//!
//! A virtual machine's time passes through four units: ticks of the time-stamp counter ([`Tsc`], [`TscDelta`]),
//! nanoseconds ([`Nanos`]), Hyper-V's 100 ns units ([`RefTime`]) and rates ([`Hertz`]). Adding one to another is always a
//! fault, so the compiler refuses it. Two of them have a twist. The counter wraps and may be moved by the hypervisor, so
//! [`Tsc`] has no order: ask for [`Tsc::wrapping_delta`] or [`Tsc::is_before`]. And a rate is rarely a whole number of
//! hertz (133.333.. MHz, a scaled TSC), so [`Hertz`] is an exact fraction.
//!
//! # Practice
//!
//! A time never travels without the counter value at which it was taken: [`Reading`] pairs the two. Every conversion
//! names its rounding (`_floor`, `_ceil`, `_rounded`), every operation that can overflow says what happens then
//! (`checked_`, `saturating_`, `wrapping_`).
//!
//! # Migration
//!
//! A [`Tsc`] read before a migration and one read after it need not be on one line: nothing here can tell. The clocks
//! that are built on these quantities carry the sequence numbers that do.
//!
//! # Caveats
//!
//! [`Nanos`] and [`RefTime`] count from an origin that the clock at hand defines; the types do not know it.
//!
//! # References
//!
//! Hyper-V TLFS, "Partition Reference Time"; Linux `Documentation/virt/kvm/x86/msr.rst`; Intel SDM vol. 3B, "Time-Stamp Counter".

mod hertz;
mod ppb;

pub use hertz::Hertz;
pub use ppb::Ppb;

use core::fmt;

/// A value of the guest's time-stamp counter, in ticks; it wraps and has no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Tsc(u64);

impl Tsc {
    /// The counter value `ticks`.
    #[must_use]
    pub const fn from_ticks(ticks: u64) -> Self {
        Self(ticks)
    }

    /// The value in ticks.
    #[must_use]
    pub const fn as_ticks(self) -> u64 {
        self.0
    }

    /// Ticks from `earlier` to this value, modulo 2^64: right as long as the true distance is below 2^64 ticks.
    ///
    /// ```
    /// # use chronovisor_abi::quantity::{Tsc, TscDelta};
    /// let (before, after) = (Tsc::from_ticks(u64::MAX), Tsc::from_ticks(4));
    /// assert_eq!(after.wrapping_delta(before), TscDelta::from_ticks(5));
    /// ```
    #[must_use]
    pub const fn wrapping_delta(self, earlier: Self) -> TscDelta {
        // wrapping: the counter itself wraps.
        TscDelta(self.0.wrapping_sub(earlier.0))
    }

    /// Whether this value comes before `other`, for two values less than 2^63 ticks apart (112 years at 2.6 GHz).
    ///
    /// ```
    /// # use chronovisor_abi::quantity::Tsc;
    /// assert!(Tsc::from_ticks(u64::MAX).is_before(Tsc::from_ticks(4)));
    /// assert!(!Tsc::from_ticks(4).is_before(Tsc::from_ticks(4)));
    /// ```
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        let ahead = other.0.wrapping_sub(self.0); // wrapping: the counter itself wraps.
        ahead != 0 && ahead < 1 << 63
    }

    /// The counter `delta` later, modulo 2^64.
    #[must_use]
    pub const fn wrapping_add(self, delta: TscDelta) -> Self {
        Self(self.0.wrapping_add(delta.0)) // wrapping: the counter itself wraps.
    }

    /// The counter `delta` earlier, modulo 2^64.
    #[must_use]
    pub const fn wrapping_sub(self, delta: TscDelta) -> Self {
        Self(self.0.wrapping_sub(delta.0)) // wrapping: the counter itself wraps.
    }
}

/// A distance between two counter values, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct TscDelta(u64);

impl TscDelta {
    /// No distance.
    pub const ZERO: Self = Self(0);

    /// A distance of `ticks`.
    #[must_use]
    pub const fn from_ticks(ticks: u64) -> Self {
        Self(ticks)
    }

    /// The distance in ticks.
    #[must_use]
    pub const fn as_ticks(self) -> u64 {
        self.0
    }
}

macro_rules! time_quantity {
    ($name:ident, $from:ident, $as:ident, $unit:literal) => {
        impl $name {
            /// The origin.
            pub const ZERO: Self = Self(0);
            /// The largest value.
            pub const MAX: Self = Self(u64::MAX);

            #[doc = concat!("A time of `value` ", $unit, ".")]
            #[must_use]
            pub const fn $from(value: u64) -> Self {
                Self(value)
            }

            #[doc = concat!("The time in ", $unit, ".")]
            #[must_use]
            pub const fn $as(self) -> u64 {
                self.0
            }

            /// The sum, or `None` beyond 2^64.
            #[must_use]
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// The difference, or `None` where it would be negative.
            #[must_use]
            pub const fn checked_sub(self, other: Self) -> Option<Self> {
                match self.0.checked_sub(other.0) {
                    Some(difference) => Some(Self(difference)),
                    None => None,
                }
            }

            /// The sum, held at the largest value.
            #[must_use]
            pub const fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }

            /// The difference, held at zero.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// The sum modulo 2^64, for clock formulas that the interface defines modulo 2^64.
            #[must_use]
            pub const fn wrapping_add(self, other: Self) -> Self {
                Self(self.0.wrapping_add(other.0)) // wrapping: as the interface defines it.
            }

            /// The difference modulo 2^64, for clock formulas that the interface defines modulo 2^64.
            #[must_use]
            pub const fn wrapping_sub(self, other: Self) -> Self {
                Self(self.0.wrapping_sub(other.0)) // wrapping: as the interface defines it.
            }
        }
    };
}

/// A time or a span in nanoseconds, 584 years at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Nanos(u64);

time_quantity!(Nanos, from_ns, as_ns, "ns");

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}

/// A time or a span in units of 100 ns, as Hyper-V counts (TLFS, "Partition Reference Time").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct RefTime(u64);

time_quantity!(RefTime, from_100ns, as_100ns, "units of 100 ns");

impl RefTime {
    /// The reference time at or just below `time`: error in (-100 ns, 0].
    #[must_use]
    pub const fn from_nanos_floor(time: Nanos) -> Self {
        Self(time.0 / 100)
    }

    /// The reference time at or just above `time`: error in [0, 100 ns). A restored clock is rounded this way, so that it cannot go back.
    ///
    /// ```
    /// # use chronovisor_abi::quantity::{Nanos, RefTime};
    /// assert_eq!(RefTime::from_nanos_ceil(Nanos::from_ns(101)), RefTime::from_100ns(2));
    /// ```
    #[must_use]
    pub const fn from_nanos_ceil(time: Nanos) -> Self {
        Self(time.0.div_ceil(100))
    }

    /// The time in ns, exact, or `None` beyond 2^64 ns.
    #[must_use]
    pub const fn checked_nanos(self) -> Option<Nanos> {
        match self.0.checked_mul(100) {
            Some(ns) => Some(Nanos(ns)),
            None => None,
        }
    }
}

impl fmt::Display for RefTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x 100 ns", self.0)
    }
}

/// A time and the counter value at which it was taken; the two are never separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Reading<T> {
    /// What the clock said.
    pub time: T,
    /// The guest's counter at that instant.
    pub tsc: Tsc,
}

impl<T> Reading<T> {
    /// The pair of `time` and `tsc`.
    #[must_use]
    pub const fn new(time: T, tsc: Tsc) -> Self {
        Self { time, tsc }
    }

    /// The same instant with the time converted by `f`.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        Reading {
            time: f(self.time),
            tsc: self.tsc,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The distance forward and the distance back sum to a whole turn.
        #[test]
        fn delta_undoes_add(start: u64, by: u64) {
            let (tsc, delta) = (Tsc::from_ticks(start), TscDelta::from_ticks(by));
            prop_assert_eq!(tsc.wrapping_add(delta).wrapping_delta(tsc), delta);
            prop_assert_eq!(tsc.wrapping_add(delta).wrapping_sub(delta), tsc);
        }

        /// Exactly one of before, after, equal holds (but at the distance 2^63, where neither is before).
        #[test]
        fn before_is_antisymmetric(a: u64, b: u64) {
            let (x, y) = (Tsc::from_ticks(a), Tsc::from_ticks(b));
            prop_assume!(a.wrapping_sub(b) != 1 << 63);
            prop_assert_eq!(x.is_before(y), !y.is_before(x) && a != b);
        }

        /// floor <= exact <= ceil, and both within one unit.
        #[test]
        fn reference_time_brackets_its_nanos(ns in 0..u64::MAX - 100) {
            let floor = RefTime::from_nanos_floor(Nanos::from_ns(ns)).as_100ns();
            let ceil = RefTime::from_nanos_ceil(Nanos::from_ns(ns)).as_100ns();
            prop_assert!(u128::from(floor) * 100 <= u128::from(ns) && u128::from(ns) - u128::from(floor) * 100 < 100);
            prop_assert!(u128::from(ceil) * 100 >= u128::from(ns) && u128::from(ceil) * 100 - u128::from(ns) < 100);
        }
    }
}
