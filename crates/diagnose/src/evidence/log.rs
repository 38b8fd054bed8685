//! What a kernel's log says about clocks, line by line, in bounded space.

use super::event::ClockEvent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Events kept at each end of a boot.
pub const EVENTS_AT_EACH_END: usize = 1000;

/// Events of one kind that survive between the two ends.
const MIDDLE_PER_KIND: usize = 32;

/// The clock events of a log, boot by boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KernelLog {
    /// Lines that were read.
    pub lines: u64,
    /// The boots, in the order of the log; at least one in a log with any line.
    pub boots: Vec<Boot>,
    /// Boots that were read and not kept, because the log has too many.
    #[serde(default)]
    pub boots_left_out: u64,
}

/// One start of a machine, up to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Boot {
    /// Line of the log with which it starts, from 1.
    pub first_line: u64,
    /// The highest time stamp among its events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_stamp: Option<TimeStamp>,
    /// Its clock events.
    pub events: Retained,
}

/// Time since boot, in us: what a printed stamp carries.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct TimeStamp {
    /// Microseconds since boot.
    pub us: u64,
}

impl core::fmt::Display for TimeStamp {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{:06}", self.us / 1_000_000, self.us % 1_000_000)
    }
}

/// The first and the last events of a boot, a few of every kind between them, the rest counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Retained {
    /// The first 1000.
    pub first: Vec<LoggedEvent>,
    /// Some of each kind from the middle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub middle: Vec<LoggedEvent>,
    /// The last 1000 of those that follow.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub last: VecDeque<LoggedEvent>,
    /// How many were read of each kind that did not fit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, u64>,
}

impl Retained {
    /// Takes in the next event.
    pub fn push(&mut self, event: LoggedEvent) {
        if self.first.len() < EVENTS_AT_EACH_END {
            self.first.push(event);
            return;
        }
        self.last.push_back(event);
        if self.last.len() > EVENTS_AT_EACH_END
            && let Some(evicted) = self.last.pop_front()
        {
            self.evict(evicted);
        }
    }

    /// Appends a later stretch of the same boot.
    pub fn append(&mut self, later: Self) {
        for event in later
            .first
            .into_iter()
            .chain(later.middle)
            .chain(later.last)
        {
            self.push(event);
        }
        for (kind, count) in later.left_out {
            *self.left_out.entry(kind).or_default() += count;
        }
    }

    fn evict(&mut self, event: LoggedEvent) {
        let kind = event.event.kind();
        // A kind that already lost one is full: the common case of a flood costs no scan.
        let full = self.left_out.contains_key(kind)
            || self
                .middle
                .iter()
                .filter(|other| other.event.kind() == kind)
                .count()
                >= MIDDLE_PER_KIND;
        if full {
            *self.left_out.entry(kind.to_owned()).or_default() += 1;
        } else {
            self.middle.push(event);
        }
    }

    /// The events that were kept, in the order of the log.
    pub fn iter(&self) -> impl Iterator<Item = &LoggedEvent> + Clone {
        self.first.iter().chain(&self.middle).chain(&self.last)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Events that were read and not kept.
    #[must_use]
    pub fn count_left_out(&self) -> u64 {
        self.left_out.values().sum()
    }
}

/// One event with its place in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoggedEvent {
    /// Line of the log, from 1.
    pub line: u64,
    /// Stamp of the line, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<TimeStamp>,
    /// What the line says.
    pub event: ClockEvent,
}
