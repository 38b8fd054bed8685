use super::*;
use chronovisor_abi::cpuid::{Leaf, SIGNATURE_HYPERV, SIGNATURE_KVM, SIGNATURE_XEN, processor};
use proptest::prelude::*;
use std::vec::Vec;

const KVM_STABLE: Hypervisor = Hypervisor::Kvm {
    features: kvm::CLOCKSOURCE2 | kvm::CLOCKSOURCE_STABLE,
};
const HYPERV: u32 = hyperv::ACCESS_REFERENCE_COUNTER | hyperv::ACCESS_REFERENCE_TSC;

fn machine(hypervisor: Hypervisor, tsc: TscState) -> Machine {
    Machine {
        hypervisor,
        tsc,
        record_is_stable: true,
        legacy: LegacyTimers::default(),
    }
}

/// The two best of each machine, with their ratings.
#[test]
fn ratings_are_those_of_linux() {
    use ClockSource::{HypervMsr, HypervPage, Jiffies, KvmClock, Tsc, Xen};
    for (hypervisor, tsc, first, second) in [
        (KVM_STABLE, TscState::Invariant, (Tsc, 300), (KvmClock, 299)),
        (KVM_STABLE, TscState::Varying, (KvmClock, 400), (Tsc, 300)),
        (
            KVM_STABLE,
            TscState::MarkedUnstable,
            (KvmClock, 400),
            (Jiffies, 1),
        ),
        (
            Hypervisor::Kvm { features: 0 },
            TscState::Invariant,
            (Tsc, 300),
            (Jiffies, 1),
        ),
        (
            Hypervisor::HyperV { privileges: HYPERV },
            TscState::Invariant,
            (HypervPage, 500),
            (HypervMsr, 495),
        ),
        (
            Hypervisor::HyperV {
                privileges: HYPERV | hyperv::ACCESS_TSC_INVARIANT,
            },
            TscState::Invariant,
            (Tsc, 300),
            (HypervPage, 250),
        ),
        (
            Hypervisor::HyperV {
                privileges: hyperv::ACCESS_REFERENCE_COUNTER,
            },
            TscState::Varying,
            (HypervMsr, 495),
            (Tsc, 300),
        ),
        (
            Hypervisor::Xen { tsc_mode: 2 },
            TscState::Invariant,
            (Tsc, 300),
            (Xen, 299),
        ),
        (
            Hypervisor::Xen { tsc_mode: 0 },
            TscState::Invariant,
            (Xen, 400),
            (Tsc, 300),
        ),
        (
            Hypervisor::None,
            TscState::MarkedUnstable,
            (Jiffies, 1),
            (HypervPage, 0),
        ),
    ] {
        let ranking = machine(hypervisor, tsc).ranking();
        let top: Vec<_> = ranking
            .rows()
            .take(2)
            .map(|row| (row.source, row.rating))
            .collect();
        assert_eq!(top, [first, second], "{hypervisor:?} {tsc:?}");
    }
}

/// A flag in the record is read by the page only if the host advertised it and it is set now.
#[test]
fn a_record_is_read_by_the_page_only_if_it_is_stable() {
    let unadvertised = Hypervisor::Kvm {
        features: kvm::CLOCKSOURCE2,
    };
    for (hypervisor, record_is_stable, path) in [
        (KVM_STABLE, true, ReadPath::Page),
        (KVM_STABLE, false, ReadPath::SystemCall),
        (unadvertised, true, ReadPath::SystemCall),
        (Hypervisor::Xen { tsc_mode: 0 }, true, ReadPath::Page),
    ] {
        let machine = Machine {
            record_is_stable,
            ..machine(hypervisor, TscState::Varying)
        };
        assert_eq!(machine.ranking().best().path, path, "{hypervisor:?}");
    }
}

#[test]
fn legacy_timers_rank_below_the_tsc() {
    let legacy = LegacyTimers {
        hpet: true,
        acpi_pm: true,
        pit: true,
    };
    let machine = Machine {
        legacy,
        ..machine(Hypervisor::None, TscState::Invariant)
    };
    let ratings: Vec<_> = machine.ranking().rows().map(|row| row.rating).collect();
    assert_eq!(ratings, [300, 250, 200, 110, 1, 0, 0, 0, 0]);
}

