//! Which CPU and which hypervisor.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// CPU and hypervisor, as CPUID tells them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Identity {
    /// Vendor string of leaf 0.
    pub vendor: String,
    /// Brand string.
    pub model: String,
    /// CPUs that are online.
    pub cpus: u32,
    /// Kernel release, as `uname` gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Leaf 0x80000007 EDX bit 8.
    pub invariant_tsc: bool,
    /// Every hypervisor base that carries a signature, lowest first; empty on bare metal.
    pub hypervisors: Vec<HypervisorBase>,
    /// Other leaves that matter to clocks (0x1, 0x15, 0x16, 0x80000007, ...).
    #[serde(default)]
    pub leaves: Vec<CpuidLeaf>,
}

/// One hypervisor interface in CPUID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HypervisorBase {
    /// First leaf: 0x40000000 plus a multiple of 0x100.
    pub base: u32,
    /// The 12 bytes of EBX, ECX, EDX with trailing zeros cut, e.g. `KVMKVMKVM` or `Microsoft Hv`.
    pub signature: String,
    /// EAX of the base leaf: the highest leaf of this interface.
    pub max_leaf: u32,
    /// The leaves of this interface that matter to clocks.
    #[serde(default)]
    pub leaves: Vec<CpuidLeaf>,
}

/// One CPUID leaf with its four registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuidLeaf {
    /// Leaf number (EAX on input).
    pub leaf: u32,
    /// Sub-leaf (ECX on input).
    #[serde(default)]
    pub subleaf: u32,
    /// EAX on output.
    pub eax: u32,
    /// EBX on output.
    pub ebx: u32,
    /// ECX on output.
    pub ecx: u32,
    /// EDX on output.
    pub edx: u32,
}

/// The lines of one CPU in `/proc/cpuinfo` that matter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuLine {
    /// `processor`.
    pub processor: u32,
    /// `vendor_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// `model name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// `cpu MHz`, in kHz. Since Linux 4.13 this is the current speed of the core, not the rate of the counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub khz: Option<u64>,
    /// `bogomips`, in hundredths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bogomips_hundredths: Option<u64>,
    /// `physical id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<u32>,
    /// `flags`, only those that matter to clocks (`constant_tsc`, `nonstop_tsc`, `tsc_reliable`, `tsc_known_freq`,
    /// `tsc_adjust`, `rdtscp`, `tsc_deadline_timer`, `arat`, `hypervisor`, `tsc`).
    #[serde(default)]
    pub flags: Vec<String>,
}
