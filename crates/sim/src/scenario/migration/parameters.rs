//! The scenario's TOML.

use chronovisor_host::migration::{self, ScalingHardware};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::noise::Delay;
use crate::scenario::ScenarioError;

/// What the guest's clocks do while it does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// They stand.
    Stop,
    /// They go on.
    Advance,
}

impl Policy {
    /// The name, as in TOML and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Advance => "advance",
        }
    }
}

impl From<Policy> for migration::Policy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Stop => Self::Stop,
            Policy::Advance => Self::Advance,
        }
    }
}

/// What a host's processor can do to the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// Nothing.
    None,
    /// Scale it with 32 bits of fraction (AMD).
    Bits32,
    /// Scale it with 48 bits of fraction (Intel).
    Bits48,
}

impl From<Scaling> for ScalingHardware {
    fn from(scaling: Scaling) -> Self {
        match scaling {
            Scaling::None => Self::None,
            Scaling::Bits32 => Self::Bits32,
            Scaling::Bits48 => Self::Bits48,
        }
    }
}

/// A kind of host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostKind {
    /// What it is.
    pub name: String,
    /// The rate that the counter is said to have, in Hz.
    pub tsc_hz: u64,
    /// What the hardware can do to the counter's rate.
    pub scaling: Scaling,
    /// Whether the counter keeps its rate in all states.
    #[serde(default = "yes")]
    pub invariant: bool,
    /// Whether the guest's counter can be set off from the host's; without it the guest sees the host's own.
    #[serde(default = "yes")]
    pub offset: bool,
}

const fn yes() -> bool {
    true
}

/// The scenario's parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// `migration`.
    pub scenario: String,
    /// The seed of all noise.
    pub seed: u64,
    /// Machines; each migrates once under each policy.
    pub runs: u64,
    /// vCPUs of a machine.
    pub vcpus: u32,
    /// The policies.
    pub policies: Vec<Policy>,
    /// Reads of each clock before and after the migration.
    pub reads: u32,
    /// The time between two reads.
    pub read_gap: Delay,
    /// The longest uptime before, in s.
    pub uptime_max_s: u64,
    /// From the pause to the destination's first instant.
    pub downtime: Delay,
    /// From that to the guest's first instruction.
    pub restore: Delay,
    /// The largest error of a host's TAI, in ns.
    pub tai_error_ns: u64,
    /// The largest error of a crystal, in ppb.
    pub crystal_ppb: u32,
    /// The hosts.
    pub hosts: Vec<HostKind>,
}

impl Parameters {
    /// # Errors
    ///
    /// The first parameter that is impossible.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let no = |key, reason: &str| Err(ScenarioError::impossible(key, reason));
        if !(1..=1024).contains(&self.vcpus) {
            return no("vcpus", "take 1 to 1024");
        }
        if self.policies.is_empty() {
            return no("policies", "name at least one");
        }
        if !(1..=100_000).contains(&self.reads) {
            return no("reads", "take 1 to 100 000");
        }
        if self.runs >= 1 << 40 {
            return no("runs", "take less than 2^40");
        }
        if self.uptime_max_s > 365 * 86_400 {
            return no("uptime_max_s", "take at most a year");
        }
        if self.tai_error_ns > 1_000_000_000 {
            return no("tai_error_ns", "take at most 1 s");
        }
        if self.crystal_ppb > 400_000 {
            return no("crystal_ppb", "take at most 400 000");
        }
        if self.hosts.is_empty() {
            return no("hosts", "name at least one");
        }
        for host in &self.hosts {
            if !(20_000_000..=100_000_000_000).contains(&host.tsc_hz) {
                return no("hosts.tsc_hz", "take 20 MHz to 100 GHz");
            }
        }
        Ok(())
    }
}
