//! What every thread reads: one cache line with the current line, behind a sequence lock, and the word that says when it is no longer current.
//!
//! # Theory
//!
//! The kernel's page is not read again and again: a copy of its line, already in the form of [`Line`], is kept beside the value (the *tag*) that the page's
//! version word had. A read is the copy, the counter, and one look at the version word *after* the counter: equal to the tag, the line belongs to
//! that counter value. If the word has changed, or the counter is outside the span for which the line was checked, the reader takes the slow path.
//!
//! The copy itself is changed by one thread at a time (a mutex), under the same sequence lock as every page: what was read before the change
//! was taken before the writer's own reading of the counter.

use chronovisor_abi::quantity::Tsc;
use chronovisor_abi::seqlock::sync::{AtomicU32, AtomicU64, Ordering, fence};
use chronovisor_abi::seqlock::{self, OddWhileUpdating};

use super::line::{Line, evaluate};

/// The tag that no 32-bit word equals: the counter is not to be used.
const NO_TAG: u64 = u64::MAX;

/// What the process's clock is computed from at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Current {
    /// The counter.
    Counter {
        /// In the process's time.
        line: Line,
        /// The watched word while the line holds.
        tag: u32,
        /// Ticks behind the anchor up to which the line was found right.
        limit: u64,
    },
    /// The operating system's clock.
    OperatingSystem {
        /// What is added to it, modulo 2^64 ns.
        offset_ns: u64,
        /// The watched word for which the counter was found unusable.
        judged: u32,
    },
}

/// [`Current`] as all threads see it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Published {
    sequence: AtomicU32,
    shift: AtomicU32,
    /// The watched word while the counter's line holds, or [`NO_TAG`].
    tag: AtomicU64,
    /// Counter: the anchor. Operating system: the judged word.
    anchor: AtomicU64,
    /// Counter: the value at the anchor. Operating system: the offset.
    base_ns: AtomicU64,
    mul: AtomicU64,
    limit: AtomicU64,
}

impl Published {
    /// Nothing yet: every reader takes the slow path.
    pub(crate) fn new() -> Self {
        Self {
            sequence: AtomicU32::new(1),
            shift: AtomicU32::new(0),
            tag: AtomicU64::new(NO_TAG),
            anchor: AtomicU64::new(0),
            base_ns: AtomicU64::new(0),
            mul: AtomicU64::new(0),
            limit: AtomicU64::new(0),
        }
    }

    /// The time by the counter, in ns; `None` if the slow path must look.
    #[inline]
    pub(crate) fn read(&self, watched: &AtomicU32, counter: impl FnOnce() -> Tsc) -> Option<u64> {
        let looked = seqlock::try_read::<OddWhileUpdating, _>(&self.sequence, || {
            let (anchor, base_ns) = (
                self.anchor.load(Ordering::Relaxed),
                self.base_ns.load(Ordering::Relaxed),
            );
            let (mul, shift) = (
                self.mul.load(Ordering::Relaxed),
                self.shift.load(Ordering::Relaxed),
            );
            let (tag, limit) = (
                self.tag.load(Ordering::Relaxed),
                self.limit.load(Ordering::Relaxed),
            );
            let tsc = counter();
            // After the counter: a page that changed before the counter was read is seen here. The fence pairs with the one that the page's
            // writer puts between its mark and its reading of the counter.
            fence(Ordering::Acquire);
            let current = u64::from(watched.load(Ordering::Relaxed)) == tag;
            let delta = tsc.wrapping_delta(Tsc::from_ticks(anchor)).as_ticks();
            // A counter before the anchor is far above any limit.
            (current && delta < limit).then_some((base_ns, delta, shift, mul))
        });
        match looked {
            Ok((Some((base_ns, delta, shift, mul)), _)) => {
                Some(evaluate(base_ns, delta, shift, mul))
            }
            _ => None,
        }
    }

    /// The time by the operating system's clock, in ns, if that is what is in use and nothing has changed since.
    pub(crate) fn read_operating_system(
        &self,
        watched: &AtomicU32,
        raw: impl FnOnce() -> u64,
    ) -> Option<u64> {
        let looked = seqlock::try_read::<OddWhileUpdating, _>(&self.sequence, || {
            let in_use = self.tag.load(Ordering::Relaxed) == NO_TAG;
            let (judged, offset_ns) = (
                self.anchor.load(Ordering::Relaxed),
                self.base_ns.load(Ordering::Relaxed),
            );
            let time = in_use.then(raw);
            fence(Ordering::Acquire); // as above
            let unchanged = u64::from(watched.load(Ordering::Relaxed)) == judged;
            time.filter(|_| unchanged)
                .map(|raw| raw.wrapping_add(offset_ns)) // wrapping: the offset is modulo 2^64.
        });
        looked.ok().and_then(|(time, _)| time)
    }

    /// Marks the copy as changing; what the caller reads from a clock after this is later than what any reader got from the old one. `last` as for
    /// [`seqlock::begin`]; [`Self::publish`] must follow.
    pub(crate) fn begin(&self, last: u32) {
        seqlock::begin::<OddWhileUpdating>(&self.sequence, last);
    }

    /// Makes `current` what all threads read, and returns the next `last`.
    pub(crate) fn publish(&self, last: u32, current: &Current) -> u32 {
        let (tag, anchor, base_ns, mul, shift, limit) = match *current {
            Current::Counter { line, tag, limit } => (
                u64::from(tag),
                line.anchor.as_ticks(),
                line.base_ns,
                line.mul,
                line.shift,
                limit.min(line.max_delta()),
            ),
            Current::OperatingSystem { offset_ns, judged } => {
                (NO_TAG, u64::from(judged), offset_ns, 0, 0, 0)
            }
        };
        self.tag.store(tag, Ordering::Relaxed);
        self.anchor.store(anchor, Ordering::Relaxed);
        self.base_ns.store(base_ns, Ordering::Relaxed);
        self.mul.store(mul, Ordering::Relaxed);
        self.shift.store(shift, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
        seqlock::publish::<OddWhileUpdating>(&self.sequence, last)
    }
}
