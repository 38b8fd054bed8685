//! The clocks of a lab guest, served by `chronovisor-host`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Hertz, RefTime, Tsc, TscDelta};
use chronovisor_guest::counter::lfence_rdtsc;
use chronovisor_host::partition_clock::{Change, Config, CounterRead, PartitionClock, VcpuIndex};

use crate::LabError;
use crate::contract::OUR_SYSTEM_TIME_MSR;
use crate::machine::{Devices, Refused};
use crate::pages::GuestPages;

/// The partition clock of one guest, behind its MSRs.
pub struct Clocks {
    clock: Mutex<PartitionClock>,
    pages: GuestPages,
    /// Guest TSC minus host TSC.
    offset: AtomicU64,
}

impl Clocks {
    /// A clock that starts at 0 now.
    ///
    /// # Errors
    ///
    /// [`LabError::Guest`] for a rate that no page can express.
    pub fn start(
        vcpus: u32,
        rate: Hertz,
        offset: u64,
        pages: GuestPages,
    ) -> Result<Self, LabError> {
        let now = guest_tsc(offset);
        let clock = PartitionClock::start(Config::for_vcpus(vcpus), rate, now)
            .map_err(|error| LabError::Guest(format!("the partition clock: {error}")))?;
        Ok(Self {
            clock: Mutex::new(clock),
            pages,
            offset: AtomicU64::new(offset),
        })
    }

    /// The clock itself. A poisoned lock is taken all the same: every state of the clock is a valid one.
    pub fn lock(&self) -> MutexGuard<'_, PartitionClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pages.
    pub const fn pages(&self) -> &GuestPages {
        &self.pages
    }

    /// The guest's TSC now, not before earlier loads are done.
    #[must_use]
    pub fn guest_tsc(&self) -> Tsc {
        guest_tsc(self.offset.load(Ordering::Relaxed))
    }

    /// One update of all pages.
    ///
    /// # Errors
    ///
    /// [`LabError::Guest`] says why it was refused.
    pub fn update(&self, change: Change) -> Result<(), LabError> {
        let mut clock = self.lock();
        let open = clock
            .begin_update(change, &self.pages)
            .map_err(|error| LabError::Guest(format!("the update is impossible: {error}")))?;
        open.publish(self.guest_tsc())
            .map(|_| ())
            .map_err(|error| LabError::Guest(format!("the update failed: {error}")))
    }

    fn reference_counter(&self, vcpu: u32) -> RefTime {
        loop {
            let now = self.guest_tsc();
            match self.lock().read_reference_counter(VcpuIndex(vcpu), now) {
                CounterRead::Time(time) => return time,
                CounterRead::NotBefore(tsc) => {
                    while self.guest_tsc().is_before(tsc) {
                        std::hint::spin_loop();
                    }
                }
                // No vCPU runs while the clock is held; a guest that asks all the same sees the clock stand.
                CounterRead::Held => return RefTime::ZERO,
            }
        }
    }
}

fn guest_tsc(offset: u64) -> Tsc {
    // wrapping: the counter itself wraps.
    lfence_rdtsc().wrapping_add(TscDelta::from_ticks(offset))
}

impl Devices for Clocks {
    fn read_msr(&self, vcpu: u32, index: u32) -> Result<u64, Refused> {
        match Msr(index) {
            Msr::HV_TIME_REF_COUNT => Ok(self.reference_counter(vcpu).as_100ns()),
            Msr::HV_REFERENCE_TSC => Ok(self.lock().reference_tsc_register()),
            Msr::HV_TSC_FREQUENCY => Ok(self.lock().rate().rounded_hz()),
            Msr::HV_VP_INDEX => Ok(u64::from(vcpu)),
            _ => Err(Refused),
        }
    }

    fn write_msr(&self, vcpu: u32, index: u32, value: u64) -> Result<(), Refused> {
        match Msr(index) {
            Msr::HV_REFERENCE_TSC => {
                self.lock().write_reference_tsc_register(value, &self.pages);
                Ok(())
            }
            Msr(OUR_SYSTEM_TIME_MSR) => {
                self.lock()
                    .write_system_time_register(VcpuIndex(vcpu), value, &self.pages);
                Ok(())
            }
            _ => Err(Refused),
        }
    }

    fn time_call(&self, vcpu: u32) -> u64 {
        self.reference_counter(vcpu).as_100ns()
    }
}
