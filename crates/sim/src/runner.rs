//! Runs the units of a scenario on any number of threads, with the same result to the last bit.
//!
//! # Theory
//!
//! A run is cut into units that know nothing of each other: one row of one repetition, one virtual machine. A unit's randomness comes from the
//! seed and its number alone, and its result is added to a tally of counts, sums, extremes and histograms. Integer additions may be done in any
//! order, so neither threads nor shards can change a bit of the result. If an invariant breaks in several units, the one with the smallest number
//! is reported, whichever thread was first.
//!
//! # Practice
//!
//! [`run`] runs a shard; [`Merge`] joins what several shards saved.
//!
//! # Migration
//!
//! Does not apply.
//!
//! # Caveats
//!
//! Memory is one tally for each thread, whatever the number of units.
//!
//! # References
//!
//! None.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::watch::{Violation, Watch};

/// Something that two parts of a run can be joined into.
pub trait Merge {
    /// Adds all of `other`; the order of merges does not matter.
    ///
    /// # Errors
    ///
    /// [`MergeError`] if the two are not parts of one run.
    fn merge(&mut self, other: &Self) -> Result<(), MergeError>;
}

/// Two results that cannot be joined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the results are not parts of one run: {0}")]
pub struct MergeError(pub String);

/// Units of work that can be done in any order.
pub trait Units: Sync {
    /// What the units add up to.
    type Tally: Merge + Send;
    /// What a thread reuses from unit to unit.
    type Scratch;

    /// How many units there are.
    fn count(&self) -> u64;
    /// The seed of the run.
    fn seed(&self) -> u64;
    /// The sum of no units.
    fn nothing(&self) -> Self::Tally;
    /// What a thread needs before its first unit.
    fn scratch(&self) -> Self::Scratch;
    /// Does unit number `unit` and adds its result to `tally`.
    ///
    /// # Errors
    ///
    /// The invariant that broke.
    fn run(
        &self,
        unit: u64,
        scratch: &mut Self::Scratch,
        tally: &mut Self::Tally,
        watch: &mut Watch,
    ) -> Result<(), Violation>;
}

/// A part of the units: number `index` of `of`, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    index: u64,
    of: u64,
}

impl Shard {
    /// All units.
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// Part `index` of `of`, or `None` if there is no such part.
    #[must_use]
    pub const fn new(index: u64, of: u64) -> Option<Self> {
        if index < of {
            Some(Self { index, of })
        } else {
            None
        }
    }

    /// The part's number, from 0.
    #[must_use]
    pub const fn index(self) -> u64 {
        self.index
    }

    /// How many parts there are.
    #[must_use]
    pub const fn of(self) -> u64 {
        self.of
    }

