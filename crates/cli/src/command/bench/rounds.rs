//! The measurement: all clocks in turn, round after round, on as many pinned threads as asked for.

use std::sync::OnceLock;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::together::{Seen, Slice, Together, shared_batches};
use crate::progress::Progress;
use anyhow::Context;
use chronovisor_probe::cpus;
use chronovisor_probe::resolution::{Steps, judge};
use chronovisor_probe::timed_loop::{Reads, reads_for};
use chronovisor_stats::median;

/// Ticks of one batch: some 10 us, so that most batches see no interrupt.
const BATCH_TICKS: u64 = 25_000;
/// Time that one clock gets in a round when several threads run: long against the wait for each other.
const SHARED_SLICE: Duration = Duration::from_millis(2);
/// Successive values that are looked at, of a clock that costs little.
const VALUES: usize = 1 << 16;
/// Time that looking at them may take, for one clock.
const VALUES_TIME: Duration = Duration::from_millis(20);

/// What was measured of one clock with one number of threads.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// Index of the clock.
    pub(super) clock: usize,
    /// Threads that read at once.
    pub(super) threads: u16,
    /// Median ticks of one read.
    pub(super) ticks: f64,
    /// Batches that it is the median of.
    pub(super) batches: u64,
    /// Share of the time of these batches in which all threads were at this clock at once.
    pub(super) overlap: f64,
    /// What successive values of each thread said.
    pub(super) steps: Steps,
}

/// Measures every clock with each number of threads, `time` for each number. Threads that share a CPU share its time too.
pub(super) fn measure(
    clocks: &[Clock],
    thread_counts: &[u16],
    time: Duration,
    allowed: &[usize],
) -> anyhow::Result<Vec<Measured>> {
    let bar = Bar::new(time * u32::try_from(thread_counts.len()).unwrap_or(1));
    let mut measured = Vec::new();
    for threads in thread_counts {
        let workers = run_threads(clocks, *threads, time, allowed, &bar)?;
        measured.extend((0..clocks.len()).map(|clock| join(clock, *threads, &workers)));
    }
    Ok(measured)
}

fn run_threads(
    clocks: &[Clock],
    threads: u16,
    time: Duration,
    allowed: &[usize],
    bar: &Bar,
) -> anyhow::Result<Vec<Vec<Seen>>> {
    let together = Together::new(threads);
    // Nobody may wait for the others before it is certain that they all exist.
    let all_started = OnceLock::new();
    let share = usize::from(threads).div_ceil(allowed.len().max(1));
    let time = time / u32::try_from(share).unwrap_or(1);
    thread::scope(|scope| {
        let workers: Vec<ScopedJoinHandle<'_, _>> = (0..usize::from(threads))
            .map(|number| {
                let cpu = allowed.get(number % allowed.len().max(1)).copied();
                let (together, all_started) = (&together, &all_started);
                thread::Builder::new()
                    .name(format!("bench {number}"))
                    .spawn_scoped(scope, move || {
                        if *all_started.wait() {
                            Worker::new(clocks, cpu, threads, together).run(time)
                        } else {
                            Vec::new()
                        }
                    })
            })
            .collect::<Result<_, _>>()
            .inspect_err(|_| {
                let _ = all_started.set(false);
            })
            .with_context(|| format!("{threads} threads cannot be started"))?;
        // Set once, here or above.
        let _ = all_started.set(true);
        while !workers.iter().all(ScopedJoinHandle::is_finished) {
            bar.look();
            thread::sleep(Duration::from_millis(50));
        }
        workers
            .into_iter()
            .map(|worker| {
                worker
                    .join()
                    .map_err(|_| anyhow::anyhow!("a measuring thread panicked"))
            })
            .collect()
    })
}

/// One measuring thread.
struct Worker<'a> {
    reads: Vec<Box<dyn Reads>>,
    counts: Vec<u32>,
    together: Option<&'a Together>,
}

impl<'a> Worker<'a> {
    /// On the thread that will measure.
    fn new(clocks: &[Clock], cpu: Option<usize>, threads: u16, together: &'a Together) -> Self {
        if let Some(cpu) = cpu {
            // A refusal makes the figures noisier, not wrong.
            let _ = cpus::pin_to(cpu);
        }
        let mut reads: Vec<_> = clocks.iter().map(Clock::reads).collect();
        let counts = reads
            .iter_mut()
            .map(|reads| reads_for(BATCH_TICKS, reads.as_mut()))
            .collect();
        Self {
            reads,
            counts,
            together: (threads > 1).then_some(together),
        }
    }

