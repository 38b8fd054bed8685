//! `lab clocks`: what one read of each clock costs inside a real guest.
//!
//! Each row is a loop in the guest, in ring 3 as a program reads clocks and in ring 0 as a kernel does. A row that the backend
//! cannot run ends the guest; the next guest goes on with the rows that are left, and the row says why it has no figure.

mod guests;
mod ratios;

use std::time::Instant;

use schemars::JsonSchema;
use serde::Serialize;

use super::agreement;
use super::beside::{self, Beside};
use super::{Place, Progress, SeedRow, seeds};
use crate::LabError;
use crate::backend::Backend;
use crate::contract::row;

use guests::Found;

pub use super::agreement::Agreement;
pub use ratios::Ratio;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// vCPU counts; each gets the whole table.
    pub vcpus: Vec<u32>,
    /// Rounds of each row, at most 32. Many short ones: with one vCPU the quickest is then undisturbed even on a busy machine,
    /// and with several the middle one is under the others' load.
    pub rounds: u64,
    /// Reads a round of a row that does not exit, in ring 3.
    pub reads: u64,
    /// Whether KVM's own Hyper-V clock is put beside ours.
    pub kvm_hyperv: KvmHyperv,
    /// How often the clocks are compared with each other.
    pub checks: agreement::Rounds,
}

/// Whether KVM's own Hyper-V clock is put beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvmHyperv {
    /// Left out.
    Absent,
    /// Compared; an error where KVM has none.
    Compared,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            vcpus: vec![1, 2],
            rounds: 31,
            reads: 20_000,
            kvm_hyperv: KvmHyperv::Absent,
            checks: agreement::Rounds {
                cheap: 100_000,
                costly: 1000,
            },
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// The clock's name.
    pub clock: &'static str,
    /// The ring that read it.
    pub ring: u32,
    /// How many vCPUs read at once.
    pub vcpus: u32,
    /// Whether they did: in the rounds that count, all other vCPUs were seen reading. `false` where the host ran them in turns, and
    /// there contention costs less than it would.
    pub at_once: bool,
    /// Cycles of one read: with one vCPU in the quickest round, with several in the one in the middle, averaged over them. In its
    /// quickest round a vCPU may have read alone, while the host did not run the others.
    pub cycles: Option<f64>,
    /// Cycles of one read in the quickest round.
    pub cycles_quickest: Option<f64>,
    /// Cycles of one read in the round in the middle.
    pub cycles_median: Option<f64>,
    /// `cycles` in ns.
    pub ns: Option<f64>,
    /// Why there is no figure.
    pub why_not: Option<String>,
}

/// All that `lab clocks` found.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Report {
    /// Where.
    pub place: Place,
    /// The guest's TSC rate in Hz.
    pub tsc_hz: u64,
    /// How many CPUs this program may run on. More vCPUs than that take turns, and a row of theirs is not of reads at once.
    pub host_cpus: u32,
    /// What makes figures mean less than they say.
    pub warnings: Vec<Warning>,
    /// The table.
    pub rows: Vec<Row>,
    /// Its ratios.
    pub ratios: Vec<Ratio>,
    /// Whether the clocks agree with each other, for each vCPU count.
    pub agreement: Vec<Agreement>,
    /// The scheduler's clock at its first read, the guest's first act, in ns. It starts at 0. None if there was no clock to start.
    pub sched_clock_first_ns: Option<u64>,
    /// KVM's own Hyper-V clock beside ours, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<Beside>,
    /// Published figures.
    pub seed_rows: &'static [SeedRow],
    /// How long it took, in s.
    pub seconds: f64,
}

/// Something that makes figures mean less than they say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Warning {
    /// A name that stays.
    pub code: &'static str,
    /// What was seen.
    pub seen: String,
    /// What it does to the figures.
    pub means: &'static str,
    /// What to try.
    pub remedy: String,
}

