//! `lab migrate`: a guest that reads every clock on every vCPU is updated, paused, saved, and goes on in another VM.
//!
//! Each move saves the clocks with `chronovisor-host`'s migration module, adjusts them to the destination by the policy, and
//! restores them there. Where KVM honours a TSC offset, the destination's counter stands elsewhere, so that the raw TSC jumps;
//! where it does not, the destination counts at another nominal rate, so that every page is re-based and rescaled.

mod destination;

use std::sync::Arc;
use std::time::{Duration, Instant};

use chronovisor_host::migration::Policy as HostPolicy;
use chronovisor_host::partition_clock::Change;
use schemars::JsonSchema;
use serde::Serialize;
use vm_memory::{Bytes, GuestAddress};

use super::{GuestCounter, Place, Progress};
use crate::LabError;
use crate::backend::Backend;
use crate::clocks::Clocks;
use crate::contract::{Job, STOP_WORD_GPA, experiment, record, row};
use crate::machine::{Devices, Machine, Setup};
use crate::pages::GuestPages;
use crate::report;

use destination::{Moved, Plan, Shift};

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// vCPUs, all of which read.
    pub vcpus: u32,
    /// Moves under each policy.
    pub count: u32,
    /// How long the guest runs between two moves.
    pub run: Duration,
    /// How long its state waits at each move, besides what the move takes. Longer than the host keeps a vCPU from running, it
    /// tells a clock that stands from one that goes on.
    pub pause: Duration,
    /// Policies.
    pub policies: Vec<Policy>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            vcpus: 2,
            count: 20,
            run: Duration::from_millis(10),
            pause: Duration::ZERO,
            policies: Policy::ALL.to_vec(),
        }
    }
}

/// What the guest's clocks do during the downtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// They stand.
    Stop,
    /// They go on.
    Advance,
    /// Counter and pvclock go on, reference time stands.
    PerEncoding,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Stop, Self::Advance, Self::PerEncoding];

    const fn of_host(self) -> HostPolicy {
        match self {
            Self::Stop => HostPolicy::Stop,
            Self::Advance => HostPolicy::Advance,
            Self::PerEncoding => HostPolicy::PerEncoding,
        }
    }
}

/// One clock under one policy.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// The policy.
    pub policy: Policy,
    /// The clock.
    pub clock: &'static str,
    /// Whether it has to be continuous. The raw TSC is shown for comparison: it jumps where its offset is honoured.
    pub must_hold: bool,
    /// Reads, all vCPUs together.
    pub reads: u64,
    /// Reads that were less than what some vCPU read before.
    pub steps_back: u64,
    /// The largest such step, in us.
    pub largest_step_us: f64,
    /// The largest advance between two reads of one vCPU, in us: preemption, an update, or a move's downtime.
    pub largest_gap_us: f64,
    /// The same on the vCPU where it was least.
    pub least_gap_us: f64,
    /// The gaps that the policy allows, in us: every vCPU sees the lower bound, none the upper one. None for the raw TSC.
    pub allowed_gap_us: Option<[f64; 2]>,
}

impl Row {
    /// It never went back, and at no move did it stand or jump where the policy says otherwise.
    #[must_use]
    pub fn holds(&self) -> bool {
        let allowed = self
            .allowed_gap_us
            .is_none_or(|[least, most]| self.least_gap_us >= least && self.largest_gap_us <= most);
        !self.must_hold || (self.steps_back == 0 && allowed)
    }
}

/// The moves under one policy.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Moves {
    /// The policy.
    pub policy: Policy,
    /// How many.
    pub count: u32,
    /// Updates of all pages while the guest ran.
    pub live_updates: u32,
    /// The mean downtime, in ms.
    pub mean_downtime_ms: f64,
    /// The longest, in ms.
    pub longest_downtime_ms: f64,
    /// The longest time between the saved state and the restored one, in ms: what a clock that goes on advances by.
    pub longest_transfer_ms: f64,
    /// Size of the saved clock state of the VM, in bytes.
    pub state_bytes: usize,
    /// The largest jump of the guest's counter at a move, in TSC ticks: 0 where the offset cannot be set.
    pub largest_tsc_jump: u64,
}

/// All that `lab migrate` found.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Report {
    /// Where.
    pub place: Place,
    /// vCPUs.
    pub vcpus: u32,
    /// The guest's TSC rate in Hz.
    pub tsc_hz: u64,
    /// How the destination differs from the source.
    pub destination: &'static str,
    /// Moves.
    pub moves: Vec<Moves>,
    /// Clocks.
    pub rows: Vec<Row>,
}

impl Report {
    /// No clock of ours went back, stood or jumped where the policy says otherwise.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.rows.iter().all(Row::holds)
    }
}