/// Leaves as a VMM may set them, and the interface that Linux goes by.
#[test]
fn the_largest_base_that_linux_knows_decides() {
    let hyperv_features = Leaf {
        eax: HYPERV | hyperv::ACCESS_HYPERCALL | hyperv::ACCESS_VP_INDEX,
        ..Leaf::ZERO
    };
    let hyperv_leaves = |number| match number {
        0x4000_0000 => Leaf::from_signature(0x4000_0006, SIGNATURE_HYPERV),
        0x4000_0003 => hyperv_features,
        _ => Leaf::ZERO,
    };
    // Linux marks the TSC unstable on Hyper-V, invariant or not, unless the partition may rely on it.
    for (privilege, tsc) in [
        (0, TscState::MarkedUnstable),
        (hyperv::ACCESS_TSC_INVARIANT, TscState::Invariant),
    ] {
        let machine = Machine::from_cpuid(|number| match number {
            0x4000_0003 => Leaf {
                eax: hyperv_features.eax | privilege,
                ..Leaf::ZERO
            },
            0x8000_0000 => Leaf {
                eax: 0x8000_0008,
                ..Leaf::ZERO
            },
            0x8000_0007 => Leaf {
                edx: processor::EXTENDED7_EDX_INVARIANT_TSC,
                ..Leaf::ZERO
            },
            other => hyperv_leaves(other),
        });
        assert_eq!(machine.tsc, tsc);
    }
    let both = |number| match number {
        0x4000_0100 => Leaf::from_signature(0x4000_0101, SIGNATURE_KVM),
        0x4000_0101 => Leaf {
            eax: kvm::CLOCKSOURCE2,
            ..Leaf::ZERO
        },
        other => hyperv_leaves(other),
    };
    assert_eq!(
        Machine::from_cpuid(hyperv_leaves).hypervisor,
        Hypervisor::HyperV {
            privileges: hyperv_features.eax
        }
    );
    assert_eq!(
        Machine::from_cpuid(both).hypervisor,
        Hypervisor::Kvm {
            features: kvm::CLOCKSOURCE2
        }
    );
    // Another vendor's "Hv#1", or too few privileges: Windows takes it, Linux does not.
    let other_vendor = |number| match number {
        0x4000_0000 => Leaf::from_signature(0x4000_0006, *b"Linux KVM Hv"),
        0x4000_0001 => Leaf {
            eax: hyperv::INTERFACE_HV1,
            ..Leaf::ZERO
        },
        other => hyperv_leaves(other),
    };
    assert_eq!(
        Machine::from_cpuid(other_vendor).hypervisor,
        Hypervisor::None
    );
    let unprivileged = |number| match number {
        0x4000_0003 => Leaf {
            eax: HYPERV,
            ..Leaf::ZERO
        },
        other => hyperv_leaves(other),
    };
    assert_eq!(
        Machine::from_cpuid(unprivileged).hypervisor,
        Hypervisor::None
    );
    let xen_leaves = |number| match number {
        0x4000_0000 => Leaf::from_signature(0x4000_0005, SIGNATURE_XEN),
        0x4000_0003 => Leaf {
            ebx: xen::TSC_MODE_NEVER_EMULATE,
            ..Leaf::ZERO
        },
        _ => Leaf::ZERO,
    };
    assert_eq!(
        Machine::from_cpuid(xen_leaves).hypervisor,
        Hypervisor::Xen { tsc_mode: 2 }
    );
    assert_eq!(
        Machine::from_cpuid(|_| Leaf::ZERO).ranking().best().source,
        ClockSource::Tsc
    );
}

proptest! {
    /// Any leaves: a ranking of all nine, in falling order, each with a reason.
    #[test]
    fn any_leaves_give_a_ranking(eax: u32, ebx: u32, ecx: u32, edx: u32, stable: bool) {
        let machine = Machine { record_is_stable: stable, ..Machine::from_cpuid(|_| Leaf { eax, ebx, ecx, edx }) };
        let ranking = machine.ranking();
        prop_assert!(ranking.rows().zip(ranking.rows().skip(1)).all(|(a, b)| a.rating >= b.rating));
        prop_assert!(ranking.rows().all(|row| !row.reason.is_empty()) && ranking.rows().count() == 9);
        prop_assert!(ranking.best().rating > 0);
    }
}
