//! How many ticks of a periodic timer did not come.
//!
//! # Theory
//!
//! A periodic timer is a grid of points; each wants a tick of its own. What a late tick does to the ones behind it (merged with it,
//! skipped, delivered in quick succession) changes when they come, but not how many there should have been by the last one:
//!
//! ```text
//! lost = floor((last - armed + DOUBT) / period) - ticks
//! ```
//!
//! So no tick has to be told apart from its neighbours, and it does not matter which of them were late. What does matter is the period
//! in the ticks of the guest's counter. Our timers count by that counter, so theirs is exact. KVM's count by the host's monotonic clock, which runs
//! up to 500 ppm off it (75 periods in 150 000): that period is measured, by both clocks, over the whole run.
//!
//! # Caveats
//!
//! `armed` is read before the timer is armed, so a guest that is kept from arming it has lost those periods too. A tick that was
//! still owed when the last one came counts as lost. A last tick that is late by a period but for [`DOUBT`] and the time that the arming
//! took counts for the next point: one too many.

use chronovisor_abi::quantity::Nanos;
use chronovisor_guest::counter::lfence_rdtsc;

use crate::alarm;

/// How far a measured grid may lie from the true one at the last tick.
///
/// Two pairs of readings, each within 1 us, and the time before the arming and after the last tick, in which the monotonic clock may run
/// at another rate than during the ticks: 10 ms each at 500 ppm at most.
const DOUBT: Nanos = Nanos::from_ns(10_000);

/// A pair is read so many times; the one that took least counts. One in a hundred takes an interrupt.
const READINGS: u32 = 16;

/// The host's counter and its monotonic clock at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    tsc: u64,
    time: Nanos,
}

impl Moment {
    /// This one.
    pub(super) fn now() -> Self {
        let read = |_| {
            let before = lfence_rdtsc().as_ticks();
            let time = alarm::now();
            // wrapping: the counter itself wraps.
            let took = lfence_rdtsc().as_ticks().wrapping_sub(before);
            let tsc = before.wrapping_add(took / 2);
            (took, Self { tsc, time })
        };
        let (mut least, mut best) = read(0);
        for (took, moment) in (1..READINGS).map(read) {
            if took < least {
                (least, best) = (took, moment);
            }
        }
        best
    }
}

/// The points of a periodic timer, in the ticks of the guest's counter: `span_tsc` of them take `span`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    period: Nanos,
    span_tsc: u64,
    span: Nanos,
    doubt: Nanos,
}

impl Grid {
    /// Of a timer that goes by the counter itself.
    pub(super) const fn of_counter(period: Nanos, tsc_hz: u64) -> Self {
        Self {
            period,
            span_tsc: tsc_hz,
            span: Nanos::from_ns(1_000_000_000),
            doubt: Nanos::ZERO,
        }
    }

    /// Of a timer that goes by the host's monotonic clock. `start` is before the arming and `end` after the last tick.
    pub(super) fn of_monotonic(period: Nanos, start: Moment, end: Moment) -> Self {
        Self {
            period,
            // wrapping: the counter itself wraps.
            span_tsc: end.tsc.wrapping_sub(start.tsc),
            span: end.time.saturating_sub(start.time),
            doubt: DOUBT,
        }
    }

