//! The scenario's results.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GuardKind, Parameters, Planned, Seen};
use crate::runner::{Merge, MergeError};
use crate::world_time::UNITS_PER_NS;

/// The sum of all units: one entry for each row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tally {
    /// The rows.
    pub rows: Vec<RowTally>,
}

/// The sum of a row's repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RowTally {
    reads: u64,
    /// The CPUs' time, in ns; 584 CPU-years of it fit.
    spent_ns: u64,
    transfers: u64,
    backward_steps: u64,
    largest_back_ns: u64,
    stalls: u64,
}

impl RowTally {
    pub(super) fn add(&mut self, seen: &Seen) {
        self.merge(&Self {
            reads: seen.reads,
            spent_ns: u64::try_from(seen.units / u128::from(UNITS_PER_NS)).unwrap_or(u64::MAX),
            transfers: seen.transfers,
            backward_steps: seen.backward_steps,
            largest_back_ns: seen.largest_back_ns,
            stalls: seen.stalls,
        });
    }

    fn merge(&mut self, other: &Self) {
        self.reads += other.reads;
        self.spent_ns += other.spent_ns;
        self.transfers += other.transfers;
        self.backward_steps += other.backward_steps;
        self.largest_back_ns = self.largest_back_ns.max(other.largest_back_ns);
        self.stalls += other.stalls;
    }

    #[expect(clippy::cast_precision_loss, reason = "a mean, for print")]
    fn ns_a_read(&self) -> Option<f64> {
        (self.reads > 0).then(|| self.spent_ns as f64 / self.reads as f64)
    }
}

impl Merge for Tally {
    fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        if self.rows.len() != other.rows.len() {
            let (a, b) = (self.rows.len(), other.rows.len());
            return Err(MergeError(format!("one has {a} rows, another {b}")));
        }
        for (row, other) in self.rows.iter_mut().zip(&other.rows) {
            row.merge(other);
        }
        Ok(())
    }
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The kind of read.
    pub series: String,
    /// CPUs that read.
    pub cpus: u32,
    /// The guard.
    pub guard: GuardKind,
    /// Reads, all CPUs together.
    pub reads: u64,
    /// What a read costs, in us.
    pub us_per_call: f64,
    /// The same over that without a guard on as many CPUs; null if that is not among the rows.
    pub ratio_to_none: Option<f64>,
    /// Transfers of the guard's line for each read.
    pub transfers_per_read: f64,
    /// Reads, in the order of time, that gave less than one before.
    pub backward_steps: u64,
    /// The largest of those steps, in ns.
    pub largest_back_ns: u64,
    /// Reads that gave the same as the largest before.
    pub stalls: u64,
}

impl Row {
    #[expect(clippy::cast_precision_loss, reason = "a ratio, for print")]
    pub(super) fn all(plan: &[Planned], tally: &Tally, parameters: &Parameters) -> Vec<Self> {
        let cost_of = |planned: &Planned, guard: GuardKind| {
            let same = |other: &Planned| {
                other.series == planned.series && other.cpus == planned.cpus && other.guard == guard
            };
            let at = plan.iter().position(same)?;
            tally.rows[at].ns_a_read()
        };
        let row = |(planned, row): (&Planned, &RowTally)| {
            let ns = row.ns_a_read()?;
            Some(Self {
                series: parameters.series[planned.series].name.clone(),
                cpus: planned.cpus,
                guard: planned.guard,
                reads: row.reads,
                us_per_call: ns / 1e3,
                ratio_to_none: cost_of(planned, GuardKind::None).map(|none| ns / none),
                transfers_per_read: row.transfers as f64 / row.reads as f64,
                backward_steps: row.backward_steps,
                largest_back_ns: row.largest_back_ns,
                stalls: row.stalls,
            })
        };
        plan.iter().zip(&tally.rows).filter_map(row).collect()
    }
}

/// A published row: gettimeofday in a guest of 16 CPUs on two sockets, 2012.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeedRow {
    /// The kind of read.
    pub series: String,
    /// The guest's clock source.
    pub clock: String,
    /// Threads.
    pub cpus: u32,
    /// The guard.
    pub guard: GuardKind,
    /// What a call costs, in us.
    pub us_per_call: f64,
}

impl SeedRow {
    pub(super) fn published() -> Vec<Self> {
        [
            ("tsc", 1, GuardKind::None, 0.0315),
            ("tsc", 16, GuardKind::None, 0.0432),
            ("kvm-clock", 1, GuardKind::Global, 0.2112),
            ("kvm-clock", 16, GuardKind::Global, 0.4825),
            ("kvm-clock", 16, GuardKind::None, 0.4628),
        ]
        .map(|(clock, cpus, guard, us_per_call)| Self {
            series: "gettimeofday-2012".to_owned(),
            clock: clock.to_owned(),
            cpus,
            guard,
            us_per_call,
        })
        .to_vec()
    }
}
