//! Calibrating a delay loop against ticks, as a kernel does it, on a vCPU that may be preempted at any moment.
//!
//! The direct way reads the counter around tick edges: five tries of two ticks of waiting and 10 ms of measuring. A try whose reads before and
//! after an edge are more than an eighth apart is dropped, then the tries that disagree. If too few are left a search over
//! ticks follows: is the loop longer than a tick?

use super::note;
use crate::line::Line;
use crate::noise::Noise;
use crate::timeline::Timeline;
use crate::watch::Watch;
use crate::world_time::{WorldSpan, WorldTime};

/// Tries of the direct way.
const TRIES: usize = 5;
/// A delay loop's first guess.
const FIRST_LOOPS: u64 = 1 << 12;
/// The search ends when the step is this many bits below the value.
const PRECISION_BITS: u32 = 8;
/// The search starts over with a wider range no more often than this.
const WIDENINGS: u32 = 16;

/// A calibration in progress.
pub(super) struct Calibration<'a> {
    pub(super) tick: WorldSpan,
    pub(super) tick_hz: u64,
    pub(super) poll: WorldSpan,
    pub(super) tsc: Line,
    pub(super) timeline: &'a mut Timeline,
    pub(super) noise: &'a mut Noise,
    pub(super) now: WorldTime,
    pub(super) watch: &'a mut Watch,
    pub(super) cpu: u32,
}

/// The counter read last before an edge was seen (`None` if it was past already), and first after it.
struct Edge {
    before: Option<u64>,
    after: u64,
}

impl Calibration<'_> {
    /// The direct way: loops per jiffy, or `None` if the tries are too few or too far apart.
    pub(super) fn direct(&mut self) -> Option<u64> {
        let ticks = if self.tick_hz < 100 {
            1
        } else {
            self.tick_hz / 100
        };
        let mut good = Vec::new();
        for _ in 0..TRIES {
            let jiffies = self.jiffies();
            let start = self.wait_for(jiffies + 2);
            let end = self.wait_for(jiffies + 2 + ticks);
            let (Some(before_start), Some(before_end)) = (start.before, end.before) else {
                note(self.watch, self.now, "try dropped", self.cpu, 0);
                continue;
            };
            let longest = end.after.saturating_sub(before_start) / ticks;
            let shortest = before_end.saturating_sub(start.after) / ticks;
            note(self.watch, self.now, "try", self.cpu, longest);
            if longest.saturating_sub(shortest) < longest >> 3 {
                good.push(longest);
            }
        }
        while good.len() > 1 {
            let count = u64::try_from(good.len()).unwrap_or(1);
            let estimate = good.iter().sum::<u64>() / count;
            let (min, max) = (*good.iter().min()?, *good.iter().max()?);
            if max - min < estimate >> 3 {
                return Some(estimate);
            }
            // The one farther from the mean goes.
            let worst = if max - estimate < estimate - min {
                min
            } else {
                max
            };
            let at = good.iter().position(|value| *value == worst)?;
            good.remove(at);
        }
        None
    }

    /// The search: the largest loop that fits a tick, to 8 bits.
    pub(super) fn search(&mut self) -> u64 {
        // First a clear underestimate, in growing steps.
        let jiffies = self.jiffies();
        let edge = self.wait_for(jiffies + 1);
        let begun = self.jiffies();
        let (mut trials, mut band, mut in_band) = (0, 0_u64, 0_u64);
        loop {
            in_band += 1;
            if in_band == 1 << band {
                band += 1;
                in_band = 0;
            }
            self.delay(FIRST_LOOPS * band);
            trials += band;
            if self.jiffies() != begun {
                break;
            }
        }
        let _ = edge;
        let (mut base, mut range) = (
            (FIRST_LOOPS * trials.saturating_sub(band)).max(FIRST_LOOPS),
            FIRST_LOOPS * band,
        );
        for _ in 0..WIDENINGS {
            let (mut loops, mut step) = (base, range);
            let limit = (loops >> PRECISION_BITS).max(1);
            while step > limit {
                loops += step;
                let jiffies = self.jiffies();
                let _ = self.wait_for(jiffies + 1);
                let begun = self.jiffies();
                self.delay(loops);
                if self.jiffies() != begun {
                    loops -= step;
                }
                step >>= 1;
            }
            note(self.watch, self.now, "search", self.cpu, loops);
            // Grown at every step: the range was too small.
            if loops + step * 2 != base + range * 2 {
                return loops;
            }
            base = loops;
            range <<= 2;
        }
        base
    }

    /// Jiffies as the CPU sees them now.
    fn jiffies(&mut self) -> u64 {
        self.now = self.timeline.runs_from(self.now, self.noise);
        self.now.as_units() / self.tick.as_units().max(1)
    }

    /// Polls the counter until jiffies are `jiffies`.
    fn wait_for(&mut self, jiffies: u64) -> Edge {
        let edge = WorldTime::from_units(self.tick.as_units().saturating_mul(jiffies));
        // The last poll before the edge, and the first after it at which the CPU runs. A neighbour that comes between them spreads them.
        let phase = self.noise.uniform(0..=self.poll.as_units().max(1) - 1);
        let last = WorldTime::from_units(edge.as_units().saturating_sub(phase + 1));
        let before = (self.now < edge).then(|| self.last_run_before(last));
        let first = WorldTime::from_units(
            edge.as_units()
                .saturating_add(self.poll.as_units().saturating_sub(phase + 1)),
        );
        self.now = self.timeline.runs_from(first.max(self.now), self.noise);
        Edge {
            before: before.map(|ran| self.tsc.at(ran)),
            after: self.tsc.at(self.now),
        }
    }

    /// The last instant up to `time` at which the CPU ran; not before the present.
    fn last_run_before(&mut self, time: WorldTime) -> WorldTime {
        let mut ran = self.now;
        while ran < time {
            let until = self.timeline.stolen_from(ran, self.noise);
            if until > time {
                return time;
            }
            let next = self.timeline.runs_from(until, self.noise);
            if next > time {
                return until;
            }
            ran = next;
        }
        ran
    }

    /// Spins until the counter has advanced by `loops`: time off the CPU counts, the loop ends when it is back.
    fn delay(&mut self, loops: u64) {
        self.now = self.timeline.runs_from(self.now, self.noise);
        let end = self
            .tsc
            .first_reaching(self.tsc.at(self.now).saturating_add(loops));
        self.now = self.timeline.runs_from(end, self.noise);
    }
}
