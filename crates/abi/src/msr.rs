//! Model-specific registers of clocks and timers: numbers and bits, each with its source and access.
//!
//! RO: a guest write raises #GP. WO: a guest read gives 0. RW: both.

use core::fmt;

/// The number of a model-specific register; any number is possible, a guest chooses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Msr(pub u32);

impl fmt::Debug for Msr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Msr({:#x})", self.0)
    }
}

impl fmt::Display for Msr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

macro_rules! msrs {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        impl Msr {
            $($(#[$doc])* pub const $name: Self = Self($number);)*
        }
    };
}

msrs! {
    /// IA32_TIME_STAMP_COUNTER. SDM vol. 4, table 2-2. RW.
    TSC = 0x10;
    /// IA32_APIC_BASE. SDM vol. 4, table 2-2. RW.
    APIC_BASE = 0x1b;
    /// IA32_TSC_ADJUST. SDM vol. 3B, "IA32_TSC_ADJUST MSR". RW, CPUID 7.0.EBX\[1\].
    TSC_ADJUST = 0x3b;
    /// IA32_TSC_DEADLINE. SDM vol. 3A, "TSC-Deadline Mode". RW, CPUID 1.ECX\[24\].
    TSC_DEADLINE = 0x6e0;
    /// First of the x2APIC registers. SDM vol. 3A, "x2APIC Register Address Space".
    X2APIC_BASE = 0x800;
    /// IA32_TSC_AUX. SDM vol. 4, table 2-2. RW, CPUID 0x80000001.EDX\[27\].
    TSC_AUX = 0xc000_0103;
    /// AMD TSC ratio, 8 integer and 32 fraction bits. AMD APM vol. 2, "TSC Ratio MSR". Host only. RW.
    AMD_TSC_RATIO = 0xc000_0104;

    /// KVM wall clock, old number. Linux Documentation/virt/kvm/x86/msr.rst, CPUID 0x40000001.EAX\[0\]. RW.
    KVM_WALL_CLOCK_OLD = 0x11;
    /// KVM system time, old number. Linux Documentation/virt/kvm/x86/msr.rst, CPUID 0x40000001.EAX\[0\]. RW.
    KVM_SYSTEM_TIME_OLD = 0x12;
    /// KVM wall clock: address of the record; each write fills it once. Linux msr.rst, CPUID 0x40000001.EAX\[3\]. RW.
    KVM_WALL_CLOCK = 0x4b56_4d00;
    /// KVM system time: address of the vCPU's record, bit 0 enables. Linux msr.rst, CPUID 0x40000001.EAX\[3\]. RW.
    KVM_SYSTEM_TIME = 0x4b56_4d01;
    /// KVM steal time: address of the vCPU's record, bit 0 enables. Linux msr.rst, CPUID 0x40000001.EAX\[5\]. RW.
    KVM_STEAL_TIME = 0x4b56_4d03;

    /// HV_X64_MSR_GUEST_OS_ID. TLFS, "Guest OS Identity MSR". RW.
    HV_GUEST_OS_ID = 0x4000_0000;
    /// HV_X64_MSR_HYPERCALL. TLFS, "Establishing the Hypercall Interface". RW.
    HV_HYPERCALL = 0x4000_0001;
    /// HV_X64_MSR_VP_INDEX. TLFS, "Virtual Processor Index". RO.
    HV_VP_INDEX = 0x4000_0002;
    /// HV_X64_MSR_VP_RUNTIME, 100 ns. TLFS, "Virtual Processor Run Time". RO.
    HV_VP_RUNTIME = 0x4000_0010;
    /// HV_X64_MSR_TIME_REF_COUNT, 100 ns. TLFS, "Partition Reference Counter". RO.
    HV_TIME_REF_COUNT = 0x4000_0020;
    /// HV_X64_MSR_REFERENCE_TSC: bit 0 enables, 11:1 are preserved, 63:12 page number. TLFS, "Reference TSC page". RW.
    HV_REFERENCE_TSC = 0x4000_0021;
    /// HV_X64_MSR_TSC_FREQUENCY, Hz. TLFS, "Frequency MSRs". RO.
    HV_TSC_FREQUENCY = 0x4000_0022;
    /// HV_X64_MSR_APIC_FREQUENCY, Hz. TLFS, "Frequency MSRs". RO.
    HV_APIC_FREQUENCY = 0x4000_0023;
    /// HV_X64_MSR_VP_ASSIST_PAGE. TLFS, "Virtual Processor Assist Page". RW.
    HV_VP_ASSIST_PAGE = 0x4000_0073;
    /// HV_X64_MSR_SCONTROL: bit 0 enables the SynIC. TLFS, "SynIC MSRs". RW.
    HV_SCONTROL = 0x4000_0080;
    /// HV_X64_MSR_SVERSION. TLFS, "SynIC MSRs". RO.
    HV_SVERSION = 0x4000_0081;
    /// HV_X64_MSR_SIEFP: event flags page. TLFS, "SynIC MSRs". RW.
    HV_SIEFP = 0x4000_0082;
    /// HV_X64_MSR_SIMP: message page. TLFS, "SynIC MSRs". RW.
    HV_SIMP = 0x4000_0083;
    /// HV_X64_MSR_EOM: end of message. TLFS, "SynIC MSRs". WO.
    HV_EOM = 0x4000_0084;
    /// HV_X64_MSR_SINT0, the first of 16. TLFS, "SynIC MSRs". RW.
    HV_SINT0 = 0x4000_0090;
    /// HV_X64_MSR_STIMER0_CONFIG, the first of four pairs of CONFIG and COUNT. TLFS, "Synthetic timer MSRs". RW.
    HV_STIMER0_CONFIG = 0x4000_00b0;
    /// HV_X64_MSR_STIMER0_COUNT. TLFS, "Synthetic timer MSRs". RW.
    HV_STIMER0_COUNT = 0x4000_00b1;
    /// HV_X64_MSR_REENLIGHTENMENT_CONTROL: 7:0 vector, 16 enabled, 63:32 target VP. TLFS, "Reenlightenment". RW.
    HV_REENLIGHTENMENT_CONTROL = 0x4000_0106;
    /// HV_X64_MSR_TSC_EMULATION_CONTROL: bit 0 enables. TLFS, "Reenlightenment". RW.
    HV_TSC_EMULATION_CONTROL = 0x4000_0107;
    /// HV_X64_MSR_TSC_EMULATION_STATUS: bit 0 in progress; the guest may only clear it. TLFS, "Reenlightenment". RW.
    HV_TSC_EMULATION_STATUS = 0x4000_0108;
    /// HV_X64_MSR_STIME_UNHALTED_TIMER_CONFIG. TLFS, "Time-Unhalted Timer". RW.
    HV_UNHALTED_TIMER_CONFIG = 0x4000_0114;
    /// HV_X64_MSR_STIME_UNHALTED_TIMER_COUNT. TLFS, "Time-Unhalted Timer". RW.
    HV_UNHALTED_TIMER_COUNT = 0x4000_0115;
    /// HV_X64_MSR_TSC_INVARIANT_CONTROL: bit 0. Linux arch/x86/include/asm/hyperv-tlfs.h. RW, cannot be cleared.
    HV_TSC_INVARIANT_CONTROL = 0x4000_0118;
}

/// Bit 0 of an address register (KVM system time, reference TSC page, SIMP ..): the page or record is in use. TLFS; Linux msr.rst.
pub const ENABLE: u64 = 1;
/// The page address in a Hyper-V page register: bits 63:12. TLFS, "Reference TSC page".
pub const PAGE_ADDRESS_MASK: u64 = !0xfff;
