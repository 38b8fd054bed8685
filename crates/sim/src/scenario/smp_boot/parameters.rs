//! The scenario's TOML.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::noise::Delay;
use crate::scenario::ScenarioError;

/// Who tells a CPU its loops-per-jiffy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Nobody: each calibrates.
    None,
    /// A sibling of its node, if one is up.
    Copy,
    /// The host.
    Preset,
}

impl Method {
    /// The name, as in TOML and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Copy => "copy",
            Self::Preset => "preset",
        }
    }
}

/// A machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its vCPUs.
    pub vcpus: u32,
    /// Timer interrupts a second.
    pub tick_hz: u64,
    /// Running time that a CPU of the first node takes to come up, without calibration, in ns.
    pub start_ns: u64,
    /// The same for a CPU of another node.
    pub remote_start_ns: u64,
}

/// What disturbs the CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// How it is called in the table.
    pub name: String,
    /// The time between two preemptions; absent for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt_every: Option<Delay>,
    /// How long one lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt_for: Option<Delay>,
}

/// The scenario's parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// `smp-boot`.
    pub scenario: String,
    /// The seed of all noise.
    pub seed: u64,
    /// Boots of each row.
    pub runs: u64,
    /// The counter's rate, in Hz.
    pub tsc_hz: u64,
    /// The methods.
    pub methods: Vec<Method>,
    /// The numbers of NUMA nodes.
    pub numa_nodes: Vec<u32>,
    /// The time between two looks at the counter while a CPU waits for a tick, in ns.
    pub poll_ns: u64,
    /// The machines.
    pub machines: Vec<Machine>,
    /// The loads.
    pub loads: Vec<Load>,
}

impl Parameters {
    /// # Errors
    ///
    /// The first parameter that is impossible.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let no = |key, reason: &str| Err(ScenarioError::impossible(key, reason));
        if self.tsc_hz < 1_000_000 {
            return no("tsc_hz", "take 1 MHz to 255 GHz");
        }
        if !(1..=1_000_000).contains(&self.poll_ns) {
            return no("poll_ns", "take 1 ns to 1 ms");
        }
        if self.runs >= 1 << 32 {
            return no("runs", "take less than 2^32");
        }
        if !self.numa_nodes.iter().all(|nodes| (1..=64).contains(nodes)) {
            return no("numa_nodes", "take 1 to 64");
        }
        for machine in &self.machines {
            if !(2..=4096).contains(&machine.vcpus) {
                return no("machines.vcpus", "take 2 to 4096");
            }
            if !(10..=10_000).contains(&machine.tick_hz) {
                return no("machines.tick_hz", "take 10 to 10 000");
            }
            if machine.start_ns.max(machine.remote_start_ns) > 60_000_000_000 {
                return no("machines.start_ns", "take at most 60 s");
            }
        }
        Ok(())
    }
}
