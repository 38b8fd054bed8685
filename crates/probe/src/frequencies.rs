//! Every channel that tells the counter's frequency here, each with the error that its own unit allows.

use chronovisor_abi::cpuid::{
    HYPERVISOR_FREQUENCIES, Leaf, PROCESSOR_FREQUENCIES, TSC_AND_CRYSTAL,
};
use chronovisor_abi::pvclock::Contents;
use chronovisor_abi::quantity::Ppb;
use chronovisor_abi::reference_tsc::Parameters;
use chronovisor_abi::scale::ReferenceScale;
use chronovisor_diagnose::evidence::{
    CpuidLeaf, FrequencyChannel, FrequencyOrigin, Identity, PvclockRecord, ReferencePage,
};
use chronovisor_guest::frequency::{Channel, Estimate, Granularity};

use crate::rate::{MeasuredRate, as_hz};

/// What the channels read from.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// CPUID.
    pub identity: &'a Identity,
    /// The live pvclock record.
    pub pvclock: Option<&'a PvclockRecord>,
    /// The live Hyper-V page.
    pub reference_page: Option<&'a ReferencePage>,
    /// The VMClock page's period.
    pub vmclock: Option<Estimate>,
    /// Value of Hyper-V's MSR 0x40000022.
    pub hyperv_msr: Option<u64>,
    /// The multiplier with which the vDSO reads the TSC.
    pub kernel: Option<Estimate>,
    /// The counter against `CLOCK_MONOTONIC_RAW`.
    pub measured: Option<&'a MeasuredRate>,
}

/// The channels that say something, the processor's first.
#[must_use]
pub fn channels(sources: Sources<'_>) -> Vec<FrequencyChannel> {
    let Sources {
        identity,
        pvclock,
        reference_page,
        vmclock,
        hyperv_msr,
        kernel,
        measured,
    } = sources;
    let hypervisor = identity
        .hypervisors
        .iter()
        .flat_map(|base| &base.leaves)
        .find(|leaf| leaf.leaf == HYPERVISOR_FREQUENCIES)
        .map(registers);
    // The same leaf tells the local APIC timer's rate in EBX.
    let apic = hypervisor.and_then(|leaf| {
        Estimate::from_hypervisor_leaf(Leaf {
            eax: leaf.ebx,
            ..Leaf::ZERO
        })
    });
    let of_tsc = [
        processor(identity, TSC_AND_CRYSTAL).and_then(Estimate::from_crystal),
        processor(identity, PROCESSOR_FREQUENCIES).and_then(Estimate::from_nominal),
        hypervisor.and_then(Estimate::from_hypervisor_leaf),
        hyperv_msr.and_then(Estimate::from_hyperv_msr),
        pvclock.and_then(|record| {
            let contents = Contents {
                mul: record.mul,
                shift: record.shift,
                ..Contents::default()
            };
            Estimate::from_pvclock(&contents, granularity(identity)).ok()
        }),
        reference_page.and_then(|page| {
            let line = Parameters {
                scale: ReferenceScale::from_raw(page.scale?),
                offset: page.offset_100ns.unwrap_or(0),
            };
            Estimate::from_reference_page(&line, granularity(identity)).ok()
        }),
        vmclock,
        kernel,
    ];
    let stated = |counter: &'static str| move |estimate: Estimate| declared(&estimate, counter);
    of_tsc
        .into_iter()
        .flatten()
        .map(stated("tsc"))
        .chain(apic.map(stated("apic")))
        .chain(measured.map(|measured| FrequencyChannel {
            channel: "against-monotonic-raw".to_owned(),
            counter: "tsc".to_owned(),
            hz: as_hz(measured.hertz),
            error_ppb: measured.error_ppb,
            origin: FrequencyOrigin::Measured,
        }))
        .collect()
}

fn declared(estimate: &Estimate, counter: &str) -> FrequencyChannel {
    let channel = match estimate.channel {
        Channel::Crystal => "cpuid-15",
        Channel::Nominal => "cpuid-16",
        Channel::HypervisorLeaf => "cpuid-40000010",
        Channel::HypervMsr => "hyperv-msr",
        Channel::Pvclock => "pvclock",
        Channel::ReferencePage => "reference-page",
        Channel::Vmclock => "vmclock",
        Channel::KernelTimeData => "kernel-time-data",
    };
    FrequencyChannel {
        channel: channel.to_owned(),
        counter: counter.to_owned(),
        hz: as_hz(estimate.rate),
        error_ppb: whole_ppb(estimate.bound),
        origin: FrequencyOrigin::Declared,
    }
}

