//! What decides about the clocks of a machine, and how CPUID tells it.

use chronovisor_abi::cpuid::{
    Base, Interface, Leaf, SIGNATURE_HYPERV, hyperv, interfaces, kvm, processor, xen,
};

use crate::pvclock::StableBit;

/// What the TSC is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TscState {
    /// Its rate may change with the processor's.
    Varying,
    /// One rate in all states (CPUID 0x80000007.EDX\[8\]), and nobody has complained.
    Invariant,
    /// The kernel marked it unstable.
    MarkedUnstable,
}

/// The hypervisor that a Linux guest goes by, with what its leaves say of clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hypervisor {
    /// None announced, or one without a clock of its own.
    None,
    /// KVM: EAX of its features leaf.
    Kvm {
        /// Features.
        features: u32,
    },
    /// Hyper-V: EAX of its features leaf, the partition's privileges.
    HyperV {
        /// Privileges.
        privileges: u32,
    },
    /// Xen: EBX of its time leaf, the TSC mode.
    Xen {
        /// TSC mode.
        tsc_mode: u32,
    },
}

/// Timers of a PC, which no CPUID leaf announces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegacyTimers {
    /// The high-precision event timer.
    pub hpet: bool,
    /// The ACPI power-management timer.
    pub acpi_pm: bool,
    /// The 8254.
    pub pit: bool,
}

/// What decides about the clocks of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The hypervisor.
    pub hypervisor: Hypervisor,
    /// The TSC.
    pub tsc: TscState,
    /// Whether the pvclock record has its stable flag set now.
    pub record_is_stable: bool,
    /// The legacy timers.
    pub legacy: LegacyTimers,
}

/// The interface that a Linux guest goes by: of those that it knows, the one at the largest base. A Hyper-V interface counts only under Microsoft's own signature and
/// with hypercall and VP index privileges.
#[must_use]
pub fn linux_hypervisor(leaf: impl Fn(u32) -> Leaf) -> Option<Base> {
    interfaces(&leaf)
        .filter(|base| match base.interface {
            Interface::Kvm | Interface::Xen | Interface::VMware => true,
            Interface::HyperV => {
                let needed = hyperv::ACCESS_HYPERCALL | hyperv::ACCESS_VP_INDEX;
                base.signature == SIGNATURE_HYPERV
                    && base.last >= base.base + hyperv::LIMITS
                    && leaf(base.base + hyperv::FEATURES).eax & needed == needed
            }
            Interface::Other(_) => false,
        })
        .last()
}

impl Machine {
    /// What the leaves say; the TSC as trusted as CPUID makes it, the record as stable as CPUID promises, no legacy timers.
    #[must_use]
    pub fn from_cpuid(leaf: impl Fn(u32) -> Leaf) -> Self {
        let hypervisor = match linux_hypervisor(&leaf) {
            Some(found) => match found.interface {
                Interface::Kvm => Hypervisor::Kvm {
                    features: leaf(found.base + kvm::FEATURES).eax,
                },
                Interface::HyperV => Hypervisor::HyperV {
                    privileges: leaf(found.base + hyperv::FEATURES).eax,
                },
                Interface::Xen => Hypervisor::Xen {
                    tsc_mode: leaf(found.base + xen::TIME).ebx,
                },
                Interface::VMware | Interface::Other(_) => Hypervisor::None,
            },
            None => Hypervisor::None,
        };
        let invariant = leaf(0x8000_0000).eax >= 0x8000_0007
            && leaf(0x8000_0007).edx & processor::EXTENDED7_EDX_INVARIANT_TSC != 0;
        let machine = Self {
            hypervisor,
            tsc: match hypervisor {
                // Linux does so itself, without a test, where the partition may not rely on the TSC.
                Hypervisor::HyperV { privileges }
                    if privileges & hyperv::ACCESS_TSC_INVARIANT == 0 =>
                {
                    TscState::MarkedUnstable
                }
                _ if invariant => TscState::Invariant,
                _ => TscState::Varying,
            },
            record_is_stable: false,
            legacy: LegacyTimers::default(),
        };
        Self {
            record_is_stable: machine.stable_bit() == StableBit::Advertised,
            ..machine
        }
    }

    /// Whether the record's stable flag counts: KVM advertises it, Xen's records always have it.
    #[must_use]
    pub const fn stable_bit(&self) -> StableBit {
        match self.hypervisor {
            Hypervisor::Kvm { features } if features & kvm::CLOCKSOURCE_STABLE != 0 => {
                StableBit::Advertised
            }
            Hypervisor::Xen { .. } => StableBit::Advertised,
            _ => StableBit::NotAdvertised,
        }
    }
}
