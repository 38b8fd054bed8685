//! `lab smp`: how long the application processors take to come up, by the way in which each gets its delay loop's value.
//!
//! A kernel brings its CPUs up one after the other. If each measures how many loops a jiffy has, that takes tens of
//! milliseconds a CPU; a host that knows the rate can hand the value over, and a CPU can copy it from a sibling.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use chronovisor_guest::delay_loop::{LoopsPerJiffy, TickRate};
use schemars::JsonSchema;
use serde::Serialize;

use super::seeds::{self, SeedRow};
use super::{GuestCounter, Place, Progress};
use crate::LabError;
use crate::backend::Backend;
use crate::clocks::Clocks;
use crate::contract::{Job, calibration, experiment, record};
use crate::machine::{Apic, Devices, Machine, Secondary, Setup};
use crate::pages::GuestPages;

/// What to bring up.
#[derive(Clone, Debug)]
pub struct Options {
    /// vCPU counts, the boot CPU included.
    pub vcpus: Vec<u32>,
    /// NUMA nodes for the sibling copy.
    pub numa: NonZeroU32,
    /// The guest's tick rate in Hz.
    pub hz: NonZeroU32,
}

/// The tick rate of most distributions' kernels, in Hz.
const USUAL_HZ: NonZeroU32 = NonZeroU32::MIN.saturating_add(249);

impl Default for Options {
    fn default() -> Self {
        Self {
            vcpus: vec![2, 4, 8, 16],
            numa: NonZeroU32::MIN,
            hz: USUAL_HZ,
        }
    }
}

/// One bring-up.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// `each-calibrates`, `sibling-copy` or `preset`.
    pub method: &'static str,
    /// vCPUs, the boot CPU included.
    pub vcpus: u32,
    /// NUMA nodes; they matter for the sibling copy only.
    pub numa: u32,
    /// From the first INIT until the last CPU was up, in ms.
    pub ms: f64,
    /// The same for each CPU, in ms.
    pub ms_per_cpu: f64,
    /// Largest error of a CPU's loops per jiffy against the counter's rate, in ppm.
    pub worst_lpj_error_ppm: f64,
}

/// All that `lab smp` found.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Report {
    /// Where.
    pub place: Place,
    /// The guest's TSC rate in Hz.
    pub tsc_hz: u64,
    /// The guest's tick rate in Hz.
    pub hz: u32,
    /// Bring-ups.
    pub rows: Vec<Row>,
    /// Published figures.
    pub seed_rows: &'static [SeedRow],
}

const METHODS: [(&str, u64); 3] = [
    ("each-calibrates", calibration::EACH),
    ("sibling-copy", calibration::SIBLING),
    ("preset", calibration::PRESET),
];

/// Brings up every vCPU count with every method.
///
/// # Errors
///
/// [`LabError`] if a guest does not come to its end.
pub fn run(
    backend: &Backend,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Report, LabError> {
    let mut rows = Vec::new();
    let mut tsc_hz = 0;
    let all = f64::from(u32::try_from(METHODS.len() * options.vcpus.len()).unwrap_or(u32::MAX));
    for &vcpus in &options.vcpus {
        for (method, how) in METHODS {
            let done = f64::from(u32::try_from(rows.len()).unwrap_or(u32::MAX));
            progress(&format!("{method}, {vcpus} vCPUs"), done / all);
            let (row, hz) = bring_up(backend, options, vcpus, method, how)?;
            rows.push(row);
            tsc_hz = hz;
        }
    }
    Ok(Report {
        place: Place::of(backend),
        tsc_hz,
        hz: options.hz.get(),
        rows,
        seed_rows: seeds::SMP,
    })
}

/// How long a bring-up may take. An edge between jiffies that was not seen closely is not taken, and a CPU that looks for one
/// gives up after 50; a calibration has two edges, and 5 jiffies or 50 ms between them.
fn patience(vcpus: u32, hz: NonZeroU32) -> Duration {
    let jiffy = Duration::from_secs(1) / hz.get();
    Duration::from_secs(30) + vcpus * (jiffy * 110 + Duration::from_millis(50))
}

#[allow(
    clippy::cast_precision_loss,
    reason = "milliseconds and ppm of a measurement"
)]
fn bring_up(
    backend: &Backend,
    options: &Options,
    vcpus: u32,
    method: &'static str,
    how: u64,
) -> Result<(Row, u64), LabError> {
    let setup = Setup {
        apic: Apic::InKernel,
        secondary: Secondary::Waiting,
        ..Setup::new(vcpus)
    };
    let mut job = Job::new(experiment::SMP, u64::from(vcpus));
    let mut machine = Machine::new(backend, &setup, &job)?;
    let counter = GuestCounter::of(&machine)?;
    let tsc_hz = counter.rate.rounded_hz();
    let ticks = u64::from(options.hz.get());
    let lpj = TickRate::new(ticks)
        .and_then(|ticks| LoopsPerJiffy::from_frequency(counter.rate, ticks))
        .map(LoopsPerJiffy::get)
        .ok_or_else(|| {
            LabError::Guest(format!(
                "{} has no loops a jiffy at {ticks} Hz",
                counter.rate
            ))
        })?;
    job.argument = [how, ticks, u64::from(options.numa.get()), lpj, 0, 0, 0];
    machine.set_job(&job)?;
    let pages = GuestPages::new(machine.memory().clone());
    let devices: Arc<dyn Devices> = Arc::new(Clocks::start(vcpus, counter, pages)?);
    let run = machine.run(&devices, patience(vcpus, options.hz))?;
    if !run.is_done() {
        return Err(LabError::Guest(run.trouble()));
    }
    let reports = machine.reports()?;
    let records = &reports
        .first()
        .ok_or_else(|| LabError::Guest("no vCPU".into()))?
        .records;
    let span = records
        .iter()
        .find(|one| one.kind == record::SMP_DONE)
        .map(|one| one.values[1].wrapping_sub(one.values[0]))
        .ok_or_else(|| LabError::Guest("the guest did not report its bring-up".into()))?;
    let ms = span as f64 * 1000.0 / tsc_hz as f64;
    let worst = records
        .iter()
        .filter(|one| one.kind == record::AP_READY)
        .map(|one| (one.values[2] as f64 / lpj as f64 - 1.0).abs() * 1e6)
        .fold(0.0, f64::max);
    let others = f64::from(vcpus.saturating_sub(1).max(1));
    let row = Row {
        method,
        vcpus,
        numa: options.numa.get(),
        ms,
        ms_per_cpu: ms / others,
        worst_lpj_error_ppm: worst,
    };
    Ok((row, tsc_hz))
}
