//! Which processor and which hypervisor this is, from CPUID, at every base that a hypervisor may use.
//!
//! # References
//!
//! Intel SDM vol. 2A and AMD APM vol. 3, CPUID; the hypervisors' leaves as `chronovisor_abi::cpuid` cites them.

use std::collections::BTreeMap;

use chronovisor_abi::cpuid::{self, Base, HYPERVISOR_FREQUENCIES, Interface, Leaf, hyperv, xen};
use chronovisor_diagnose::evidence::{CpuidLeaf, HypervisorBase, Identity, Part};

use crate::{cpus, text_file};

/// Leaves of the processor itself that say something about clocks.
const PROCESSOR_LEAVES: [u32; 7] = [
    0x1,
    0x6,
    0x7,
    cpuid::TSC_AND_CRYSTAL,
    cpuid::PROCESSOR_FREQUENCIES,
    0x8000_0001,
    0x8000_0007,
];

/// Where leaves come from: the instruction here, a table in tests.
pub trait Leaves {
    /// Leaf `number`, sub-leaf `sub`.
    fn leaf(&self, number: u32, sub: u32) -> Leaf;

    /// Leaf `number` if the processor's own range reaches it, else zeros.
    fn processor_leaf(&self, number: u32) -> Leaf {
        let base = number & 0x8000_0000;
        if (base..=self.leaf(base, 0).eax).contains(&number) {
            self.leaf(number, 0)
        } else {
            Leaf::ZERO
        }
    }
}

/// The CPUID instruction.
#[derive(Clone, Copy, Debug)]
pub struct ThisProcessor;

impl Leaves for ThisProcessor {
    fn leaf(&self, number: u32, sub: u32) -> Leaf {
        chronovisor_guest::cpuid::subleaf(number, sub)
    }
}

/// Processor and hypervisor of this machine.
#[must_use]
pub fn identity(leaves: &impl Leaves) -> Identity {
    let hypervisor_present = leaves.leaf(1, 0).ecx & cpuid::processor::LEAF1_ECX_HYPERVISOR != 0;
    Identity {
        vendor: vendor(leaves),
        model: brand(leaves),
        cpus: cpus::online(),
        kernel: text_file::first_line("/proc/sys/kernel/osrelease").ok(),
        invariant_tsc: leaves.processor_leaf(0x8000_0007).edx
            & cpuid::processor::EXTENDED7_EDX_INVARIANT_TSC
            != 0,
        hypervisors: if hypervisor_present {
            cpuid::interfaces(|number| leaves.leaf(number, 0))
                .map(|base| describe(leaves, &base))
                .collect()
        } else {
            Vec::new() // On bare metal the range holds whatever the processor likes.
        },
        leaves: PROCESSOR_LEAVES
            .into_iter()
            .map(|number| saved(number, 0, leaves.processor_leaf(number)))
            .filter(is_there)
            .collect(),
    }
}

/// The privileges of a Hyper-V partition that concern clocks, by the names of the specification.
#[must_use]
pub fn privileges(identity: &Identity) -> Part<BTreeMap<String, bool>> {
    let Some(features) = identity.hypervisors.iter().find_map(hyperv_features) else {
        return Part::NotReadable("no Hyper-V interface in CPUID".to_owned());
    };
    let named = [
        ("AccessVpRunTimeReg", hyperv::ACCESS_VP_RUNTIME),
        (
            "AccessPartitionReferenceCounter",
            hyperv::ACCESS_REFERENCE_COUNTER,
        ),
        ("AccessSynicRegs", hyperv::ACCESS_SYNIC),
        ("AccessSyntheticTimerRegs", hyperv::ACCESS_SYNTHETIC_TIMERS),
        ("AccessIntrCtrlRegs", hyperv::ACCESS_APIC_MSRS),
        ("AccessHypercallMsrs", hyperv::ACCESS_HYPERCALL),
        ("AccessVpIndex", hyperv::ACCESS_VP_INDEX),
        ("AccessPartitionReferenceTsc", hyperv::ACCESS_REFERENCE_TSC),
        ("AccessFrequencyRegs", hyperv::ACCESS_FREQUENCIES),
        (
            "AccessReenlightenmentControls",
            hyperv::ACCESS_REENLIGHTENMENT,
        ),
        ("AccessTscInvariantControls", hyperv::ACCESS_TSC_INVARIANT),
    ];
    Part::Seen(
        named
            .into_iter()
            .map(|(name, bit)| (name.to_owned(), features.eax & bit != 0))
            .collect(),
    )
}

