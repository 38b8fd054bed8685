//! `lab timers`: 1 ms ticks on KVM's in-kernel APIC and on ours in user space, with an idle host and with a busy one.

mod devices;
mod grid;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chronovisor_abi::quantity::Nanos;
use chronovisor_host::apic::{CatchUp, LostTicks};
use chronovisor_stats::{Histogram, Summary};
use schemars::JsonSchema;
use serde::Serialize;

use super::seeds::{self, SeedRow};
use super::{GuestCounter, Place, Progress};
use crate::backend::Backend;
use crate::clocks::BUS;
use crate::contract::{Job, experiment, record, timer};
use crate::machine::{Apic, Devices, Machine, Setup};
use crate::{LabError, report};

pub use devices::TimerDevices;
use grid::{Grid, Moment};

/// What the host's CPUs do meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Nothing of ours.
    Idle,
    /// Two busy threads a CPU.
    Stress,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Ticks of each row, on each vCPU.
    pub ticks: u64,
    /// How many vCPUs tick at once, each with a timer of its own; one row for each number.
    pub vcpus: Vec<u32>,
    /// Loads, one after the other.
    pub loads: Vec<Load>,
    /// Lost-tick policies of our periodic timer.
    pub policies: Vec<Policy>,
}

/// A lost-tick policy by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Overdue ticks are one interrupt.
    Merge,
    /// Late ticks are skipped.
    SkipOnGrid,
    /// Overdue ticks are delivered one by one.
    CatchUp,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Merge, Self::SkipOnGrid, Self::CatchUp];

    const fn name(self) -> &'static str {
        match self {
            Self::Merge => "merge",
            Self::SkipOnGrid => "skip-on-grid",
            Self::CatchUp => "catch-up",
        }
    }

    const fn of_host(self) -> LostTicks {
        match self {
            Self::Merge => LostTicks::Merge,
            Self::SkipOnGrid => LostTicks::SkipOnGrid,
            Self::CatchUp => LostTicks::CatchUp(CatchUp::DEFAULT),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ticks: 500,
            vcpus: vec![1],
            loads: vec![Load::Idle],
            policies: vec![Policy::Merge],
        }
    }
}

/// One timer's ticks.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// `kvm-in-kernel` or `ours-timerfd`.
    pub apic: &'static str,
    /// `periodic`, `one-shot`, `tsc-deadline` or `synthetic-direct`.
    pub timer: &'static str,
    /// The lost-tick policy, where it is ours to choose.
    pub policy: Option<&'static str>,
    /// vCPUs that ticked at once; the figures are over all of them.
    pub vcpus: u32,
    /// The host's load.
    pub load: Load,
    /// Intervals between ticks, as the guest's interrupt handler saw them.
    pub intervals: u64,
    /// The shortest, in us.
    pub min_us: f64,
    /// The mean, in us.
    pub mean_us: f64,
    /// The longest, in us.
    pub max_us: f64,
    /// The standard deviation, in us.
    pub deviation_us: f64,
    /// The median, in us.
    pub p50_us: Option<f64>,
    /// The 99th percentile, in us, if there are ticks enough to tell.
    pub p99_us: Option<f64>,
    /// The same of 99.9 %, from 1000 ticks on.
    pub p99_9_us: Option<f64>,
    /// The same of 99.99 %, from 10 000 ticks on.
    pub p99_99_us: Option<f64>,
    /// From the arming until the last tick, in us, on the vCPU that took least. A timer that is never early takes at least its
    /// ticks' time.
    pub armed_to_last_us: f64,
    /// Periods from the arming until the last tick that no tick came for, on all vCPUs. None for a timer that is armed again by
    /// each tick: it loses none.
    pub lost: Option<u64>,
}

/// All that `lab timers` found.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Report {
    /// Where.
    pub place: Place,
    /// The guest's TSC rate in Hz.
    pub tsc_hz: u64,
    /// The period asked for, in us.
    pub period_us: f64,
    /// Timers.
    pub rows: Vec<Row>,
    /// Published figures.
    pub seed_rows: &'static [SeedRow],
}

const PERIOD: Duration = Duration::from_millis(1);

const MODES: [(&str, u64); 3] = [
    ("periodic", timer::PERIODIC),
    ("one-shot", timer::ONE_SHOT),
    ("tsc-deadline", timer::TSC_DEADLINE),
];

/// Which timer a row is about.
#[derive(Clone, Copy)]
struct Case {
    apic: Apic,
    timer: &'static str,
    number: u64,
    policy: Policy,
}

