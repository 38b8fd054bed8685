//! True time in the simulated world.
//!
//! # Theory
//!
//! One unit is 2^-8 ns (3.9 ps): every counter below 256 GHz ticks at most once a unit, so an event can be placed on the very tick
//! that it belongs to, and whole nanoseconds are exact. 64 bits of it are 834 days, enough for the longest uptime at which
//! a defect was reported in the field (723 days).
//!
//! # Practice
//!
//! Nothing inside a simulated machine sees this time. Its clocks are lines over it: see [`crate::line`].
//!
//! # Migration
//!
//! All hosts of a world share it: it is what a pause is measured in.
//!
//! # Caveats
//!
//! A time beyond 834 days cannot be told; additions saturate there and the run ends.
//!
//! # References
//!
//! None: the unit is this crate's own.

/// An instant of true time, in units of 2^-8 ns since the world began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct WorldTime(u64);

/// A span of true time, in units of 2^-8 ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct WorldSpan(u64);

/// How many units one nanosecond has.
pub const UNITS_PER_NS: u64 = 1 << 8;

impl WorldTime {
    /// The beginning.
    pub const ZERO: Self = Self(0);
    /// The end: 834 days.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `units` of 2^-8 ns after the beginning.
    #[must_use]
    pub const fn from_units(units: u64) -> Self {
        Self(units)
    }

    /// Units of 2^-8 ns since the beginning.
    #[must_use]
    pub const fn as_units(self) -> u64 {
        self.0
    }

    /// Whole nanoseconds since the beginning, rounded down.
    #[must_use]
    pub const fn floor_ns(self) -> u64 {
        self.0 / UNITS_PER_NS
    }

    /// The instant `span` later, held at the end of the world.
    #[must_use]
    #[inline]
    pub const fn saturating_add(self, span: WorldSpan) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The span since `earlier`, zero if `earlier` is later.
    #[must_use]
    #[inline]
    pub const fn saturating_since(self, earlier: Self) -> WorldSpan {
        WorldSpan(self.0.saturating_sub(earlier.0))
    }
}

impl WorldSpan {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// A span of `units` of 2^-8 ns.
    #[must_use]
    pub const fn from_units(units: u64) -> Self {
        Self(units)
    }

    /// The span in units of 2^-8 ns.
    #[must_use]
    pub const fn as_units(self) -> u64 {
        self.0
    }

    /// A span of `ns` nanoseconds, held at 834 days.
    ///
    /// ```
    /// # use chronovisor_sim::world_time::{WorldSpan, WorldTime};
    /// let noon = WorldTime::ZERO.saturating_add(WorldSpan::from_ns(43_200_000_000_000));
    /// assert_eq!(noon.floor_ns(), 43_200_000_000_000);
    /// ```
    #[must_use]
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(UNITS_PER_NS))
    }

    /// The span in whole nanoseconds, rounded down.
    #[must_use]
    pub const fn floor_ns(self) -> u64 {
        self.0 / UNITS_PER_NS
    }
}
