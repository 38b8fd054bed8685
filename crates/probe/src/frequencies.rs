//! Every channel that tells the counter's frequency here, each with the error that its own unit allows.

use chronovisor_abi::cpuid::{
    HYPERVISOR_FREQUENCIES, Leaf, PROCESSOR_FREQUENCIES, TSC_AND_CRYSTAL, tsc_from_crystal,
};
use chronovisor_abi::quantity::{Hertz, Ppb};
use chronovisor_abi::scale::{PvclockScale, ReferenceScale};
use chronovisor_diagnose::evidence::{
    CpuidLeaf, FrequencyChannel, FrequencyOrigin, Identity, PvclockRecord, ReferencePage,
};

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
        measured,
    } = sources;
    let declared = |channel: &str, counter: &str, rate: Hertz, error_ppb: u64| FrequencyChannel {
        channel: channel.to_owned(),
        counter: counter.to_owned(),
        hz: as_hz(rate),
        error_ppb,
        origin: FrequencyOrigin::Declared,
    };
    let from_crystal = || {
        let leaf = processor(identity, TSC_AND_CRYSTAL)?;
        // The crystal is told in whole Hz.
        let error = 500_000_000_u64.div_ceil(u64::from(leaf.ecx.max(1)));
        Some(declared("cpuid-15", "tsc", tsc_from_crystal(leaf)?, error))
    };
    let nominal = || {
        let mhz = processor(identity, PROCESSOR_FREQUENCIES)?.eax & 0xffff;
        let rate = Hertz::from_hz(u64::from(mhz) * 1_000_000)?;
        Some(declared("cpuid-16", "tsc", rate, unit_error(500_000, rate)))
    };
    let hypervisor = |counter: &'static str, khz: fn(&CpuidLeaf) -> u32| {
        let leaf = identity
            .hypervisors
            .iter()
            .flat_map(|base| &base.leaves)
            .find(|leaf| leaf.leaf == HYPERVISOR_FREQUENCIES)?;
        let rate = Hertz::from_khz(khz(leaf))?;
        Some(declared(
            "cpuid-40000010",
            counter,
            rate,
            unit_error(1000, rate),
        ))
    };
    let from_pvclock = || {
        let record = pvclock?;
        let rate = PvclockScale::from_raw(record.mul, record.shift)
            .and_then(PvclockScale::frequency)
            .ok()?;
        let error = whole_ppb(PvclockScale::MAX_ERROR_DIRECTED);
        Some(declared("pvclock", "tsc", rate, error))
    };
    let from_page = || {
        let scale = ReferenceScale::from_raw(reference_page?.scale?);
        let rate = scale.frequency().ok()?;
        Some(declared(
            "reference-page",
            "tsc",
            rate,
            whole_ppb(scale.max_error()),
        ))
    };
    let against_raw = || {
        let measured = measured?;
        Some(FrequencyChannel {
            origin: FrequencyOrigin::Measured,
            ..declared(
                "against-monotonic-raw",
                "tsc",
                measured.hertz,
                measured.error_ppb,
            )
        })
    };
    [
        from_crystal(),
        nominal(),
        hypervisor("tsc", |leaf| leaf.eax),
        hypervisor("apic", |leaf| leaf.ebx),
        from_pvclock(),
        from_page(),
        against_raw(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn processor(identity: &Identity, number: u32) -> Option<Leaf> {
    identity
        .leaves
        .iter()
        .find(|leaf| leaf.leaf == number)
        .map(|leaf| Leaf {
            eax: leaf.eax,
            ebx: leaf.ebx,
            ecx: leaf.ecx,
            edx: leaf.edx,
        })
}

/// An error of `hz` at `rate`, in ppb, rounded up.
fn unit_error(hz: u64, rate: Hertz) -> u64 {
    (hz * 1_000_000_000).div_ceil(rate.floor_hz().max(1))
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
                ("cpuid-16", "tsc", 2_600_000_000, 192_308),
                ("cpuid-40000010", "tsc", 2_592_000_000, 386),
                ("cpuid-40000010", "apic", 1_000_000_000, 1_000),
                ("reference-page", "tsc", 2_600_000_000, 1),
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
            measured: None,
        });
        assert_eq!(none, []);
    }
}