/// Moves a guest `options.count` times under each policy.
///
/// # Errors
///
/// [`LabError`] if the guest dies or a step of a move fails.
pub fn run(
    backend: &Backend,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Report, LabError> {
    let mut report = Report {
        place: Place::of(backend),
        vcpus: options.vcpus,
        tsc_hz: 0,
        destination: "",
        moves: Vec::new(),
        rows: Vec::new(),
    };
    let all = f64::from(u32::try_from(options.policies.len()).unwrap_or(1) * options.count.max(1));
    for (index, &policy) in (0_u32..).zip(&options.policies) {
        under_policy(backend, options, policy, &mut report, &mut |done| {
            progress(
                &format!("{policy:?}"),
                f64::from(index * options.count + done) / all,
            );
        })?;
    }
    Ok(report)
}

fn under_policy(
    backend: &Backend,
    options: &Options,
    policy: Policy,
    found: &mut Report,
    progress: &mut dyn FnMut(u32),
) -> Result<(), LabError> {
    let setup = Setup::new(options.vcpus);
    let mut machine = Machine::new(
        backend,
        &setup,
        &Job::new(experiment::MIGRATE, u64::from(options.vcpus)),
    )?;
    let counter = GuestCounter::of(&machine)?;
    let pages = GuestPages::new(machine.memory().clone());
    let mut clocks = Arc::new(Clocks::start(options.vcpus, counter, pages)?);
    let mut moves = Moves {
        policy,
        count: options.count,
        live_updates: 0,
        mean_downtime_ms: 0.0,
        longest_downtime_ms: 0.0,
        longest_transfer_ms: 0.0,
        state_bytes: 0,
        largest_tsc_jump: 0,
    };
    let (mut downtime, mut transfer) = (Duration::ZERO, Duration::ZERO);
    let devices = |clocks: &Arc<Clocks>| -> Arc<dyn Devices> { Arc::<Clocks>::clone(clocks) };
    let mut running = machine.start(&devices(&clocks));
    wait_for_readers(&machine, options.vcpus)?;
    for index in 0..options.count {
        progress(index);
        std::thread::sleep(options.run / 2);
        // All pages at once, under the readers' eyes: once to a rate 1 % lower and once back.
        let rate = clocks.lock().clock().rate();
        if let Some(other) = rate.checked_scale(99, 100) {
            clocks.update(Change::Frequency(other))?;
            clocks.update(Change::Frequency(rate))?;
            moves.live_updates += 2;
        }
        std::thread::sleep(options.run / 2);
        let start = Instant::now();
        let stopped = machine.stop(running)?;
        if stopped
            .ended
            .iter()
            .any(|ended| ended.end != crate::machine::End::Stopped)
        {
            return Err(LabError::Guest(stopped.trouble()));
        }
        let moved: Moved = destination::move_to(
            backend,
            &setup,
            machine,
            &clocks,
            counter,
            Plan {
                policy: policy.of_host(),
                shift: Shift::of(index, counter.rate),
                pause: options.pause,
            },
        )?;
        machine = moved.machine;
        clocks = Arc::new(moved.clocks);
        moves.state_bytes = moved.state_bytes;
        moves.largest_tsc_jump = moves.largest_tsc_jump.max(moved.tsc_jump);
        transfer = transfer.max(moved.between);
        found.destination = moved.destination;
        running = machine.start(&devices(&clocks));
        let took = start.elapsed();
        downtime += took;
        moves.longest_downtime_ms = moves.longest_downtime_ms.max(took.as_secs_f64() * 1000.0);
    }
    std::thread::sleep(options.run);
    machine
        .memory()
        .write_obj(1_u64, GuestAddress(STOP_WORD_GPA))
        .map_err(|error| LabError::Memory {
            what: format!("the stop word: {error}"),
        })?;
    let run = machine.finish(running, Duration::from_secs(20))?;
    if !run.is_done() {
        return Err(LabError::Guest(run.trouble()));
    }
    moves.mean_downtime_ms = downtime.as_secs_f64() * 1000.0 / f64::from(options.count.max(1));
    moves.longest_transfer_ms = transfer.as_secs_f64() * 1000.0;
    found.moves.push(moves);
    found.tsc_hz = counter.rate.rounded_hz();
    found
        .rows
        .extend(rows(&machine, policy, found.tsc_hz, transfer)?);
    Ok(())
}

/// Until every vCPU has read every clock once: a move before that would be seen by nobody.
fn wait_for_readers(machine: &Machine, vcpus: u32) -> Result<(), LabError> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let start = Instant::now();
    // Each vCPU says so in its report; the machine itself has no vCPUs while they run.
    let mut reading = 0;
    while reading < vcpus {
        if report::read(machine.memory(), reading)?.step.is_some() {
            reading += 1;
            continue;
        }
        if start.elapsed() > PATIENCE {
            return Err(LabError::Guest(format!(
                "vCPU {reading} did not read its clocks within {} s",
                PATIENCE.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// What a gap may be above the time that the policy wants: a busy host keeps a vCPU's thread waiting, most of all where its CPUs are emulated,
/// and the guest stands still a little before the save and after the restore.
const MOST_KEPT_WAITING: Duration = Duration::from_secs(1);

/// The two reads around a move and the saved and the restored time are each rounded to a clock's unit, 100 ns at most.
const ROUNDING: Duration = Duration::from_nanos(400);

/// The gaps, in us, that `policy` allows on the clock if its states were `transfer` apart at the longest move.
fn allowed_gap_us(policy: Policy, number: u32, transfer: Duration) -> [f64; 2] {
    let goes_on = match policy {
        Policy::Stop => false,
        Policy::Advance => true,
        Policy::PerEncoding => number == row::PVCLOCK_PAGE_OURS,
    };
    let wanted = if goes_on { transfer } else { Duration::ZERO };
    [wanted.saturating_sub(ROUNDING), wanted + MOST_KEPT_WAITING]
        .map(|time| time.as_secs_f64() * 1e6)
}

/// (number, name, must hold)
const CLOCKS: &[(u32, &str, bool)] = &[
    (row::REFERENCE_TSC_PAGE, "reference-tsc-page", true),
    (row::REFERENCE_COUNTER_MSR, "reference-counter-msr", true),
    (row::PVCLOCK_PAGE_OURS, "pvclock-page-ours", true),
    (row::SCHED_CLOCK_PAGE, "sched-clock-page", true),
    (row::RDTSC, "raw tsc", false),
];

#[allow(clippy::cast_precision_loss, reason = "microseconds for the eye")]
fn rows(
    machine: &Machine,
    policy: Policy,
    tsc_hz: u64,
    transfer: Duration,
) -> Result<Vec<Row>, LabError> {
    let reports = machine.reports()?;
    let mut rows = Vec::new();
    for &(number, clock, must_hold) in CLOCKS {
        let unit_us = match number {
            row::PVCLOCK_PAGE_OURS | row::SCHED_CLOCK_PAGE => 1e-3,
            row::RDTSC => 1e6 / tsc_hz as f64,
            _ => 0.1,
        };
        let mut row = Row {
            policy,
            clock,
            must_hold,
            reads: 0,
            steps_back: 0,
            largest_step_us: 0.0,
            largest_gap_us: 0.0,
            least_gap_us: f64::INFINITY,
            allowed_gap_us: must_hold.then(|| allowed_gap_us(policy, number, transfer)),
        };
        for one in reports.iter().flat_map(|report| &report.records) {
            let [clock, count, largest] = one.values;
            if clock != u64::from(number) {
                continue;
            }
            let us = largest as f64 * unit_us;
            match one.kind {
                record::MIGRATE_STEPS => {
                    row.steps_back = row.steps_back.saturating_add(count);
                    row.largest_step_us = row.largest_step_us.max(us);
                }
                record::MIGRATE_GAP => {
                    row.reads = row.reads.saturating_add(count);
                    row.largest_gap_us = row.largest_gap_us.max(us);
                    row.least_gap_us = row.least_gap_us.min(us);
                }
                _ => {}
            }
        }
        if row.reads == 0 || row.least_gap_us.is_infinite() {
            return Err(LabError::Guest(format!(
                "no vCPU read {clock}: the guest's report is not complete"
            )));
        }
        rows.push(row);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One clock of each encoding, under each policy, for states that are 20 ms apart.
    #[test]
    fn a_gap_is_what_the_policy_says() {
        const TRANSFER: Duration = Duration::from_millis(20);
        let (reference, pvclock) = (row::REFERENCE_TSC_PAGE, row::PVCLOCK_PAGE_OURS);
        let stands = [0.0, 1_000_000.0];
        let goes_on = [19_999.6, 1_020_000.0];
        for (policy, number, expected) in [
            (Policy::Stop, reference, stands),
            (Policy::Stop, pvclock, stands),
            (Policy::Advance, reference, goes_on),
            (Policy::Advance, pvclock, goes_on),
            (Policy::PerEncoding, reference, stands),
            (Policy::PerEncoding, row::REFERENCE_COUNTER_MSR, stands),
            (Policy::PerEncoding, row::SCHED_CLOCK_PAGE, stands),
            (Policy::PerEncoding, pvclock, goes_on),
        ] {
            let found = allowed_gap_us(policy, number, TRANSFER);
            for (found, expected) in found.into_iter().zip(expected) {
                // Floats of whole ns.
                assert!((found - expected).abs() < 1e-6, "{policy:?} {number}");
            }
        }
    }
}
