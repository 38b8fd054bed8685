//! Bringing up CPUs: time and error of the delay loop, by who tells its length.
//!
//! # Theory
//!
//! A CPU that comes up needs loops-per-jiffy. It may be told (preset), copy a sibling's, or calibrate against timer ticks, which takes tens of
//! milliseconds for each CPU, one after the other. Which of these a CPU takes is decided by `chronovisor_guest::delay_loop`, as in a kernel; this
//! scenario walks through the calibration when it is chosen.
//!
//! # Practice
//!
//! A unit is one boot. Rows: machine x nodes x method x load.
//!
//! # Migration
//!
//! None happens here.
//!
//! # Caveats
//!
//! Jiffies advance on time even if the boot CPU is preempted. A CPU's start without calibration is a parameter, taken from the report.
//!
//! # References
//!
//! The 2023 report of lpj from host to guest (16 and 32 vCPUs on Hyper-V); Linux `init/calibrate.c`.

mod calibration;
mod parameters;
mod row;

pub use parameters::{Load, Machine, Method, Parameters};
pub use row::{Row, RowTally, SeedRow, Tally};

use chronovisor_abi::quantity::Hertz;
use chronovisor_guest::delay_loop::{Bring, Cpu, LoopsPerJiffy, Source, TickRate, Tsc};

use super::{Scenario, ScenarioError};
use crate::line::{Line, Slope};
use crate::noise::{Delay, Noise};
use crate::runner::Units;
use crate::timeline::Timeline;
use crate::watch::{Note, Violation, Watch};
use crate::world_time::{WorldSpan, WorldTime};
use calibration::Calibration;

/// The scenario's name.
pub const NAME: &str = "smp-boot";

/// The scenario: parameters and the rows that follow from them.
#[derive(Clone, Debug)]
pub struct SmpBoot {
    parameters: Parameters,
    rate: Hertz,
    slope: Slope,
    plan: Vec<Planned>,
}

/// One row to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) machine: usize,
    pub(crate) nodes: u32,
    pub(crate) method: Method,
    pub(crate) load: usize,
}

impl Scenario for SmpBoot {
    const NAME: &'static str = NAME;
    type Parameters = Parameters;
    type Row = Row;
    type SeedRow = SeedRow;

