//! What was measured or read from clocks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A frequency as an exact fraction of hertz.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hz {
    /// Numerator, in Hz.
    pub numerator: u64,
    /// Denominator, at least 1.
    pub denominator: u64,
}

/// Whether a frequency was declared by somebody or measured here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FrequencyOrigin {
    /// Firmware, hypervisor or kernel says so.
    Declared,
    /// Counted against another clock of this machine.
    Measured,
}

/// One channel that tells the frequency of a counter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FrequencyChannel {
    /// Channel, e.g. `cpuid-15`, `cpuid-16`, `cpuid-40000010`, `hyperv-msr`, `pvclock`, `reference-page`, `kernel-log`,
    /// `against-monotonic-raw`.
    pub channel: String,
    /// The counter it speaks of: `tsc`, `apic`, `hpet`.
    pub counter: String,
    /// The frequency.
    pub hz: Hz,
    /// Largest relative error of the channel itself, in ppb (rounding of its unit, uncertainty of a measurement).
    pub error_ppb: u64,
    /// Declared or measured.
    pub origin: FrequencyOrigin,
}

/// The kernel's live pvclock record with what was computed from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PvclockRecord {
    /// Version; even while the record is whole.
    pub version: u32,
    /// TSC at the last update.
    pub tsc_timestamp: u64,
    /// System time at `tsc_timestamp`, in ns.
    pub system_time_ns: u64,
    /// Multiplier.
    pub mul: u32,
    /// Shift.
    pub shift: i8,
    /// Flags: bit 0 stable, bit 1 guest was stopped.
    pub flags: u8,
    /// Frequency that `mul` and `shift` imply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub implied: Option<Hz>,
    /// Record time minus `CLOCK_BOOTTIME`, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset_boottime_ns: Option<i64>,
    /// Record time minus `CLOCK_MONOTONIC_RAW`, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset_monotonic_raw_ns: Option<i64>,
    /// Rate of the record against `CLOCK_BOOTTIME`, in ppb over the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_boottime_ppb: Option<i64>,
    /// Rate of the record against `CLOCK_MONOTONIC_RAW`, in ppb over the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_monotonic_raw_ppb: Option<i64>,
    /// Largest error of the two drifts, in ppb.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_error_ppb: Option<u64>,
    /// Length of the window of the drifts, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_ns: Option<u64>,
}

/// What the kernel's time data page says about reads in user space.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VdsoData {
    /// Which counter the vDSO reads: `none` (each read is a system call), `tsc`, `pvclock`, `hyperv`, or a number that is not known.
    pub mode: String,
    /// The kernel's multiplier, as the time daemon steers it.
    pub mult: u32,
    /// The shift behind the multiplication.
    pub shift: u32,
    /// The counter's rate that the two stand for, within 500 ppm of the counter's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub implied: Option<Hz>,
}

/// A VMClock page, as its header and time fields say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VmclockPage {
    /// Device, e.g. `/dev/vmclock0`.
    pub device: String,
    /// Sequence count.
    pub seq_count: u32,
    /// Disruption marker.
    pub disruption_marker: u64,
    /// Clock status byte.
    pub clock_status: u8,
    /// Frequency of the counter that the period implies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter: Option<Hz>,
    /// Wall clock minus the page's time, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset_ns: Option<i64>,
    /// Largest error of the page's time that the page itself declares, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_error_ns: Option<u64>,
}

/// What happens behind one read of a clock.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ReadPath {
    /// An instruction reads the counter.
    Rdtsc,
    /// A shared page and the counter.
    Page,
    /// The user-space entry point of the kernel, whatever happens behind it.
    Vdso,
    /// A raw system call.
    Syscall,
    /// A read of a model-specific register, so a VM exit.
    Msr,
}

/// The cost of one read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadCost {
    /// Clock, e.g. `realtime`, `monotonic`, `tsc`; `clock@event` is the clock in one state of the machine.
    pub clock: String,
    /// Median cost of a read, in ns.
    pub ns_per_read: f64,
    /// Path.
    pub path: ReadPath,
    /// The same in cycles of the counter, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<f64>,
    /// Smallest step seen between two reads, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution_ns: Option<u64>,
    /// Successive reads that were equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalls: Option<u64>,
    /// Successive reads that went back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regressions: Option<u64>,
}

/// How many calls of a program reached the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SyscallCount {
    /// The call, e.g. `gettimeofday`.
    pub call: String,
    /// Calls that the program made.
    pub calls_made: u64,
    /// System calls that were seen for them.
    pub syscalls_seen: u64,
}

/// Order of readings taken in turn on pairs of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuOrder {
    /// The clock that was read, e.g. `tsc` or `monotonic`.
    pub clock: String,
    /// Pairs of CPUs that were tried.
    pub pairs: u64,
    /// Readings that were taken.
    pub readings: u64,
    /// Readings lower than an earlier one of another CPU.
    pub warps: u64,
    /// The largest step back, in ns.
    pub max_backward_ns: u64,
    /// The smallest step back that is not zero, in ns.
    #[serde(default)]
    pub min_backward_ns: u64,
    /// Steps back between readings of one CPU.
    #[serde(default)]
    pub same_cpu_backwards: u64,
    /// Readings equal to an earlier one.
    pub stalls: u64,
}

/// The rate of one clock against `CLOCK_MONOTONIC_RAW`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rate {
    /// The clock, e.g. `tsc`, `pvclock`, `monotonic`, `realtime`.
    pub clock: String,
    /// For a counter: its ticks per second of the raw clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hz: Option<Hz>,
    /// For a clock in ns: its rate minus 1, in ppb.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_ppb: Option<i64>,
    /// Largest error of the rate, in ppb.
    pub error_ppb: u64,
    /// Length of the window, in ns.
    pub window_ns: u64,
}
