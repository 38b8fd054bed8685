//! A guest's 1 ms timer under every policy and model, idle and stressed, after any uptime.
//!
//! # Theory
//!
//! In 2018 a Windows guest's 1 ms timer was reported to stall for up to 86 ms when idle and 140 ms under stress, after a change that was to make it
//! cheaper, and to do so the longer the guest was up. This scenario runs the same program over the same timer as it was before, after, and after each
//! repair, and over ours.
//!
//! # Practice
//!
//! A unit is one row of one repetition. All policies of a row's load and uptime get the same noise, so what differs is the policy.
//!
//! # Migration
//!
//! None happens here.
//!
//! # Caveats
//!
//! What the loads are made of is stated in the TOML; `docs/simulation.md` says what was taken from the report and what is assumed.
//!
//! # References
//!
//! KVM mailing list, April 2018, "spikes" of the local APIC timer; [`crate::historical_lapic`].

mod parameters;
mod row;

pub use parameters::{Parameters, Policy, Series, TimerMode};
pub use row::{Row, RowTally, SeedRow, Tally};

use chronovisor_abi::quantity::{Nanos, Tsc};
use chronovisor_host::apic::{CatchUp, LostTicks};

use super::{Scenario, ScenarioError};
use crate::guest_machine::{Invariants, Load, Program, Seen, Vcpu};
use crate::historical_lapic::{
    AfterStall, Before8003c9ae, Resynchronised, SeedPatch, TwoDeadlines,
};
use crate::host_lapic::HostLapic;
use crate::host_machine::HostMachine;
use crate::lapic_timer::LapicTimer;
use crate::noise::Noise;
use crate::runner::Units;
use crate::watch::{Violation, Watch};
use crate::world_time::WorldTime;

/// The scenario's name.
pub const NAME: &str = "lapic-spikes";

/// The scenario: parameters and the rows that follow from them.
#[derive(Clone, Debug)]
pub struct LapicSpikes {
    parameters: Parameters,
    host: HostMachine,
    plan: Vec<Planned>,
}

/// One row to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) policy: Policy,
    pub(crate) mode: TimerMode,
    /// The load's place in the parameters.
    pub(crate) load: usize,
    pub(crate) uptime_s: u64,
    /// The same for all policies of one load and uptime.
    noise: u64,
}

impl Scenario for LapicSpikes {
    const NAME: &'static str = NAME;
    type Parameters = Parameters;
    type Row = Row;
    type SeedRow = SeedRow;

    fn new(parameters: Parameters) -> Result<Self, ScenarioError> {
        parameters.check()?;
        let host = HostMachine::new(parameters.host, WorldTime::ZERO, Tsc::from_ticks(0))
            .map_err(|error| ScenarioError::impossible("host", error))?;
        HostLapic::new(LostTicks::Merge, host.nominal(), Tsc::from_ticks(0))
            .map_err(|error| ScenarioError::impossible("host.tsc_hz", error))?;
        let mut plan = Vec::new();
        let mut noise = 0;
        for series in &parameters.series {
            for name in &series.loads {
                let load = parameters.load(name)?;
                for uptime_s in &series.uptimes_s {
                    for policy in &parameters.policies {
                        plan.push(Planned {
                            policy: *policy,
                            mode: series.mode,
                            load,
                            uptime_s: *uptime_s,
                            noise,
                        });
                    }
                    noise += 1;
                }
            }
        }
        Ok(Self {
            parameters,
            host,
            plan,
        })
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn runs(&self) -> u64 {
        self.parameters.runs
    }

    fn set(&mut self, seed: Option<u64>, runs: Option<u64>) {
        self.parameters.seed = seed.unwrap_or(self.parameters.seed);
        self.parameters.runs = runs.unwrap_or(self.parameters.runs);
    }

    fn rows(&self, tally: &Tally) -> Vec<Row> {
        self.plan
            .iter()
            .zip(&tally.rows)
            .filter_map(|(planned, tally)| Row::of(planned, tally.as_ref()?, &self.parameters))
            .collect()
    }

    fn seed_rows(&self) -> Vec<SeedRow> {
        SeedRow::published()
    }
}

impl Units for LapicSpikes {
    type Tally = Tally;
    type Scratch = ();

