//! What a report says beside the findings: the machine, its clocks, the reference, the timeline.

pub mod timeline;

use crate::evidence::{
    Evidence, FrequencyOrigin, Origin, PvclockRecord, ReadCost, ReferencePage, VdsoData,
    VmclockPage,
};
use crate::finding::Finding;
use crate::forensics::Frequency;
use crate::rules::Facts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The machine that the evidence is of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Where the evidence comes from.
    pub origin: Origin,
    /// A name for it, if the evidence has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The processor's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Number of CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u64>,
    /// Hypervisor interfaces, as CPUID or the log names them.
    pub hypervisors: Vec<String>,
    /// Whether the TSC is declared to run at one rate in all states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invariant_tsc: Option<bool>,
    /// Kernel release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The clock source in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_source: Option<String>,
    /// The clock sources that the kernel lists.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub available_clock_sources: Vec<String>,
    /// Every channel that tells the TSC's frequency.
    pub frequencies: Vec<FrequencyRow>,
    /// The live pvclock record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvclock: Option<PvclockRecord>,
    /// What the vDSO reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vdso: Option<VdsoData>,
    /// The Hyper-V reference page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_page: Option<ReferencePage>,
    /// The VMClock page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vmclock: Option<VmclockPage>,
}

/// One channel that tells the TSC's frequency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FrequencyRow {
    /// Channel.
    pub channel: String,
    /// Declared or measured.
    pub origin: FrequencyOrigin,
    /// Frequency, in Hz.
    pub hz: f64,
    /// Largest error of the channel itself, in ppm.
    pub error_ppm: f64,
    /// Difference from the first channel, in ppm.
    pub ppm_from_first: f64,
}

/// What the wall clock can be compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WallClock {
    /// One sentence for people.
    pub summary: String,
    /// Wall clock minus reference, in s, where there is a reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset_s: Option<f64>,
    /// Largest error of the offset, in s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_s: Option<f64>,
    /// The reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

/// A CPUID signature with the name that people know it by.
fn interface(signature: &str) -> String {
    let name = match signature.trim_end_matches('\0') {
        "KVMKVMKVM" => "KVM",
        "Microsoft Hv" => "Hyper-V",
        "XenVMMXenVMM" => "Xen",
        "VMwareVMware" => "VMware",
        other => return other.to_owned(),
    };
    format!("{name} ({})", signature.trim_end_matches('\0'))
}

impl Machine {
    /// The machine, as far as the evidence shows it.
    #[must_use]
    pub fn of(evidence: &Evidence) -> Self {
        let facts = Facts::new(evidence);
        let identity = evidence.identity.seen();
        let cpus = evidence.cpu_lines.seen();
        let mut hypervisors: Vec<String> = identity
            .into_iter()
            .flat_map(|identity| &identity.hypervisors)
            .map(|base| format!("{} at {:#x}", interface(&base.signature), base.base))
            .collect();
        if hypervisors.is_empty() {
            hypervisors.extend(timeline::hypervisor(facts.current_boot()));
        }
        Self {
            origin: evidence.origin,
            label: evidence.label.clone(),
            cpu: identity
                .map(|identity| identity.model.clone())
                .or_else(|| cpus.and_then(|cpus| cpus.first()?.model.clone())),
            cpus: identity
                .map(|identity| u64::from(identity.cpus))
                .or_else(|| cpus.and_then(|cpus| u64::try_from(cpus.len()).ok())),
            hypervisors,
            invariant_tsc: identity.map(|identity| identity.invariant_tsc).or_else(|| {
                Some(facts.cpu_flag("constant_tsc")? && facts.cpu_flag("nonstop_tsc")?)
            }),
            kernel: identity
                .and_then(|identity| identity.kernel.clone())
                .or_else(|| timeline::release(facts.current_boot())),
            clock_source: facts.clocksource().map(|(name, _)| name),
            available_clock_sources: evidence
                .available_clocksources
                .seen()
                .cloned()
                .unwrap_or_default(),
            frequencies: frequencies(evidence, &facts),
            pvclock: evidence.pvclock.seen().cloned(),
            vdso: evidence.vdso.seen().cloned(),
            reference_page: evidence
                .reference_page
                .seen()
                .and_then(|pages| pages.last())
                .copied(),
            vmclock: evidence.vmclock.seen().cloned(),
        }
    }
}

