//! A live migration, seen from inside: every clock before and after, against exact time.
//!
//! # Theory
//!
//! A machine runs on one host, is paused, and goes on on another one whose counter stands elsewhere and runs at another rate. What its clocks
//! do meanwhile is a policy: they stand (`stop`) or go on (`advance`). Whatever the policy, no paravirtual clock may go back, and each
//! must go on at the value that the policy promises.
//!
//! | clock | read by |
//! | --- | --- |
//! | `raw-tsc` | the counter over the rate that the guest found at boot: what a kernel without a paravirtual clock does |
//! | `pvclock` | the guest crate's reader; per-vCPU records under a guard where the stable flag is clear |
//! | `reference-tsc-page` | the guest crate's reader, with the counter register as fall-back |
//! | `reference-counter-msr` | the host crate's registers |
//! | `sched-clock` | the guest crate's scheduler clock over the reference clock |
//! | `vmclock` | the page's time of day |
//!
//! # Practice
//!
//! A unit is one machine under one policy. The same machine meets the same hosts and pauses under every policy.
//!
//! # Migration
//!
//! This is it.
//!
//! # Caveats
//!
//! Reads take no time. A counter that is not invariant is one that does not promise its rate; in this run it keeps it.
//!
//! # References
//!
//! `chronovisor_host::migration`; Hyper-V TLFS, "Partition Reference Time"; the 2019 Hyper-V sched_clock patch.

mod alarm;
mod hosts;
mod journey;
mod parameters;
mod promise;
mod row;

pub use crate::clock_checks::Clock;
pub use parameters::{HostKind, Parameters, Policy, Scaling};
pub use row::{Row, RowTally, SeedRow, Tally};

use super::{Scenario, ScenarioError};
use crate::noise::Noise;
use crate::runner::Units;
use crate::watch::{Violation, Watch};
use crate::world::World;
use journey::{Journey, Step};

/// The scenario's name.
pub const NAME: &str = "migration";

/// The scenario.
#[derive(Clone, Debug)]
pub struct Migration {
    parameters: Parameters,
}

/// What a thread reuses from machine to machine.
#[derive(Debug)]
pub struct Scratch {
    world: World<Step>,
}

impl Scenario for Migration {
    const NAME: &'static str = NAME;
    type Parameters = Parameters;
    type Row = Row;
    type SeedRow = SeedRow;

    fn new(parameters: Parameters) -> Result<Self, ScenarioError> {
        parameters.check()?;
        Ok(Self { parameters })
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
        tally.rows(&self.parameters.policies)
    }

    fn seed_rows(&self) -> Vec<SeedRow> {
        SeedRow::published()
    }
}

impl Units for Migration {
    type Tally = Tally;
    type Scratch = Scratch;

    fn count(&self) -> u64 {
        let policies = u64::try_from(self.parameters.policies.len()).unwrap_or(1);
        self.parameters.runs.saturating_mul(policies)
    }

    fn seed(&self) -> u64 {
        self.parameters.seed
    }

    fn nothing(&self) -> Tally {
        Tally::new(self.parameters.policies.len())
    }

    fn scratch(&self) -> Scratch {
        Scratch {
            world: World::new(),
        }
    }

    fn run(
        &self,
        unit: u64,
        scratch: &mut Scratch,
        tally: &mut Tally,
        watch: &mut Watch,
    ) -> Result<(), Violation> {
        let policies = u64::try_from(self.parameters.policies.len())
            .unwrap_or(1)
            .max(1);
        let at = usize::try_from(unit % policies).unwrap_or(0);
        let noise = Noise::of_unit(self.parameters.seed, unit / policies);
        let policy = self.parameters.policies[at];
        let seen =
            Journey::new(&self.parameters, policy, noise, &mut scratch.world, watch)?.run()?;
        tally.add(at, &seen);
        Ok(())
    }
}
