//! Counters of the kernel and of the hypervisor, each a capture of one moment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One capture of `/proc/stat`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuStat {
    /// The line `cpu`, the sum over all CPUs, if it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<CpuTicks>,
    /// The lines `cpuN` with their N.
    #[serde(default)]
    pub cpus: Vec<(u32, CpuTicks)>,
}

/// The numbers of one `cpu` line, in ticks of 10 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuTicks {
    /// User.
    pub user: u64,
    /// Nice.
    pub nice: u64,
    /// System.
    pub system: u64,
    /// Idle.
    pub idle: u64,
    /// Waiting for I/O.
    pub iowait: u64,
    /// Interrupts.
    pub irq: u64,
    /// Soft interrupts.
    pub softirq: u64,
    /// Taken by the host.
    pub steal: u64,
}

/// One capture of `/proc/interrupts`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterruptCapture {
    /// The CPU number of each column.
    pub cpus: Vec<u32>,
    /// The rows that matter to clocks (`0`, `LOC`, `HVS`, `HRE`, `HYP`, `RES`, `TIM` and timers by name).
    pub rows: Vec<InterruptRow>,
}

/// One row of `/proc/interrupts`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterruptRow {
    /// The row's name, e.g. `LOC`.
    pub name: String,
    /// Interrupts so far, one a column.
    pub counts: Vec<u64>,
    /// What stands behind the counts.
    #[serde(default)]
    pub text: String,
}

/// What the tracepoints of a KVM host say about the clocks of one guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KvmTrace {
    /// Writes of TSC offsets, in the order of the trace.
    pub offset_writes: Vec<OffsetWrite>,
    /// Lines that were read.
    pub lines: u64,
}

/// One `kvm_write_tsc_offset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OffsetWrite {
    /// Line of the trace, from 1.
    pub line: u64,
    /// vCPU.
    pub vcpu: u32,
    /// Offset before, modulo 2^64.
    pub previous: u64,
    /// Offset after, modulo 2^64.
    pub next: u64,
}

/// One capture of counted MSR accesses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MsrCapture {
    /// One row a register and direction.
    pub rows: Vec<MsrCount>,
}

/// Direction of an MSR access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MsrAccess {
    /// The guest reads.
    #[default]
    Read,
    /// The guest writes.
    Write,
}

/// How often a guest touched one MSR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MsrCount {
    /// Direction.
    pub access: MsrAccess,
    /// Register number.
    pub msr: u32,
    /// Accesses in the window.
    pub count: u64,
    /// Length of the window, in ns; 0 if not told.
    pub window_ns: u64,
}

/// The fields of a Hyper-V reference TSC page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReferencePage {
    /// Sequence; 0 and 0xffffffff mean "not valid now".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u32>,
    /// Scale, in 2^-64 ticks of 100 ns per TSC tick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<u64>,
    /// Offset, in 100 ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset_100ns: Option<i64>,
}
