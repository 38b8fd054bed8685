//! The event queue: what happens next, in an order that never varies.
//!
//! # Theory
//!
//! A simulation takes the earliest event, and only ever adds events at or after it. For such a queue comparing is wasted work: the
//! digits of the time are enough. The time is written in base 256; an event lies on the level of the highest digit in which its
//! time differs from the wheel's base, in the slot of that digit. So a wheel of 8 levels and 256 slots holds every 64-bit time
//! without a tuning parameter. When the base moves into a slot, its events either are few and are sorted, or are spread over the
//! slots one level down.
//!
//! ```text
//! level = digit of the highest bit of (time ^ base)        slot = that digit of time
//! ```
//!
//! Each event is moved at most 8 times however many there are; in practice once or twice.
//!
//! # Practice
//!
//! Events at the same time leave in the order in which they were scheduled. No sequence number is kept for that: a slot
//! is filled in that order, spreading keeps it, and the sort is stable.
//!
//! # Migration
//!
//! A queue belongs to one world and is never saved.
//!
//! # Caveats
//!
//! An event in the past of the last one taken is taken next, at its own time; the world's clock must not follow it back. Nothing can be
//! cancelled: a timer that moved ignores its old wake-up.
//!
//! # References
//!
//! R. Brown, "Calendar Queues", CACM 31(10), 1988; R. K. Ahuja et al., "Faster Algorithms for the Shortest Path Problem"
//! (radix heaps), JACM 37(2), 1990; G. Varghese, T. Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987.

use crate::world_time::WorldTime;

const DIGIT_BITS: u32 = 8;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 8;

/// A slot with no more events than this is sorted instead of spread.
const SORT_AT_MOST: usize = 48;
/// If more events than this lie before the wheel, the later ones go back into it, so that an insertion stays cheap.
const NEAR_AT_MOST: usize = 192;

#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    time: u64,
    event: T,
}

/// Events in the order of their time, and of their scheduling where the times are equal.
///
/// ```
/// use chronovisor_sim::{queue::Queue, world_time::WorldTime};
///
/// let mut queue = Queue::new();
/// queue.schedule(WorldTime::from_units(7), "late");
/// queue.schedule(WorldTime::from_units(3), "first");
/// queue.schedule(WorldTime::from_units(3), "second");
/// assert_eq!(queue.take(), Some((WorldTime::from_units(3), "first")));
/// assert_eq!(queue.take(), Some((WorldTime::from_units(3), "second")));
/// assert_eq!(queue.next_time(), Some(WorldTime::from_units(7)));
/// ```
#[derive(Debug)]
pub struct Queue<T> {
    /// Sorted, the next event at `near_from`; all are before every event of the wheel.
    near: Vec<Entry<T>>,
    near_from: usize,
    /// Events before this time belong to `near`.
    near_end: u64,
    /// No event of the wheel is before it.
    base: u64,
    levels: Vec<Level<T>>,
    /// Bit n: level n is not empty.
    occupied: u32,
    len: usize,
    spare: Vec<Entry<T>>,
}

#[derive(Debug)]
struct Level<T> {
    slots: Vec<Vec<Entry<T>>>,
    occupied: [u64; SLOTS / 64],
}

