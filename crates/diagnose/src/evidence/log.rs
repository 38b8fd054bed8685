//! What a kernel's log says about clocks, line by line, in bounded space.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Events kept at each end of a boot.
const END: usize = 1000;

/// Events of one kind that survive between the two ends.
const MIDDLE_PER_KIND: u64 = 32;

/// The clock events of a log, boot by boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KernelLog {
    /// Lines that were read.
    pub lines: u64,
    /// The boots, in the order of the log; at least one.
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
    /// The highest time stamp in it.
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
    /// How many there were of each kind.
    pub counts: BTreeMap<String, u64>,
    /// How many of each kind stand in `middle`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    middle_counts: BTreeMap<String, u64>,
}

impl Retained {
    /// Takes in the next event.
    pub fn push(&mut self, event: LoggedEvent) {
        *self
            .counts
            .entry(event.event.kind().to_owned())
            .or_default() += 1;
        if self.first.len() < END {
            self.first.push(event);
            return;
        }
        self.last.push_back(event);
        if self.last.len() > END
            && let Some(evicted) = self.last.pop_front()
        {
            let kept = self
                .middle_counts
                .entry(evicted.event.kind().to_owned())
                .or_default();
            if *kept < MIDDLE_PER_KIND {
                *kept += 1;
                self.middle.push(evicted);
            }
        }
    }

    /// The events that were kept, in the order of the log.
    pub fn iter(&self) -> impl Iterator<Item = &LoggedEvent> + Clone {
        self.first.iter().chain(&self.middle).chain(&self.last)
    }

    /// Events that were read and not kept.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        let total: u64 = self.counts.values().sum();
        let kept = u64::try_from(self.first.len() + self.middle.len() + self.last.len())
            .unwrap_or(u64::MAX);
        total.saturating_sub(kept)
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

/// Why the kernel withdrew the TSC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UnstableReason {
    /// `clocksource watchdog`.
    ClocksourceWatchdog,
    /// `check_tsc_sync_source failed`.
    SyncCheckFailed,
    /// `running on Hyper-V`: a rule of the kernel, no observation.
    RunningOnHyperV,
    /// `could not calculate TSC khz`.
    NoFrequency,
    /// `TSCs unsynchronized`.
    Unsynchronised,
    /// `cpufreq changes`.
    CpufreqChanges,
    /// `TSC halts in idle` or in a deep sleep state.
    HaltsInIdle,
    /// `boot parameter` or `tsc=unstable`.
    CommandLine,
    /// Any other.
    Other(String),
}

/// One of the two counters of a watchdog verdict, as printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WatchdogBlock {
    /// Clock source.
    pub name: String,
    /// Interval that the kernel computed, in ns, in the generations that print it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsec: Option<i64>,
    /// Value at the check.
    pub now: u64,
    /// Value at the check before.
    pub last: u64,
    /// Mask of the counter.
    pub mask: u64,
}

/// What one line of the kernel's log says about clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClockEvent {
    /// `Linux version ...`: a boot begins. Only the numbers of the release are kept.
    BootStarted {
        /// Release, numbers only.
        release: String,
    },
    /// The command line, only the words about clocks.
    CommandLine {
        /// Words.
        words: Vec<String>,
    },
    /// `Hypervisor detected: ...`.
    HypervisorDetected {
        /// Name.
        name: String,
    },
    /// `clocksource: NAME: mask: ...`.
    Registered {
        /// Clock source.
        name: String,
        /// Mask.
        mask: u64,
        /// Longest span without a read, in cycles.
        max_cycles: u64,
        /// The same span in ns, after the kernel's margins.
        max_idle_ns: u64,
    },
    /// `Switched to clocksource NAME`.
    Switched {
        /// Clock source.
        name: String,
    },
    /// Any other line about clocks, by kind.
    Other {
        /// Kind.
        kind: String,
    },
}

impl ClockEvent {
    /// A short name of the kind of event.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::BootStarted { .. } => "boot",
            Self::CommandLine { .. } => "command-line",
            Self::HypervisorDetected { .. } => "hypervisor",
            Self::Registered { .. } => "registered",
            Self::Switched { .. } => "switched",
            Self::Other { kind } => kind,
        }
    }
}
