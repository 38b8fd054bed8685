//! The two paths of a read: the copy that all threads share, and the slow path that renews it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use chronovisor_abi::quantity::{Nanos, Tsc};
use chronovisor_abi::seqlock::ReadError;
use chronovisor_abi::seqlock::sync::{AtomicU32, Ordering, fence};

use super::machine::{Machine, Pair};
use super::published::Published;
use super::report::Report;
use super::source::{Rejected, Source, Unusable, Usable};
use super::steering::Steering;

/// How often a page may change during one slow path before it counts as unusable.
const TRIES: u32 = 16;
/// The span over which a source's rate is checked before it is chosen, in ns.
const PROBATION_NS: u64 = 100_000;
/// How often the operating system's clock is looked at while that passes: one that stands still, or ticks in steps of 10 ms, does not hold the clock up.
const PROBATION_LOOKS: u32 = 100_000;

#[derive(Debug)]
pub(crate) struct Engine<M> {
    published: Published,
    watched: &'static AtomicU32,
    source: Source,
    machine: M,
    slow: Mutex<Slow>,
    rejected: Vec<Rejected>,
}

#[derive(Debug)]
struct Slow {
    steering: Steering,
    /// The last valid value of the published sequence.
    last: u32,
}

impl<M: Machine> Engine<M> {
    /// A clock that says 0 now and stands on the first of `sources` that is usable and whose rate is that of the operating system's clock; else on the
    /// operating system's, until the first of them becomes usable.
    pub(crate) fn new(machine: M, sources: Vec<Source>, mut rejected: Vec<Rejected>) -> Self {
        let (mut chosen, mut first_refused) = (None, None);
        for source in &sources {
            let steering = try_out(source, &machine);
            let Some(why) = steering.why_not() else {
                chosen = Some((*source, steering));
                break;
            };
            rejected.push(Rejected {
                source: source.kind(),
                why: why.to_string(),
            });
            first_refused.get_or_insert((*source, steering));
        }
        let (source, steering) = chosen
            .or(first_refused)
            .unwrap_or_else(|| (Source::None, start(&Source::None, &machine)));
        let published = Published::new();
        let last = published.publish(0, &steering.current());
        Self {
            published,
            watched: source.watched(),
            source,
            machine,
            slow: Mutex::new(Slow { steering, last }),
            rejected,
        }
    }

    /// Nanoseconds since the clock was made.
    #[inline]
    pub(crate) fn read(&self, counter: impl FnOnce() -> Tsc) -> Nanos {
        match self.published.read(self.watched, counter) {
            Some(ns) => Nanos::from_ns(ns),
            None => Nanos::from_ns(self.read_slowly()),
        }
    }

    #[cold]
    #[inline(never)]
    fn read_slowly(&self) -> u64 {
        let by_operating_system = || self.machine.raw().as_ns();
        if let Some(ns) = self
            .published
            .read_operating_system(self.watched, by_operating_system)
        {
            return ns;
        }
        let mut slow = self.lock();
        // Another thread may have done the work while this one waited for the lock.
        if let Some(ns) = self.published.read(self.watched, || self.machine.counter()) {
            return ns;
        }
        self.published.begin(slow.last);
        let (pair, seen) = observe(&self.source, &self.machine);
        let ns = slow.steering.step(&pair, seen);
        slow.last = self.published.publish(slow.last, &slow.steering.current());
        ns
    }

    pub(crate) fn report(&self) -> Report {
        let slow = self.lock();
        let rate = slow.steering.rate();
        Report {
            source: self.source.kind(),
            fallen_back: slow.steering.why_not(),
            rejected: self.rejected.clone(),
            rate: rate.map(|(rate, _)| rate),
            rate_bound: rate.map(|(_, bound)| bound),
            offset_ns: slow.steering.offset_ns(),
            events: slow.steering.events(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slow> {
        // A thread that panicked in the slow path left the old state, or the new one: both are whole.
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pair of readings and the source's state, which the watched word proves to belong together.
fn observe(source: &Source, machine: &impl Machine) -> (Pair, Result<Usable, (Unusable, u32)>) {
    let watched = source.watched();
    for _ in 0..TRIES {
        let seen = source.look(machine);
        let pair = Pair::take(machine);
        let belongs = match &seen {
            Ok(usable) => usable.tag,
            Err((_, judged)) => *judged,
        };
        // Not before the pair's readings, as in every reader of a page.
        fence(Ordering::Acquire);
        if watched.load(Ordering::Relaxed) == belongs {
            return (pair, seen);
        }
    }
    let seen = watched.load(Ordering::Acquire);
    let busy = ReadError::Busy { tries: TRIES };
    (Pair::take(machine), Err((busy.into(), seen)))
}

/// A clock that says 0 now.
fn start(source: &Source, machine: &impl Machine) -> Steering {
    let (pair, seen) = observe(source, machine);
    Steering::start(source.kind(), &pair, seen)
}

/// Starts a clock on `source` and checks its rate once, over a tenth of a millisecond; up to three times, as an interrupt can spoil one. The clock stands on the
/// operating system's at the end if the source is not usable.
fn try_out(source: &Source, machine: &impl Machine) -> Steering {
    let mut steering = start(source, machine);
    while steering.why_not().is_none() {
        let start = machine.raw();
        for _ in 0..PROBATION_LOOKS {
            if machine.raw().saturating_sub(start).as_ns() >= PROBATION_NS {
                break;
            }
            core::hint::spin_loop();
        }
        let disagreements = steering.events().disagreements;
        let (pair, seen) = observe(source, machine);
        steering.step(&pair, seen);
        if steering.events().disagreements == disagreements {
            break;
        }
    }
    steering
}
