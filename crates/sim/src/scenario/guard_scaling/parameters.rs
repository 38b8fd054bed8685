//! The scenario's TOML.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contended_line::Costs;
use crate::scenario::ScenarioError;

/// What keeps the clock from going back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GuardKind {
    /// Nothing.
    None,
    /// A last value, to the ns.
    Global,
    /// A last quantum of 1024 ns.
    Coarse,
}

impl GuardKind {
    /// The name, as in TOML and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Global => "global",
            Self::Coarse => "coarse",
        }
    }
}

/// A kind of read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// How it is called in the table.
    pub name: String,
    /// The numbers of CPUs that read.
    pub cpus: Vec<u32>,
    /// What a read costs without the guard, in ns.
    pub local_ns: u64,
    /// And up to so much more, in ns.
    pub jitter_ns: u64,
    /// The costs of the machine, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<Costs>,
}

/// The scenario's parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// `guard-scaling`.
    pub scenario: String,
    /// The seed of all noise.
    pub seed: u64,
    /// Repetitions of each row.
    pub runs: u64,
    /// Reads of each CPU.
    pub reads: u64,
    /// The guards.
    pub guards: Vec<GuardKind>,
    /// How far a CPU's record may be off, either way, in ns.
    pub skew_ns: u64,
    /// The cost model.
    pub costs: Costs,
    /// The kinds of read.
    pub series: Vec<Series>,
}

impl Parameters {
    /// # Errors
    ///
    /// The first parameter that is impossible.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let no = |key, reason: &str| Err(ScenarioError::impossible(key, reason));
        if !(1..=100_000_000).contains(&self.reads) {
            return no("reads", "take 1 to 10^8");
        }
        if self.runs >= 1 << 32 {
            return no("runs", "take less than 2^32");
        }
        if self.skew_ns > 1_000_000 {
            return no("skew_ns", "take at most 1 ms");
        }
        if !possible(&self.costs) {
            return no("costs", "take at most 1 ms, and at least 1 CPU of a socket");
        }
        for series in &self.series {
            if !series.cpus.iter().all(|cpus| (1..=64).contains(cpus)) {
                return no("series.cpus", "take 1 to 64");
            }
            if !(1..=1_000_000).contains(&series.local_ns) || series.jitter_ns > 1_000_000 {
                return no("series.local_ns", "take 1 ns to 1 ms");
            }
            if series.costs.is_some_and(|costs| !possible(&costs)) {
                return no(
                    "series.costs",
                    "take at most 1 ms, and at least 1 CPU of a socket",
                );
            }
        }
        Ok(())
    }
}

fn possible(costs: &Costs) -> bool {
    let all = [
        costs.hit_ns,
        costs.atomic_ns,
        costs.near_ns,
        costs.far_ns,
        costs.busy_ns,
    ];
    all.iter().all(|ns| *ns <= 1_000_000) && costs.cpus_per_socket > 0
}
