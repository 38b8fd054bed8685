//! The guests of one table: one after the other until each row has a figure or a reason why it has none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{CLOCKS, Options};
use crate::LabError;
use crate::backend::{Backend, Kind};
use crate::clocks::Clocks;
use crate::contract::{Job, experiment, record, row, void};
use crate::experiment::GuestCounter;
use crate::machine::{Devices, End, Machine, Run, Setup};
use crate::pages::GuestPages;
use crate::report::VcpuReport;

/// Rows that have no meaning in ring 0: they are ways into it.
const RING3_ONLY: &[u32] = &[row::TRAP_ROUND_TRIP, row::TRAPPED_RDTSC];

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) type Key = (u32, u32);
pub(super) type Figures = BTreeMap<Key, Vec<[u64; 3]>>;
pub(super) type Failures = BTreeMap<Key, String>;
pub(super) type InTurns = BTreeSet<Key>;

/// What the guests of one table reported.
pub(super) struct Found {
    pub(super) counter: GuestCounter,
    pub(super) figures: Figures,
    pub(super) failures: Failures,
    pub(super) in_turns: InTurns,
    pub(super) sched_clock_first_ns: Option<u64>,
}

/// 0 for a row that does not exist: a guest may name any.
fn bit((row, ring): Key) -> u64 {
    let at = if ring == 0 {
        row.saturating_add(32)
    } else {
        row
    };
    1_u64.checked_shl(at).unwrap_or(0)
}

fn key_of_bit(bit: u32) -> Key {
    if bit >= 32 { (bit - 32, 0) } else { (bit, 3) }
}

/// One table, with as many guests as it takes.
pub(super) fn table(backend: &Backend, options: &Options, vcpus: u32) -> Result<Found, LabError> {
    let mut figures = Figures::new();
    let mut failures = Failures::new();
    let mut in_turns = InTurns::new();
    let mut sched_clock_first_ns = None;
    let pairing = match backend.kind {
        Kind::Vmx => 1,
        Kind::Svm => 2,
        Kind::Software | Kind::Unknown => {
            let why = if backend.kind == Kind::Unknown {
                "not tried: nothing says whether this KVM takes VMCALL or VMMCALL".to_owned()
            } else {
                format!(
                    "not tried: VMCALL does not return on {}",
                    backend.kind.name()
                )
            };
            for ring in [0, 3] {
                failures.insert((row::HYPERCALL_CLOCK_PAIRING, ring), why.clone());
            }
            0
        }
    };
    let mut left: u64 = CLOCKS
        .iter()
        .flat_map(|(row, _)| [(*row, 3), (*row, 0)])
        .filter(|(row, ring)| *ring == 3 || !RING3_ONLY.contains(row))
        .filter(|key| !failures.contains_key(key))
        .map(bit)
        .sum();
    loop {
        let job = Job {
            rows: left,
            rounds: options.rounds,
            reads_user: options.reads,
            reads_kernel: if backend.kind.runs_ring0_natively() {
                options.reads
            } else {
                20
            },
            // An interpreted ring 0 makes an exit last 0.1 ms: few of them are a round that ends before the host looks elsewhere.
            reads_exit: if backend.kind.runs_ring0_natively() {
                20
            } else {
                5
            },
            argument: [pairing, 0, 0, 0, 0, 0, 0],
            ..Job::new(experiment::CLOCKS, u64::from(vcpus))
        };
        let mut machine = Machine::new(backend, &Setup::new(vcpus), &job)?;
        let counter = GuestCounter::of(&machine)?;
        let pages = GuestPages::new(machine.memory().clone());
        let devices: Arc<dyn Devices> = Arc::new(Clocks::start(vcpus, counter, pages)?);
        let run = machine.run(&devices, PATIENCE)?;
        let reports = machine.reports()?;
        for report in &reports {
            collect(report, &mut figures, &mut failures);
            let turns = report
                .records
                .iter()
                .filter(|found| found.kind == record::ROW_IN_TURNS);
            in_turns.extend(turns.filter_map(|found| {
                let row = u32::try_from(found.values[0]).ok()?;
                Some((row, found.ring))
            }));
            let start = report
                .records
                .iter()
                .find(|found| found.kind == record::SCHED_CLOCK_START);
            sched_clock_first_ns = start.map(|found| found.values[0]).or(sched_clock_first_ns);
        }
        if run.is_done() {
            for key in (0..64).filter(|bit| left >> bit & 1 == 1).map(key_of_bit) {
                if !figures.contains_key(&key) {
                    failures
                        .entry(key)
                        .or_insert_with(|| "the guest did not report it".to_owned());
                }
            }
            return Ok(Found {
                counter,
                figures,
                failures,
                in_turns,
                sched_clock_first_ns,
            });
        }
        let failed = failed_step(&run, &reports).ok_or_else(|| LabError::Guest(run.trouble()))?;
        failures.insert(key_of_bit(failed), reason(backend, &run));
        figures.remove(&key_of_bit(failed));
        let done: u64 = figures
            .keys()
            .chain(failures.keys())
            .map(|key| bit(*key))
            .fold(0, |all, one| all | one);
        // A guest that fails without getting anywhere would be run for ever.
        if left & !done == left {
            return Err(LabError::Guest(run.trouble()));
        }
        left &= !done;
    }
}