fn hyperv_features(base: &HypervisorBase) -> Option<CpuidLeaf> {
    let is_hyperv = base.leaves.iter().any(|leaf| {
        leaf.leaf == base.base + hyperv::INTERFACE && leaf.eax == hyperv::INTERFACE_HV1
    });
    base.leaves
        .iter()
        .find(|leaf| is_hyperv && leaf.leaf == base.base + hyperv::FEATURES)
        .copied()
}

/// The leaves of one interface that concern clocks. A leaf beyond the interface's last is not asked for: it would belong to something else.
fn describe(leaves: &impl Leaves, base: &Base) -> HypervisorBase {
    let offsets: &[(u32, u32)] = match base.interface {
        Interface::Kvm => &[(cpuid::kvm::FEATURES, 0)],
        Interface::HyperV => &[
            (hyperv::INTERFACE, 0),
            (hyperv::VERSION, 0),
            (hyperv::FEATURES, 0),
            (hyperv::RECOMMENDATIONS, 0),
            (hyperv::LIMITS, 0),
            (hyperv::HARDWARE_FEATURES, 0),
        ],
        Interface::Xen => &[(1, 0), (xen::TIME, 0), (xen::TIME, 1), (xen::TIME, 2)],
        Interface::VMware | Interface::Other(_) => &[],
    };
    // The frequency leaf counts at the first base only, and Hyper-V's own leaves may reach that number with another meaning.
    let has_frequencies =
        base.base == cpuid::HYPERVISOR_BASE && base.interface != Interface::HyperV;
    let frequencies =
        has_frequencies.then_some((HYPERVISOR_FREQUENCIES - cpuid::HYPERVISOR_BASE, 0));
    let text: Vec<u8> = base
        .signature
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(Vec::new(), |end| base.signature[..=end].to_vec());
    HypervisorBase {
        base: base.base,
        signature: String::from_utf8_lossy(&text).into_owned(),
        max_leaf: base.last,
        leaves: offsets
            .iter()
            .copied()
            .chain(frequencies)
            .filter(|(offset, _)| base.base + offset <= base.last)
            .map(|(offset, sub)| {
                saved(
                    base.base + offset,
                    sub,
                    leaves.leaf(base.base + offset, sub),
                )
            })
            .filter(is_there)
            .collect(),
    }
}

fn saved(leaf: u32, subleaf: u32, Leaf { eax, ebx, ecx, edx }: Leaf) -> CpuidLeaf {
    CpuidLeaf {
        leaf,
        subleaf,
        eax,
        ebx,
        ecx,
        edx,
    }
}

/// A leaf of zeros says nothing.
fn is_there(leaf: &CpuidLeaf) -> bool {
    (leaf.eax, leaf.ebx, leaf.ecx, leaf.edx) != (0, 0, 0, 0)
}

/// The vendor string of leaf 0, whose registers stand in the order EBX, EDX, ECX.
fn vendor(leaves: &impl Leaves) -> String {
    let Leaf { ebx, ecx, edx, .. } = leaves.leaf(0, 0);
    printable([ebx, edx, ecx])
}

/// The brand string of leaves 0x80000002 to 0x80000004.
fn brand(leaves: &impl Leaves) -> String {
    printable((0x8000_0002..=0x8000_0004).flat_map(|number| {
        let Leaf { eax, ebx, ecx, edx } = leaves.processor_leaf(number);
        [eax, ebx, ecx, edx]
    }))
}

