//! CPUID leaves that describe clocks: the hypervisor's, found at each base, and the processor's own.
//!
//! # Theory
//!
//! A hypervisor announces itself at a base of the form 0x40000000 + n * 0x100: EAX the last leaf, EBX:ECX:EDX a signature. Several
//! interfaces can stand beside each other, Hyper-V's at 0x40000000 and KVM's at 0x40000100. The signature must be tested at *every* base;
//! a leaf's meaning follows from the signature of its own base.
//!
//! # Practice
//!
//! [`interfaces`] takes any source of leaves (the instruction, a saved bundle, a VMM's table) and yields what it finds.
//!
//! # Migration
//!
//! Leaves may change over a migration only if the VMM breaks its promise; read them again if a disruption is signalled.
//!
//! # Caveats
//!
//! The frequency leaf 0x40000010 is VMware's convention that KVM-based VMMs also follow; it counts only if the base at 0x40000000
//! reaches it. All zeros mean "not there".
//!
//! # References
//!
//! Hyper-V TLFS, "Feature and Interface Discovery"; Linux `Documentation/virt/kvm/x86/cpuid.rst`; Xen public
//! `arch-x86/cpuid.h`; Intel SDM vol. 2A, CPUID; VMware KB 1009458 ("Mechanisms to determine if software is running in a VMware virtual machine").

use crate::quantity::Hertz;

/// First hypervisor base.
pub const HYPERVISOR_BASE: u32 = 0x4000_0000;
/// Last hypervisor base that Linux searches.
pub const HYPERVISOR_LAST_BASE: u32 = 0x4000_ff00;
/// Distance between two bases.
pub const HYPERVISOR_BASE_STEP: u32 = 0x100;
/// TSC and bus frequency in kHz, where the base at 0x40000000 reaches it.
pub const HYPERVISOR_FREQUENCIES: u32 = 0x4000_0010;
/// Time-stamp counter and crystal clock. SDM vol. 2A, CPUID leaf 0x15.
pub const TSC_AND_CRYSTAL: u32 = 0x15;
/// Processor frequencies in MHz. SDM vol. 2A, CPUID leaf 0x16.
pub const PROCESSOR_FREQUENCIES: u32 = 0x16;

/// Bits of the processor's own leaves. SDM vol. 2A and AMD APM vol. 3, CPUID.
pub mod processor {
    /// 1.ECX: a hypervisor is present.
    pub const LEAF1_ECX_HYPERVISOR: u32 = 1 << 31;
    /// 1.ECX: the local APIC timer has TSC-deadline mode.
    pub const LEAF1_ECX_TSC_DEADLINE: u32 = 1 << 24;
    /// 1.ECX: x2APIC.
    pub const LEAF1_ECX_X2APIC: u32 = 1 << 21;
    /// 6.EAX: the local APIC timer does not stop in deep sleep.
    pub const LEAF6_EAX_ARAT: u32 = 1 << 2;
    /// 7.0.EBX: IA32_TSC_ADJUST.
    pub const LEAF7_EBX_TSC_ADJUST: u32 = 1 << 1;
    /// 0x80000001.EDX: RDTSCP and TSC_AUX.
    pub const EXTENDED1_EDX_RDTSCP: u32 = 1 << 27;
    /// 0x80000007.EDX: the TSC runs at one rate in all states.
    pub const EXTENDED7_EDX_INVARIANT_TSC: u32 = 1 << 8;
}

/// KVM's leaves, relative to its base. Linux Documentation/virt/kvm/x86/cpuid.rst.
pub mod kvm {
    /// Offset of the features leaf.
    pub const FEATURES: u32 = 1;
    /// Features EAX: the old clock MSRs 0x11 and 0x12.
    pub const CLOCKSOURCE: u32 = 1;
    /// Features EAX: the clock MSRs 0x4b564d00 and 0x4b564d01.
    pub const CLOCKSOURCE2: u32 = 1 << 3;
    /// Features EAX: steal time.
    pub const STEAL_TIME: u32 = 1 << 5;
    /// Features EAX: the record's stable flag means something.
    pub const CLOCKSOURCE_STABLE: u32 = 1 << 24;
}