impl<T: Copy> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> Queue<T> {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self {
            near: Vec::new(),
            near_from: 0,
            near_end: 0,
            base: 0,
            levels: (0..LEVELS).map(|_| Level::new()).collect(),
            occupied: 0,
            len: 0,
            spare: Vec::new(),
        }
    }

    /// How many events wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Schedules `event` at `time`, after every event that is already scheduled for it.
    #[inline]
    pub fn schedule(&mut self, time: WorldTime, event: T) {
        self.len += 1;
        let entry = Entry {
            time: time.as_units(),
            event,
        };
        if entry.time >= self.near_end {
            self.put(entry);
            return;
        }
        let waiting = &self.near[self.near_from..];
        let at = if waiting.last().is_none_or(|last| last.time <= entry.time) {
            self.near.len()
        } else {
            self.near_from + waiting.partition_point(|other| other.time <= entry.time)
        };
        self.near.insert(at, entry);
        if self.near.len() - self.near_from > NEAR_AT_MOST {
            self.split_near();
        }
    }

    /// The earliest event, or `None` if nothing waits.
    #[inline]
    pub fn take(&mut self) -> Option<(WorldTime, T)> {
        if self.near_from == self.near.len() && !self.refill() {
            return None;
        }
        let Entry { time, event } = self.near[self.near_from];
        self.near_from += 1;
        self.len -= 1;
        Some((WorldTime::from_units(time), event))
    }

    /// When the earliest event is due, or `None` if nothing waits. Costs more than [`Self::take`] where a slot has to be searched.
    #[must_use]
    pub fn next_time(&self) -> Option<WorldTime> {
        // Nothing is moved: the base must not overtake the last event taken, or what follows it would lie before the wheel.
        if let Some(entry) = self.near.get(self.near_from) {
            return Some(WorldTime::from_units(entry.time));
        }
        let level = self.levels.iter().find(|level| !level.is_empty())?;
        let slot = level.slots.get(level.first()?)?;
        slot.iter()
            .map(|entry| WorldTime::from_units(entry.time))
            .min()
    }

    /// Forgets all events and starts again at time 0; the memory is kept.
    pub fn clear(&mut self) {
        self.near.clear();
        self.near_from = 0;
        for level in &mut self.levels {
            while let Some(slot) = level.first() {
                level.slots[slot].clear();
                level.vacate(slot);
            }
        }
        (self.near_end, self.base, self.occupied, self.len) = (0, 0, 0, 0);
    }

    /// Puts an entry that is not before `base` into the wheel.
    #[inline]
    fn put(&mut self, entry: Entry<T>) {
        let level = (63 - ((entry.time ^ self.base) | 1).leading_zeros()) / DIGIT_BITS;
        self.occupied |= 1 << level;
        self.levels[to_index(u64::from(level))].put(digit(entry.time, level), entry);
    }

    /// Brings the next slot's events into the empty `near`; `false` if there are none.
    #[cold]
    fn refill(&mut self) -> bool {
        self.near.clear();
        self.near_from = 0;
        while self.occupied != 0 {
            let level = self.occupied.trailing_zeros();
            let wheel = &mut self.levels[to_index(u64::from(level))];
            let Some(slot) = wheel.first() else {
                self.occupied &= !(1 << level);
                continue;
            };
            let mut entries =
                std::mem::replace(&mut wheel.slots[slot], std::mem::take(&mut self.spare));
            wheel.vacate(slot);
            if wheel.is_empty() {
                self.occupied &= !(1 << level);
            }
            // The slot's first time: the base's digits above this level, the slot's digit, zeros below.
            let shift = level * DIGIT_BITS;
            let above = self.base.checked_shr(shift + DIGIT_BITS).unwrap_or(0);
            let start =
                (above.checked_shl(shift + DIGIT_BITS).unwrap_or(0)) | (to_u64(slot) << shift);
            self.base = start;
            if level == 0 || entries.len() <= SORT_AT_MOST {
                entries.sort_by_key(|entry| entry.time);
                // Saturating: the last slot of all ends at the end of time, where `near` keeps everything.
                self.near_end = start.saturating_add(1 << shift);
                std::mem::swap(&mut self.near, &mut entries);
                self.spare = entries;
                return true;
            }
            self.near_end = start;
            for entry in entries.drain(..) {
                self.put(entry);
            }
            self.spare = entries;
        }
        false
    }

    /// Gives the later half of `near` back to the wheel.
    #[cold]
    fn split_near(&mut self) {
        self.near.drain(..self.near_from);
        self.near_from = 0;
        let middle = self.near[self.near.len() / 2].time;
        let first = self.near[0].time;
        // All of one instant stay together: those of the middle's go, unless they are also the first. Nothing before the base goes.
        let lowest = self.base.max(first.saturating_add(1));
        let boundary = if middle >= lowest {
            middle
        } else {
            match self.near.iter().find(|entry| entry.time >= lowest) {
                Some(entry) => entry.time,
                None => return,
            }
        };
        let keep = self.near.partition_point(|entry| entry.time < boundary);
        self.near_end = boundary;
        let mut later = std::mem::take(&mut self.spare);
        later.extend(self.near.drain(keep..));
        for entry in later.drain(..) {
            self.put(entry);
        }
        self.spare = later;
    }
}

impl<T> Level<T> {
    fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            occupied: [0; SLOTS / 64],
        }
    }

    #[inline]
    fn put(&mut self, slot: usize, entry: Entry<T>) {
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.slots[slot].push(entry);
    }

    fn vacate(&mut self, slot: usize) {
        self.occupied[slot / 64] &= !(1 << (slot % 64));
    }

    fn is_empty(&self) -> bool {
        self.occupied == [0; SLOTS / 64]
    }

    fn first(&self) -> Option<usize> {
        let word = self.occupied.iter().position(|bits| *bits != 0)?;
        Some(word * 64 + to_index(u64::from(self.occupied[word].trailing_zeros())))
    }
}

#[inline]
fn digit(time: u64, level: u32) -> usize {
    to_index((time >> (level * DIGIT_BITS)) & 0xff)
}

/// A slot or level number, below 256.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "below 256")]
const fn to_index(value: u64) -> usize {
    value as usize
}

#[inline]
const fn to_u64(slot: usize) -> u64 {
    slot as u64
}

#[cfg(test)]
mod tests;
