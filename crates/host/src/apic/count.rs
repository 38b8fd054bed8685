//! The progress of a count, exact at any instant and never rounded by looking at it.
//!
//! Progress is kept as whole *grains*: 1/(128 D) of a count, where N/D is the ratio of bus ticks to TSC ticks. With a divider of 2^k a TSC
//! tick is worth `N * 2^(7 - k)` grains, a count `128 D` grains, both whole numbers. So adding up is exact, and so is a change of the
//! divider: only the grains per tick change.

use chronovisor_abi::quantity::{Tsc, TscDelta};

use super::mutant::{Mutant, is};
use super::ratio::BusRatio;

/// The largest divider: a grain is this fraction of a 1/D count.
const GRAINS: u64 = 128;

/// Ticks that are multiplied in one step: 2^56 of them, a term of 63 bits and a divider of 128 stay within 126 bits. 320 days at 2.6 GHz.
const STEP: u64 = 1 << 56;

/// A count under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    ratio: BusRatio,
    divide_log2: u32,
    base: Tsc,
    /// Grains since the last expiry, at `base`; less than a period.
    progress: u128,
    /// Grains since the last interrupt, at `base`; not counted beyond a period.
    since_interrupt: u128,
}

/// Where a count stands at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Whole periods gone by.
    pub(super) periods: u64,
    /// Grains into the present one.
    pub(super) progress: u128,
    /// Grains since the last interrupt, at most a period.
    pub(super) since_interrupt: u128,
}

/// A length of time in counts with an exact fraction: `grains / grains_per_count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grains {
    pub(super) grains: u128,
    pub(super) grains_per_count: u128,
}

impl Count {
    pub(super) const fn new(ratio: BusRatio, divide_log2: u32, base: Tsc) -> Self {
        Self {
            ratio,
            divide_log2,
            base,
            progress: 0,
            since_interrupt: 0,
        }
    }

    /// Grains in one count.
    pub(super) fn per_count(&self) -> u128 {
        u128::from(self.ratio.denominator()) * u128::from(GRAINS)
    }

    /// Grains in one TSC tick.
    fn per_tick(&self) -> u128 {
        u128::from(self.ratio.numerator()) << (GRAINS.ilog2() - self.divide_log2)
    }

    /// The later of `now` and the last instant seen: a reading taken on another CPU may be a few ticks behind.
    pub(super) const fn not_back(&self, now: Tsc) -> Tsc {
        if now.is_before(self.base) {
            self.base
        } else {
            now
        }
    }

    /// Where the count stands at `now` with periods of `period` grains, in closed form for any distance.
    pub(super) fn position(&self, now: Tsc, period: u128) -> Position {
        let mut ahead = self.not_back(now).wrapping_delta(self.base).as_ticks();
        let mut at = Position {
            periods: 0,
            progress: self.progress,
            since_interrupt: self.since_interrupt,
        };
        // One pass for any distance below 320 days, 128 passes for the longest.
        loop {
            let step = ahead.min(STEP);
            let gained = u128::from(step) * self.per_tick();
            at.progress += gained;
            at.since_interrupt = (at.since_interrupt + gained).min(period);
            if at.progress >= period {
                if at.progress - period < period {
                    at.periods += 1;
                    at.progress -= period;
                } else {
                    let periods = at.progress / period;
                    at.periods = at
                        .periods
                        .saturating_add(u64::try_from(periods).unwrap_or(u64::MAX));
                    at.progress -= periods * period;
                }
            }
            ahead -= step;
            if ahead == 0 {
                return at;
            }
        }
    }

    /// Moves the base to `now`, where the count stands at `position`: exact, since grains are whole.
    pub(super) fn settle(&mut self, now: Tsc, position: Position) {
        self.base = self.not_back(now);
        self.progress = position.progress;
        self.since_interrupt = position.since_interrupt;
        if is(Mutant::TruncatesWhenLooking) {
            self.progress -= self.progress % self.per_count();
        }
    }

