//! The clocks of a lab guest: `chronovisor-host`'s MSR surface behind a vCPU's exits.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Hertz, Nanos, Reading, Tsc, TscDelta};
use chronovisor_guest::counter::lfence_rdtsc;
use chronovisor_host::msr_surface::{Access, Answer, Effect, MsrSurface, Privileges};
use chronovisor_host::partition_clock::{Change, Config, PartitionClock, VcpuIndex};

use crate::contract::OUR_SYSTEM_TIME_MSR;
use crate::experiment::GuestCounter;
use crate::machine::{Devices, Refused};
use crate::pages::GuestPages;
use crate::{LabError, alarm};

/// The rate of the bus that local APIC timers count: KVM's default, 1 GHz.
pub const BUS: Hertz = match Hertz::from_hz(1_000_000_000) {
    Some(rate) => rate,
    None => panic!("1 GHz is not zero"),
};

/// How long a read of the counter may have to wait before it is refused: a vCPU thread must not be lost in it.
const MOST_WAIT: Duration = Duration::from_millis(100);
/// How often it has looked by then at least: a thread that was preempted for all that time has not waited.
const LEAST_TRIES: u32 = 1000;

/// The clock registers of one guest.
pub struct Clocks {
    surface: Mutex<MsrSurface>,
    pages: GuestPages,
    /// Guest TSC minus host TSC, modulo 2^64.
    offset: TscDelta,
    start: Instant,
}

impl Clocks {
    /// A clock that starts at 0 now.
    ///
    /// # Errors
    ///
    /// [`LabError::Clocks`] for a rate that no page can express.
    pub fn start(vcpus: u32, counter: GuestCounter, pages: GuestPages) -> Result<Self, LabError> {
        Self::granting(Privileges::EVERYTHING, vcpus, counter, pages)
    }

    /// The same with the registers that `privileges` grant.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn granting(
        privileges: Privileges,
        vcpus: u32,
        counter: GuestCounter,
        pages: GuestPages,
    ) -> Result<Self, LabError> {
        let GuestCounter { rate, offset } = counter;
        let now = guest_tsc(TscDelta::from_ticks(offset));
        let clock = PartitionClock::start(Config::for_vcpus(vcpus), rate, now)
            .map_err(LabError::clocks("starting the guest's clock"))?;
        let surface = MsrSurface::new(clock, privileges, BUS);
        Ok(Self::with(surface, offset, pages))
    }

    /// The registers as they are, for a guest with these pages.
    #[must_use]
    pub fn with(surface: MsrSurface, offset: u64, pages: GuestPages) -> Self {
        Self {
            surface: Mutex::new(surface),
            pages,
            offset: TscDelta::from_ticks(offset),
            start: Instant::now(),
        }
    }

    /// The registers. A poisoned lock is taken all the same: every state of theirs is a valid one.
    pub fn lock(&self) -> MutexGuard<'_, MsrSurface> {
        self.surface.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pages.
    pub const fn pages(&self) -> &GuestPages {
        &self.pages
    }

    /// Guest TSC minus host TSC, modulo 2^64.
    #[must_use]
    pub const fn offset(&self) -> TscDelta {
        self.offset
    }

    /// The guest's TSC now, not before earlier loads are done.
    #[must_use]
    pub fn guest_tsc(&self) -> Tsc {
        guest_tsc(self.offset)
    }

    /// The guest's TSC and the host's time of one instant.
    ///
    /// The counter is read before the time, so that an alarm which is set by the pair is late by what lies between, never
    /// early; of two pairs the closer one, since the thread may be preempted within one.
    #[must_use]
    pub fn reading(&self) -> Reading<Nanos> {
        let [first, second] = [(); 2].map(|()| {
            let tsc = self.guest_tsc();
            let time = alarm::now();
            // wrapping: the counter itself wraps.
            let width = self.guest_tsc().wrapping_delta(tsc).as_ticks();
            (width, Reading::new(time, tsc))
        });
        if first.0 <= second.0 {
            first.1
        } else {
            second.1
        }
    }

    /// One update of all pages.
    ///
    /// # Errors
    ///
    /// [`LabError::Clocks`] says why it was refused.
    pub fn update(&self, change: Change) -> Result<(), LabError> {
        let mut surface = self.lock();
        let open = surface
            .clock_mut()
            .begin_update(change, &self.pages)
            .map_err(LabError::clocks(
                "beginning an update of the guest's clocks",
            ))?;
        open.publish(self.guest_tsc())
            .map(|_| ())
            .map_err(LabError::clocks(
                "publishing an update of the guest's clocks",
            ))
    }

    /// Answers `vcpu`'s access, and says what it asks for besides.
    ///
    /// # Errors
    ///
    /// [`Refused`] raises #GP in the guest.
    pub fn access(&self, vcpu: u32, msr: Msr, access: Access) -> Result<(u64, Effect), Refused> {
        let deadline = Instant::now() + MOST_WAIT;
        let mut tries = 0_u32;
        loop {
            let now = self.guest_tsc();
            // In a statement of its own: the lock must not be held while this vCPU waits.
            let answer = self
                .lock()
                .access(VcpuIndex(vcpu), msr, access, now, &self.pages);
            match answer {
                Answer::Value(value) => return Ok((value, Effect::None)),
                Answer::Written(Effect::FillHypercallPage(address)) => {
                    self.pages.fill_hypercall_page(address);
                    return Ok((0, Effect::None));
                }
                Answer::Written(effect) => return Ok((0, effect)),
                Answer::RunTime => {
                    let run_time = self.start.elapsed().as_nanos() / 100;
                    return Ok((u64::try_from(run_time).unwrap_or(u64::MAX), Effect::None));
                }
                // Less than 100 ns away, if counter and clock are what they should be. The other vCPUs may take each new value
                // first, so the deadline counts over all rounds.
                Answer::NotBefore(tsc) => loop {
                    tries = tries.saturating_add(1);
                    if tries > LEAST_TRIES && Instant::now() > deadline {
                        return Err(Refused);
                    }
                    if !self.guest_tsc().is_before(tsc) {
                        break;
                    }
                    std::hint::spin_loop();
                },
                Answer::Fault | Answer::NotOurs => return Err(Refused),
            }
        }
    }
}

fn guest_tsc(offset: TscDelta) -> Tsc {
    // wrapping: the counter itself wraps.
    lfence_rdtsc().wrapping_add(offset)
}

impl Devices for Clocks {
    fn read_msr(&self, vcpu: u32, index: u32) -> Result<u64, Refused> {
        self.access(vcpu, Msr(index), Access::Read)
            .map(|(value, _)| value)
    }

    fn write_msr(&self, vcpu: u32, index: u32, value: u64) -> Result<(), Refused> {
        let msr = if index == OUR_SYSTEM_TIME_MSR {
            Msr::KVM_SYSTEM_TIME
        } else {
            Msr(index)
        };
        self.access(vcpu, msr, Access::Write(value)).map(|_| ())
    }

    fn time_call(&self, vcpu: u32) -> u64 {
        // A counter that is held has no time; the guest then sees 0, as it would from a failed call.
        self.access(vcpu, Msr::HV_TIME_REF_COUNT, Access::Read)
            .map_or(0, |(value, _)| value)
    }
}