fn failed_step(run: &Run, reports: &[VcpuReport]) -> Option<u32> {
    let blamed =
        |end: &End| !matches!(end, End::Stopped | End::Done(crate::contract::status::DONE));
    let by_end = run
        .ended
        .iter()
        .zip(reports)
        .find(|(ended, _)| blamed(&ended.end));
    let by_time = || {
        run.ended
            .iter()
            .zip(reports)
            .find(|(ended, _)| ended.end == End::Stopped)
    };
    by_end.or_else(by_time).and_then(|(_, report)| report.step)
}

fn reason(backend: &Backend, run: &Run) -> String {
    let ended = run
        .ended
        .iter()
        .find(|ended| !matches!(ended.end, End::Stopped | End::Done(_)));
    match ended {
        Some(ended) if ended.end == End::InternalError => {
            let code = ended.code.map_or_else(String::new, |code| {
                format!("{:02x} {:02x} {:02x}", code[0], code[1], code[2])
            });
            format!(
                "{} cannot interpret the instruction {code} in ring 0",
                backend.kind.name()
            )
        }
        _ => run.trouble(),
    }
}

fn collect(report: &VcpuReport, figures: &mut Figures, failures: &mut Failures) {
    for found in &report.records {
        if found.kind < row::COUNT {
            figures
                .entry((found.kind, found.ring))
                .or_default()
                .push(found.values);
        } else if found.kind == record::ROW_VOID {
            let [row, why, detail] = found.values;
            let why = match why {
                void::NOT_TRAPPED => {
                    "CR4.TSD is stored but not enforced: rdtsc ran untrapped".to_owned()
                }
                void::REFUSED => "the hypervisor refused the clock's MSR".to_owned(),
                void::NOT_VALID if row == u64::from(row::HYPERCALL_TIME) => {
                    "the hypercall page has no code, or code that gives no time".to_owned()
                }
                void::NOT_VALID => {
                    format!("the clock gave no time (sequence or flags {detail:#x})")
                }
                void::HYPERCALL_FAILED => {
                    format!("the hypercall failed with {}", detail.cast_signed())
                }
                other => format!("reason {other}"),
            };
            if let Ok(row) = u32::try_from(row) {
                let rings: &[u32] = if RING3_ONLY.contains(&row) {
                    &[3]
                } else {
                    &[0, 3]
                };
                for &ring in rings {
                    failures.insert((row, ring), why.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// bit n is row n in ring 3, bit 32 + n the same in ring 0.
    #[test]
    fn a_row_that_does_not_exist_has_no_bit() {
        for at in 0..u64::BITS {
            assert_eq!(bit(key_of_bit(at)), 1 << at);
        }
        for key in [(64, 3), (32, 0), (u32::MAX, 0), (u32::MAX, 3)] {
            assert_eq!(bit(key), 0, "{key:?}");
        }
    }

    /// What a guest reports is stored under its key and nothing else.
    #[test]
    fn a_report_of_nonsense_is_kept_and_harmless() {
        let (mut figures, mut failures) = (Figures::new(), Failures::new());
        let record = |kind, ring, values| crate::contract::Record { kind, ring, values };
        let report = VcpuReport {
            records: vec![
                record(0, u32::MAX, [0; 3]),
                record(record::ROW_VOID, 3, [u64::from(u32::MAX), u64::MAX, 0]),
                record(record::ROW_VOID, 3, [u64::MAX, 1, 0]),
                record(u32::MAX, 3, [0; 3]),
            ],
            step: None,
        };
        collect(&report, &mut figures, &mut failures);
        assert_eq!(figures.keys().copied().collect::<Vec<_>>(), [(0, u32::MAX)]);
        let keys: Vec<_> = failures.keys().copied().collect();
        assert_eq!(keys, [(u32::MAX, 0), (u32::MAX, 3)]);
        assert!(keys.into_iter().all(|key| bit(key) == 0));
    }
}