    fn count(&self) -> u64 {
        let rows = u64::try_from(self.plan.len()).unwrap_or(u64::MAX);
        self.parameters.runs.saturating_mul(rows)
    }

    fn seed(&self) -> u64 {
        self.parameters.seed
    }

    fn nothing(&self) -> Tally {
        Tally {
            rows: vec![None; self.plan.len()],
        }
    }

    fn scratch(&self) {}

    fn run(
        &self,
        unit: u64,
        (): &mut (),
        tally: &mut Tally,
        watch: &mut Watch,
    ) -> Result<(), Violation> {
        let rows = u64::try_from(self.plan.len()).unwrap_or(u64::MAX).max(1);
        let (run, row) = (unit / rows, usize::try_from(unit % rows).unwrap_or(0));
        let planned = &self.plan[row];
        // The number of a load and uptime stays below 2^32, and so does that of a run.
        let noise = Noise::of_unit(self.parameters.seed, (run << 32) | planned.noise);
        let seen = self.drive(planned, noise, watch)?;
        tally.rows[row]
            .get_or_insert_with(RowTally::default)
            .add(&seen);
        Ok(())
    }
}

impl LapicSpikes {
    fn drive(&self, planned: &Planned, noise: Noise, watch: &mut Watch) -> Result<Seen, Violation> {
        let load = &self.parameters.loads[planned.load];
        let khz = self.host.believed_khz();
        let counted = self.parameters.historical_invariants();
        let ours = |policy: LostTicks, watch: &Watch| {
            HostLapic::new(policy, self.host.nominal(), Tsc::from_ticks(0))
                .map_err(|error| watch.violation("possible-rates", error.to_string()))
        };
        let mut go = Drive {
            scenario: self,
            planned,
            load,
            noise,
        };
        match planned.policy {
            Policy::Merge => {
                let timer = ours(LostTicks::Merge, watch)?;
                go.with(timer, Invariants::Enforced, watch)
            }
            Policy::SkipOnGrid => {
                let timer = ours(LostTicks::SkipOnGrid, watch)?;
                go.with(timer, Invariants::Enforced, watch)
            }
            Policy::CatchUp => {
                let timer = ours(LostTicks::CatchUp(CatchUp::DEFAULT), watch)?;
                go.with(timer, Invariants::Enforced, watch)
            }
            Policy::LinuxBefore8003c9ae => go.with(Before8003c9ae::default(), counted, watch),
            Policy::Linux8003c9ae => go.with(TwoDeadlines::new(khz), counted, watch),
            Policy::SeedPatch => go.with(SeedPatch::new(khz), counted, watch),
            Policy::Linux2018Fix => {
                let timer = Resynchronised::new(AfterStall::HugeDeadline, khz);
                go.with(timer, counted, watch)
            }
            Policy::Linux2025Fix => {
                let timer = Resynchronised::new(AfterStall::StartFromNow, khz);
                go.with(timer, counted, watch)
            }
        }
    }
}

struct Drive<'a> {
    scenario: &'a LapicSpikes,
    planned: &'a Planned,
    load: &'a Load,
    noise: Noise,
}

impl Drive<'_> {
    fn with<T: LapicTimer>(
        &mut self,
        timer: T,
        invariants: Invariants,
        watch: &mut Watch,
    ) -> Result<Seen, Violation> {
        let parameters = &self.scenario.parameters;
        let program = Program {
            mode: self.planned.mode.into(),
            period: Nanos::from_ns(parameters.period_ns),
            ticks: parameters.ticks,
            uptime: Nanos::from_ns(self.planned.uptime_s * 1_000_000_000),
        };
        let (host, noise) = (self.scenario.host, self.noise.clone());
        Vcpu::new(host, timer, self.load, program, invariants, noise).run(watch)
    }
}
