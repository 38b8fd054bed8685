//! What is known about a machine: the one input of a diagnosis.
//!
//! A live probe, a log text, a folder of files and a saved bundle all fill the same [`Evidence`]. Each part is a
//! [`Part`]: seen, not readable with the reason, or never looked at. A rule works on what was seen, and a verdict can say
//! what was missing.
//!
//! Texts that a person typed (a command line, the name of a machine) stand only in fields that a redaction empties or
//! filters.

mod captures;
mod clocks;
mod event;
mod identity;
mod log;
mod reference;
mod series;

pub use captures::{
    CpuStat, CpuTicks, InterruptCapture, InterruptRow, KvmTrace, MsrAccess, MsrCapture, MsrCount,
    OffsetWrite, ReferencePage,
};
pub use clocks::{
    CpuOrder, FrequencyChannel, FrequencyOrigin, Hz, PvclockRecord, Rate, ReadCost, ReadPath,
    SyscallCount, VdsoData, VmclockPage,
};
pub use event::{
    Calibration, ClockEvent, DelayLoopSource, Interruption, Outcome, SchedClockLine,
    UnstableReason, WatchdogBlock,
};
pub use identity::{CpuLine, CpuidLeaf, HypervisorBase, Identity};
pub use log::{Boot, EVENTS_AT_EACH_END, KernelLog, LoggedEvent, Retained, TimeStamp};
pub use reference::{Adjtimex, PtpDevice, TimeReference};
pub use series::{Column, Samples};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One part of the evidence: seen, or not, and why not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Part<T> {
    /// Nobody looked: the source of the evidence does not hold this part.
    #[default]
    NotLookedAt,
    /// Looked for and not readable; the text says why.
    NotReadable(String),
    /// The part as it was seen.
    Seen(T),
}

impl<T> Part<T> {
    /// The value, if it was seen.
    #[must_use]
    pub fn seen(&self) -> Option<&T> {
        match self {
            Self::Seen(value) => Some(value),
            Self::NotLookedAt | Self::NotReadable(_) => None,
        }
    }

    /// The value for change, if it was seen.
    #[must_use]
    pub fn seen_mut(&mut self) -> Option<&mut T> {
        match self {
            Self::Seen(value) => Some(value),
            Self::NotLookedAt | Self::NotReadable(_) => None,
        }
    }

    /// Why it is not there, if it was looked for.
    #[must_use]
    pub fn why_not(&self) -> Option<&str> {
        match self {
            Self::NotReadable(why) => Some(why),
            Self::NotLookedAt | Self::Seen(_) => None,
        }
    }

    /// Whether nobody looked (such a part is left out of a bundle).
    #[must_use]
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::NotLookedAt)
    }

    /// The part that a fallible reading gives: the error becomes the reason.
    pub fn from_result<E: core::fmt::Display>(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Self::Seen(value),
            Err(why) => Self::NotReadable(why.to_string()),
        }
    }
}

impl<T: Default> Part<T> {
    /// The value, made from its default if it was not seen before.
    pub fn get_or_insert_default(&mut self) -> &mut T {
        if !matches!(self, Self::Seen(_)) {
            *self = Self::Seen(T::default());
        }
        match self {
            Self::Seen(value) => value,
            Self::NotLookedAt | Self::NotReadable(_) => unreachable!("made seen above"),
        }
    }
}

/// Where the evidence comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// This machine, measured now.
    Live,
    /// A folder that mirrors a machine's files.
    #[default]
    Folder,
    /// The text of a kernel log.
    Log,
}

/// Everything known about one machine.
///
/// # Examples
///
/// ```
/// use chronovisor_diagnose::evidence::{Evidence, Part};
///
/// let mut evidence = Evidence::default();
/// evidence.current_clocksource = Part::Seen(vec!["hpet".to_owned()]);
/// let text = serde_json::to_string(&evidence)?;
/// assert_eq!(serde_json::from_str::<Evidence>(&text)?, evidence);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Where it comes from.
    pub origin: Origin,
    /// A name for this machine in a report over many: a host name or a file name. Redaction removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// CPU and hypervisor by CPUID.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub identity: Part<Identity>,
    /// The clock source in use, one capture after the other; the last is the latest.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub current_clocksource: Part<Vec<String>>,
    /// The clock sources that the kernel lists, as whole words.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub available_clocksources: Part<Vec<String>>,
    /// The kernel's command line.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub command_line: Part<String>,
    /// What the kernel's log says about clocks.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub kernel_log: Part<KernelLog>,
    /// The lines of `/proc/cpuinfo` that matter, one entry a CPU.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub cpu_lines: Part<Vec<CpuLine>>,
    /// Every channel that tells a frequency.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub frequencies: Part<Vec<FrequencyChannel>>,
    /// The kernel's live pvclock record.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub pvclock: Part<PvclockRecord>,
    /// The kernel's time data page: which counter the vDSO reads.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub vdso: Part<VdsoData>,
    /// The VMClock page of the hypervisor.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub vmclock: Part<VmclockPage>,
    /// The Hyper-V reference TSC page, one capture after the other.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub reference_page: Part<Vec<ReferencePage>>,
    /// Hyper-V partition privileges by name.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub privileges: Part<BTreeMap<String, bool>>,
    /// What one read of each clock costs.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub costs: Part<Vec<ReadCost>>,
    /// How many clock calls reached the kernel.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub syscalls: Part<Vec<SyscallCount>>,
    /// Whether time goes back between CPUs, one entry a clock.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub cpu_order: Part<Vec<CpuOrder>>,
    /// Rates of clocks against `CLOCK_MONOTONIC_RAW`.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub rates: Part<Vec<Rate>>,
    /// `/proc/stat`, one capture after the other.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub cpu_time: Part<Vec<CpuStat>>,
    /// `/proc/interrupts`, one capture after the other.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub interrupts: Part<Vec<InterruptCapture>>,
    /// What disciplines the wall clock, and what it can be compared with.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub reference: Part<TimeReference>,
    /// Series of clock readings.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub samples: Part<Samples>,
    /// Tracepoint lines of a KVM host.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub kvm_trace: Part<KvmTrace>,
    /// MSR accesses counted by a KVM host, one capture after the other.
    #[serde(default, skip_serializing_if = "Part::is_absent")]
    pub msr_counts: Part<Vec<MsrCapture>>,
    /// What could not be made sense of, one line each with its position. The rest was still read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub complaints: Vec<String>,
}