fn printable(registers: impl IntoIterator<Item = u32>) -> String {
    let bytes: Vec<u8> = registers
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .take_while(|byte| *byte != 0)
        .filter(|byte| (b' '..=b'~').contains(byte))
        .collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Table<'a>(&'a [(u32, Leaf)]);

    impl Leaves for Table<'_> {
        fn leaf(&self, number: u32, _sub: u32) -> Leaf {
            self.0
                .iter()
                .find(|(leaf, _)| *leaf == number)
                .map_or(Leaf::ZERO, |(_, leaf)| *leaf)
        }
    }

    const fn leaf(eax: u32, ebx: u32, ecx: u32, edx: u32) -> Leaf {
        Leaf { eax, ebx, ecx, edx }
    }

    const HYPERVISOR: u32 = cpuid::processor::LEAF1_ECX_HYPERVISOR;

    /// Hyper-V at the first base, KVM behind it, and a frequency leaf that neither reaches.
    #[test]
    fn d85_two_interfaces_are_both_found_and_no_leaf_beyond_their_last_is_believed() {
        let machine = Table(&[
            (0x1, leaf(0, 0, HYPERVISOR, 0)),
            (
                0x4000_0000,
                leaf(0x4000_0003, 0x7263_694D, 0x666F_736F, 0x7648_2074),
            ),
            (0x4000_0001, leaf(hyperv::INTERFACE_HV1, 0, 0, 0)),
            (
                0x4000_0003,
                leaf(
                    hyperv::ACCESS_REFERENCE_TSC | hyperv::ACCESS_VP_INDEX,
                    0,
                    0,
                    0,
                ),
            ),
            (0x4000_0010, leaf(2_600_000, 1_000_000, 0, 0)),
            (0x4000_0100, leaf(0, 0x4B4D_564B, 0x564B_4D56, 0x4D)),
            (0x4000_0101, leaf(0x0100_7EFB, 0, 0, 0)),
        ]);
        let identity = identity(&machine);
        let bases: Vec<_> = identity
            .hypervisors
            .iter()
            .map(|base| (base.base, base.signature.as_str(), base.max_leaf))
            .collect();
        assert_eq!(
            bases,
            [
                (0x4000_0000, "Microsoft Hv", 0x4000_0003),
                (0x4000_0100, "KVMKVMKVM", 0x4000_0101)
            ]
        );
        assert_eq!(identity.hypervisors[1].leaves.len(), 1);
        assert!(
            identity.hypervisors[0]
                .leaves
                .iter()
                .all(|leaf| leaf.leaf != 0x4000_0010),
            "beyond the last leaf"
        );
        let privileges = privileges(&identity);
        let named = privileges.seen().unwrap();
        assert!(named["AccessPartitionReferenceTsc"] && named["AccessVpIndex"]);
        assert!(!named["AccessReenlightenmentControls"]);
    }

    #[test]
    fn the_frequency_leaf_is_not_asked_of_hyperv() {
        let machine = |signature: [u32; 3]| {
            let [ebx, ecx, edx] = signature;
            let table = [
                (0x1, leaf(0, 0, HYPERVISOR, 0)),
                (0x4000_0000, leaf(0x4000_0010, ebx, ecx, edx)),
                (0x4000_0010, leaf(2_600_000, 1_000_000, 0, 0)),
            ];
            let found = identity(&Table(&table));
            found.hypervisors[0]
                .leaves
                .iter()
                .any(|leaf| leaf.leaf == 0x4000_0010)
        };
        assert!(machine([0x4B4D_564B, 0x564B_4D56, 0x4D]), "KVM");
        assert!(!machine([0x7263_694D, 0x666F_736F, 0x7648_2074]), "Hyper-V");
    }

    #[test]
    fn leaves_of_zeros_and_bare_metal_noise_give_no_hypervisor() {
        let nothing = identity(&Table(&[]));
        assert_eq!((nothing.vendor.as_str(), nothing.model.as_str()), ("", ""));
        assert!(nothing.hypervisors.is_empty() && nothing.leaves.is_empty());
        assert!(privileges(&nothing).seen().is_none());
        // The signature is there but leaf 1 denies a hypervisor.
        let bare = identity(&Table(&[(
            0x4000_0000,
            leaf(0, 0x4B4D_564B, 0x564B_4D56, 0x4D),
        )]));
        assert!(bare.hypervisors.is_empty());
    }

    #[test]
    fn this_machine_has_a_name() {
        let here = identity(&ThisProcessor);
        assert!(!here.vendor.is_empty() && here.cpus >= 1);
        assert!(here.leaves.iter().any(|leaf| leaf.leaf == 1));
    }
}