impl Report {
    /// The clocks agree with each other and, if it was asked for, with KVM's own Hyper-V clock.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.agreement.iter().all(Agreement::holds)
            && self.beside.as_ref().is_none_or(Beside::holds)
    }

    /// Whether this host can run so many vCPUs at one and the same time; [`Row::at_once`] says whether it did.
    #[must_use]
    pub const fn runs_at_once(&self, vcpus: u32) -> bool {
        vcpus <= self.host_cpus
    }
}

const IN_TURNS: &str =
    "the vCPUs take turns: their reads are not at once, and contention costs less than it would";

/// A warning for each vCPU count beyond the host's CPUs, and for each other one with rows in turns.
fn warnings(vcpus: &[u32], rows: &[Row], host_cpus: u32) -> Vec<Warning> {
    let warning = |vcpus: u32| {
        let in_turns = rows
            .iter()
            .filter(|row| row.vcpus == vcpus && !row.at_once)
            .count();
        if vcpus > host_cpus {
            Some(Warning {
                code: "more-vcpus-than-cpus",
                seen: format!("{vcpus} vCPUs; CPUs of this host: {host_cpus}"),
                means: IN_TURNS,
                remedy: format!("--vcpus {host_cpus}, or a host with more CPUs"),
            })
        } else if in_turns > 0 {
            Some(Warning {
                code: "vcpus-in-turns",
                seen: format!("in {in_turns} rows of {vcpus} vCPUs some vCPU stood still"),
                means: IN_TURNS,
                remedy: "a host at rest".to_owned(),
            })
        } else {
            None
        }
    };
    vcpus.iter().filter_map(|vcpus| warning(*vcpus)).collect()
}

/// The clocks by row number, in the order in which they are shown.
const CLOCKS: &[(u32, &str)] = &[
    (row::RDTSC, "rdtsc"),
    (row::LFENCE_RDTSC, "lfence-rdtsc"),
    (row::RDTSCP, "rdtscp"),
    (row::REFERENCE_TSC_PAGE, "reference-tsc-page"),
    (row::REFERENCE_COUNTER_MSR, "reference-counter-msr"),
    (row::PVCLOCK_PAGE, "pvclock-page"),
    (row::PVCLOCK_PAGE_OURS, "pvclock-page-ours"),
    (row::PVCLOCK_GUARDED, "pvclock-guarded"),
    (row::PVCLOCK_COARSE_GUARD, "pvclock-guarded-coarse"),
    (row::SCHED_CLOCK_PAGE, "sched-clock-page"),
    (row::SCHED_CLOCK_MSR, "sched-clock-msr"),
    (row::TRAPPED_RDTSC, "trapped-rdtsc"),
    (row::HYPERCALL_TIME, "hypercall-time"),
    (row::HYPERCALL_CLOCK_PAIRING, "hypercall-clock-pairing"),
    (row::NULL_MSR_EXIT, "null-msr-exit"),
    (row::TRAP_ROUND_TRIP, "trap-round-trip"),
    (row::CPUID, "cpuid-exit"),
];

/// Measures everything that `options` ask for.
///
/// # Errors
///
/// [`LabError`] if no guest can be run at all; a row that cannot be measured is no error.
pub fn run(
    backend: &Backend,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Report, LabError> {
    let start = Instant::now();
    // First, since it is what may be impossible here.
    let beside = match options.kvm_hyperv {
        KvmHyperv::Absent => None,
        KvmHyperv::Compared => Some(beside::run(backend)?),
    };
    let mut rows = Vec::new();
    let mut agreement = Vec::new();
    let mut tsc_hz = 0;
    let mut sched_clock_first_ns = None;
    let steps = options.vcpus.len().max(1);
    for (done, &vcpus) in (0_u32..).zip(&options.vcpus) {
        progress(
            &format!("{vcpus} vCPU"),
            f64::from(done) / f64::from(u32::try_from(steps).unwrap_or(1)),
        );
        let found = guests::table(backend, options, vcpus)?;
        tsc_hz = found.counter.rate.rounded_hz();
        sched_clock_first_ns = sched_clock_first_ns.max(found.sched_clock_first_ns);
        rows.extend(rows_of(vcpus, &found));
        agreement.push(agreement::run(backend, vcpus, options.checks)?);
    }
    let host_cpus = std::thread::available_parallelism()
        .map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX));
    Ok(Report {
        place: Place::of(backend),
        tsc_hz,
        host_cpus,
        warnings: warnings(&options.vcpus, &rows, host_cpus),
        ratios: ratios::of(&rows),
        rows,
        agreement,
        sched_clock_first_ns,
        beside,
        seed_rows: seeds::CLOCKS,
        seconds: start.elapsed().as_secs_f64(),
    })
}