/// Measures every timer under every load.
///
/// # Errors
///
/// [`LabError`] if a guest does not come to its end.
pub fn run(
    backend: &Backend,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Report, LabError> {
    let mut cases = Vec::new();
    for (timer, number) in MODES {
        cases.push(Case {
            apic: Apic::InKernel,
            timer,
            number,
            policy: Policy::Merge,
        });
    }
    for (timer, number) in MODES {
        // Only a periodic timer can owe more than one tick.
        let policies = if number == timer::PERIODIC {
            options.policies.as_slice()
        } else {
            &[Policy::Merge]
        };
        cases.extend(policies.iter().map(|&policy| Case {
            apic: Apic::UserSpace,
            timer,
            number,
            policy,
        }));
    }
    cases.push(Case {
        apic: Apic::UserSpace,
        timer: "synthetic-direct",
        number: timer::SYNTHETIC,
        policy: Policy::Merge,
    });
    let all = cases.len() * options.vcpus.len() * options.loads.len();
    let all = f64::from(u32::try_from(all).unwrap_or(u32::MAX));
    let mut rows = Vec::new();
    let mut tsc_hz = 0;
    for &load in &options.loads {
        let stress = (load == Load::Stress).then(Stress::start);
        for &vcpus in &options.vcpus {
            for case in &cases {
                let done = f64::from(u32::try_from(rows.len()).unwrap_or(u32::MAX));
                progress(&format!("{} {:?}", case.timer, case.apic), done / all);
                let (row, hz) = measure(backend, options.ticks, *case, vcpus, load)?;
                rows.push(row);
                tsc_hz = hz;
            }
        }
        drop(stress);
    }
    Ok(Report {
        place: Place::of(backend),
        tsc_hz,
        period_us: PERIOD.as_secs_f64() * 1e6,
        rows,
        seed_rows: seeds::TIMERS,
    })
}

fn measure(
    backend: &Backend,
    ticks: u64,
    case: Case,
    vcpus: u32,
    load: Load,
) -> Result<(Row, u64), LabError> {
    let setup = Setup {
        apic: case.apic,
        ..Setup::new(vcpus)
    };
    let mut job = Job::new(experiment::TIMERS, u64::from(vcpus));
    let mut machine = Machine::new(backend, &setup, &job)?;
    let counter = GuestCounter::of(&machine)?;
    let tsc_hz = counter.rate.rounded_hz();
    // In the timer's own units.
    let period = if case.number == timer::SYNTHETIC {
        10_000
    } else {
        BUS.rounded_hz() / 1000
    };
    job.argument = [case.number, ticks, period, tsc_hz / 1000, 0, 0, 0];
    machine.set_job(&job)?;
    let devices = TimerDevices::new(&machine, counter, case.apic, case.policy.of_host())?;
    let devices: Arc<dyn Devices> = Arc::new(devices);
    let patience = Duration::from_secs(10) + PERIOD * u32::try_from(ticks).unwrap_or(u32::MAX) * 4;
    let start = Moment::now();
    let run = machine.run(&devices, patience)?;
    let end = Moment::now();
    let trouble =
        |what: &str| LabError::Guest(format!("{} on {:?}: {what}", case.timer, case.apic));
    if !run.is_done() {
        return Err(trouble(&run.trouble()));
    }
    let period = Nanos::from_ns(u64::try_from(PERIOD.as_nanos()).unwrap_or(u64::MAX));
    let grid = match case.apic {
        Apic::InKernel => Grid::of_monotonic(period, start, end),
        Apic::UserSpace | Apic::None => Grid::of_counter(period, tsc_hz),
    };
    let mut intervals = Histogram::new();
    let mut lost = 0_u64;
    let mut shortest = u64::MAX;
    for (vcpu, report) in (0..).zip(machine.reports()?) {
        let armed = report
            .records
            .iter()
            .find(|one| one.kind == record::SAMPLES)
            .map(|one| one.values[0])
            .ok_or_else(|| trouble("the guest did not report its ticks"))?;
        let seen = report::samples(machine.memory(), vcpu, ticks)?;
        add_intervals_ns(&mut intervals, &seen, tsc_hz);
        lost = lost.saturating_add(grid.lost(armed, &seen));
        let last = seen.last().copied().unwrap_or(armed);
        shortest = shortest.min(last.saturating_sub(armed));
    }
    let summary = intervals
        .summary()
        .ok_or_else(|| trouble("fewer than two ticks"))?;
    let has_grid = matches!(case.number, timer::PERIODIC | timer::SYNTHETIC);
    let row = Row {
        armed_to_last_us: us_of(shortest, tsc_hz),
        lost: has_grid.then_some(lost),
        ..row_of(&summary, case, vcpus, load)
    };
    Ok((row, tsc_hz))
}

#[allow(clippy::cast_precision_loss, reason = "microseconds of a measurement")]
fn us_of(ticks: u64, tsc_hz: u64) -> f64 {
    ticks as f64 * 1e6 / tsc_hz.max(1) as f64
}

/// Adds one vCPU's intervals in ns, rounded down.
fn add_intervals_ns(intervals: &mut Histogram, ticks: &[u64], tsc_hz: u64) {
    for pair in ticks.windows(2) {
        let delta =
            u128::from(pair[1].saturating_sub(pair[0])) * 1_000_000_000 / u128::from(tsc_hz.max(1));
        intervals.record(u64::try_from(delta).unwrap_or(u64::MAX));
    }
}

#[allow(clippy::cast_precision_loss, reason = "statistics of microseconds")]
fn row_of(summary: &Summary, case: Case, vcpus: u32, load: Load) -> Row {
    let us = |ns: u64| ns as f64 / 1000.0;
    let ours = case.apic == Apic::UserSpace;
    Row {
        apic: if ours {
            "ours-timerfd"
        } else {
            "kvm-in-kernel"
        },
        timer: case.timer,
        policy: match case.number {
            timer::PERIODIC if ours => Some(case.policy.name()),
            // As the interface's specification has it.
            timer::SYNTHETIC => Some(Policy::CatchUp.name()),
            _ => None,
        },
        vcpus,
        load,
        intervals: summary.count,
        min_us: us(summary.min),
        mean_us: summary.mean / 1000.0,
        max_us: us(summary.max),
        deviation_us: summary.deviation / 1000.0,
        p50_us: summary.percentiles.p50.map(us),
        p99_us: summary.percentiles.p99.map(us),
        p99_9_us: summary.percentiles.p99_9.map(us),
        p99_99_us: summary.percentiles.p99_99.map(us),
        armed_to_last_us: 0.0,
        lost: None,
    }
}

/// Busy threads, two for each CPU.
struct Stress {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Stress {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = (0..2 * cpus)
            .map(|_| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect();
        Self { stop, threads }
    }
}

impl Drop for Stress {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A busy loop cannot panic.
            let _ = thread.join();
        }
    }
}
