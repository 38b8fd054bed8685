//! When a virtual CPU has its physical CPU, and when a neighbour has it.
//!
//! # Theory
//!
//! Neighbours come at random times and stay for random spans. Between them the vCPU runs. Both are drawn as they are needed, in the order of time, so a
//! timeline is as long as whoever walks along it.
//!
//! # Practice
//!
//! [`Timeline::runs_from`] says when code that is to run at an instant does run; [`Timeline::work`] when so much running time has passed.
//!
//! # Migration
//!
//! Does not apply.
//!
//! # Caveats
//!
//! Walk forwards only: an instant before the last one asked for counts as that one.
//!
//! # References
//!
//! None.

use crate::noise::{Delay, Noise};
use crate::world_time::{WorldSpan, WorldTime};

/// One vCPU's share of its physical CPU.
#[derive(Clone, Debug)]
pub struct Timeline {
    every: Option<Delay>,
    lasts: Delay,
    /// The next span, or the present one, in which a neighbour runs.
    stolen: (WorldTime, WorldTime),
    count: u64,
}

impl Timeline {
    /// A vCPU that is preempted `every` so often (never for `None`), each time for as long as `lasts` gives, from `now` on.
    #[must_use]
    pub fn new(every: Option<Delay>, lasts: Delay, now: WorldTime, noise: &mut Noise) -> Self {
        let mut timeline = Self {
            every,
            lasts,
            stolen: (WorldTime::MAX, WorldTime::MAX),
            count: 0,
        };
        timeline.draw(now, noise);
        timeline
    }

    /// The first instant at or after `time` at which the vCPU runs.
    #[must_use]
    pub fn runs_from(&mut self, time: WorldTime, noise: &mut Noise) -> WorldTime {
        while self.stolen.1 <= time {
            self.draw(self.stolen.1, noise);
        }
        if time < self.stolen.0 {
            time
        } else {
            self.stolen.1
        }
    }

    /// The first instant at or after `time` at which a neighbour has the CPU; the end of the world if none ever will.
    #[must_use]
    pub fn stolen_from(&mut self, time: WorldTime, noise: &mut Noise) -> WorldTime {
        let time = self.runs_from(time, noise);
        self.stolen.0.max(time)
    }

    /// The instant at which the vCPU has run for `span` since `from`.
    #[must_use]
    pub fn work(&mut self, from: WorldTime, span: WorldSpan, noise: &mut Noise) -> WorldTime {
        let mut now = self.runs_from(from, noise);
        let mut left = span;
        loop {
            let end = now.saturating_add(left);
            if end <= self.stolen.0 {
                return end;
            }
            let done = self.stolen.0.saturating_since(now);
            left = WorldSpan::from_units(left.as_units() - done.as_units());
            now = self.stolen.1;
            self.draw(now, noise);
        }
    }

    /// How many preemptions there were so far.
    #[must_use]
    pub const fn preemptions(&self) -> u64 {
        self.count
    }

    fn draw(&mut self, from: WorldTime, noise: &mut Noise) {
        let Some(every) = self.every else {
            return;
        };
        // At least one unit of each, so that time goes on.
        let one = WorldSpan::from_units(1);
        let start = from.saturating_add(noise.span(every).max(one));
        self.stolen = (start, start.saturating_add(noise.span(self.lasts).max(one)));
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Work done in two pieces ends when the same work done in one does, and takes at least its own time.
        #[test]
        fn work_can_be_cut(seed: u64, first in 0_u64..1_000_000, second in 0_u64..1_000_000) {
            let delays = (Delay::Exponential { mean_ns: 1000 }, Delay::Pareto2 { min_ns: 100, max_ns: 100_000 });
            let mut noise = [Noise::of_unit(seed, 0), Noise::of_unit(seed, 0)];
            let mut lines = [0, 1].map(|i: usize| Timeline::new(Some(delays.0), delays.1, WorldTime::ZERO, &mut noise[i]));
            let whole = lines[0].work(WorldTime::ZERO, WorldSpan::from_ns(first + second), &mut noise[0]);
            let middle = lines[1].work(WorldTime::ZERO, WorldSpan::from_ns(first), &mut noise[1]);
            let end = lines[1].work(middle, WorldSpan::from_ns(second), &mut noise[1]);
            prop_assert_eq!(whole, end);
            prop_assert!(whole.floor_ns() >= first + second);
        }
    }

    #[test]
    fn without_neighbours_work_takes_its_own_time() {
        let mut noise = Noise::of_unit(1, 1);
        let mut line = Timeline::new(None, Delay::Fixed { ns: 9 }, WorldTime::ZERO, &mut noise);
        let end = line.work(WorldTime::ZERO, WorldSpan::from_ns(77), &mut noise);
        assert_eq!((end.floor_ns(), line.preemptions()), (77, 0));
    }
}
