//! `lab clocks --enlighten kvm-hyperv`: KVM's own in-kernel Hyper-V clock beside ours, in one guest.
//!
//! KVM's page comes first. Then the MSR filter diverts the reference time MSRs, and ours is published at another address, so that
//! the guest can read both pages at one counter value.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chronovisor_abi::quantity::Hertz;
use chronovisor_abi::scale::ReferenceScale;
use kvm_ioctls::VmFd;
use schemars::JsonSchema;
use serde::Serialize;

use super::{GuestCounter, conformance};
use crate::LabError;
use crate::backend::Backend;
use crate::clocks::Clocks;
use crate::contract::{Job, experiment, record};
use crate::machine::{self, Devices, Machine, Owner, Refused, Setup};
use crate::pages::GuestPages;

/// One side's page and counter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Side {
    /// `kvm` or `ours`.
    pub who: &'static str,
    /// The page's sequence; 0 means not valid.
    pub sequence: u32,
    /// The page's scale, in 2^-64 units of 100 ns a tick.
    pub scale: u64,
    /// The page's offset in units of 100 ns.
    pub offset_100ns: i64,
    /// How far the page's rate is from the counter's, in ppb: positive if its time runs fast.
    pub rate_error_ppb: f64,
    /// MSR 0x40000022, in Hz.
    pub frequency_msr_hz: u64,
    /// Reads of the counter MSR between two reads of the page.
    pub brackets: u64,
    /// Brackets that it fell out of.
    pub violations: u64,
}

/// Both.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Beside {
    /// The rate that KVM states, in Hz; whole kHz.
    pub tsc_hz: u64,
    /// KVM's and ours.
    pub sides: Vec<Side>,
    /// Our time less KVM's at one counter value, in ns: the smallest seen. The two were started at different moments; what
    /// counts is that the difference stands still.
    pub difference_min_ns: i64,
    /// The largest seen.
    pub difference_max_ns: i64,
    /// How often they were compared.
    pub compared: u64,
}

impl Beside {
    /// Both pages are valid and hold their counters, and the two clocks keep their distance.
    ///
    /// Each page rounds down to units of 100 ns, so at two counter values the difference of two lines that keep their distance may
    /// come out one unit apart. Their rates part by less than 1 ppb, which over the comparison is nothing.
    #[must_use]
    pub fn holds(&self) -> bool {
        const UNIT_NS: u64 = 100;
        let sound = |side: &Side| {
            !matches!(side.sequence, 0 | u32::MAX) && side.brackets > 0 && side.violations == 0
        };
        self.sides.len() == 2
            && self.sides.iter().all(sound)
            && self.compared > 0
            && self.difference_min_ns.abs_diff(self.difference_max_ns) <= UNIT_NS
    }
}

/// Ours, which answer only after the guest's checkpoint.
struct Handover {
    vm: Arc<VmFd>,
    clocks: Clocks,
    failed: Mutex<Option<LabError>>,
}

impl Devices for Handover {
    fn read_msr(&self, vcpu: u32, index: u32) -> Result<u64, Refused> {
        self.clocks.read_msr(vcpu, index)
    }

    fn write_msr(&self, vcpu: u32, index: u32, value: u64) -> Result<(), Refused> {
        self.clocks.write_msr(vcpu, index, value)
    }

    fn time_call(&self, vcpu: u32) -> u64 {
        self.clocks.time_call(vcpu)
    }