    fn run(mut self, time: Duration) -> Vec<Seen> {
        let mut seen: Vec<Seen> = self.reads.iter().map(|_| Seen::default()).collect();
        match self.together {
            None => self.alone(time, &mut seen),
            Some(together) => self.at_once(together, time, &mut seen),
        }
        for ((reads, seen), count) in self.reads.iter_mut().zip(&mut seen).zip(&self.counts) {
            if let Some(together) = self.together {
                together.wait();
            }
            seen.steps = look_at_values(reads.as_mut(), *count);
        }
        seen
    }

    /// One batch of each clock a round: the finest interleaving there is.
    fn alone(&mut self, time: Duration, seen: &mut [Seen]) {
        let started = Instant::now();
        while started.elapsed() < time {
            for ((reads, seen), count) in self.reads.iter_mut().zip(&mut *seen).zip(&self.counts) {
                seen.ticks_per_read.push(batch(reads.as_mut(), *count));
            }
        }
    }

    /// Every thread at the same clock at the same time, round by round until the time is up.
    fn at_once(&mut self, together: &Together, time: Duration, seen: &mut [Seen]) {
        let started = Instant::now();
        while together.another_round(|| started.elapsed() < time) {
            for ((reads, seen), count) in self.reads.iter_mut().zip(&mut *seen).zip(&self.counts) {
                together.wait();
                let start = Instant::now();
                let end = loop {
                    seen.ticks_per_read.push(batch(reads.as_mut(), *count));
                    let now = Instant::now();
                    if now.duration_since(start) >= SHARED_SLICE {
                        break now;
                    }
                };
                seen.slices.push(Slice {
                    start,
                    end,
                    until: seen.ticks_per_read.len(),
                });
            }
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a batch is far below 2^53 ticks"
)]
fn batch(reads: &mut dyn Reads, count: u32) -> f64 {
    reads.time(count).as_ticks() as f64 / f64::from(count)
}

/// Successive values, fewer of a slow clock.
fn look_at_values(reads: &mut dyn Reads, per_batch: u32) -> Steps {
    let mut values = Vec::with_capacity(VALUES);
    let chunk = usize::try_from(per_batch)
        .unwrap_or(VALUES)
        .clamp(64, VALUES);
    let started = Instant::now();
    while values.len() + chunk <= VALUES && started.elapsed() < VALUES_TIME {
        // Chunks are judged as one row: nothing reads the clock between them.
        let from = values.len();
        values.resize(from + chunk, 0);
        reads.collect(&mut values[from..]);
    }
    judge(&values)
}

/// What all threads saw of one clock.
fn join(clock: usize, threads: u16, workers: &[Vec<Seen>]) -> Measured {
    let of_clock: Vec<&Seen> = workers.iter().filter_map(|seen| seen.get(clock)).collect();
    let (batches, overlap) = match of_clock.as_slice() {
        [alone] => (alone.ticks_per_read.clone(), 1.0),
        several => shared_batches(several),
    };
    Measured {
        clock,
        threads,
        ticks: median(&batches).unwrap_or(0.0),
        batches: u64::try_from(batches.len()).unwrap_or(u64::MAX),
        overlap,
        steps: of_clock
            .iter()
            .map(|seen| seen.steps)
            .fold(Steps::default(), join_steps),
    }
}

fn join_steps(all: Steps, one: Steps) -> Steps {
    Steps {
        readings: all.readings + one.readings,
        stalls: all.stalls + one.stalls,
        regressions: all.regressions + one.regressions,
        resolution: match (all.resolution, one.resolution) {
            (Some(all), Some(one)) => Some(all.min(one)),
            (all, one) => all.or(one),
        },
    }
}

/// The progress bar. The main thread moves it: a measuring thread has better things to do.
struct Bar {
    progress: Progress,
    started: Instant,
    whole: Duration,
}

impl Bar {
    fn new(whole: Duration) -> Self {
        Self {
            progress: Progress::start(),
            started: Instant::now(),
            whole,
        }
    }

    fn look(&self) {
        let share = self.started.elapsed().as_secs_f64() / self.whole.as_secs_f64();
        self.progress.at("reading every clock in turn", share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::bench::clock::clocks;
    use chronovisor_abi::quantity::Hertz;

    /// Three threads on however many CPUs: every clock is measured by all of them, and the run ends.
    #[test]
    fn threads_measure_every_clock() {
        let (clocks, _) = clocks(Hertz::from_hz(2_600_000_000).unwrap());
        let allowed = cpus::allowed().unwrap();
        let measured = measure(&clocks, &[1, 3], Duration::from_millis(50), &allowed).unwrap();
        assert_eq!(measured.len(), 2 * clocks.len());
        for one in &measured {
            let name = clocks[one.clock].name;
            assert!(
                one.ticks > 0.0 && one.batches >= u64::from(one.threads),
                "{name}: {one:?}"
            );
            assert!(one.steps.readings >= 64, "{name}: {one:?}");
        }
    }
}
