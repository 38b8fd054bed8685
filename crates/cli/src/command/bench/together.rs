//! Threads that read one clock at the same time: how they wait for each other, and which of their rounds count.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use chronovisor_probe::resolution::Steps;
use chronovisor_stats::median;

/// A round counts if the threads were at the clock at once for this share of it.
const AT_ONCE: f64 = 0.75;

/// What one thread saw of one clock.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) ticks_per_read: Vec<f64>,
    /// Where several threads run: what each round's slice held.
    pub(super) slices: Vec<Slice>,
    pub(super) steps: Steps,
}

/// The time that one thread spent at one clock in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) start: Instant,
    pub(super) end: Instant,
    /// Its batches end here in `ticks_per_read`.
    pub(super) until: usize,
}

/// Where the threads wait for each other.
pub(super) struct Together {
    barrier: Barrier,
    go_on: AtomicBool,
}

impl Together {
    pub(super) fn new(threads: u16) -> Self {
        Self {
            barrier: Barrier::new(usize::from(threads)),
            go_on: AtomicBool::new(true),
        }
    }

    pub(super) fn wait(&self) {
        self.barrier.wait();
    }

    /// Whether all threads make another round: one of them decides for all. The first round is always made. The barriers order the flag.
    pub(super) fn another_round(&self, wanted: impl FnOnce() -> bool) -> bool {
        let go_on = self.go_on.load(Ordering::Relaxed);
        if self.barrier.wait().is_leader() {
            self.go_on.store(wanted(), Ordering::Relaxed);
        }
        self.barrier.wait();
        go_on
    }
}

/// The batches of the rounds in which the threads were at the clock at once, and how far they were. On a machine with other things to do a thread
/// may come late or lose its CPU: such a round shows the clock without the contention that was asked for. Where threads share a CPU no round
/// is better than the others, and all count.
pub(super) fn shared_batches(seen: &[&Seen]) -> (Vec<f64>, f64) {
    let rounds = seen.iter().map(|seen| seen.slices.len()).min().unwrap_or(0);
    let overlaps: Vec<f64> = (0..rounds)
        .map(|round| overlap(seen.iter().map(|seen| seen.slices[round])))
        .collect();
    let none_at_once = !overlaps.iter().any(|overlap| *overlap >= AT_ONCE);
    let kept: Vec<usize> = (0..rounds)
        .filter(|round| none_at_once || overlaps[*round] >= AT_ONCE)
        .collect();
    let of_kept: Vec<f64> = kept.iter().map(|round| overlaps[*round]).collect();
    let batches = kept
        .iter()
        .flat_map(|round| seen.iter().map(move |seen| batches_of(seen, *round)))
        .flatten()
        .copied()
        .collect();
    (batches, median(&of_kept).unwrap_or(0.0))
}

fn batches_of(seen: &Seen, round: usize) -> &[f64] {
    let from = round
        .checked_sub(1)
        .map_or(0, |before| seen.slices[before].until);
    &seen.ticks_per_read[from..seen.slices[round].until]
}

/// The time in which all slices ran over the time in which any did.
fn overlap(slices: impl Iterator<Item = Slice>) -> f64 {
    /// First and last start, first and last end.
    type Ends = [Instant; 4];
    let ends = slices.fold(None, |ends: Option<Ends>, Slice { start, end, .. }| {
        Some(match ends {
            None => [start, start, end, end],
            Some([first_start, last_start, first_end, last_end]) => [
                first_start.min(start),
                last_start.max(start),
                first_end.min(end),
                last_end.max(end),
            ],
        })
    });
    ends.map_or(0.0, |[first_start, last_start, first_end, last_end]| {
        let all = first_end
            .saturating_duration_since(last_start)
            .as_secs_f64();
        let any = last_end
            .saturating_duration_since(first_start)
            .as_secs_f64();
        if any > 0.0 { all / any } else { 0.0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_round_in_which_a_thread_came_late_does_not_count() {
        let origin = Instant::now();
        let at = |ms: u64| origin + Duration::from_millis(ms);
        let seen = |ticks_per_read: &[f64], slices: &[(u64, u64, usize)]| Seen {
            ticks_per_read: ticks_per_read.to_vec(),
            slices: slices
                .iter()
                .map(|(start, end, until)| Slice {
                    start: at(*start),
                    end: at(*end),
                    until: *until,
                })
                .collect(),
            ..Seen::default()
        };
        let one = seen(&[1.0, 2.0, 3.0], &[(0, 10, 2), (20, 30, 3)]);
        let late_once = seen(&[4.0, 5.0], &[(8, 18, 1), (21, 30, 2)]);
        let (batches, overlap) = shared_batches(&[&one, &late_once]);
        assert_eq!(batches, [3.0, 5.0]);
        assert!((overlap - 0.9).abs() < 1e-9, "9 of 10 ms");
        // Two threads on one CPU are never at once: all their rounds count, and the overlap says so.
        let in_turn = seen(&[6.0, 7.0], &[(10, 20, 1), (30, 40, 2)]);
        let (batches, overlap) = shared_batches(&[&one, &in_turn]);
        assert_eq!((batches.len(), overlap), (5, 0.0));
    }

    /// All threads make the same number of rounds, whoever is asked.
    #[test]
    fn threads_agree_on_the_number_of_rounds() {
        let together = Together::new(3);
        let rounds: Vec<u32> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut rounds = 0;
                        while together.another_round(|| rounds < 4) {
                            rounds += 1;
                        }
                        rounds
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .collect()
        });
        assert_eq!(rounds, [5, 5, 5]);
    }
}