    fn checkpoint(&self, _vcpu: u32) {
        if let Err(error) = machine::divert_reference_msrs(&self.vm) {
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }
}

/// Compares the two.
///
/// # Errors
///
/// [`LabError::NoHypervInKvm`] on a KVM without Hyper-V of its own, and [`LabError`] if the guest does not come to its end.
pub fn run(backend: &Backend) -> Result<Beside, LabError> {
    if !backend.has_hyperv {
        return Err(LabError::NoHypervInKvm);
    }
    let job = Job {
        argument: [1000, 0, 0, 0, 0, 0, 0],
        ..Job::new(experiment::BESIDE, 1)
    };
    // The rate is needed for the leaves, and the leaves for the machine: ask another one.
    let rate = GuestCounter::of(&Machine::new(backend, &Setup::new(1), &job)?)?.rate;
    let setup = Setup {
        hyperv_msrs: Owner::Kvm,
        hypervisor_leaves: conformance::hypervisor_leaves(rate)?,
        ..Setup::new(1)
    };
    let mut machine = Machine::new(backend, &setup, &job)?;
    let counter = GuestCounter::of(&machine)?;
    let pages = GuestPages::new(machine.memory().clone());
    let handover = Arc::new(Handover {
        vm: Arc::clone(machine.vm()),
        clocks: Clocks::start(1, counter, pages)?,
        failed: Mutex::new(None),
    });
    let devices: Arc<dyn Devices> = Arc::<Handover>::clone(&handover);
    let run = machine.run(&devices, Duration::from_secs(60))?;
    if let Some(error) = handover
        .failed
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
    {
        return Err(error);
    }
    if !run.is_done() {
        return Err(LabError::Guest(run.trouble()));
    }
    let reports = machine.reports()?;
    let records = reports
        .first()
        .map(|report| report.records.as_slice())
        .unwrap_or_default();
    let mut found = Beside {
        tsc_hz: counter.rate.rounded_hz(),
        sides: ["kvm", "ours"]
            .map(|who| Side {
                who,
                ..Side::default()
            })
            .to_vec(),
        difference_min_ns: 0,
        difference_max_ns: 0,
        compared: 0,
    };
    for one in records {
        let [a, b, c] = one.values;
        let side = |which: u64| usize::try_from(which).unwrap_or(usize::MAX);
        match one.kind {
            record::BESIDE_PAGE => {
                if let Some(side) = found.sides.get_mut(side(a >> 32)) {
                    side.sequence = u32::try_from(a & 0xFFFF_FFFF).unwrap_or(0);
                    side.scale = b;
                    side.offset_100ns = c.cast_signed();
                    side.rate_error_ppb = rate_error_ppb(b, counter.rate);
                }
            }
            record::BESIDE_COUNTER => {
                if let Some(side) = found.sides.get_mut(side(a)) {
                    (side.violations, side.brackets) = (b, c);
                }
            }
            record::BESIDE_FREQUENCY => {
                if let Some(side) = found.sides.get_mut(side(a)) {
                    side.frequency_msr_hz = b;
                }
            }
            record::BESIDE_DIFFERENCE => {
                found.difference_min_ns = a.cast_signed().saturating_mul(100);
                found.difference_max_ns = b.cast_signed().saturating_mul(100);
                found.compared = c;
            }
            _ => {}
        }
    }
    Ok(found)
}

/// How much faster than the counter's rate a page with `scale` runs.
#[allow(
    clippy::cast_precision_loss,
    reason = "parts per billion of a measured rate"
)]
fn rate_error_ppb(scale: u64, rate: Hertz) -> f64 {
    ReferenceScale::from_frequency(rate).map_or(f64::NAN, |exact| {
        let difference = i128::from(scale) - i128::from(exact.as_raw());
        difference as f64 / exact.as_raw() as f64 * 1e9
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_holds_that_was_not_looked_at() {
        let side = Side {
            sequence: 1,
            brackets: 10,
            ..Side::default()
        };
        let sound = Beside {
            tsc_hz: 1_000_000_000,
            sides: vec![side.clone(), side],
            difference_min_ns: -300,
            difference_max_ns: -200,
            compared: 10,
        };
        assert!(sound.holds());
        let breaks: [fn(&mut Beside); 7] = [
            |found| found.sides.truncate(1),
            |found| found.sides[0].sequence = 0,
            |found| found.sides[1].sequence = u32::MAX,
            |found| found.sides[0].brackets = 0,
            |found| found.sides[1].violations = 1,
            |found| found.compared = 0,
            |found| found.difference_max_ns = -100,
        ];
        for (number, one) in (0..).zip(breaks) {
            let mut found = sound.clone();
            one(&mut found);
            assert!(!found.holds(), "{number}: {found:?}");
        }
    }
}
