//! The scenario's results.

use chronovisor_stats::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Boot, Method, Parameters, Planned};
use crate::runner::{Merge, MergeError};

/// The sum of all units: one entry for each row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tally {
    /// The rows; one that no unit of this shard belongs to is empty.
    pub rows: Vec<Option<RowTally>>,
}

/// The sum of a row's boots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RowTally {
    took_ns: Histogram,
    cpus: u64,
    calibrations: u64,
    failed_calibrations: u64,
    worst_low_ppb: u64,
    worst_high_ppb: u64,
}

impl RowTally {
    pub(super) fn add(&mut self, boot: &Boot) {
        self.took_ns.record(boot.took_ns);
        self.cpus += boot.cpus;
        self.calibrations += boot.calibrations;
        self.failed_calibrations += boot.failed_calibrations;
        self.worst_low_ppb = self.worst_low_ppb.max(boot.worst_low_ppb);
        self.worst_high_ppb = self.worst_high_ppb.max(boot.worst_high_ppb);
    }
}

impl Merge for Tally {
    fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        if self.rows.len() != other.rows.len() {
            let (a, b) = (self.rows.len(), other.rows.len());
            return Err(MergeError(format!("one has {a} rows, another {b}")));
        }
        for (row, other) in self.rows.iter_mut().zip(&other.rows) {
            let Some(other) = other else { continue };
            let row = row.get_or_insert_with(RowTally::default);
            row.took_ns
                .merge(&other.took_ns)
                .map_err(|error| MergeError(error.to_string()))?;
            row.cpus += other.cpus;
            row.calibrations += other.calibrations;
            row.failed_calibrations += other.failed_calibrations;
            row.worst_low_ppb = row.worst_low_ppb.max(other.worst_low_ppb);
            row.worst_high_ppb = row.worst_high_ppb.max(other.worst_high_ppb);
        }
        Ok(())
    }
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// vCPUs.
    pub vcpus: u32,
    /// NUMA nodes.
    pub numa_nodes: u32,
    /// Who told the delay loop's length.
    pub method: Method,
    /// The load's name.
    pub load: String,
    /// Boots.
    pub boots: u64,
    /// Mean time from the first CPU's start to the last one's being up, in ms.
    pub mean_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// Mean time for each CPU, in ms.
    pub per_cpu_ms: f64,
    /// Calibrations in a boot, on average.
    pub calibrations: f64,
    /// Of all boots' calibrations, those whose direct measurement failed and that had to search.
    pub searches: u64,
    /// The largest loops-per-jiffy below the right value, in ppm: delays too short.
    pub lpj_low_ppm: f64,
    /// The largest above it: delays too long.
    pub lpj_high_ppm: f64,
}

impl Row {
    #[expect(
        clippy::cast_precision_loss,
        reason = "for print: counts and ns far below 2^53"
    )]
    pub(super) fn of(planned: &Planned, tally: &RowTally, parameters: &Parameters) -> Option<Self> {
        let summary = tally.took_ns.summary()?;
        let boots = summary.count as f64;
        let machine = &parameters.machines[planned.machine];
        Some(Self {
            vcpus: machine.vcpus,
            numa_nodes: planned.nodes,
            method: planned.method,
            load: parameters.loads[planned.load].name.clone(),
            boots: summary.count,
            mean_ms: summary.mean / 1e6,
            max_ms: summary.max as f64 / 1e6,
            per_cpu_ms: summary.mean * boots / tally.cpus as f64 / 1e6,
            calibrations: tally.calibrations as f64 / boots,
            searches: tally.failed_calibrations,
            lpj_low_ppm: tally.worst_low_ppb as f64 / 1e3,
            lpj_high_ppm: tally.worst_high_ppb as f64 / 1e3,
        })
    }
}

/// A published row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeedRow {
    /// vCPUs.
    pub vcpus: u32,
    /// NUMA nodes.
    pub numa_nodes: u32,
    /// Who told the delay loop's length.
    pub method: Method,
    /// Time to bring up all CPUs, in ms.
    pub mean_ms: f64,
}

impl SeedRow {
    /// The rows of the 2023 report; the two of 16 vCPUs from its log's time stamps.
    pub(super) fn published() -> Vec<Self> {
        [
            (16, 1, Method::None, 1296.5),
            (16, 1, Method::Preset, 130.0),
            (32, 1, Method::Copy, 26.0),
            (32, 4, Method::Copy, 210.0),
            (32, 4, Method::Preset, 32.0),
        ]
        .map(|(vcpus, numa_nodes, method, mean_ms)| Self {
            vcpus,
            numa_nodes,
            method,
            mean_ms,
        })
        .to_vec()
    }
}
