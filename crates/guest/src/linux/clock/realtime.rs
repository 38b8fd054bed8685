//! Pairs a [`Clock`](super::Clock) with the wall clock.

use std::time::{Duration, SystemTime};

use chronovisor_abi::quantity::Nanos;

/// A clock's time and CLOCK_REALTIME at one instant, to within a known bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealtimePair {
    /// The clock's time.
    pub time: Nanos,
    /// The wall-clock time, since 1970-01-01 UTC.
    pub since_1970: Nanos,
    /// How far apart the two can have been taken, at most: half the bracket around the wall clock's reading.
    pub uncertainty: Nanos,
}

impl RealtimePair {
    /// The wall-clock time at which the clock said `time`, as the wall clock stood when the pair was taken: what a time daemon has changed since is not in
    /// it. `None` before 1970 and beyond what [`SystemTime`] can hold.
    ///
    /// ```
    /// use chronovisor_abi::quantity::Nanos;
    /// use chronovisor_guest::linux::clock::RealtimePair;
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// let ns = Nanos::from_ns;
    /// let pair = RealtimePair { time: ns(500), since_1970: ns(1_700_000_000_000_000_000), uncertainty: ns(20) };
    /// assert_eq!(pair.at(ns(400)), Some(UNIX_EPOCH + Duration::from_nanos(1_699_999_999_999_999_900)));
    /// ```
    #[must_use]
    pub fn at(&self, time: Nanos) -> Option<SystemTime> {
        let since_1970 = if time >= self.time {
            self.since_1970
                .checked_add(time.saturating_sub(self.time))?
        } else {
            self.since_1970
                .checked_sub(self.time.saturating_sub(time))?
        };
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(since_1970.as_ns()))
    }
}

/// The narrowest of five brackets of `clock` around `wall`; `None` if the wall clock stands before 1970.
pub(crate) fn pair(
    clock: impl Fn() -> Nanos,
    wall: impl Fn() -> Option<Nanos>,
) -> Option<RealtimePair> {
    let bracket = || {
        let before = clock();
        let since_1970 = wall()?;
        let width = clock().saturating_sub(before).as_ns();
        Some(RealtimePair {
            time: before.saturating_add(Nanos::from_ns(width / 2)),
            since_1970,
            uncertainty: Nanos::from_ns(width.div_ceil(2)),
        })
    };
    (0..5)
        .filter_map(|_| bracket())
        .min_by_key(|pair| pair.uncertainty)
}
