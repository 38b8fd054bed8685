//! The devices of a timer guest: its clocks and, where KVM has no APIC, ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chronovisor_abi::msr::Msr;
use chronovisor_host::apic::{DeadlineMode, LostTicks, MinimumPeriod, Rates, Settings};

use crate::LabError;
use crate::clocks::{BUS, Clocks};
use crate::experiment::GuestCounter;
use crate::machine::{Apic, Devices, Kicker, Machine, Refused};
use crate::pages::GuestPages;
use crate::user_apic::{self, UserApic};

/// How long a halted vCPU waits before it looks whether it should stop.
const HALT: Duration = Duration::from_millis(100);

/// Clocks and APICs.
pub(super) struct TimerDevices {
    clocks: Clocks,
    /// One a vCPU, or none if KVM has them.
    apics: Vec<Arc<UserApic>>,
    stop: Arc<AtomicBool>,
}

impl TimerDevices {
    pub(super) fn new(
        machine: &Machine,
        counter: GuestCounter,
        apic: Apic,
        lost_ticks: LostTicks,
    ) -> Result<Self, LabError> {
        let vcpus = u32::try_from(machine.vcpus().len()).unwrap_or(u32::MAX);
        let pages = GuestPages::new(machine.memory().clone());
        let clocks = Clocks::start(vcpus, counter.rate, counter.offset, pages)?;
        let rates = Rates::new(BUS, counter.rate)
            .map_err(|error| LabError::Guest(format!("the APIC timer: {error}")))?;
        let settings = Settings {
            rates,
            minimum_period: MinimumPeriod::KVM,
            lost_ticks,
            deadline_mode: DeadlineMode::Offered,
        };
        let ours = if apic == Apic::UserSpace { vcpus } else { 0 };
        let apics = (0..ours)
            .map(|id| UserApic::new(id, settings, clocks.guest_tsc()).map(Arc::new))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            clocks,
            apics,
            stop: Arc::new(AtomicBool::new(false)),
        })
    }

    fn apic(&self, vcpu: u32) -> Option<&Arc<UserApic>> {
        self.apics.get(usize::try_from(vcpu).ok()?)
    }
}

impl Drop for TimerDevices {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl Devices for TimerDevices {
    fn read_msr(&self, vcpu: u32, index: u32) -> Result<u64, Refused> {
        match self.apic(vcpu) {
            Some(apic) if user_apic::owns(Msr(index)) => {
                apic.read(Msr(index), self.clocks.guest_tsc())
            }
            _ => self.clocks.read_msr(vcpu, index),
        }
    }

    fn write_msr(&self, vcpu: u32, index: u32, value: u64) -> Result<(), Refused> {
        match self.apic(vcpu) {
            Some(apic) if user_apic::owns(Msr(index)) => {
                apic.write(Msr(index), value, self.clocks.guest_tsc())
            }
            _ => self.clocks.write_msr(vcpu, index, value),
        }
    }

    fn time_call(&self, vcpu: u32) -> u64 {
        self.clocks.time_call(vcpu)
    }

    fn started(&self, vcpu: u32, kicker: Kicker) {
        if let Some(apic) = self.apic(vcpu) {
            apic.kick_when_due(kicker, &self.stop);
        }
    }

    fn pending_interrupt(&self, vcpu: u32) -> Option<u8> {
        let apic = self.apic(vcpu)?;
        // The timerfd has gone off, so the timer is due or nearly so.
        if apic.wait(Duration::ZERO) {
            apic.expire(self.clocks.guest_tsc());
        }
        apic.pending()
    }

    fn acknowledge_interrupt(&self, vcpu: u32, vector: u8) {
        if let Some(apic) = self.apic(vcpu) {
            apic.acknowledge(vector);
        }
    }

    fn wait_halted(&self, vcpu: u32) -> bool {
        match self.apic(vcpu) {
            Some(apic) => {
                apic.wait(HALT);
                true
            }
            None => false,
        }
    }
}
