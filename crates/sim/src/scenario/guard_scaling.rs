//! What a guard against backward steps costs, by the number of CPUs that read.
//!
//! # Theory
//!
//! A global last value is written at each read that advances, so the line that holds it moves from CPU to CPU at each read. A coarse one is written once a
//! quantum and otherwise only read, so every CPU keeps a copy. Which value is given out, and whether the line is written, is decided by the guards of
//! `chronovisor_guest`; what the line costs by [`crate::contended_line`].
//!
//! # Practice
//!
//! A unit is one row of one repetition: so many CPUs that do nothing but read.
//!
//! # Migration
//!
//! None happens here.
//!
//! # Caveats
//!
//! Reads do nothing between them: the worst case. A guard is asked once, when its line is there; between that and its write no other CPU's write
//! takes effect.
//!
//! # References
//!
//! The 2012 measurements of gettimeofday in guests with up to 16 CPUs; Linux `arch/x86/kernel/pvclock.c`.

mod parameters;
mod row;

pub use parameters::{GuardKind, Parameters, Series};
pub use row::{Row, RowTally, SeedRow, Tally};

use chronovisor_abi::quantity::Nanos;
use chronovisor_guest::guard::{CoarseGuard, GlobalGuard, Guard};

use super::{Scenario, ScenarioError};
use crate::contended_line::Line;
use crate::noise::Noise;
use crate::runner::Units;
use crate::watch::{Violation, Watch};
use crate::world::World;
use crate::world_time::{UNITS_PER_NS, WorldSpan, WorldTime};

/// The scenario's name.
pub const NAME: &str = "guard-scaling";

/// The quantum of the coarse guard: 2^10 ns.
const QUANTUM_BITS: u32 = 10;
/// Clocks start here, so that a skew cannot take them below 0.
const START_NS: u64 = 1_000_000_000;

/// The scenario: parameters and the rows that follow from them.
#[derive(Clone, Debug)]
pub struct GuardScaling {
    parameters: Parameters,
    plan: Vec<Planned>,
}

/// One row to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) series: usize,
    pub(crate) cpus: u32,
    pub(crate) guard: GuardKind,
}

/// What one row's run came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) reads: u64,
    /// The CPUs' time for all their reads, in 2^-8 ns.
    pub(crate) units: u128,
    pub(crate) transfers: u64,
    pub(crate) backward_steps: u64,
    pub(crate) largest_back_ns: u64,
    pub(crate) stalls: u64,
}

/// Where a CPU is in its read.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It begins.
    Begin { cpu: u32 },
    /// It has the clock's time and wants the guard's line.
    Want { cpu: u32, time_ns: u64 },
    /// The line is there.
    Look { cpu: u32, time_ns: u64 },
}

/// What a thread reuses.
#[derive(Debug)]
pub struct Scratch {
    world: World<Step>,
}

impl Scenario for GuardScaling {
    const NAME: &'static str = NAME;
    type Parameters = Parameters;
    type Row = Row;
    type SeedRow = SeedRow;

    fn new(parameters: Parameters) -> Result<Self, ScenarioError> {
        parameters.check()?;
        let mut plan = Vec::new();
        for (at, series) in parameters.series.iter().enumerate() {
            for cpus in &series.cpus {
                for guard in &parameters.guards {
                    plan.push(Planned {
                        series: at,
                        cpus: *cpus,
                        guard: *guard,
                    });
                }
            }
        }
        Ok(Self { parameters, plan })
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
        Row::all(&self.plan, tally, &self.parameters)
    }

    fn seed_rows(&self) -> Vec<SeedRow> {
        SeedRow::published()
    }
}

impl Units for GuardScaling {
    type Tally = Tally;
    type Scratch = Scratch;

    fn count(&self) -> u64 {
        let rows = u64::try_from(self.plan.len()).unwrap_or(u64::MAX);
        self.parameters.runs.saturating_mul(rows)
    }

    fn seed(&self) -> u64 {
        self.parameters.seed
    }

