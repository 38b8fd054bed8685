//! The devices of a timer guest: its clocks and, where KVM has no APIC, ours, with the synthetic timers' interrupts in it.
//!
//! A halted vCPU waits for its alarms in its own thread; one that runs the guest is kicked out of it by a helper thread that
//! waits for them too.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::Nanos;
use chronovisor_host::apic::{
    Backend as _, Deadline, DeadlineMode, LostTicks, MinimumPeriod, Rates, Settings, SoftwareTimer,
};
use chronovisor_host::msr_surface::{Access, Effect};
use chronovisor_host::partition_clock::VcpuIndex;
use chronovisor_host::synthetic_timer::{Effects, Presence};

use crate::LabError;
use crate::alarm::{Alarm, wait_for_any};
use crate::clocks::{BUS, Clocks};
use crate::experiment::GuestCounter;
use crate::machine::{Apic, Devices, Kicker, Machine, Refused};
use crate::pages::GuestPages;
use crate::user_apic::{self, UserApic};

/// How long a halted vCPU waits before it looks whether it should stop.
const HALT: Duration = Duration::from_millis(100);
/// How long the helper thread waits at most: its own alarm ends it.
const HELPER: Duration = Duration::from_secs(1);
/// How often the helper kicks a vCPU that does not look at its timers.
const KICK_EVERY: Duration = Duration::from_micros(50);

/// One vCPU's interrupt sources.
struct Vcpu {
    apic: UserApic,
    /// For the synthetic timers.
    synthetic: Alarm,
    /// Goes off when the helper shall end.
    end: Alarm,
}

/// Clocks and APICs.
pub struct TimerDevices {
    clocks: Clocks,
    /// One a vCPU, or none if KVM has the APICs.
    vcpus: Vec<Arc<Vcpu>>,
    helpers: Mutex<Vec<JoinHandle<()>>>,
}

impl TimerDevices {
    /// For `machine`, whose vCPUs get APICs of ours if `apic` says so.
    ///
    /// # Errors
    ///
    /// [`LabError::Clocks`] for a rate that clocks or timers cannot count, [`LabError::Timer`] without timerfds.
    pub fn new(
        machine: &Machine,
        counter: GuestCounter,
        apic: Apic,
        lost_ticks: LostTicks,
    ) -> Result<Self, LabError> {
        let count = u32::try_from(machine.vcpus().len()).unwrap_or(u32::MAX);
        let pages = GuestPages::new(machine.memory().clone());
        let clocks = Clocks::start(count, counter, pages)?;
        let rates = Rates::new(BUS, counter.rate)
            .map_err(LabError::clocks("choosing the APIC timer's rates"))?;
        let settings = Settings {
            rates,
            minimum_period: MinimumPeriod::KVM,
            lost_ticks,
            deadline_mode: DeadlineMode::Offered,
        };
        let ours = if apic == Apic::UserSpace { count } else { 0 };
        let vcpus = (0..ours)
            .map(|id| {
                let apic = UserApic::new(id, settings, clocks.guest_tsc())?;
                Ok(Arc::new(Vcpu {
                    apic,
                    synthetic: Alarm::new()?,
                    end: Alarm::new()?,
                }))
            })
            .collect::<Result<_, LabError>>()?;
        Ok(Self {
            clocks,
            vcpus,
            helpers: Mutex::default(),
        })
    }

    /// The clocks.
    #[must_use]
    pub const fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    fn vcpu(&self, vcpu: u32) -> Option<&Arc<Vcpu>> {
        self.vcpus.get(usize::try_from(vcpu).ok()?)
    }

    /// Raises what the synthetic timers ask for and sets their alarm.
    fn apply(&self, index: u32, effects: &Effects) {
        let Some(vcpu) = self.vcpu(index) else { return };
        for interrupt in effects.interrupts() {
            vcpu.apic.request(interrupt.vector);
        }
        // One lock over all: the reading belongs to the clock by which the time is told.
        let surface = self.clocks.lock();
        let next = surface.next_timer(VcpuIndex(index), Presence::Present);
        let mut wake = SoftwareTimer::new(surface.clock().rate());
        if let Some(due) = next {
            // A software timer counts any distance.
            let _ = wake.set(Deadline::at_distance(due), self.clocks.reading());
        }
        vcpu.synthetic.set(wake.expires());
    }

    fn expire_synthetic(&self, index: u32) {
        let now = self.clocks.guest_tsc();
        let effects = self
            .clocks
            .lock()
            .expire_timers(VcpuIndex(index), now, self.clocks.pages());
        if let Some(effects) = effects {
            self.apply(index, &effects);
        }
    }
}

impl Drop for TimerDevices {
    fn drop(&mut self) {
        for vcpu in &self.vcpus {
            vcpu.end.set(Some(Nanos::ZERO));
        }
        let helpers = self
            .helpers
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for helper in helpers.drain(..) {
            // A loop that only waits and kicks cannot panic.
            let _ = helper.join();
        }
    }
}

impl Devices for TimerDevices {
    fn read_msr(&self, vcpu: u32, index: u32) -> Result<u64, Refused> {
        match self.vcpu(vcpu) {
            Some(found) if user_apic::owns(Msr(index)) => {
                found.apic.read(Msr(index), self.clocks.guest_tsc())
            }
            _ => self.clocks.read_msr(vcpu, index),
        }
    }

    fn write_msr(&self, vcpu: u32, index: u32, value: u64) -> Result<(), Refused> {
        match self.vcpu(vcpu) {
            Some(found) if user_apic::owns(Msr(index)) => {
                found
                    .apic
                    .write(Msr(index), value, || self.clocks.reading())
            }
            Some(_) => {
                let (_, effect) = self.clocks.access(vcpu, Msr(index), Access::Write(value))?;
                if let Effect::Timers(effects) = effect {
                    self.apply(vcpu, &effects);
                }
                Ok(())
            }
            None => self.clocks.write_msr(vcpu, index, value),
        }
    }

    fn time_call(&self, vcpu: u32) -> u64 {
        self.clocks.time_call(vcpu)
    }

    fn started(&self, vcpu: u32, kicker: Kicker) {
        let Some(vcpu) = self.vcpu(vcpu).map(Arc::clone) else {
            return;
        };
        let helper = std::thread::spawn(move || {
            loop {
                let due = wait_for_any([vcpu.apic.alarm(), &vcpu.synthetic, &vcpu.end], HELPER);
                if vcpu.end.is_due() {
                    return;
                }
                if due {
                    kicker.kick();
                    std::thread::sleep(KICK_EVERY);
                }
            }
        });
        self.helpers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(helper);
    }

    fn pending_interrupt(&self, vcpu: u32) -> Option<u8> {
        let found = self.vcpu(vcpu)?;
        if found.apic.alarm().is_due() {
            found.apic.expire(|| self.clocks.reading());
        }
        if found.synthetic.is_due() {
            self.expire_synthetic(vcpu);
        }
        found.apic.pending()
    }

    fn acknowledge_interrupt(&self, vcpu: u32, vector: u8) {
        if let Some(found) = self.vcpu(vcpu) {
            found.apic.acknowledge(vector);
        }
    }

    fn wait_halted(&self, vcpu: u32) -> bool {
        match self.vcpu(vcpu) {
            Some(found) => {
                // The caller looks what it was.
                let _ = wait_for_any([found.apic.alarm(), &found.synthetic], HALT);
                true
            }
            None => false,
        }
    }
}