/// Hyper-V's leaves, relative to its base, and the partition privileges. TLFS, "Feature and Interface Discovery".
pub mod hyperv {
    /// Offset of the interface leaf; EAX is [`INTERFACE_HV1`].
    pub const INTERFACE: u32 = 1;
    /// "Hv#1": the interface of this specification.
    pub const INTERFACE_HV1: u32 = u32::from_le_bytes(*b"Hv#1");
    /// Offset of the version leaf.
    pub const VERSION: u32 = 2;
    /// Offset of the features leaf (privileges).
    pub const FEATURES: u32 = 3;
    /// Offset of the recommendations leaf.
    pub const RECOMMENDATIONS: u32 = 4;
    /// Offset of the limits leaf.
    pub const LIMITS: u32 = 5;
    /// Offset of the hardware features leaf.
    pub const HARDWARE_FEATURES: u32 = 6;

    /// Privileges EAX: VP run time MSR.
    pub const ACCESS_VP_RUNTIME: u32 = 1;
    /// Privileges EAX: reference counter MSR.
    pub const ACCESS_REFERENCE_COUNTER: u32 = 1 << 1;
    /// Privileges EAX: SynIC MSRs.
    pub const ACCESS_SYNIC: u32 = 1 << 2;
    /// Privileges EAX: synthetic timer MSRs.
    pub const ACCESS_SYNTHETIC_TIMERS: u32 = 1 << 3;
    /// Privileges EAX: APIC MSRs (EOI, ICR, TPR and the assist page).
    pub const ACCESS_APIC_MSRS: u32 = 1 << 4;
    /// Privileges EAX: hypercall and guest OS id MSRs; guests insist on it.
    pub const ACCESS_HYPERCALL: u32 = 1 << 5;
    /// Privileges EAX: VP index MSR; guests insist on it.
    pub const ACCESS_VP_INDEX: u32 = 1 << 6;
    /// Privileges EAX: reference TSC page.
    pub const ACCESS_REFERENCE_TSC: u32 = 1 << 9;
    /// Privileges EAX: frequency MSRs (with EDX [`FREQUENCY_MSRS_AVAILABLE`]).
    pub const ACCESS_FREQUENCIES: u32 = 1 << 11;
    /// Privileges EAX: re-enlightenment MSRs. One table of the TLFS says bit 12; its structure listing, Linux, KVM and OpenVMM say 13.
    pub const ACCESS_REENLIGHTENMENT: u32 = 1 << 13;
    /// Privileges EAX: TSC invariant control MSR. Linux arch/x86/include/asm/hyperv-tlfs.h.
    pub const ACCESS_TSC_INVARIANT: u32 = 1 << 15;
    /// Features EDX: the frequency MSRs exist.
    pub const FREQUENCY_MSRS_AVAILABLE: u32 = 1 << 8;
    /// Features EDX: synthetic timers have direct mode.
    pub const DIRECT_SYNTHETIC_TIMERS: u32 = 1 << 19;
    /// Recommendations EAX: relaxed timing.
    pub const RELAXED_TIMING: u32 = 1 << 5;
    /// Hardware features EAX (leaf 6): timers are volatile (named only by the specification).
    pub const VOLATILE_TIMERS: u32 = 1 << 9;
}

/// Xen's leaves, relative to its base. Xen public arch-x86/cpuid.h.
pub mod xen {
    /// Offset of the time leaf.
    pub const TIME: u32 = 3;
    /// Time leaf (sub-leaf 0) EAX: the counter is emulated.
    pub const TSC_EMULATED: u32 = 1;
    /// Time leaf (sub-leaf 0) EBX: TSC mode "never emulate".
    pub const TSC_MODE_NEVER_EMULATE: u32 = 2;
}

/// The four registers of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Leaf {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

