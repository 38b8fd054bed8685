//! Updates of a running machine's clocks for 40 hours, and the jump at each of them.
//!
//! # Theory
//!
//! Whenever something about a machine's clock changes (a vCPU is plugged in, the counter gets another rate, the time of day is told, a multiplier
//! has used up its drift budget) the pages are written anew. A reader must not notice: at the counter value of the update the old and the
//! new line agree within 1 ns. A hypervisor that takes a fresh snapshot of its own clock instead steps by all that has come together since the last.
//!
//! # Practice
//!
//! A unit is one machine. Beside ours, two rows show [`crate::historical_clock`] over the same updates, and over a single one at the end, which is what was
//! measured.
//!
//! # Migration
//!
//! None happens here: see [`super::migration`].
//!
//! # Caveats
//!
//! The counter changes its rate while no vCPU runs. Unequal counters are not part of this scenario.
//!
//! # References
//!
//! `chronovisor_host::partition_clock`; the 2024 to 2026 series of kvmclock repairs.

mod life;
mod row;

pub use row::{Policy, Row, RowTally, SeedRow, Tally};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Scenario, ScenarioError};
use crate::noise::{Delay, Noise};
use crate::runner::Units;
use crate::watch::{Violation, Watch};
use crate::world::World;
use life::{Life, Step};

/// The scenario's name.
pub const NAME: &str = "clock-update";

/// The scenario's parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// `clock-update`.
    pub scenario: String,
    /// The seed of all noise.
    pub seed: u64,
    /// Machines.
    pub runs: u64,
    /// How long each is watched, in h.
    pub hours: u64,
    /// vCPUs at boot.
    pub vcpus: u32,
    /// The most vCPUs.
    pub vcpus_max: u32,
    /// The time between two updates.
    pub update_every: Delay,
    /// The rates of the counter, in turn, in Hz.
    pub rates_hz: Vec<u64>,
    /// The time between two tellings of the time of day, in ns.
    pub tell_every_ns: u64,
    /// The largest error of the host's TAI, in ns.
    pub tai_error_ns: u64,
    /// The largest error of the crystal, in ppb.
    pub crystal_ppb: u32,
}

/// The scenario.
#[derive(Clone, Debug)]
pub struct ClockUpdate {
    parameters: Parameters,
}

/// What a thread reuses from machine to machine.
#[derive(Debug)]
pub struct Scratch {
    world: World<Step>,
}

impl Scenario for ClockUpdate {
    const NAME: &'static str = NAME;
    type Parameters = Parameters;
    type Row = Row;
    type SeedRow = SeedRow;

    fn new(parameters: Parameters) -> Result<Self, ScenarioError> {
        let no = |key, reason: &str| Err(ScenarioError::impossible(key, reason));
        if !(1..=10_000).contains(&parameters.hours) {
            return no("hours", "take 1 to 10 000");
        }
        if parameters.vcpus == 0 || !(parameters.vcpus..=1024).contains(&parameters.vcpus_max) {
            return no("vcpus, vcpus_max", "take at least 1 and at most 1024");
        }
        let sane = |hz: &u64| (20_000_000..=100_000_000_000).contains(hz);
        if parameters.rates_hz.is_empty() || !parameters.rates_hz.iter().all(sane) {
            return no("rates_hz", "name at least one, 20 MHz to 100 GHz");
        }
        if parameters.tell_every_ns < 1_000_000 {
            return no("tell_every_ns", "take at least 1 ms");
        }
        if parameters.tai_error_ns > 1_000_000_000 || parameters.crystal_ppb > 400_000 {
            return no(
                "tai_error_ns, crystal_ppb",
                "take at most 1 s and 400 000 ppb",
            );
        }
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
        tally.rows()
    }

    fn seed_rows(&self) -> Vec<SeedRow> {
        SeedRow::published()
    }
}

impl Units for ClockUpdate {
    type Tally = Tally;
    type Scratch = Scratch;

    fn count(&self) -> u64 {
        self.parameters.runs
    }

    fn seed(&self) -> u64 {
        self.parameters.seed
    }

    fn nothing(&self) -> Tally {
        Tally::default()
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
        let noise = Noise::of_unit(self.parameters.seed, unit);
        let seen = Life::new(&self.parameters, noise, &mut scratch.world, watch)?.run()?;
        tally.add(&seen);
        Ok(())
    }
}
