//! The scenario's TOML.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guest_machine::{Invariants, Load};
use crate::host_machine::HostSpec;
use crate::lapic_timer::Mode;
use crate::scenario::ScenarioError;

/// The timer's policy: ours as the timer code names them, then the historical models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Overdue ticks become one interrupt.
    Merge,
    /// Ticks more than half a period late are lost.
    SkipOnGrid,
    /// All ticks are delivered, spaced out.
    CatchUp,
    /// KVM before 4.10.
    #[serde(rename = "linux_before_8003c9ae")]
    LinuxBefore8003c9ae,
    /// KVM 4.10: two deadlines.
    #[serde(rename = "linux_8003c9ae")]
    Linux8003c9ae,
    /// The patch of April 2018 as it was posted.
    SeedPatch,
    /// KVM 4.17: one truth.
    #[serde(rename = "linux_2018_fix")]
    Linux2018Fix,
    /// KVM 2025: no huge deadline after a stall.
    #[serde(rename = "linux_2025_fix")]
    Linux2025Fix,
}

impl Policy {
    /// The name, as in TOML and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Merge => "merge",
            Self::SkipOnGrid => "skip_on_grid",
            Self::CatchUp => "catch_up",
            Self::LinuxBefore8003c9ae => "linux_before_8003c9ae",
            Self::Linux8003c9ae => "linux_8003c9ae",
            Self::SeedPatch => "seed_patch",
            Self::Linux2018Fix => "linux_2018_fix",
            Self::Linux2025Fix => "linux_2025_fix",
        }
    }
}

/// How the guest programs its timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TimerMode {
    /// Once, periodic.
    Periodic,
    /// One-shot, started again at each tick.
    OneShot,
}

impl From<TimerMode> for Mode {
    fn from(mode: TimerMode) -> Self {
        match mode {
            TimerMode::Periodic => Self::Periodic,
            TimerMode::OneShot => Self::OneShot,
        }
    }
}

/// Rows: every policy under each load after each uptime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// How the guest programs its timer.
    pub mode: TimerMode,
    /// The names of the loads.
    pub loads: Vec<String>,
    /// The uptimes, in s.
    pub uptimes_s: Vec<u64>,
}

/// Whether historical models may break invariants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Enforce {
    /// Only ours may not; the historical ones' faults are counted in their rows.
    #[default]
    Ours,
    /// None may: the first fault of a historical model ends the run.
    All,
}

/// The scenario's parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// `lapic-spikes`.
    pub scenario: String,
    /// The seed of all noise.
    pub seed: u64,
    /// Repetitions of each row.
    pub runs: u64,
    /// Ticks of a row.
    pub ticks: u64,
    /// The timer's period, in ns.
    pub period_ns: u64,
    /// The policies, in the order of the table.
    pub policies: Vec<Policy>,
    /// Which policies' faults end the run.
    #[serde(default)]
    pub enforce: Enforce,
    /// The host.
    pub host: HostSpec,
    /// The rows.
    pub series: Vec<Series>,
    /// The loads.
    pub loads: Vec<Load>,
}

impl Parameters {
    pub(super) fn load(&self, name: &str) -> Result<usize, ScenarioError> {
        self.loads
            .iter()
            .position(|load| load.name == name)
            .ok_or_else(|| {
                let names: Vec<&str> = self.loads.iter().map(|load| load.name.as_str()).collect();
                let names = names.join(", ");
                let reason = format!("there is no load called {name}; there are {names}");
                ScenarioError::impossible("series.loads", reason)
            })
    }

    pub(super) fn historical_invariants(&self) -> Invariants {
        match self.enforce {
            Enforce::Ours => Invariants::Counted,
            Enforce::All => Invariants::Enforced,
        }
    }

    /// # Errors
    ///
    /// The first parameter that is impossible.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let no = |key, reason: &str| Err(ScenarioError::impossible(key, reason));
        if !(200_000..=1_000_000_000).contains(&self.period_ns) {
            return no("period_ns", "take 200 us to 1 s");
        }
        if !(1..=1_000_000_000).contains(&self.ticks) {
            return no("ticks", "take 1 to 10^9");
        }
        if self.runs >= 1 << 32 {
            return no("runs", "take less than 2^32");
        }
        if self.policies.is_empty() || self.series.is_empty() {
            return no("policies, series", "there is nothing to run");
        }
        for series in &self.series {
            // 400 days of uptime leave 434 for the run itself.
            if series.uptimes_s.iter().any(|uptime| *uptime > 400 * 86_400) {
                return no("series.uptimes_s", "take at most 400 days (34 560 000 s)");
            }
        }
        for load in &self.loads {
            let sane = |ppb: i64| ppb.unsigned_abs() <= 500_000;
            if let Some(slewing) = load.slewing
                && (slewing.every_ns < 1_000_000
                    || !sane(slewing.around_ppb)
                    || slewing.by_ppb > 500_000)
            {
                return no("loads.slewing", "take at least 1 ms and at most 500 ppm");
            }
        }
        Ok(())
    }
}
