//! The JSON document of `sim`.

use chronovisor_sim::runner::Shard;
use chronovisor_sim::scenario::Scenario;
use chronovisor_sim::watch::Violation;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::threads::Comparison;
use crate::provenance::Provenance;

/// What `chronovisor sim NAME --json` prints.
#[derive(Serialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(bound = "", rename = "Simulation")]
pub(super) struct Document<S: Scenario> {
    /// "chronovisor/sim-NAME/1".
    pub(super) schema: String,
    /// With what it was simulated. No figure but the speed depends on it.
    pub(super) provenance: Provenance,
    /// The seed.
    pub(super) seed: u64,
    /// Repetitions, or machines.
    pub(super) runs: u64,
    /// The part of the run that this is; absent for a whole one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shard: Option<ShardDocument>,
    /// Events simulated.
    pub(super) events: u64,
    /// Events a second on this machine; null if it was left out.
    pub(super) events_per_second: Option<f64>,
    /// Wall time, in s; null if it was left out.
    pub(super) seconds: Option<f64>,
    /// The simulated rows.
    pub(super) rows: Vec<S::Row>,
    /// What real threads measured here, where that was asked for: not a function of the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) measured: Option<Comparison>,
    /// Figures that others measured, on other machines: for comparison.
    pub(super) seed_rows: Vec<S::SeedRow>,
    /// The scenario.
    pub(super) parameters: S::Parameters,
    /// The sums of a shard, for `sim merge`; absent for a whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tally: Option<S::Tally>,
}

/// Part `index` of `of`, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(super) struct ShardDocument {
    pub(super) index: u64,
    pub(super) of: u64,
}

/// What a run came to.
pub(super) struct Measured<T> {
    pub(super) tally: T,
    pub(super) events: u64,
    pub(super) speed: Speed,
}

/// Whether the speed is told.
#[derive(Clone, Copy)]
pub(super) enum Speed {
    Untold,
    Seconds(f64),
}

impl<S: Scenario> Document<S> {
    pub(super) fn new(scenario: &S, shard: Option<Shard>, measured: Measured<S::Tally>) -> Self {
        let seconds = match measured.speed {
            Speed::Untold => None,
            Speed::Seconds(seconds) => Some(seconds),
        };
        #[expect(clippy::cast_precision_loss, reason = "a speed, for print")]
        let per_second = |seconds: f64| measured.events as f64 / seconds.max(1e-9);
        Self {
            schema: schema(S::NAME),
            provenance: Provenance::here("virtual time"),
            seed: scenario.seed(),
            runs: scenario.runs(),
            shard: shard.map(|shard| ShardDocument {
                index: shard.index(),
                of: shard.of(),
            }),
            events: measured.events,
            events_per_second: seconds.map(per_second),
            seconds,
            rows: scenario.rows(&measured.tally),
            measured: None,
            seed_rows: scenario.seed_rows(),
            parameters: scenario.parameters().clone(),
            tally: shard.map(|_| measured.tally),
        }
    }
}

/// The document's name and version.
pub(super) fn schema(name: &str) -> String {
    format!("chronovisor/sim-{name}/1")
}

/// The scenario that a document's `schema` names.
pub(super) fn name_of(schema: &str) -> Option<&str> {
    schema.strip_prefix("chronovisor/sim-")?.strip_suffix("/1")
}

/// What is printed when an invariant broke.
#[derive(Serialize, JsonSchema)]
pub(super) struct Broken {
    /// "chronovisor/sim-violation/1".
    schema: &'static str,
    /// The invariant.
    rule: &'static str,
    /// What was seen and what should have been.
    details: String,
    /// The seed of the run.
    seed: u64,
    /// The unit in which it broke.
    unit: u64,
    /// The number of the event within the unit.
    event: u64,
    /// The last events: time, what, who, figure.
    last_events: Vec<String>,
}

impl Broken {
    pub(super) fn new(violation: &Violation) -> Self {
        Self {
            schema: "chronovisor/sim-violation/1",
            rule: violation.rule,
            details: violation.details.clone(),
            seed: violation.seed,
            unit: violation.unit,
            event: violation.event,
            last_events: violation
                .last_events
                .iter()
                .map(ToString::to_string)
                .collect(),
        }
    }
}
