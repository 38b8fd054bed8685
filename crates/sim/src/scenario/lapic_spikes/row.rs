//! The scenario's results: what is added up, and the rows of the table.

use chronovisor_stats::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Parameters, Planned, Policy, TimerMode};
use crate::guest_machine::Seen;
use crate::runner::{Merge, MergeError};

/// The sum of all units: one entry for each row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tally {
    /// The rows; one that no unit of this shard belongs to is empty.
    pub rows: Vec<Option<RowTally>>,
}

/// The sum of a row's repetitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RowTally {
    intervals: Histogram,
    expiries: u64,
    due: u64,
    early: u64,
    earliest_ns: u64,
    lost_timers: u64,
    longest_burst: u64,
    preemption_wakes: u64,
    software_wakes: u64,
    deadlines_apart_ns: u64,
}

impl RowTally {
    pub(super) fn add(&mut self, seen: &Seen) {
        // A merge fails only beyond 2^64 values.
        let _ = self.intervals.merge(&seen.intervals);
        self.due += seen.due;
        self.expiries += seen.expiries_in_window();
        self.early += seen.early;
        self.earliest_ns = self.earliest_ns.max(seen.earliest_ns);
        self.lost_timers += seen.lost_timers;
        self.longest_burst = self.longest_burst.max(seen.longest_burst);
        self.preemption_wakes += seen.preemption_wakes;
        self.software_wakes += seen.software_wakes;
        self.deadlines_apart_ns = self.deadlines_apart_ns.max(seen.deadlines_apart_ns);
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
            row.intervals
                .merge(&other.intervals)
                .map_err(|error| MergeError(error.to_string()))?;
            row.expiries += other.expiries;
            row.due += other.due;
            row.early += other.early;
            row.earliest_ns = row.earliest_ns.max(other.earliest_ns);
            row.lost_timers += other.lost_timers;
            row.longest_burst = row.longest_burst.max(other.longest_burst);
            row.preemption_wakes += other.preemption_wakes;
            row.software_wakes += other.software_wakes;
            row.deadlines_apart_ns = row.deadlines_apart_ns.max(other.deadlines_apart_ns);
        }
        Ok(())
    }
}

/// A row of the table: what a guest's program saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The lost-tick policy or the historical model.
    pub policy: Policy,
    /// The load's name.
    pub load: String,
    /// How long the timer had run before, in s.
    pub uptime_s: u64,
    /// How the guest programmed the timer.
    pub mode: TimerMode,
    /// Ticks taken (intervals measured).
    pub ticks: u64,
    /// The longest interval between two ticks, in us.
    pub max_us: f64,
    /// The mean interval.
    pub mean_us: f64,
    /// The standard deviation.
    pub deviation_us: f64,
    /// The median.
    pub p50_us: Option<f64>,
    /// 99 % are at or below.
    pub p99_us: Option<f64>,
    /// 99.9 %.
    pub p99_9_us: Option<f64>,
    /// 99.99 %.
    pub p99_99_us: Option<f64>,
    /// 99.999 %.
    pub p99_999_us: Option<f64>,
    /// Periods that passed by the guest's counter without an expiry (positive), or expiries too many (negative).
    pub periods_missing: i64,
    /// Expiries that raised no interrupt of their own: merged or lost.
    pub ticks_merged: i64,
    /// Interrupts before the guest's counter said that they were due.
    pub early_ticks: u64,
    /// By how much the earliest was early, in us.
    pub earliest_us: f64,
    /// How often an armed timer had no back-end that would fire it.
    pub lost_timers: u64,
    /// The most calls of a back-end in a row.
    pub longest_burst: u64,
    /// Wake-ups by the preemption timer.
    pub preemption_wakes: u64,
    /// Wake-ups by the software timer.
    pub software_wakes: u64,
    /// The largest distance between two copies of the deadline, in us: the drift.
    pub drift_us: f64,
}

impl Row {
    pub(super) fn of(planned: &Planned, tally: &RowTally, parameters: &Parameters) -> Option<Self> {
        let summary = tally.intervals.summary()?;
        let percentiles = summary.percentiles;
        let difference = |a: u64, b: u64| i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(0);
        Some(Self {
            policy: planned.policy,
            load: parameters.loads[planned.load].name.clone(),
            uptime_s: planned.uptime_s,
            mode: planned.mode,
            ticks: summary.count,
            max_us: micros(summary.max),
            mean_us: summary.mean / 1e3,
            deviation_us: summary.deviation / 1e3,
            p50_us: percentiles.p50.map(micros),
            p99_us: percentiles.p99.map(micros),
            p99_9_us: percentiles.p99_9.map(micros),
            p99_99_us: percentiles.p99_99.map(micros),
            p99_999_us: percentiles.p99_999.map(micros),
            periods_missing: match planned.mode {
                TimerMode::Periodic => difference(tally.due, tally.expiries),
                TimerMode::OneShot => 0,
            },
            ticks_merged: difference(tally.expiries, summary.count),
            early_ticks: tally.early,
            earliest_us: micros(tally.earliest_ns),
            lost_timers: tally.lost_timers,
            longest_burst: tally.longest_burst,
            preemption_wakes: tally.preemption_wakes,
            software_wakes: tally.software_wakes,
            drift_us: micros(tally.deadlines_apart_ns),
        })
    }
}

/// ns in us, for print.
#[expect(
    clippy::cast_precision_loss,
    reason = "for print: 53 bits are 104 days"
)]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// A published row: a Windows 10 guest, 150 000 timers of 1 ms, 2018.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeedRow {
    /// The model that stands for the kernel measured.
    pub policy: Policy,
    /// The load.
    pub load: String,
    /// The uptime that the report tells, in s; absent where it tells none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uptime_s: Option<u64>,
    /// Ticks.
    pub ticks: u64,
    /// The longest interval, in us.
    pub max_us: f64,
    /// The mean.
    pub mean_us: f64,
    /// The standard deviation.
    pub deviation_us: f64,
}

impl SeedRow {
    /// The four rows of the report.
    pub(super) fn published() -> Vec<Self> {
        let row = |policy, load: &str, uptime_s, [max_us, mean_us, deviation_us]: [f64; 3]| Self {
            policy,
            load: load.to_owned(),
            uptime_s,
            ticks: 150_000,
            max_us,
            mean_us,
            deviation_us,
        };
        let (before, after) = (Policy::LinuxBefore8003c9ae, Policy::Linux8003c9ae);
        // Seen after 3 to 4 hours.
        let uptime = Some(14_400);
        vec![
            row(before, "idle", None, [1834.0, 1100.0, 59.0]),
            row(after, "idle", uptime, [86_000.0, 1021.0, 149.0]),
            row(before, "stress", None, [32_000.0, 1006.0, 140.0]),
            row(after, "stress", uptime, [140_000.0, 1997.0, 11_095.0]),
        ]
    }
}