    fn nothing(&self) -> Tally {
        Tally {
            rows: vec![RowTally::default(); self.plan.len()],
        }
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
        let rows = u64::try_from(self.plan.len()).unwrap_or(u64::MAX).max(1);
        let row = usize::try_from(unit % rows).unwrap_or(0);
        let planned = &self.plan[row];
        let noise = Noise::of_unit(self.parameters.seed, unit);
        let world = &mut scratch.world;
        let seen = match planned.guard {
            GuardKind::None => self.read(planned, None::<&GlobalGuard>, noise, world, watch),
            GuardKind::Global => self.read(planned, Some(&GlobalGuard::new()), noise, world, watch),
            GuardKind::Coarse => {
                let guard = CoarseGuard::with_quantum_of_2_to_the::<QUANTUM_BITS>();
                self.read(planned, Some(&guard), noise, world, watch)
            }
        }?;
        tally.rows[row].add(&seen);
        Ok(())
    }
}

impl GuardScaling {
    /// Every CPU reads its clock again and again.
    fn read<G: Guard>(
        &self,
        planned: &Planned,
        guard: Option<&G>,
        mut noise: Noise,
        world: &mut World<Step>,
        watch: &mut Watch,
    ) -> Result<Seen, Violation> {
        world.start_at(WorldTime::ZERO);
        let series = &self.parameters.series[planned.series];
        let mut line = Line::new(series.costs.unwrap_or(self.parameters.costs));
        let mut cpus = Vec::new();
        for cpu in 0..planned.cpus {
            let skew_ns = noise.uniform(0..=2 * self.parameters.skew_ns);
            let start = noise.uniform(0..=series.local_ns.saturating_mul(UNITS_PER_NS));
            world.after(WorldSpan::from_units(start), Step::Begin { cpu });
            cpus.push((skew_ns, WorldTime::ZERO));
        }
        let wanted = self.parameters.reads * u64::from(planned.cpus);
        let mut seen = Seen::default();
        let mut newest = 0_u64;
        while seen.reads < wanted {
            let Some(step) = world.take() else { break };
            let now = world.now();
            match step {
                Step::Begin { cpu } => {
                    let local = series.local_ns + noise.uniform(0..=series.jitter_ns);
                    let (skew_ns, begun) = &mut cpus[index(cpu)];
                    *begun = now;
                    let read_at = now.saturating_add(WorldSpan::from_ns(local));
                    let time_ns = START_NS + read_at.floor_ns() + *skew_ns;
                    world.at(read_at, Step::Want { cpu, time_ns });
                }
                Step::Want { cpu, time_ns } => {
                    let looked = if guard.is_some() {
                        line.load(cpu, now)
                    } else {
                        now
                    };
                    world.at(looked, Step::Look { cpu, time_ns });
                }
                Step::Look { cpu, time_ns } => {
                    let value = guard.map_or(time_ns, |guard| {
                        guard.admit(Nanos::from_ns(time_ns)).as_ns()
                    });
                    // The guard has written its line if it gave out more than was given out before.
                    let done = if guard.is_some() && value > newest {
                        line.write(cpu, now)
                    } else {
                        now
                    };
                    world.note(watch, planned.guard.name(), cpu, value);
                    let (_, begun) = cpus[index(cpu)];
                    seen.take(value, newest, done.saturating_since(begun));
                    if value < newest && guard.is_some() {
                        let details = format!("{value} ns after {newest} ns");
                        return Err(watch.violation("never-back", details));
                    }
                    newest = newest.max(value);
                    world.at(done, Step::Begin { cpu });
                }
            }
        }
        seen.transfers = line.transfers();
        Ok(seen)
    }
}

impl Seen {
    fn take(&mut self, value: u64, newest: u64, took: WorldSpan) {
        self.reads += 1;
        self.units += u128::from(took.as_units());
        self.stalls += u64::from(value == newest);
        if value < newest {
            self.backward_steps += 1;
            self.largest_back_ns = self.largest_back_ns.max(newest - value);
        }
    }
}

/// A CPU's place in a list of at most 64.
fn index(cpu: u32) -> usize {
    usize::try_from(cpu).unwrap_or(0)
}
