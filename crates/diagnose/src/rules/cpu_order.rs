//! Time that goes back between CPUs.

use super::Facts;
use crate::code::Code;
use crate::evidence::{Column, Samples};
use crate::finding::Finding;
use crate::forensics::{quantised, real, series};

/// Clocks that are looked at, best first.
const CLOCKS: [Column; 8] = [
    Column::MonotonicNs,
    Column::MonotonicRawNs,
    Column::BoottimeNs,
    Column::RealtimeNs,
    Column::CounterNs,
    Column::PageNs,
    Column::LibraryNs,
    Column::Tsc,
];

/// More than this is no skew between CPUs, in ns (in cycles where no rate is known).
const LARGEST_SKEW_NS: f64 = 1e9;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    measured(facts)
        .or_else(|| in_samples(facts))
        .into_iter()
        .collect()
}

fn measured(facts: &Facts<'_>) -> Option<Finding> {
    let order = facts
        .evidence
        .cpu_order
        .seen()?
        .iter()
        .filter(|order| order.warps > 0 && order.same_cpu_backwards == 0)
        .max_by_key(|order| order.max_backward_ns)?;
    Some(
        Finding::new(
            Code::CrossVcpuBackwards,
            format!("{} goes back by up to {} ns between CPUs", order.clock, order.max_backward_ns),
        )
        .seen(
            format!(
                "{} of {} readings on {} pairs of CPUs were lower than an earlier one; {} were equal",
                order.warps, order.readings, order.pairs, order.stalls
            ),
            "measured now",
        )
        .because(cause())
        .count("max_backward_ns", i128::from(order.max_backward_ns))
        .count("min_backward_ns", i128::from(order.min_backward_ns))
        .count("same_cpu_backwards", i128::from(order.same_cpu_backwards)),
    )
}

fn cause() -> &'static str {
    "Each vCPU computes time from its own record or its own counter, and the two stand a little apart. Readings of one vCPU never go back, so it is no fault of the counter's rate."
}

struct Backwards {
    largest_ns: f64,
    smallest_ns: f64,
    across: usize,
    same_cpu: usize,
}

fn in_samples(facts: &Facts<'_>) -> Option<Finding> {
    let samples = facts.evidence.samples.seen()?;
    for clock in CLOCKS {
        let ns_per_unit = if clock == Column::Tsc {
            facts.tsc().map(|rate| 1e9 / rate.frequency.hz())
        } else {
            Some(1.0)
        };
        let Some(found) = backwards(samples, clock, ns_per_unit.unwrap_or(1.0)) else {
            continue;
        };
        // No figure in ns where nothing tells the counter's rate.
        let unit = if ns_per_unit.is_some() {
            "ns"
        } else {
            "cycles"
        };
        if found.across == 0 || found.same_cpu > 0 || found.largest_ns > LARGEST_SKEW_NS {
            continue;
        }
        let readings: Vec<i128> = samples
            .columns
            .get(&clock)
            .into_iter()
            .flatten()
            .flatten()
            .copied()
            .collect();
        return Some(
            Finding::new(
                Code::CrossVcpuBackwards,
                format!(
                    "{} goes back by up to {:.0} {unit}, only between readings on different vCPUs",
                    clock.name(),
                    found.largest_ns
                ),
            )
            .seen(
                format!(
                    "{} steps back between vCPUs, from {:.0} to {:.0} {unit}; none on one vCPU; {} equal neighbours",
                    found.across,
                    found.smallest_ns,
                    found.largest_ns,
                    series::repeats(&readings)
                ),
                "samples.csv",
            )
            .because(cause())
            .real_if("max_backward_ns", ns_per_unit.map(|_| found.largest_ns))
            .real_if("min_backward_ns", ns_per_unit.map(|_| found.smallest_ns))
            .count("same_cpu_backwards", 0),
        );
    }
    None
}

/// Steps back between neighbouring rows, and between readings of one CPU whatever stands between them.
fn backwards(samples: &Samples, clock: Column, ns_per_unit: f64) -> Option<Backwards> {
    let values = samples.columns.get(&clock)?;
    let cpus = samples.columns.get(&Column::Cpu)?;
    let rows: Vec<(i128, i128)> = cpus
        .iter()
        .zip(values)
        .filter_map(|(cpu, value)| Some(((*cpu)?, (*value)?)))
        .collect();
    let mut found = Backwards {
        largest_ns: 0.0,
        smallest_ns: f64::INFINITY,
        across: 0,
        same_cpu: 0,
    };
    for pair in rows.windows(2) {
        let ((cpu, before), (next_cpu, after)) = (pair[0], pair[1]);
        if after >= before || cpu == next_cpu {
            continue;
        }
        if clock != Column::Tsc && quantised::truncation(before, after, None).is_some() {
            continue;
        }
        let back = real(before - after) * ns_per_unit;
        found.across += 1;
        found.largest_ns = found.largest_ns.max(back);
        found.smallest_ns = found.smallest_ns.min(back);
    }
    let mut last = std::collections::BTreeMap::new();
    for (cpu, value) in rows {
        if let Some(before) = last.insert(cpu, value)
            && value < before
        {
            found.same_cpu += 1;
        }
    }
    Some(found)
}
