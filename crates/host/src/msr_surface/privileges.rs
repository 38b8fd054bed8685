//! Which registers exist, from the CPUID privileges that the guest was shown.

use chronovisor_abi::cpuid::{hyperv, kvm};
use chronovisor_abi::msr::Msr;

/// The privileges that the VMM advertises in CPUID. The surface and the leaves must be made from the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Privileges {
    /// 0x40000003.EAX of Hyper-V's interface; 0 if the interface is not offered.
    pub hyperv_eax: u32,
    /// 0x40000003.EDX of Hyper-V's interface.
    pub hyperv_edx: u32,
    /// 0x40000001.EAX of KVM's interface; 0 if the interface is not offered.
    pub kvm_eax: u32,
}

/// Whether an access is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    Closed,
}

impl Privileges {
    /// Nothing is offered: every register raises #GP.
    pub const NONE: Self = Self {
        hyperv_eax: 0,
        hyperv_edx: 0,
        kvm_eax: 0,
    };

    /// Hyper-V's clocks and timers and KVM's clocks, with everything that this crate serves.
    pub const EVERYTHING: Self = Self {
        hyperv_eax: hyperv::ACCESS_VP_RUNTIME
            | hyperv::ACCESS_REFERENCE_COUNTER
            | hyperv::ACCESS_SYNIC
            | hyperv::ACCESS_SYNTHETIC_TIMERS
            | hyperv::ACCESS_HYPERCALL
            | hyperv::ACCESS_VP_INDEX
            | hyperv::ACCESS_REFERENCE_TSC
            | hyperv::ACCESS_FREQUENCIES
            | hyperv::ACCESS_REENLIGHTENMENT
            | hyperv::ACCESS_TSC_INVARIANT,
        hyperv_edx: hyperv::FREQUENCY_MSRS_AVAILABLE | hyperv::DIRECT_SYNTHETIC_TIMERS,
        kvm_eax: kvm::CLOCKSOURCE | kvm::CLOCKSOURCE2 | kvm::CLOCKSOURCE_STABLE,
    };

    /// What the privileges say about `msr`, or `None` if it is none of this surface's registers.
    pub(super) fn allow(self, msr: Msr) -> Option<Gate> {
        let hyperv = |bits: u32| self.hyperv_eax & bits == bits;
        let kvm = |bits: u32| self.kvm_eax & bits == bits;
        let open = match msr {
            Msr::HV_GUEST_OS_ID | Msr::HV_HYPERCALL => hyperv(hyperv::ACCESS_HYPERCALL),
            Msr::HV_VP_INDEX => hyperv(hyperv::ACCESS_VP_INDEX),
            Msr::HV_VP_RUNTIME => hyperv(hyperv::ACCESS_VP_RUNTIME),
            Msr::HV_TIME_REF_COUNT => hyperv(hyperv::ACCESS_REFERENCE_COUNTER),
            Msr::HV_REFERENCE_TSC => hyperv(hyperv::ACCESS_REFERENCE_TSC),
            Msr::HV_TSC_FREQUENCY | Msr::HV_APIC_FREQUENCY => {
                hyperv(hyperv::ACCESS_FREQUENCIES)
                    && self.hyperv_edx & hyperv::FREQUENCY_MSRS_AVAILABLE != 0
            }
            // Guests write it without looking for a privilege, wherever there is a Hyper-V interface.
            Msr::HV_VP_ASSIST_PAGE => self.hyperv_eax != 0,
            Msr::HV_REENLIGHTENMENT_CONTROL
            | Msr::HV_TSC_EMULATION_CONTROL
            | Msr::HV_TSC_EMULATION_STATUS => hyperv(hyperv::ACCESS_REENLIGHTENMENT),
            Msr::HV_TSC_INVARIANT_CONTROL => hyperv(hyperv::ACCESS_TSC_INVARIANT),
            Msr::KVM_SYSTEM_TIME | Msr::KVM_WALL_CLOCK => kvm(kvm::CLOCKSOURCE2),
            Msr::KVM_SYSTEM_TIME_OLD | Msr::KVM_WALL_CLOCK_OLD => kvm(kvm::CLOCKSOURCE),
            Msr(0x4000_0080..=0x4000_009f) => hyperv(hyperv::ACCESS_SYNIC),
            Msr(0x4000_00b0..=0x4000_00b7) => hyperv(hyperv::ACCESS_SYNTHETIC_TIMERS),
            _ => return None,
        };
        Some(if open { Gate::Open } else { Gate::Closed })
    }
}