#[allow(
    clippy::cast_precision_loss,
    reason = "statistics of a few million cycles"
)]
fn rows_of(vcpus: u32, found: &Found) -> Vec<Row> {
    let Found {
        counter,
        figures,
        failures,
        in_turns,
        ..
    } = found;
    let ghz = counter.rate.rounded_hz() as f64 / 1e9;
    let mut rows = Vec::new();
    for ring in [3, 0] {
        for (number, clock) in CLOCKS {
            let found = figures
                .get(&(*number, ring))
                .filter(|found| !found.is_empty());
            let mean = |value: fn(&[u64; 3]) -> f64| {
                found.map(|found| found.iter().map(value).sum::<f64>() / found.len() as f64)
            };
            let cycles_quickest = mean(|[best, reads, _]| *best as f64 / *reads as f64);
            let cycles_median = mean(|[_, reads, median]| *median as f64 / *reads as f64);
            let cycles = if vcpus > 1 {
                cycles_median
            } else {
                cycles_quickest
            };
            let why_not = failures
                .get(&(*number, ring))
                .filter(|_| cycles.is_none())
                .cloned();
            if cycles.is_some() || why_not.is_some() {
                rows.push(Row {
                    clock,
                    ring,
                    vcpus,
                    at_once: !in_turns.contains(&(*number, ring)),
                    cycles,
                    cycles_quickest,
                    cycles_median,
                    ns: cycles.map(|cycles| cycles / ghz),
                    why_not,
                });
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::guests::{Failures, Figures, InTurns};
    use super::*;
    use crate::experiment::GuestCounter;

    #[test]
    fn vcpus_beyond_the_hosts_cpus_are_warned_of() {
        assert_eq!(warnings(&[1, 2], &[], 2), []);
        let found = warnings(&[1, 2, 4, 16], &[], 2);
        let seen: Vec<_> = found.iter().map(|one| one.seen.as_str()).collect();
        assert_eq!(
            seen,
            [
                "4 vCPUs; CPUs of this host: 2",
                "16 vCPUs; CPUs of this host: 2"
            ]
        );
    }

    /// One vCPU: the quickest round. Several: the middle one, averaged over them.
    #[test]
    fn a_row_of_several_vcpus_shows_the_median() {
        let rate = chronovisor_abi::quantity::Hertz::from_hz(1_000_000_000).unwrap();
        let key = (row::RDTSC, 3);
        let one = Figures::from([(key, vec![[100, 10, 200]])]);
        let two = Figures::from([(key, vec![[100, 10, 200], [100, 10, 400]])]);
        for (vcpus, figures, cycles, median) in [(1, one, 10.0, 20.0), (2, two, 30.0, 30.0)] {
            let mut found = Found {
                counter: GuestCounter { rate, offset: 0 },
                figures,
                failures: Failures::new(),
                in_turns: InTurns::new(),
                sched_clock_first_ns: None,
            };
            let rows = rows_of(vcpus, &found);
            assert_eq!(warnings(&[vcpus], &rows, 2), []);
            found.in_turns.insert(key);
            let in_turns = rows_of(vcpus, &found);
            assert!(!in_turns[0].at_once && rows[0].at_once);
            assert_eq!(warnings(&[vcpus], &in_turns, 2)[0].code, "vcpus-in-turns");
            let [found] = rows.as_slice() else {
                panic!("{rows:?}")
            };
            assert_eq!(found.cycles, Some(cycles));
            assert_eq!(found.cycles_quickest, Some(10.0));
            assert_eq!(found.cycles_median, Some(median));
        }
    }
}