/// KVM makes its pages from whole kHz, and its Hyper-V page from the pvclock multiplier.
fn granularity(identity: &Identity) -> Granularity {
    let kvm = |signature: &str| signature.starts_with("KVM") || signature == "Linux KVM Hv";
    if identity.hypervisors.iter().any(|base| kvm(&base.signature)) {
        Granularity::Kilohertz
    } else {
        Granularity::Exact
    }
}

fn processor(identity: &Identity, number: u32) -> Option<Leaf> {
    identity
        .leaves
        .iter()
        .find(|leaf| leaf.leaf == number)
        .map(registers)
}

const fn registers(leaf: &CpuidLeaf) -> Leaf {
    Leaf {
        eax: leaf.eax,
        ebx: leaf.ebx,
        ecx: leaf.ecx,
        edx: leaf.edx,
    }
}

fn whole_ppb(error: Ppb) -> u64 {
    error
        .saturating_abs()
        .as_femto()
        .unsigned_abs()
        .div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronovisor_diagnose::evidence::HypervisorBase;

    fn leaf(leaf: u32, eax: u32, ebx: u32, ecx: u32) -> CpuidLeaf {
        CpuidLeaf {
            leaf,
            eax,
            ebx,
            ecx,
            ..CpuidLeaf::default()
        }
    }

    /// Each channel tells 2592 MHz or near it, with the error of its unit.
    #[test]
    fn each_channel_has_the_error_of_its_unit() {
        let identity = Identity {
            leaves: vec![leaf(0x15, 2, 216, 24_000_000), leaf(0x16, 2_600, 0, 0)],
            hypervisors: vec![HypervisorBase {
                base: 0x4000_0000,
                leaves: vec![leaf(0x4000_0010, 2_592_000, 1_000_000, 0)],
                ..HypervisorBase::default()
            }],
            ..Identity::default()
        };
        let page = ReferencePage {
            scale: Some(0x00FC_0FC0_FC0F_C0FC),
            ..ReferencePage::default()
        };
        let channels = channels(Sources {
            identity: &identity,
            pvclock: None,
            reference_page: Some(&page),
            vmclock: None,
            hyperv_msr: None,
            kernel: None,
            measured: None,
        });
        let told: Vec<_> = channels
            .iter()
            .map(|one| {
                let hz = one.hz.numerator / one.hz.denominator;
                (
                    one.channel.as_str(),
                    one.counter.as_str(),
                    hz,
                    one.error_ppb,
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                ("cpuid-15", "tsc", 2_592_000_000, 21),
                ("cpuid-16", "tsc", 2_600_000_000, 384_616),
                ("cpuid-40000010", "tsc", 2_592_000_000, 386),
                ("reference-page", "tsc", 2_600_000_000, 1),
                ("cpuid-40000010", "apic", 1_000_000_000, 1_000),
            ]
        );
    }

    #[test]
    fn zeros_are_no_channel() {
        let identity = Identity {
            leaves: vec![leaf(0x15, 2, 216, 0), leaf(0x16, 0, 0, 0)],
            ..Identity::default()
        };
        let record = PvclockRecord {
            version: 2,
            tsc_timestamp: 0,
            system_time_ns: 0,
            mul: 0,
            shift: 100,
            flags: 0,
            implied: None,
            offset_boottime_ns: None,
            offset_monotonic_raw_ns: None,
            drift_boottime_ppb: None,
            drift_monotonic_raw_ppb: None,
            drift_error_ppb: None,
            window_ns: None,
        };
        let none = channels(Sources {
            identity: &identity,
            pvclock: Some(&record),
            reference_page: Some(&ReferencePage {
                scale: Some(0),
                ..ReferencePage::default()
            }),
            vmclock: None,
            hyperv_msr: None,
            kernel: None,
            measured: None,
        });
        assert_eq!(none, []);
    }
}
