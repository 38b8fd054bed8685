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
    /// Our pvclock less our page at one TSC, in ns: the smallest difference.
    pub pvclock_less_page_min_ns: i64,
    /// The largest difference.
    pub pvclock_less_page_max_ns: i64,
    /// How often the two were compared.
    pub compared: u64,
    /// Each clock read by all vCPUs in turn.
    pub across_vcpus: Vec<Across>,
}

/// One clock, read by all vCPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Across {
    /// The clock.
    pub clock: &'static str,
    /// Reads that were less than what some vCPU read before.
    pub steps_back: u64,
    /// The largest such step, in ns.
    pub largest_step_ns: u64,
}

impl Agreement {
    /// Nothing is wrong: no violated bracket, no step back, and page and pvclock one clock.
    ///
    /// The page shows whole units of 100 ns and its line need not start on one, so it stands less than 100 ns before or
    /// behind the clock; a pvclock read rounds down, by less than 2 ns.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.bracket_violations == 0
            && self.brackets > 0
            && self
                .across_vcpus
                .iter()
                .all(|across| across.steps_back == 0)
            && self.pvclock_less_page_min_ns > -102
            && self.pvclock_less_page_max_ns < 100
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
    let devices: Arc<dyn Devices> =
        Arc::new(Clocks::start(vcpus, counter.rate, counter.offset, pages)?);
    let run = machine.run(&devices, Duration::from_secs(60))?;
    if !run.is_done() {
        return Err(LabError::Guest(run.trouble()));
    }
    let mut found = Agreement {
        vcpus,
        pvclock_less_page_min_ns: i64::MAX,
        pvclock_less_page_max_ns: i64::MIN,
        ..Agreement::default()
    };
    for one in machine.reports()?.iter().flat_map(|report| &report.records) {
        let [a, b, c] = one.values;
        match one.kind {
            record::BRACKET => {
                found.bracket_violations += a;
                found.brackets += b;
            }
            record::PAGE_PVCLOCK => {
                found.pvclock_less_page_min_ns =
                    found.pvclock_less_page_min_ns.min(a.cast_signed());
                found.pvclock_less_page_max_ns =
                    found.pvclock_less_page_max_ns.max(b.cast_signed());
                found.compared += c;
            }
            record::CROSS_VCPU => found.add_across(a, b, c),
            _ => {}
        }
    }
    Ok(found)
}

impl Agreement {
    fn add_across(&mut self, number: u64, steps_back: u64, largest: u64) {
        let (clock, unit_ns) = match u32::try_from(number) {
            Ok(row::REFERENCE_TSC_PAGE) => ("reference-tsc-page", 100),
            Ok(row::REFERENCE_COUNTER_MSR) => ("reference-counter-msr", 100),
            Ok(row::SCHED_CLOCK_PAGE) => ("page and msr in turn", 100),
            Ok(row::PVCLOCK_PAGE_OURS) => ("pvclock-page-ours", 1),
            Ok(row::PVCLOCK_PAGE) => ("pvclock-page", 1),
            _ => return,
        };
        let largest_step_ns = largest.saturating_mul(unit_ns);
        match self
            .across_vcpus
            .iter_mut()
            .find(|across| across.clock == clock)
        {
            Some(across) => {
                across.steps_back += steps_back;
                across.largest_step_ns = across.largest_step_ns.max(largest_step_ns);
            }
            None => self.across_vcpus.push(Across {
                clock,
                steps_back,
                largest_step_ns,
            }),
        }
    }
}