    /// Points that no tick came for, from `armed` until the last of `ticks`.
    pub(super) fn lost(&self, armed: u64, ticks: &[u64]) -> u64 {
        let Some(last) = ticks.last() else { return 0 };
        let [elapsed, span_tsc, span, period, doubt] = [
            last.saturating_sub(armed),
            self.span_tsc,
            self.span.as_ns(),
            self.period.as_ns(),
            self.doubt.as_ns(),
        ]
        .map(u128::from);
        // In units of 1 / span_tsc ns: nothing is rounded. No product of two words and no sum of two such overflows, but for
        // the last unit.
        let due = (elapsed * span).saturating_add(doubt * span_tsc);
        let points = due / (period * span_tsc).max(1);
        let came = u128::try_from(ticks.len()).unwrap_or(u128::MAX);
        u64::try_from(points.saturating_sub(came)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: u64 = 1_000_000;

    /// One TSC tick a ns, known exactly.
    fn lost(armed: u64, ticks: &[u64]) -> u64 {
        Grid::of_counter(Nanos::from_ns(PERIOD), 1_000_000_000).lost(armed, ticks)
    }

    fn on_grid(lateness: &[u64]) -> Vec<u64> {
        (1..)
            .zip(lateness)
            .map(|(n, late)| n * PERIOD + late)
            .collect()
    }

    #[test]
    fn late_ticks_are_not_lost() {
        let late = [900_000, 0, 999_000, 10, 600_000, 0, 990_000];
        for end in 1..=late.len() {
            assert_eq!(lost(0, &on_grid(&late[..end])), 0, "{end} ticks");
        }
    }

    /// `(armed, ticks, lost)`, in ns.
    #[test]
    fn merged_ticks_are_lost() {
        let table: &[(u64, &[u64], u64)] = &[
            (0, &[], 0),
            (0, &[1_000_000, 11_000_005], 9),
            // The second tick is late; the third point has none.
            (0, &[1_000_000, 2_900_000, 4_000_000, 5_000_000], 1),
            // The first tick is late itself, and the second stands for two more.
            (0, &[1_900_000, 4_000_000, 5_000_000], 2),
            // Nothing came before the third point.
            (7, &[3_000_007, 4_000_007], 2),
            // The second tick stands for two points; the next two are owed, and come in quick succession.
            (0, &[1_000_000, 3_100_000, 5_300_000, 5_400_000], 1),
        ];
        for (armed, ticks, expected) in table {
            assert_eq!(lost(*armed, ticks), *expected, "{armed}: {ticks:?}");
        }
    }

    #[test]
    fn ticks_that_are_delivered_later_are_not_lost() {
        let mut ticks = on_grid(&[0; 20]);
        for (at, tick) in (4..8).zip([8_300_000, 8_400_000, 8_500_000, 8_600_000]) {
            ticks[at] = tick;
        }
        assert_eq!(lost(0, &ticks), 0);
        // Owed when the last one came.
        assert_eq!(lost(0, &ticks[..5]), 3);
    }

    /// The counter runs 499 ppm off the timer's clock for 150 s. A fixed period would be 74 points out at the end.
    #[test]
    fn a_slewed_clock_loses_nothing() {
        for ppm in [-499_i64, -100, 0, 100, 499] {
            let period = PERIOD.saturating_add_signed(ppm);
            let ticks: Vec<u64> = (1..=150_000).map(|n| n * period).collect();
            let start = Moment {
                tsc: 0,
                time: Nanos::ZERO,
            };
            let end = Moment {
                tsc: 150_100 * period,
                time: Nanos::from_ns(150_100 * PERIOD),
            };
            let grid = Grid::of_monotonic(Nanos::from_ns(PERIOD), start, end);
            assert_eq!(grid.lost(0, &ticks), 0, "{ppm} ppm");
            let merged: Vec<u64> = ticks.iter().copied().skip(1).step_by(3).collect();
            assert_eq!(grid.lost(0, &merged), 99_999, "{ppm} ppm");
            // By the counter alone, the error shows.
            let fixed = Grid::of_counter(Nanos::from_ns(PERIOD), 1_000_000_000);
            let expected = if ppm > 0 {
                150_000 * ppm.unsigned_abs() / PERIOD
            } else {
                0
            };
            assert_eq!(fixed.lost(0, &ticks), expected, "{ppm} ppm");
        }
    }

    #[test]
    fn the_two_clocks_of_this_machine_run_alike() {
        let start = Moment::now();
        while alarm::now().saturating_sub(start.time) < Nanos::from_ns(2_000_000) {
            std::hint::spin_loop();
        }
        let end = Moment::now();
        let ticks = end.tsc.wrapping_sub(start.tsc);
        // Any counter that Linux takes for a clock runs at 0.5 to 10 GHz: 1 to 20 million ticks in 2 ms, and more if this
        // thread was kept waiting.
        assert!(ticks >= 1_000_000, "{ticks}");
        assert!(end.time > start.time);
    }

    /// What the model does at a point of the grid.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// One tick for all points so far, so late (in ns).
        Merged(u64),
        /// One tick for one point, the others stay owed.
        Single(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let lateness = prop_oneof![
            8 => 0..PERIOD / 20,
            3 => 0..PERIOD,
            1 => 0..5 * PERIOD,
        ];
        (any::<bool>(), lateness).prop_map(|(merged, late)| {
            if merged {
                Step::Merged(late)
            } else {
                Step::Single(late)
            }
        })
    }

    proptest! {
        /// A timer whose every point, tick and merge is known, on a counter that is slewed and measured within 2 us.
        #[test]
        fn as_many_as_the_model_lost(
            steps in prop::collection::vec(step(), 1..400),
            ppm in -500_i64..=500,
            arming in 0..PERIOD / 10,
            error in -2_000_i64..=2_000,
        ) {
            // Two TSC ticks a ns, less or more: a period and its error are whole numbers then.
            let period = (2 * PERIOD).saturating_add_signed(2 * ppm);
            let in_ticks = |ns: u64| 2 * ns;
            let armed = 12_345;
            let point = |n: u64| armed + in_ticks(arming) + n * period;
            let mut ticks: Vec<u64> = Vec::new();
            let (mut next, mut lost) = (1, 0);
            for step in &steps {
                let (Step::Merged(late) | Step::Single(late)) = step;
                let last = ticks.last().map_or(0, |last| last + 1);
                let now = last.max(point(next) + in_ticks(*late));
                ticks.push(now);
                next += 1;
                if matches!(step, Step::Merged(_)) {
                    while point(next) <= now {
                        (next, lost) = (next + 1, lost + 1);
                    }
                }
            }
            let last = ticks.last().copied().unwrap_or(armed);
            // Owed, and not yet there.
            while point(next) <= last {
                (next, lost) = (next + 1, lost + 1);
            }
            // Within the doubt before the next point, nobody can tell.
            let doubt = in_ticks(arming + DOUBT.as_ns() + 2_000);
            prop_assume!(point(next) - last > doubt);

            let points = next + 10;
            let start = Moment { tsc: 0, time: Nanos::ZERO };
            let end = Moment {
                tsc: points * period,
                time: Nanos::from_ns((points * PERIOD).saturating_add_signed(error)),
            };
            let grid = Grid::of_monotonic(Nanos::from_ns(PERIOD), start, end);
            prop_assert_eq!(grid.lost(armed, &ticks), lost);
        }
    }
}