    fn new(parameters: Parameters) -> Result<Self, ScenarioError> {
        parameters.check()?;
        let impossible = || ScenarioError::impossible("tsc_hz", "take 1 MHz to 255 GHz");
        let rate = Hertz::from_hz(parameters.tsc_hz).ok_or_else(impossible)?;
        let slope =
            Slope::of_counter(rate, chronovisor_abi::quantity::Ppb::ZERO).ok_or_else(impossible)?;
        let mut plan = Vec::new();
        for machine in 0..parameters.machines.len() {
            for nodes in &parameters.numa_nodes {
                for method in &parameters.methods {
                    for load in 0..parameters.loads.len() {
                        plan.push(Planned {
                            machine,
                            nodes: *nodes,
                            method: *method,
                            load,
                        });
                    }
                }
            }
        }
        Ok(Self {
            parameters,
            rate,
            slope,
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

impl Units for SmpBoot {
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
        let row = usize::try_from(unit % rows).unwrap_or(0);
        // All methods meet the same neighbours.
        let noise = Noise::of_unit(self.parameters.seed, unit / rows);
        let boot = self.boot(&self.plan[row], noise, watch);
        tally.rows[row]
            .get_or_insert_with(RowTally::default)
            .add(&boot);
        Ok(())
    }
}

/// What one boot came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boot {
    pub(crate) took_ns: u64,
    pub(crate) calibrations: u64,
    pub(crate) failed_calibrations: u64,
    /// The distance of each CPU's value from the right one, in ppb: below and above.
    pub(crate) worst_low_ppb: u64,
    pub(crate) worst_high_ppb: u64,
    pub(crate) cpus: u64,
}

impl SmpBoot {
    fn boot(&self, planned: &Planned, mut noise: Noise, watch: &mut Watch) -> Boot {
        let machine = &self.parameters.machines[planned.machine];
        let load = &self.parameters.loads[planned.load];
        let exact = TickRate::new(machine.tick_hz)
            .and_then(|ticks| LoopsPerJiffy::from_frequency(self.rate, ticks));
        let tick = WorldSpan::from_ns(1_000_000_000 / machine.tick_hz.max(1));
        let tsc = Line::new(WorldTime::ZERO, 0, self.slope);
        // Ticks have any phase when the first CPU is kicked.
        let mut now = WorldTime::from_units(noise.uniform(0..=tick.as_units()));
        let begun = now;
        let mut boot = Boot::default();
        let per_node = machine.vcpus.div_ceil(planned.nodes).max(1);
        let mut node_values: Vec<Option<LoopsPerJiffy>> =
            vec![None; usize::try_from(planned.nodes).unwrap_or(1)];
        // The boot CPU knows its value from the calibrated TSC.
        node_values[0] = exact;
        for cpu in 1..machine.vcpus {
            let node = usize::try_from(cpu / per_node).unwrap_or(0);
            let lasts = load.preempt_for.unwrap_or(Delay::Fixed { ns: 0 });
            let mut timeline = Timeline::new(load.preempt_every, lasts, now, &mut noise);
            let start = if node == 0 {
                machine.start_ns
            } else {
                machine.remote_start_ns
            };
            now = timeline.work(now, WorldSpan::from_ns(start), &mut noise);
            note(watch, now, "cpu runs", cpu, 0);
            let bring = Bring {
                cpu: Cpu::Secondary,
                preset: exact.filter(|_| planned.method == Method::Preset),
                tsc: match planned.method {
                    Method::None => Tsc::Varying,
                    Method::Copy | Method::Preset => Tsc::Unstable,
                },
                sibling: node_values[node],
                ..Bring::default()
            };
            let choice = bring.choose();
            let value = if choice.source == Source::Search {
                boot.calibrations += 1;
                let mut calibration = Calibration {
                    tick,
                    tick_hz: machine.tick_hz,
                    poll: WorldSpan::from_ns(self.parameters.poll_ns),
                    tsc,
                    timeline: &mut timeline,
                    noise: &mut noise,
                    now,
                    watch,
                    cpu,
                };
                let value = match calibration.direct() {
                    Some(value) => value,
                    None => {
                        boot.failed_calibrations += 1;
                        calibration.search()
                    }
                };
                now = calibration.now;
                LoopsPerJiffy::new(value)
            } else {
                choice.value
            };
            note(
                watch,
                now,
                "cpu is up",
                cpu,
                value.map_or(0, LoopsPerJiffy::get),
            );
            node_values[node] = node_values[node].or(value);
            boot.judge(value, exact);
        }
        boot.took_ns = now.saturating_since(begun).floor_ns();
        boot
    }
}

impl Boot {
    fn judge(&mut self, value: Option<LoopsPerJiffy>, exact: Option<LoopsPerJiffy>) {
        self.cpus += 1;
        let (value, exact) = (
            value.map_or(0, LoopsPerJiffy::get),
            exact.map_or(1, LoopsPerJiffy::get),
        );
        let ppb = u128::from(value.abs_diff(exact)) * 1_000_000_000 / u128::from(exact);
        let ppb = u64::try_from(ppb).unwrap_or(u64::MAX);
        let worst = if value < exact {
            &mut self.worst_low_ppb
        } else {
            &mut self.worst_high_ppb
        };
        *worst = (*worst).max(ppb);
    }
}

fn note(watch: &mut Watch, time: WorldTime, what: &'static str, who: u32, value: u64) {
    watch.note(Note {
        time,
        what,
        who,
        value,
    });
}