    /// The units of this part out of `count`: parts are contiguous and differ by one unit at most.
    ///
    /// ```
    /// # use chronovisor_sim::runner::Shard;
    /// let parts: Vec<_> = (0..3).filter_map(|i| Shard::new(i, 3)).map(|part| part.units(10)).collect();
    /// assert_eq!(parts, [0..3, 3..6, 6..10]);
    /// ```
    #[must_use]
    pub fn units(self, count: u64) -> std::ops::Range<u64> {
        let cut = |i: u64| {
            let at = u128::from(count) * u128::from(i) / u128::from(self.of);
            u64::try_from(at).unwrap_or(count)
        };
        cut(self.index)..cut(self.index + 1)
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Outcome<T> {
    /// The sum of all units of the shard.
    pub tally: T,
    /// How many events were simulated.
    pub events: u64,
}

/// Why a run did not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// An invariant broke.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// Two threads' results could not be joined.
    #[error(transparent)]
    Merge(#[from] MergeError),
}

/// What one thread's units came to.
type Part<T> = (Result<T, Violation>, u64);

/// Runs the units of `shard` on `threads` threads and calls `progress` with the number of finished ones now and then.
///
/// # Errors
///
/// The violation in the unit with the smallest number, if there was any.
pub fn run<U: Units>(
    units: &U,
    shard: Shard,
    threads: NonZeroUsize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Outcome<U::Tally>, RunError> {
    let range = shard.units(units.count());
    let (next, done, broken) = (
        AtomicU64::new(range.start),
        AtomicU64::new(0),
        AtomicU64::new(u64::MAX),
    );
    let results: Mutex<Vec<Part<U::Tally>>> = Mutex::default();
    // Small enough that threads end together, large enough that they do not fight for the counter.
    let chunk = ((range.end - range.start) / 1024).clamp(1, 256);
    let worker = || {
        let mut watch = Watch::new(units.seed());
        let (mut scratch, mut tally) = (units.scratch(), units.nothing());
        let mut result = Ok(());
        'all: loop {
            // Relaxed, all of them: nothing but the numbers themselves is shared.
            let from = next.fetch_add(chunk, Ordering::Relaxed);
            if from >= range.end {
                break;
            }
            for unit in from..range.end.min(from + chunk) {
                if unit > broken.load(Ordering::Relaxed) {
                    break 'all;
                }
                watch.begin(unit);
                if let Err(violation) = units.run(unit, &mut scratch, &mut tally, &mut watch) {
                    broken.fetch_min(unit, Ordering::Relaxed);
                    result = Err(violation);
                    break 'all;
                }
            }
            progress(done.fetch_add(chunk, Ordering::Relaxed) + chunk);
        }
        let events = watch.total_events();
        if let Ok(mut results) = results.lock() {
            results.push((result.map(|()| tally), events));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.get() {
            scope.spawn(worker);
        }
        worker();
    });
    let results = results.into_inner().unwrap_or_default();
    let first = results
        .iter()
        .filter_map(|(result, _)| result.as_ref().err())
        .min_by_key(|violation| violation.unit);
    if let Some(violation) = first {
        return Err(violation.clone().into());
    }
    let (mut tally, mut events) = (units.nothing(), 0);
    for (result, seen) in results {
        tally.merge(&result?)?;
        events += seen;
    }
    Ok(Outcome { tally, events })
}

/// Runs one unit with `watch`, which may trace it.
///
/// # Errors
///
/// The invariant that broke.
pub fn run_one<U: Units>(
    units: &U,
    unit: u64,
    watch: &mut Watch,
) -> Result<Outcome<U::Tally>, Violation> {
    let mut tally = units.nothing();
    watch.begin(unit);
    units.run(unit, &mut units.scratch(), &mut tally, watch)?;
    Ok(Outcome {
        tally,
        events: watch.total_events(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Note;
    use crate::world_time::WorldTime;

    /// Units that add their own number, and break from `breaks_from` on.
    struct Numbers {
        breaks_from: u64,
    }

    impl Merge for u64 {
        fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
            *self += other;
            Ok(())
        }
    }

    impl Units for Numbers {
        type Tally = u64;
        type Scratch = ();

        fn count(&self) -> u64 {
            10_000
        }
        fn seed(&self) -> u64 {
            7
        }
        fn nothing(&self) -> u64 {
            0
        }
        fn scratch(&self) {}
        fn run(
            &self,
            unit: u64,
            (): &mut (),
            tally: &mut u64,
            watch: &mut Watch,
        ) -> Result<(), Violation> {
            watch.note(Note {
                time: WorldTime::ZERO,
                what: "unit",
                who: 0,
                value: unit,
            });
            if unit >= self.breaks_from {
                return Err(watch.violation("rule", String::new()));
            }
            *tally += unit;
            Ok(())
        }
    }

    fn threads(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).unwrap()
    }

    #[test]
    fn threads_and_shards_change_nothing() {
        let numbers = Numbers {
            breaks_from: u64::MAX,
        };
        let whole = run(&numbers, Shard::WHOLE, threads(1), &|_| ()).unwrap();
        assert_eq!((whole.tally, whole.events), (49_995_000, 10_000));
        for n in [2, 3, 8] {
            let parallel = run(&numbers, Shard::WHOLE, threads(n), &|_| ()).unwrap();
            assert_eq!(
                (parallel.tally, parallel.events),
                (whole.tally, whole.events)
            );
        }
        let mut sum = 0;
        for i in 0..7 {
            let part = Shard::new(i, 7).unwrap();
            sum += run(&numbers, part, threads(2), &|_| ()).unwrap().tally;
        }
        assert_eq!(sum, whole.tally);
    }

    #[test]
    fn the_first_violation_is_reported_whoever_finds_one() {
        let numbers = Numbers { breaks_from: 4321 };
        for n in [1, 2, 8] {
            let error = run(&numbers, Shard::WHOLE, threads(n), &|_| ()).unwrap_err();
            let RunError::Violation(violation) = error else {
                panic!("{error}");
            };
            assert_eq!(
                (violation.unit, violation.event, violation.seed),
                (4321, 1, 7)
            );
        }
    }

    #[test]
    fn there_is_no_shard_beyond_the_last() {
        assert_eq!(Shard::new(3, 3), None);
        assert_eq!(Shard::new(0, 0), None);
        let last = Shard::new(u64::MAX - 1, u64::MAX).unwrap();
        assert_eq!(last.units(10), 9..10);
    }
}
