//! One log, several boots.
//!
//! A boot begins at `Linux version` or at a journal's marker. Where neither is left in a log, a stamp that falls back is a
//! hint and no more: lines of several CPUs come out of order, and people paste stretches of a log in any order. The hint
//! becomes a new boot when a line follows that a boot prints only once and that was already there.

use crate::evidence::{Boot, ClockEvent, KernelLog, LoggedEvent, TimeStamp};
use std::collections::{BTreeSet, VecDeque};

/// Boots kept at each end of a log.
const BOOTS_AT_EACH_END: usize = 16;

/// A stamp may stand this much behind an earlier one without meaning anything.
const OUT_OF_ORDER_US: u64 = 1_000_000;

/// A line that one boot prints once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Once {
    Boot,
    Registered(String),
    DetectedTsc,
    DetectedProcessor,
    Refined,
    SchedClockStable,
    TotalBogomips,
    KvmClockOffset,
}

impl Once {
    fn of(event: &ClockEvent) -> Option<Self> {
        Some(match event {
            ClockEvent::BootStarted { .. } => Self::Boot,
            ClockEvent::Registered { name, .. } => Self::Registered(name.clone()),
            ClockEvent::DetectedTsc { .. } => Self::DetectedTsc,
            ClockEvent::DetectedProcessor { .. } => Self::DetectedProcessor,
            ClockEvent::Refined { .. } => Self::Refined,
            ClockEvent::SchedClockStable(_) => Self::SchedClockStable,
            ClockEvent::TotalBogomips { .. } => Self::TotalBogomips,
            ClockEvent::KvmClockSchedOffset { .. } => Self::KvmClockOffset,
            _ => return None,
        })
    }
}

/// The boots of a log that is being read.
#[derive(Default)]
pub(super) struct Boots {
    first: Vec<Boot>,
    last: VecDeque<Boot>,
    left_out: u64,
    current: Stretch,
    /// Events since a stamp fell back; may turn out to be a boot of its own.
    tail: Option<Stretch>,
}

#[derive(Default)]
struct Stretch {
    boot: Boot,
    once: BTreeSet<Once>,
    /// Begun by a line that can be nothing else.
    marked: bool,
}

impl Stretch {
    fn push(&mut self, event: LoggedEvent, once: Option<Once>) {
        if self.boot.first_line == 0 {
            self.boot.first_line = event.line;
        }
        self.boot.last_stamp = self.boot.last_stamp.max(event.stamp);
        self.once.extend(once);
        self.boot.events.push(event);
    }

    fn append(&mut self, later: Self) {
        self.once.extend(later.once);
        self.boot.last_stamp = self.boot.last_stamp.max(later.boot.last_stamp);
        self.boot.events.append(later.boot.events);
    }
}

fn fell_back(stamp: Option<TimeStamp>, highest: Option<TimeStamp>) -> bool {
    match (stamp, highest) {
        (Some(stamp), Some(highest)) => stamp.us.saturating_add(OUT_OF_ORDER_US) < highest.us,
        _ => false,
    }
}

impl Boots {
    /// A journal's marker stands on `line`.
    pub(super) fn marker(&mut self, line: u64) {
        self.begin(line);
    }

    /// The next event of the log.
    pub(super) fn push(&mut self, event: LoggedEvent) {
        let once = Once::of(&event.event);
        if matches!(event.event, ClockEvent::BootStarted { .. }) {
            let just_marked =
                self.current.marked && self.current.boot.events.is_empty() && self.tail.is_none();
            if !just_marked {
                self.begin(event.line);
            }
            self.current.push(event, once);
            return;
        }
        let Some(tail) = &mut self.tail else {
            if fell_back(event.stamp, self.current.boot.last_stamp) {
                if once
                    .as_ref()
                    .is_some_and(|key| self.current.once.contains(key))
                {
                    self.begin(event.line);
                    self.current.push(event, once);
                } else {
                    let mut tail = Stretch::default();
                    tail.push(event, once);
                    self.tail = Some(tail);
                }
            } else {
                self.current.push(event, once);
            }
            return;
        };
        if once
            .as_ref()
            .is_some_and(|key| self.current.once.contains(key))
        {
            // The tail was a boot of its own all along.
            tail.push(event, once);
            let tail = self.tail.take().unwrap_or_default();
            let line = tail.boot.first_line;
            self.begin(line);
            self.current = tail;
        } else if fell_back(event.stamp, tail.boot.last_stamp) {
            let tail = self.tail.take().unwrap_or_default();
            self.current.append(tail);
            let mut next = Stretch::default();
            next.push(event, once);
            self.tail = Some(next);
        } else {
            tail.push(event, once);
        }
    }

    /// Closes the boot so far and begins the next at `line`.
    fn begin(&mut self, line: u64) {
        if let Some(tail) = self.tail.take() {
            self.current.append(tail);
        }
        let next = Stretch {
            boot: Boot {
                first_line: line,
                ..Boot::default()
            },
            once: BTreeSet::new(),
            marked: true,
        };
        let done = core::mem::replace(&mut self.current, next);
        if done.boot.events.is_empty() {
            return;
        }
        self.keep(done.boot);
    }

    fn keep(&mut self, boot: Boot) {
        if self.first.len() < BOOTS_AT_EACH_END {
            self.first.push(boot);
            return;
        }
        self.last.push_back(boot);
        if self.last.len() > BOOTS_AT_EACH_END {
            self.last.pop_front();
            self.left_out += 1;
        }
    }

    /// The log, once it is read to its end.
    pub(super) fn finish(mut self, lines: u64) -> KernelLog {
        self.begin(lines);
        let mut boots = self.first;
        boots.extend(self.last);
        KernelLog {
            lines,
            boots,
            boots_left_out: self.left_out,
        }
    }
}
