//! Ratios of rows: what holds from one machine to the next, where absolute figures do not.

use schemars::JsonSchema;
use serde::Serialize;

use super::Row;

/// A ratio of two rows of one run.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Ratio {
    /// What over what.
    pub name: &'static str,
    /// The ring of both.
    pub ring: u32,
    /// The vCPUs of both.
    pub vcpus: u32,
    /// The ratio.
    pub ratio: f64,
    /// The published one, where there is one.
    pub seed: Option<f64>,
}

struct Definition {
    name: &'static str,
    over: &'static str,
    under: &'static str,
    /// Published, in ring 0 and ring 3.
    seed: [Option<f64>; 2],
}

const fn ratio(
    name: &'static str,
    over: &'static str,
    under: &'static str,
    seed: [Option<f64>; 2],
) -> Definition {
    Definition {
        name,
        over,
        under,
        seed,
    }
}

const DEFINITIONS: &[Definition] = &[
    ratio(
        "counter MSR / reference page",
        "reference-counter-msr",
        "reference-tsc-page",
        [Some(68.6), Some(43.2)],
    ),
    ratio(
        "reference page / rdtscp",
        "reference-tsc-page",
        "rdtscp",
        [None, None],
    ),
    ratio("kvm-clock / rdtscp", "pvclock-page", "rdtscp", [None, None]),
    ratio(
        "kvm-clock / rdtsc",
        "pvclock-page",
        "rdtsc",
        [None, Some(3.3)],
    ),
    ratio(
        "our kvm-clock / rdtscp",
        "pvclock-page-ours",
        "rdtscp",
        [None, None],
    ),
    ratio(
        "trapped rdtsc / rdtsc",
        "trapped-rdtsc",
        "rdtsc",
        [None, Some(15.0)],
    ),
    ratio(
        "hypercall / rdtsc",
        "hypercall-time",
        "rdtsc",
        [None, Some(10.8)],
    ),
    ratio(
        "counter MSR / null MSR exit",
        "reference-counter-msr",
        "null-msr-exit",
        [None, None],
    ),
];

/// Every ratio whose two rows have figures.
pub(super) fn of(rows: &[Row]) -> Vec<Ratio> {
    let cycles = |clock: &str, ring, vcpus| {
        rows.iter()
            .find(|row| row.clock == clock && row.ring == ring && row.vcpus == vcpus)
            .and_then(|row| row.cycles)
    };
    let mut places: Vec<_> = rows.iter().map(|row| (row.vcpus, row.ring)).collect();
    places.dedup();
    let mut found = Vec::new();
    for (vcpus, ring) in places {
        for definition in DEFINITIONS {
            if let (Some(over), Some(under)) = (
                cycles(definition.over, ring, vcpus),
                cycles(definition.under, ring, vcpus),
            ) {
                let seed = if ring == 0 {
                    definition.seed[0]
                } else {
                    definition.seed[1]
                };
                found.push(Ratio {
                    name: definition.name,
                    ring,
                    vcpus,
                    ratio: over / under,
                    seed,
                });
            }
        }
    }
    found
}