fn frequencies(evidence: &Evidence, facts: &Facts<'_>) -> Vec<FrequencyRow> {
    let channels = evidence.frequencies.seen().into_iter().flatten();
    let mut rows: Vec<(String, FrequencyOrigin, Frequency, f64)> = channels
        .filter(|channel| channel.counter == "tsc")
        .filter_map(|channel| {
            let frequency = Frequency::from_ratio(
                u128::from(channel.hz.numerator),
                u128::from(channel.hz.denominator),
            )?;
            let error = crate::forensics::real(i128::from(channel.error_ppb)) / 1000.0;
            Some((channel.channel.clone(), channel.origin, frequency, error))
        })
        .collect();
    rows.extend(
        facts
            .current_boot()
            .tsc
            .iter()
            .filter(|declared| declared.source.starts_with("kernel log"))
            .map(|declared| {
                (
                    format!("{}, {}", declared.what, declared.source),
                    FrequencyOrigin::Declared,
                    declared.frequency,
                    // What a registration line's rounding and a line in kHz leave.
                    0.5,
                )
            }),
    );
    let first = rows.first().map(|(_, _, frequency, _)| *frequency);
    rows.into_iter()
        .map(|(channel, origin, frequency, error_ppm)| FrequencyRow {
            channel,
            origin,
            hz: frequency.hz(),
            error_ppm,
            ppm_from_first: first.map_or(0.0, |first| frequency.ppm_over(first)),
        })
        .collect()
}

/// The clocks that were measured.
#[must_use]
pub fn clocks(evidence: &Evidence) -> Vec<ReadCost> {
    evidence.costs.seen().cloned().unwrap_or_default()
}

/// What is known of the wall clock, beside what was found; `None` where nobody looked.
#[must_use]
pub fn wall_clock(evidence: &Evidence, findings: &[Finding]) -> Option<WallClock> {
    let reference = evidence.reference.seen()?;
    let best = reference
        .ptp
        .iter()
        .filter(|device| device.offset_ns.is_some())
        .min_by_key(|device| device.bound_ns.unwrap_or(u64::MAX));
    if let Some(device) = best {
        let offset_s = device
            .offset_ns
            .map(|ns| crate::forensics::seconds(i128::from(ns)));
        let bound_s = device
            .bound_ns
            .map(|ns| crate::forensics::seconds(i128::from(ns)));
        return Some(WallClock {
            summary: format!(
                "off by {:+.9} s from {} ({}){}",
                offset_s.unwrap_or_default(),
                device.clock_name,
                device.device,
                bound_s.map_or(", without a bound".to_owned(), |bound| format!(
                    ", to within {bound:.9} s"
                ))
            ),
            offset_s,
            bound_s,
            reference: Some(device.device.clone()),
        });
    }
    let unsynchronised = findings
        .iter()
        .any(|finding| finding.code == crate::Code::ClockUnsynchronised);
    if !unsynchronised && let Some(state) = reference.adjtimex {
        let bound_s = crate::forensics::seconds(i128::from(state.maxerror_us) * 1000);
        let offset_s = crate::forensics::seconds(i128::from(state.offset_ns));
        return Some(WallClock {
            summary: format!(
                "kept by {}; remaining offset {offset_s:+.9} s, largest error {bound_s:.6} s by its own word",
                if reference.daemons.is_empty() {
                    "an unnamed daemon".to_owned()
                } else {
                    reference.daemons.join(", ")
                }
            ),
            offset_s: Some(offset_s),
            bound_s: Some(bound_s),
            reference: None,
        });
    }
    Some(WallClock {
        summary: "no reference: rightness of the wall clock not judged".to_owned(),
        offset_s: None,
        bound_s: None,
        reference: None,
    })
}
