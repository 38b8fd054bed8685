//! What a machine is made of: its APIC, its CPUID, which MSRs are ours.

use kvm_bindings::{CpuId, kvm_cpuid_entry2, kvm_enable_cap};
use kvm_ioctls::{
    Cap, MsrExitReason, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VmFd,
};

use crate::LabError;

/// The Hyper-V MSRs, all of which are ours.
const HYPERV_MSRS: std::ops::Range<u32> = 0x4000_0000..0x4000_0200;
/// Wall clock and system time.
const KVM_CLOCK_MSRS: u32 = 0x4B56_4D00;
const IA32_TSC_DEADLINE: u32 = 0x6E0;

/// Who owns the local APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apic {
    /// Nobody: interrupts play no part.
    None,
    /// KVM.
    InKernel,
    /// A device of ours; the TSC-deadline MSR is diverted to it.
    UserSpace,
}

/// Who answers a group of MSRs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A device of ours.
    Ours,
    /// KVM.
    Kvm,
}

/// How the application processors come to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secondary {
    /// The VMM starts them in 64-bit mode, like the first.
    Started,
    /// They wait for INIT and SIPI.
    Waiting,
}

/// What a machine is made of.
#[derive(Clone)]
pub struct Setup {
    /// Number of vCPUs.
    pub vcpus: u32,
    /// The APIC.
    pub apic: Apic,
    /// Hyper-V's MSRs.
    pub hyperv_msrs: Owner,
    /// KVM's own clock MSRs.
    pub kvm_clock_msrs: Owner,
    /// How the other vCPUs start.
    pub secondary: Secondary,
    /// Hypervisor leaves of CPUID, instead of KVM's own: (leaf, registers).
    pub hypervisor_leaves: Vec<(u32, [u32; 4])>,
}

impl Setup {
    /// `vcpus` vCPUs that run at once, without an APIC, Hyper-V's MSRs ours.
    #[must_use]
    pub const fn new(vcpus: u32) -> Self {
        Self {
            vcpus,
            apic: Apic::None,
            hyperv_msrs: Owner::Ours,
            kvm_clock_msrs: Owner::Kvm,
            secondary: Secondary::Started,
            hypervisor_leaves: Vec::new(),
        }
    }
}

pub(super) fn divert_msrs(vm: &VmFd, setup: &Setup) -> Result<(), LabError> {
    let reasons = MsrExitReason::Inval | MsrExitReason::Unknown | MsrExitReason::Filter;
    let mut enable = kvm_enable_cap {
        cap: u32::try_from(Cap::X86UserSpaceMsr as u64).unwrap_or(0),
        ..Default::default()
    };
    enable.args[0] = u64::from(reasons.bits());
    vm.enable_cap(&enable)
        .map_err(LabError::kvm("KVM_ENABLE_CAP(X86_USER_SPACE_MSR)"))?;
    let flags = MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE;
    // A zero bit denies, and a denied access exits to us.
    let none = [0; 64];
    let mut ranges = Vec::new();
    if setup.hyperv_msrs == Owner::Ours {
        ranges.push(MsrFilterRange {
            flags,
            base: HYPERV_MSRS.start,
            msr_count: HYPERV_MSRS.end - HYPERV_MSRS.start,
            bitmap: &none,
        });
    }
    if setup.kvm_clock_msrs == Owner::Ours {
        ranges.push(MsrFilterRange {
            flags,
            base: KVM_CLOCK_MSRS,
            msr_count: 8,
            bitmap: &[0xFC],
        });
    }
    if setup.apic == Apic::UserSpace {
        ranges.push(MsrFilterRange {
            flags,
            base: IA32_TSC_DEADLINE,
            msr_count: 8,
            bitmap: &[0xFE],
        });
    }
    if ranges.is_empty() {
        return Ok(());
    }
    vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &ranges)
        .map_err(LabError::kvm("KVM_X86_SET_MSR_FILTER"))
}

/// Takes the reference time MSRs (0x40000020 to 0x40000023) of a running VM from KVM.
///
/// # Errors
///
/// [`LabError::Kvm`] if KVM refuses the filter.
pub(crate) fn divert_reference_msrs(vm: &VmFd) -> Result<(), LabError> {
    let flags = MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE;
    let range = MsrFilterRange {
        flags,
        base: HYPERV_MSRS.start + 0x20,
        msr_count: 8,
        bitmap: &[0xF0],
    };
    vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &[range])
        .map_err(LabError::kvm("KVM_X86_SET_MSR_FILTER"))
}

pub(super) fn guest_cpuid(supported: &CpuId, setup: &Setup, vcpu: u32) -> Result<CpuId, LabError> {
    const HYPERVISOR: std::ops::Range<u32> = 0x4000_0000..0x4001_0000;
    const X2APIC: u32 = 1 << 21;
    const TSC_DEADLINE: u32 = 1 << 24;
    const HYPERVISOR_PRESENT: u32 = 1 << 31;
    let mut entries: Vec<_> = supported
        .as_slice()
        .iter()
        .copied()
        .filter(|entry| setup.hypervisor_leaves.is_empty() || !HYPERVISOR.contains(&entry.function))
        .collect();
    for entry in &mut entries {
        match entry.function {
            0x1 => {
                entry.ebx = (entry.ebx & 0x00FF_FFFF) | (vcpu << 24);
                entry.ecx |= HYPERVISOR_PRESENT | X2APIC;
                if setup.apic != Apic::None {
                    entry.ecx |= TSC_DEADLINE;
                }
            }
            0xB | 0x1F => entry.edx = vcpu,
            _ => {}
        }
    }
    for (function, [eax, ebx, ecx, edx]) in &setup.hypervisor_leaves {
        entries.push(kvm_cpuid_entry2 {
            function: *function,
            eax: *eax,
            ebx: *ebx,
            ecx: *ecx,
            edx: *edx,
            ..Default::default()
        });
    }
    CpuId::from_entries(&entries).map_err(|error| LabError::Cpuid {
        what: format!("{} of them do not fit: {error:?}", entries.len()),
    })
}