impl Leaf {
    /// A leaf of zeros: what an absent leaf reads as.
    pub const ZERO: Self = Self {
        eax: 0,
        ebx: 0,
        ecx: 0,
        edx: 0,
    };

    /// The twelve bytes of EBX, ECX, EDX, in which a base states its signature.
    #[must_use]
    pub fn signature(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        for (to, register) in bytes
            .chunks_exact_mut(4)
            .zip([self.ebx, self.ecx, self.edx])
        {
            to.copy_from_slice(&register.to_le_bytes());
        }
        bytes
    }

    /// The leaf of a base with this last leaf and signature.
    #[must_use]
    pub fn from_signature(last_leaf: u32, signature: [u8; 12]) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes([
                signature[at],
                signature[at + 1],
                signature[at + 2],
                signature[at + 3],
            ])
        };
        Self {
            eax: last_leaf,
            ebx: word(0),
            ecx: word(4),
            edx: word(8),
        }
    }
}

/// Which interface a base announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interface {
    /// KVM: signature "KVMKVMKVM".
    Kvm,
    /// Hyper-V: signature "Microsoft Hv", or any other whose interface leaf says "Hv#1".
    HyperV,
    /// Xen: signature "XenVMMXenVMM".
    Xen,
    /// VMware: signature "VMwareVMware".
    VMware,
    /// Another signature, kept as it is.
    Other([u8; 12]),
}

/// One hypervisor interface: where it stands and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Base {
    /// Number of the first leaf.
    pub base: u32,
    /// Number of the last leaf; KVM's 0 is reported as base + 1, as its documentation says.
    pub last: u32,
    /// The twelve bytes of the signature.
    pub signature: [u8; 12],
    /// What the signature means.
    pub interface: Interface,
}

/// KVM's signature.
pub const SIGNATURE_KVM: [u8; 12] = *b"KVMKVMKVM\0\0\0";
/// Hyper-V's signature.
pub const SIGNATURE_HYPERV: [u8; 12] = *b"Microsoft Hv";
/// Xen's signature.
pub const SIGNATURE_XEN: [u8; 12] = *b"XenVMMXenVMM";
/// VMware's signature.
pub const SIGNATURE_VMWARE: [u8; 12] = *b"VMwareVMware";

/// Every hypervisor interface that `leaf` (leaf number to registers, sub-leaf 0) announces, in the order of the bases.
///
/// A base counts if its last leaf lies in its own range and its signature is printable; leaves of zeros and the highest basic
/// leaf's data, which Intel processors return for unknown leaves, do not.
///
/// ```
/// # use chronovisor_abi::cpuid::{self, Interface, Leaf};
/// let leaf = |number| match number {
///     0x4000_0000 => Leaf::from_signature(0x4000_0006, cpuid::SIGNATURE_HYPERV),
///     0x4000_0100 => Leaf::from_signature(0x4000_0101, cpuid::SIGNATURE_KVM),
///     _ => Leaf::ZERO,
/// };
/// let found: Vec<_> = cpuid::interfaces(leaf).map(|base| (base.base, base.interface)).collect();
/// assert_eq!(found, [(0x4000_0000, Interface::HyperV), (0x4000_0100, Interface::Kvm)]);
/// ```
pub fn interfaces(leaf: impl Fn(u32) -> Leaf) -> impl Iterator<Item = Base> {
    (HYPERVISOR_BASE..=HYPERVISOR_LAST_BASE)
        .step_by(0x100)
        .filter_map(move |base| interface_at(base, &leaf))
}

