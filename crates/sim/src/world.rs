//! One simulated world: its time, its queue, and the record of what happened.
//!
//! # Theory
//!
//! Everything that happens is an event at an instant of true time. Events are taken in the order of their time, and in the order of their
//! scheduling where the times are equal, so a run is a function of its seed.
//!
//! # Practice
//!
//! A scenario loops over [`World::take`], changes its machines and schedules what follows. Every event is counted and noted in
//! the [`Watch`], which keeps the last ones for the report of a broken invariant and writes all of them if a trace was asked for.
//!
//! # Migration
//!
//! A world holds every host that a guest visits.
//!
//! # Caveats
//!
//! An event scheduled before the present happens at the present.
//!
//! # References
//!
//! None.

use crate::queue::Queue;
use crate::watch::{Note, Watch};
use crate::world_time::{WorldSpan, WorldTime};

/// A queue of events and the present.
#[derive(Debug, Default)]
pub struct World<E: Copy> {
    queue: Queue<E>,
    now: WorldTime,
}

impl<E: Copy> World<E> {
    /// A world in which nothing will happen.
    #[must_use]
    pub fn new() -> Self {
        Self {
            queue: Queue::new(),
            now: WorldTime::ZERO,
        }
    }

    /// The present.
    #[must_use]
    #[inline]
    pub const fn now(&self) -> WorldTime {
        self.now
    }

    /// Schedules `event` at `time`, or now if that is past.
    #[inline]
    pub fn at(&mut self, time: WorldTime, event: E) {
        self.queue.schedule(time.max(self.now), event);
    }

    /// Schedules `event` after `span`.
    #[inline]
    pub fn after(&mut self, span: WorldSpan, event: E) {
        self.queue.schedule(self.now.saturating_add(span), event);
    }

    /// Moves the present to the next event and gives that; `None` if nothing will happen any more.
    #[inline]
    pub fn take(&mut self) -> Option<E> {
        let (time, event) = self.queue.take()?;
        debug_assert!(time >= self.now, "nothing is scheduled in the past");
        self.now = time;
        Some(event)
    }

    /// Notes what happened now.
    #[inline]
    pub fn note(&self, watch: &mut Watch, what: &'static str, who: u32, value: u64) {
        watch.note(Note {
            time: self.now,
            what,
            who,
            value,
        });
    }

    /// Jumps to `time` without an event; for uptimes reached in closed form. Nothing must be scheduled before it.
    pub fn start_at(&mut self, time: WorldTime) {
        self.queue.clear();
        self.now = time;
    }
}