    /// Starts again from nothing at `now`.
    pub(super) fn restart(&mut self, now: Tsc, period: u128) {
        self.base = self.not_back(now);
        self.progress = 0;
        self.since_interrupt = period;
    }

    /// An interrupt is raised at the base.
    pub(super) fn note_interrupt(&mut self) {
        self.since_interrupt = 0;
    }

    /// Takes the progress as `progress` modulo `period`: the grid of a new period keeps the present count.
    pub(super) fn wrap_progress(&mut self, period: u128) {
        if self.progress >= period {
            self.progress %= period;
        }
        self.since_interrupt = period;
    }

    /// Leaves the progress within a period and returns the whole periods that it held.
    pub(super) fn settle_overdue(&mut self, period: u128) -> u64 {
        let periods = self.progress / period;
        self.progress %= period;
        u64::try_from(periods).unwrap_or(u64::MAX)
    }

    /// Grains since the last expiry, at the base.
    pub(super) const fn progress(&self) -> u128 {
        self.progress
    }

    /// Grains since the last interrupt, at the base.
    pub(super) const fn since_interrupt(&self) -> u128 {
        self.since_interrupt
    }

    pub(super) const fn base(&self) -> Tsc {
        self.base
    }

    /// The first TSC value at which `wait` more grains than at the base are complete.
    pub(super) fn tsc_after(&self, wait: u128) -> Tsc {
        let ticks = if is(Mutant::DeadlineRoundedDown) {
            wait / self.per_tick()
        } else {
            wait.div_ceil(self.per_tick())
        };
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX >> 1);
        self.base.wrapping_add(TscDelta::from_ticks(ticks))
    }

    /// Another divider from the base on; what was counted stays.
    pub(super) fn set_divide(&mut self, divide_log2: u32) {
        if is(Mutant::DividerKeepsBusTicks) {
            self.progress = (self.progress << self.divide_log2) >> divide_log2;
        }
        self.divide_log2 = divide_log2;
    }

    /// The counter is at `after` where it was at the base: it was written, or offset.
    pub(super) fn move_base(&mut self, after: Tsc) {
        self.base = after;
    }

    /// Other rates from the base on; what was counted stays, to the fraction of a count.
    pub(super) fn set_ratio(&mut self, ratio: BusRatio) {
        let (progress, since) = (self.in_counts(self.progress), self.since_interrupt);
        let since = self.in_counts(since);
        self.ratio = ratio;
        self.put_progress(progress);
        self.since_interrupt = self.grains_of(since);
    }

    /// `grains` with their unit.
    pub(super) fn in_counts(&self, grains: u128) -> Grains {
        Grains {
            grains,
            grains_per_count: self.per_count(),
        }
    }

    /// Sets the progress to `counts`, refining the grains so that it is exact if 63-bit terms allow, else less than 2^-60 of a count low.
    pub(super) fn put_progress(&mut self, counts: Grains) {
        let Grains {
            grains,
            grains_per_count,
        } = counts;
        let (whole, part) = (grains / grains_per_count, grains % grains_per_count);
        let (ratio, part) = if is(Mutant::RateChangeDropsFraction) {
            (self.ratio, 0)
        } else {
            self.ratio.fitting(part, grains_per_count, GRAINS)
        };
        self.ratio = ratio;
        self.progress = whole * self.per_count() + part;
    }

    /// `counts` in present grains, rounded down by less than one grain.
    pub(super) fn grains_of(&self, counts: Grains) -> u128 {
        let Grains {
            grains,
            grains_per_count,
        } = counts;
        let (whole, part) = (grains / grains_per_count, grains % grains_per_count);
        whole * self.per_count()
            + chronovisor_abi::wide::mul_div_floor(part, self.per_count(), grains_per_count)
                .unwrap_or(0)
    }

    /// Sets the grains since the last interrupt.
    pub(super) fn put_since_interrupt(&mut self, grains: u128) {
        self.since_interrupt = grains;
    }
}