fn interface_at(base: u32, leaf: &impl Fn(u32) -> Leaf) -> Option<Base> {
    let first = leaf(base);
    let signature = first.signature();
    let last = match (first.eax, signature) {
        (0, SIGNATURE_KVM) => base + kvm::FEATURES,
        (last, _) => last,
    };
    let printable = |byte: &u8| matches!(byte, b' '..=b'~');
    let text = signature
        .iter()
        .rposition(|byte| *byte != 0)
        .map(|end| &signature[..=end])?;
    if !(base..base + 0x1_0000).contains(&last) || !text.iter().all(printable) {
        return None;
    }
    let interface = match signature {
        SIGNATURE_KVM => Interface::Kvm,
        SIGNATURE_HYPERV => Interface::HyperV,
        SIGNATURE_XEN => Interface::Xen,
        SIGNATURE_VMWARE => Interface::VMware,
        _ if last > base && leaf(base + hyperv::INTERFACE).eax == hyperv::INTERFACE_HV1 => {
            Interface::HyperV
        }
        other => Interface::Other(other),
    };
    Some(Base {
        base,
        last,
        signature,
        interface,
    })
}

/// The TSC's rate from leaf 0x15: `crystal * numerator / denominator`, exact. `None` if any of the three is 0: the crystal must then come from
/// elsewhere.
///
/// ```
/// # use chronovisor_abi::cpuid::{tsc_from_crystal, Leaf};
/// let leaf = Leaf { eax: 2, ebx: 216, ecx: 24_000_000, edx: 0 };
/// assert_eq!(tsc_from_crystal(leaf).map(|rate| rate.rounded_hz()), Some(2_592_000_000));
/// ```
#[must_use]
pub fn tsc_from_crystal(leaf: Leaf) -> Option<Hertz> {
    Hertz::from_ratio(
        u128::from(leaf.ecx) * u128::from(leaf.ebx),
        u128::from(leaf.eax),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// A reader that looks only at 0x40000000 sees Hyper-V and misses KVM behind it, and one that does not check the vendor takes any
    /// base's leaf 0x10 for a frequency.
    #[test]
    fn d85_every_base_is_searched_and_its_signature_checked() {
        let leaf = |number| match number {
            0x4000_0000 => Leaf::from_signature(0x4000_0006, *b"Linux KVM Hv"),
            0x4000_0001 => Leaf {
                eax: hyperv::INTERFACE_HV1,
                ..Leaf::ZERO
            },
            0x4000_0100 => Leaf::from_signature(0, SIGNATURE_KVM),
            0x4000_0200 => Leaf::from_signature(0x4000_0203, *b"SomeoneElse!"),
            _ => Leaf::ZERO,
        };
        let found: Vec<_> = interfaces(leaf).collect();
        assert_eq!(found.len(), 3);
        assert_eq!(
            found[0].interface,
            Interface::HyperV,
            "another vendor's Hyper-V interface"
        );
        assert_eq!(
            (found[1].interface, found[1].last),
            (Interface::Kvm, 0x4000_0101)
        );
        assert_eq!(found[2].interface, Interface::Other(*b"SomeoneElse!"));
    }

    #[test]
    fn leaves_of_zeros_and_of_noise_announce_nothing() {
        assert_eq!(interfaces(|_| Leaf::ZERO).count(), 0);
        // What an Intel processor without hypervisor returns: its highest basic leaf, everywhere.
        assert_eq!(
            interfaces(|_| Leaf {
                eax: 0x16,
                ebx: 0x64,
                ecx: 7,
                edx: 1
            })
            .count(),
            0
        );
    }

    proptest! {
        #[test]
        fn any_leaves_are_safe(eax: u32, ebx: u32, ecx: u32, edx: u32) {
            let leaf = Leaf { eax, ebx, ecx, edx };
            for base in interfaces(|_| leaf) {
                prop_assert!(base.last >= base.base);
            }
            let exact = (ecx != 0 && ebx != 0 && eax != 0).then(|| f64::from(ecx) * f64::from(ebx) / f64::from(eax));
            let rate = tsc_from_crystal(leaf);
            prop_assert_eq!(rate.is_some(), exact.is_some());
        }

        #[test]
        fn a_signature_survives_its_registers(last: u32, signature: [u8; 12]) {
            prop_assert_eq!(Leaf::from_signature(last, signature).signature(), signature);
        }
    }
}
