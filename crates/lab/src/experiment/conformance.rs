//! `lab conformance`: the checks that the guest image runs on any VMM, here on ours.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chronovisor_abi::cpuid::{HYPERVISOR_BASE, Leaf, hyperv};
use chronovisor_abi::quantity::Hertz;
use chronovisor_abi::vmclock::{ClockStatus, LeapIndicator, WallTime};
use chronovisor_host::cpuid_leaves::{Crystal, HypervisorFrequencies, InvariantTsc, Offer};
use chronovisor_host::msr_surface::Privileges;
use chronovisor_host::partition_clock::{Change, TimeOfDay};

use super::GuestCounter;
use crate::LabError;
use crate::backend::Backend;
use crate::clocks::{BUS, Clocks};
use crate::contract::{Job, experiment, status};
use crate::machine::{Devices, End, Machine, Owner, Setup};
use crate::pages::GuestPages;

/// What the guest said.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The guest's output, in the Test Anything Protocol.
    pub tap: String,
    /// Every check held.
    pub holds: bool,
}

/// Runs the checks with all clocks served by `chronovisor-host`.
///
/// # Errors
///
/// [`LabError`] if the guest does not come to its end.
pub fn run(backend: &Backend) -> Result<Outcome, LabError> {
    run_with(backend, Served::as_announced(Privileges::EVERYTHING))
}

/// What a guest is told that it may use of Hyper-V's interface, and what it may use.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// What CPUID says.
    pub announced: Privileges,
    /// What the registers go by.
    pub granted: Privileges,
}

impl Served {
    /// A VMM that keeps its word.
    #[must_use]
    pub const fn as_announced(privileges: Privileges) -> Self {
        Self {
            announced: privileges,
            granted: privileges,
        }
    }
}

/// The same on a VMM that offers less, or grants less than it announces.
///
/// # Errors
///
/// As [`run`].
pub fn run_with(backend: &Backend, served: Served) -> Result<Outcome, LabError> {
    let job = Job::new(experiment::CONFORMANCE, 1);
    // The rate is needed for the leaves, and the leaves for the machine: ask another one.
    let counter = GuestCounter::of(&Machine::new(backend, &Setup::new(1), &job)?)?;
    let setup = Setup {
        kvm_clock_msrs: Owner::Ours,
        hypervisor_leaves: announced(hypervisor_leaves(counter.rate)?, served.announced),
        ..Setup::new(1)
    };
    let mut machine = Machine::new(backend, &setup, &job)?;
    let counter = GuestCounter::of(&machine)?;
    let pages = GuestPages::new(machine.memory().clone());
    let clocks = Clocks::granting(served.granted, 1, counter, pages)?;
    clocks.update(Change::TimeOfDay(time_of_day(&clocks)?))?;
    let devices: Arc<dyn Devices> = Arc::new(clocks);
    let run = machine.run(&devices, Duration::from_secs(30))?;
    match run.ended.first().map(|ended| &ended.end) {
        Some(End::Done(status::DONE)) => Ok(Outcome {
            tap: run.serial,
            holds: true,
        }),
        Some(End::Done(status::NOT_CONFORMING)) => Ok(Outcome {
            tap: run.serial,
            holds: false,
        }),
        _ => Err(LabError::Guest(run.trouble())),
    }
}

/// `leaves` with nothing in them but what is announced. Our own maker of leaves refuses some offers, such as a page without the counter;
/// other VMMs make them all the same.
fn announced(mut leaves: Vec<(u32, [u32; 4])>, announced: Privileges) -> Vec<(u32, [u32; 4])> {
    for (number, [eax, _, _, edx]) in &mut leaves {
        if *number == HYPERVISOR_BASE + hyperv::FEATURES {
            *eax &= announced.hyperv_eax;
            *edx &= announced.hyperv_edx;
        }
    }
    leaves
}

/// This machine's UTC, which lies so many whole seconds behind TAI.
fn time_of_day(clocks: &Clocks) -> Result<TimeOfDay, LabError> {
    const TAI_LESS_UTC_SEC: i16 = 37;
    let utc = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(|_| LabError::ClockBefore1970)?;
    let frac = (u128::from(utc.subsec_nanos()) << 64) / 1_000_000_000;
    Ok(TimeOfDay {
        tsc: clocks.guest_tsc(),
        tai: WallTime {
            sec: utc
                .as_secs()
                .saturating_add(TAI_LESS_UTC_SEC.unsigned_abs().into()),
            frac_sec: u64::try_from(frac).unwrap_or(u64::MAX),
        },
        tai_offset_sec: Some(TAI_LESS_UTC_SEC),
        leap: LeapIndicator::NONE,
        status: ClockStatus::FREERUNNING,
        estimated_error: None,
        maximum_error: None,
        rate_estimated_error: None,
        rate_maximum_error: None,
    })
}

/// The hypervisor's CPUID leaves for a guest whose counter runs at `tsc`: Hyper-V's and KVM's interfaces at once.
pub(super) fn hypervisor_leaves(tsc: Hertz) -> Result<Vec<(u32, [u32; 4])>, LabError> {
    let offer = Offer {
        privileges: Privileges::EVERYTHING,
        tsc,
        apic: BUS,
        crystal: Crystal::Absent,
        processor_mhz: None,
        hypervisor_frequencies: HypervisorFrequencies::Absent,
        invariant_tsc: InvariantTsc::No,
        max_vcpus: 1,
        version: Leaf::ZERO,
    };
    let leaves = offer.leaves().map_err(|error| LabError::Cpuid {
        what: error.to_string(),
    })?;
    let hypervisors = leaves
        .iter()
        .filter(|(number, _)| number & HYPERVISOR_BASE != 0);
    Ok(hypervisors
        .map(|(number, leaf)| (number, [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx]))
        .collect())
}
