//! Whether the guest's clocks agree with each other: part of `lab clocks`, with zero tolerance.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::GuestCounter;
use crate::LabError;
use crate::backend::Backend;
use crate::clocks::Clocks;
use crate::contract::{Job, experiment, record, row};
use crate::machine::{Devices, Machine, Setup};
use crate::pages::GuestPages;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Agreement {
    /// vCPUs that read at once.
    pub vcpus: u32,
    /// Reads of the counter MSR between two reads of the page.
    pub brackets: u64,
    /// Brackets that the MSR fell out of.
    pub bracket_violations: u64,
    /// Our pvclock less our page at one TSC, in ns: the smallest difference. None if the two could not be compared.
    pub pvclock_less_page_min_ns: Option<i64>,
    /// The largest difference.
    pub pvclock_less_page_max_ns: Option<i64>,
    /// How often the two were compared.
    pub compared: u64,
    /// Each clock read by all vCPUs in turn.
    pub across_vcpus: Vec<Across>,
}

/// One clock, read by all vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Across {
    /// The clock.
    pub clock: &'static str,
    /// Reads that gave a time.
    pub reads: u64,
    /// Reads that gave none: the page or record was not valid, or being written each time it was tried.
    pub failed_reads: u64,
    /// Reads that were less than what some vCPU read before.
    pub steps_back: u64,
    /// The largest such step, in ns.
    pub largest_step_ns: u64,
}

/// The clocks that all vCPUs read: number, name, ns of a unit.
const CLOCKS: [(u32, &str, u64); 5] = [
    (row::REFERENCE_TSC_PAGE, "reference-tsc-page", 100),
    (row::REFERENCE_COUNTER_MSR, "reference-counter-msr", 100),
    (record::PAGE_AND_MSR_IN_TURN, "page and msr in turn", 100),
    (row::PVCLOCK_PAGE_OURS, "pvclock-page-ours", 1),
    (row::PVCLOCK_PAGE, "pvclock-page", 1),
];

impl Agreement {
    /// Nothing is wrong, and everything was looked at: no violated bracket, no step back of any of the five clocks, and page and
    /// pvclock one clock.
    ///
    /// The page shows whole units of 100 ns and its line need not start on one, so it stands less than 100 ns before or
    /// behind the clock; a pvclock read rounds down, by less than 2 ns.
    #[must_use]
    pub fn holds(&self) -> bool {
        let agrees = |clock: &str| {
            self.across_vcpus
                .iter()
                .any(|across| across.clock == clock && across.reads > 0 && across.steps_back == 0)
        };
        self.bracket_violations == 0
            && self.brackets > 0
            && CLOCKS.iter().all(|(_, clock, _)| agrees(clock))
            && self.compared > 0
            && self.pvclock_less_page_min_ns.is_some_and(|ns| ns > -102)
            && self.pvclock_less_page_max_ns.is_some_and(|ns| ns < 100)
    }
}

/// How often the cheap checks and those that exit are repeated.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Checks that do not exit.
    pub cheap: u64,
    /// Checks that do.
    pub costly: u64,
}

/// Runs the checks on `vcpus` vCPUs.
///
/// # Errors
///
/// [`LabError`] if the guest does not come to its end.
pub fn run(backend: &Backend, vcpus: u32, rounds: Rounds) -> Result<Agreement, LabError> {
    let job = Job {
        argument: [rounds.cheap, rounds.costly, 0, 0, 0, 0, 0],
        ..Job::new(experiment::AGREEMENT, u64::from(vcpus))
    };
    let mut machine = Machine::new(backend, &Setup::new(vcpus), &job)?;
    let counter = GuestCounter::of(&machine)?;
    let pages = GuestPages::new(machine.memory().clone());
    let devices: Arc<dyn Devices> = Arc::new(Clocks::start(vcpus, counter, pages)?);
    let run = machine.run(&devices, Duration::from_secs(60))?;
    if !run.is_done() {
        return Err(LabError::Guest(run.trouble()));
    }
    let mut found = Agreement {
        vcpus,
        ..Agreement::default()
    };
    for one in machine.reports()?.iter().flat_map(|report| &report.records) {
        let [a, b, c] = one.values;
        match one.kind {
            record::BRACKET => {
                found.bracket_violations = found.bracket_violations.saturating_add(a);
                found.brackets = found.brackets.saturating_add(b);
            }
            // Without a comparison there are no bounds either.
            record::PAGE_PVCLOCK if c > 0 => {
                let bound = |known: Option<i64>, new: u64, choose: fn(i64, i64) -> i64| {
                    let new = new.cast_signed();
                    Some(known.map_or(new, |known| choose(known, new)))
                };
                found.pvclock_less_page_min_ns = bound(found.pvclock_less_page_min_ns, a, i64::min);
                found.pvclock_less_page_max_ns = bound(found.pvclock_less_page_max_ns, b, i64::max);
                found.compared = found.compared.saturating_add(c);
            }
            record::CROSS_VCPU => {
                if let Some((across, unit_ns)) = found.across(a) {
                    across.steps_back = across.steps_back.saturating_add(b);
                    across.largest_step_ns = across.largest_step_ns.max(c.saturating_mul(unit_ns));
                }
            }
            record::CROSS_VCPU_READS => {
                if let Some((across, _)) = found.across(a) {
                    across.reads = across.reads.saturating_add(b);
                    across.failed_reads = across.failed_reads.saturating_add(c);
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

impl Agreement {
    /// What is known of the clock with this number, and the ns of its unit.
    fn across(&mut self, number: u64) -> Option<(&mut Across, u64)> {
        let (_, clock, unit_ns) = CLOCKS
            .iter()
            .find(|(known, _, _)| u64::from(*known) == number)?;
        let at = self
            .across_vcpus
            .iter()
            .position(|across| across.clock == *clock)
            .unwrap_or_else(|| {
                self.across_vcpus.push(Across {
                    clock,
                    ..Across::default()
                });
                self.across_vcpus.len() - 1
            });
        self.across_vcpus
            .get_mut(at)
            .map(|across| (across, *unit_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Agreement {
        let across_vcpus = CLOCKS.iter().map(|(_, clock, _)| Across {
            clock,
            reads: 10,
            ..Across::default()
        });
        Agreement {
            vcpus: 2,
            brackets: 10,
            compared: 10,
            pvclock_less_page_min_ns: Some(-101),
            pvclock_less_page_max_ns: Some(99),
            across_vcpus: across_vcpus.collect(),
            ..Agreement::default()
        }
    }

    #[test]
    fn nothing_holds_that_was_not_looked_at() {
        assert!(sound().holds());
        let breaks: [fn(&mut Agreement); 9] = [
            |found| found.brackets = 0,
            |found| found.bracket_violations = 1,
            |found| found.compared = 0,
            |found| found.pvclock_less_page_min_ns = None,
            |found| found.pvclock_less_page_min_ns = Some(-102),
            |found| found.pvclock_less_page_max_ns = Some(100),
            |found| found.across_vcpus.truncate(4),
            |found| found.across_vcpus[0].reads = 0,
            |found| found.across_vcpus[4].steps_back = 1,
        ];
        for (number, one) in (0..).zip(breaks) {
            let mut found = sound();
            one(&mut found);
            assert!(!found.holds(), "{number}: {found:?}");
        }
    }
}
