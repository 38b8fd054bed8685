//! The JSON document of `bench`.

use chronovisor_abi::quantity::Hertz;
use chronovisor_probe::rate::MeasuredRate;
use chronovisor_probe::read_cost::ns_per_tick;
use schemars::JsonSchema;
use serde::Serialize;

use super::clock::{Clock, Path};
use super::published::SeedRow;
use super::rounds::Measured;
use crate::provenance::Provenance;

/// Name and version of the document's form.
pub(super) const SCHEMA: &str = "chronovisor/bench/1";

/// What `chronovisor bench --json` prints.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "chronovisor bench --json")]
pub(super) struct Document {
    /// The name and version of this form.
    #[schemars(extend("const" = SCHEMA))]
    pub(super) schema: &'static str,
    /// Where and with what it was measured.
    pub(super) provenance: Provenance,
    /// The counter in whose cycles the rows are told.
    pub(super) counter: Counter,
    /// Measured rows, a clock and a number of threads each.
    pub(super) rows: Vec<Row>,
    /// Clocks that this machine does not have, and why.
    pub(super) unavailable: Vec<Unavailable>,
    /// Figures that others published, of other machines: for comparison, not measured here.
    pub(super) seed_rows: Vec<SeedRow>,
}

/// The time-stamp counter's rate against CLOCK_MONOTONIC_RAW.
#[derive(Serialize, JsonSchema)]
pub(super) struct Counter {
    /// Rate, in whole Hz.
    pub(super) hz: u64,
    /// The truth is within this many ppb of it.
    pub(super) error_ppb: u64,
}

impl Counter {
    pub(super) fn new(rate: &MeasuredRate) -> Self {
        Self {
            hz: rate.hertz.rounded_hz(),
            error_ppb: rate.error_ppb.saturating_add(1), // the rounding to a whole Hz
        }
    }
}

/// One measured clock.
#[derive(Serialize, JsonSchema)]
pub(super) struct Row {
    /// The clock's name.
    pub(super) clock: &'static str,
    /// Threads that read it at once.
    pub(super) threads: u16,
    /// Median cost of one read, in ns.
    pub(super) ns: f64,
    /// The same in cycles of the counter.
    pub(super) cycles: f64,
    /// The same over that of `rdtscp` with as many threads; absent if the processor has none.
    pub(super) ratio_to_rdtscp: Option<f64>,
    /// What happens behind one read.
    pub(super) path: Path,
    /// The unit in which the clock was seen to move, in ns; absent if it never moved, or is no clock (`cpuid-exit`).
    pub(super) resolution_ns: Option<f64>,
    /// Successive readings that the next two are counts of.
    pub(super) readings: u64,
    /// Readings equal to the one before, of the same thread.
    pub(super) stalls: u64,
    /// Readings lower than the one before, of the same thread.
    pub(super) regressions: u64,
    /// Batches of which `cycles` is the median.
    pub(super) batches: u64,
    /// Share of the time of these batches in which all threads were at this clock at once: 1 for one thread, near 0 where threads share CPUs.
    pub(super) overlap: f64,
}

/// A clock that could not be measured.
#[derive(Serialize, JsonSchema)]
pub(super) struct Unavailable {
    /// The clock's name.
    pub(super) clock: String,
    /// Why this machine cannot read it.
    pub(super) reason: String,
}

/// The measurements as rows, with the counter at `rate`.
pub(super) fn rows(clocks: &[Clock], measured: &[Measured], rate: Hertz) -> Vec<Row> {
    let rdtscp = |threads: u16| {
        measured
            .iter()
            .find(|one| one.threads == threads && clocks[one.clock].name == "rdtscp")
            .map(|one| one.ticks)
    };
    measured
        .iter()
        .map(|one| {
            let clock = &clocks[one.clock];
            let is_clock = clock.path != Path::Exit;
            Row {
                clock: clock.name,
                threads: one.threads,
                ns: one.ticks * ns_per_tick(rate),
                cycles: one.ticks,
                ratio_to_rdtscp: rdtscp(one.threads).map(|rdtscp| one.ticks / rdtscp),
                path: clock.path,
                resolution_ns: one
                    .steps
                    .resolution
                    .filter(|_| is_clock)
                    .map(|units| in_ns(clock, units, rate)),
                readings: if is_clock { one.steps.readings } else { 0 },
                stalls: if is_clock { one.steps.stalls } else { 0 },
                regressions: if is_clock { one.steps.regressions } else { 0 },
                batches: one.batches,
                overlap: one.overlap,
            }
        })
        .collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a step needs no more than 53 bits"
)]
fn in_ns(clock: &Clock, units: u64, rate: Hertz) -> f64 {
    clock.unit.in_ns(units as f64, rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The schema that is kept in the repository is the one of this program. `CHRONOVISOR_WRITE=1` writes it anew.
    #[test]
    fn the_kept_schema_is_this_programs() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas/bench-1.json");
        let ours = serde_json::to_string_pretty(&schemars::schema_for!(Document)).unwrap() + "\n";
        if std::env::var_os("CHRONOVISOR_WRITE").is_some() {
            std::fs::write(path, &ours).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), ours);
    }
}
