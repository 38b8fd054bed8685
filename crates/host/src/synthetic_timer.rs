//! Hyper-V synthetic timers: four for each virtual processor, due in reference time.
//!
//! # Theory
//!
//! A one-shot timer is due when the reference time reaches COUNT, a periodic one each COUNT units of 100 ns from the moment it is enabled, on that
//! grid for ever: `due = enabled + k * COUNT`, whenever it is looked at. Times are compared modulo 2^64, so COUNT may wrap. A timer is never
//! signalled early: it is compared with the reference time of the call, and a wake-up that was too early does nothing.
//!
//! # Practice
//!
//! [`VcpuTimers`] holds the timers and the synthetic interrupt controller of one virtual processor and answers their MSRs. Every call takes the
//! reference time, as the reference counter MSR would give it at that instant. [`VcpuTimers::next_due`] is what to wake up for: turn it into
//! a TSC with the partition clock. On an end of interrupt call [`VcpuTimers::retry`].
//!
//! What the interface leaves open, and what is done here: CONFIG of a running timer may be written, which cancels it and starts from the registers (as KVM does).
//! Reserved bits of CONFIG are dropped and read as 0. Late ticks of a periodic timer are caught up at half-period distance, up to 16; with the lazy flag a
//! tick that is more than half a period late is skipped. Both are settings.
//!
//! # Migration
//!
//! Reference time stands still between save and restore, so due times carry over as they are ([`VcpuTimers::save`], [`VcpuTimers::restore`]). A timer
//! that expired just before still fires; a message that waited for its slot still waits.
//!
//! # Caveats
//!
//! A periodic timer below the minimum period is told less often, each message standing for several periods; the effects say how many.
//! The time-unhalted timer (MSRs 0x40000114 and 0x40000115) is not offered.
//!
//! # References
//!
//! Hyper-V TLFS, "Timers", "Synthetic timers"; Linux `arch/x86/kvm/hyperv.c`.

mod mutant;
mod state;
mod timer;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use state::{StateError, SyntheticTimerState, VcpuTimersState};

use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::RefTime;
use chronovisor_abi::synthetic_timer::{Config, TIMERS, TimerMessage};

use crate::apic::{CatchUp, LostTicks, Rearm};
use crate::guest_memory::GuestMemory;
use crate::synic::{EndOfInterrupt, Fault, HeldMessages, Interrupt, Post, Synic};
use mutant::{Mutant, is};
use timer::Timer;

/// Whether CPUID 0x40000003.EDX\[19\] offers direct mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DirectMode {
    /// Offered.
    Offered,
    /// Absent: its bits of CONFIG are dropped.
    Absent,
}

/// Whether the virtual processor is being run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Presence {
    /// Running, or able to be woken.
    Present,
    /// Descheduled: lazy timers wait until it is back.
    Away,
}

/// What a VMM decides about synthetic timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether direct mode exists.
    pub direct_mode: DirectMode,
    /// Late ticks of a periodic timer.
    pub punctual: LostTicks,
    /// Late ticks of a periodic timer with the lazy flag.
    pub lazy: LostTicks,
    /// The shortest period of one periodic timer's signals, in 100 ns; a late signal may stand closer to the next one, which is on the grid.
    pub minimum_period: RefTime,
}

impl Settings {
    /// Direct mode, catch-up and skipping as the interface describes them, 200 us between two signals.
    pub const DEFAULT: Self = Self {
        direct_mode: DirectMode::Offered,
        punctual: LostTicks::CatchUp(CatchUp::DEFAULT),
        lazy: LostTicks::SkipOnGrid,
        minimum_period: RefTime::from_100ns(2000),
    };
}

/// What a call did and what the VMM has to do.
///
/// Over any series of calls `expiries` equals the signals (interrupts, and messages that raise none) plus `merged` plus `lost` plus what is still held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[must_use = "interrupts may have to be raised and a wake-up to be set again"]
pub struct Effects {
    /// One for each timer, and one more: a timer that is due when it is written may be due again under the new registers.
    interrupts: [Option<Interrupt>; TIMERS + 1],
    /// Times that a timer came due since the last call.
    pub expiries: u64,
    /// Messages and direct interrupts that were signalled.
    pub signals: u64,
    /// Expiries that share a signal with another one.
    pub merged: u64,
    /// Expiries that are not signalled.
    pub lost: u64,
    /// Whether [`VcpuTimers::next_due`] may have changed.
    pub rearm: Rearm,
    /// Set when a write made a periodic timer faster than the minimum period: one signal stands for this many periods.
    pub periods_per_signal: Option<u64>,
}

impl Effects {
    /// The interrupts to raise in this order: at most one a timer, and a second one of a timer that was due when it was written and is due again.
    pub fn interrupts(&self) -> impl Iterator<Item = Interrupt> + '_ {
        self.interrupts.iter().copied().flatten()
    }

    /// Counts a signal and notes its interrupt, if it has one.
    fn signal(&mut self, interrupt: Option<Interrupt>) {
        self.signals = self.signals.saturating_add(1);
        let Some(interrupt) = interrupt else {
            return;
        };
        if let Some(free) = self.interrupts.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(interrupt);
        }
    }
}

/// The synthetic timers and the synthetic interrupt controller of one virtual processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuTimers {
    settings: Settings,
    synic: Synic,
    timers: [Timer; TIMERS],
}

impl VcpuTimers {
    /// Everything as after reset.
    ///
    /// ```
    /// # use chronovisor_abi::{msr::Msr, quantity::RefTime};
    /// # use chronovisor_abi::synthetic_timer::Config;
    /// # use chronovisor_host::guest_memory::NoMemory;
    /// # use chronovisor_host::synthetic_timer::{Presence, Settings, VcpuTimers};
    /// let at = RefTime::from_100ns;
    /// let mut timers = VcpuTimers::new(Settings::DEFAULT);
    /// let linux = Config::for_vector(0xed).with(Config::AUTO_ENABLE).0;
    /// let _ = timers.write(Msr::HV_STIMER0_CONFIG, linux, at(1000), &NoMemory)?;
    /// let _ = timers.write(Msr::HV_STIMER0_COUNT, 11_000, at(1000), &NoMemory)?;
    /// assert_eq!(timers.next_due(Presence::Present), Some(at(11_000)));
    /// assert_eq!(timers.expire(at(10_999), &NoMemory).interrupts().count(), 0);
    /// assert_eq!(timers.expire(at(11_000), &NoMemory).interrupts().next().map(|i| i.vector), Some(0xed));
    /// # Ok::<(), chronovisor_host::synic::Fault>(())
    /// ```
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            synic: Synic::new(),
            timers: [Timer::default(); TIMERS],
        }
    }

    /// Whether `msr` is answered here: SynIC registers and timer registers.
    #[must_use]
    pub const fn owns(msr: Msr) -> bool {
        Synic::owns(msr) || timer_register(msr).is_some()
    }

    /// RDMSR. Reading changes nothing: a one-shot that is due at `now` reads as not enabled, whether it was signalled or not.
    ///
    /// # Errors
    ///
    /// [`Fault`]: raise #GP in the guest.
    pub fn read(&self, msr: Msr, now: RefTime) -> Result<u64, Fault> {
        let Some((index, register)) = timer_register(msr) else {
            return self.synic.read(msr);
        };
        let mut timer = self.timers[index];
        Ok(match register {
            Register::Config => {
                let _ = timer.expire(&self.settings, now);
                timer.config.0
            }
            Register::Count => timer.count,
        })
    }

    /// WRMSR at reference time `now`. What came due before the write is signalled first, under the old registers.
    ///
    /// # Errors
    ///
    /// [`Fault`]: raise #GP in the guest; the registers are as before.
    pub fn write(
        &mut self,
        msr: Msr,
        value: u64,
        now: RefTime,
        memory: &(impl GuestMemory + ?Sized),
    ) -> Result<Effects, Fault> {
        let Some((index, register)) = timer_register(msr) else {
            // A fault must leave everything as it was: try the write on a copy of the registers.
            let mut synic = self.synic;
            let held = synic.write(msr, value)?;
            let mut effects = self.expire(now, memory);
            self.synic = synic;
            if held == HeldMessages::TryAgain && !is(Mutant::NoRetryWhenEnabled) {
                self.signal_held(now, memory, &mut effects);
            }
            return Ok(effects);
        };
        let mut effects = self.expire(now, memory);
        let timer = &mut self.timers[index];
        let lost = match register {
            Register::Config => timer.write_config(Config(value), &self.settings, now),
            Register::Count => timer.write_count(value, &self.settings, now),
        };
        effects.lost = effects.lost.saturating_add(lost);
        let stride = timer.stride(&self.settings);
        if timer.due.is_some() && stride > 1 {
            effects.periods_per_signal = Some(stride);
        }
        // A time that is past already is signalled at once.
        self.expire_one(index, now, &mut effects);
        self.signal_held(now, memory, &mut effects);
        effects.rearm = Rearm::Again;
        Ok(effects)
    }

    /// Brings all timers up to reference time `now` and tries what waits: the answer to a wake-up.
    pub fn expire(&mut self, now: RefTime, memory: &(impl GuestMemory + ?Sized)) -> Effects {
        let mut effects = Effects::default();
        // First the ticks, under the message buffers as they were, then the messages.
        for index in 0..TIMERS {
            self.expire_one(index, now, &mut effects);
        }
        self.signal_held(now, memory, &mut effects);
        effects
    }

    /// The guest ended an interrupt: messages that wait for a slot are tried again.
    pub fn retry(&mut self, now: RefTime, memory: &(impl GuestMemory + ?Sized)) -> Effects {
        self.expire(now, memory)
    }

    /// The earliest reference time at which [`Self::expire`] has to be called, or `None` if nothing is to come. With the processor away,
    /// lazy timers do not wake it.
    #[must_use]
    pub fn next_due(&self, presence: Presence) -> Option<RefTime> {
        let mut earliest: Option<RefTime> = None;
        for timer in &self.timers {
            if presence == Presence::Away && timer.config.has(Config::LAZY) {
                continue;
            }
            if let Some(due) = timer.next_due(&self.settings)
                && earliest.is_none_or(|other| !timer::is_reached(other, due))
            {
                earliest = Some(due);
            }
        }
        earliest
    }

    /// Reset of the processor.
    pub fn reset(&mut self) {
        *self = Self::new(self.settings);
    }

    /// The synthetic interrupt controller.
    #[must_use]
    pub const fn synic(&self) -> &Synic {
        &self.synic
    }

    /// Brings one timer up to `now`: a direct interrupt is raised, a message is left to be signalled.
    fn expire_one(&mut self, index: usize, now: RefTime, effects: &mut Effects) {
        let timer = &mut self.timers[index];
        let expired = timer.expire(&self.settings, now);
        effects.expiries = effects.expiries.saturating_add(expired.expiries);
        effects.merged = effects.merged.saturating_add(expired.merged);
        effects.lost = effects.lost.saturating_add(expired.lost);
        if expired != timer::Expired::default() {
            effects.rearm = Rearm::Again;
        }
        let Some(expiration) = expired.signal else {
            return;
        };
        if !timer.config.has(Config::DIRECT_MODE) {
            timer.undelivered = Some(expiration);
            return;
        }
        let vector = timer.config.vector();
        if vector < chronovisor_abi::apic::LOWEST_VECTOR {
            effects.lost = effects.lost.saturating_add(1);
            return;
        }
        effects.signal(Some(Interrupt {
            vector,
            end: EndOfInterrupt::ByGuest,
        }));
    }

    /// Tries the messages that wait, the oldest first: a fast timer must not keep another one out of a shared slot.
    fn signal_held(
        &mut self,
        now: RefTime,
        memory: &(impl GuestMemory + ?Sized),
        effects: &mut Effects,
    ) {
        if self.timers.iter().all(|timer| timer.undelivered.is_none()) {
            return;
        }
        let mut tried = [false; TIMERS];
        for _ in 0..TIMERS {
            let waits = |index: &usize| !tried[*index] && self.timers[*index].undelivered.is_some();
            // Of several equally old ones the first timer's: `max_by_key` takes the last.
            let oldest = (0..TIMERS).rev().filter(waits).max_by_key(|index| {
                let due = self.timers[*index].undelivered.unwrap_or(now);
                if is(Mutant::FirstTimerFirst) {
                    return RefTime::ZERO;
                }
                now.wrapping_sub(due) // wrapping: as COUNT does.
            });
            let Some(index) = oldest else {
                return;
            };
            tried[index] = true;
            self.signal_one(index, now, memory, effects);
        }
    }

    /// Tries the message of one timer, if there is one.
    fn signal_one(
        &mut self,
        index: usize,
        now: RefTime,
        memory: &(impl GuestMemory + ?Sized),
        effects: &mut Effects,
    ) {
        let timer = &mut self.timers[index];
        let Some(expiration) = timer.undelivered else {
            return;
        };
        let message = TimerMessage {
            timer: u32::try_from(index).unwrap_or(0),
            expiration,
            delivery: now,
        };
        if let Post::Delivered(interrupt) = self.synic.post(timer.config.source(), message, memory)
        {
            timer.undelivered = None;
            timer.last_signal = Some(now);
            effects.signal(interrupt);
            effects.rearm = Rearm::Again;
        } else if is(Mutant::TakenSlotDropsMessage) {
            timer.undelivered = None;
        }
    }
}

/// One of a timer's registers.
#[derive(Clone, Copy)]
enum Register {
    Config,
    Count,
}

/// The timer and the register behind an MSR.
const fn timer_register(msr: Msr) -> Option<(usize, Register)> {
    let first = Msr::HV_STIMER0_CONFIG.0;
    if msr.0 < first || msr.0 - first >= 8 {
        return None;
    }
    // Widening; From is not const.
    let index = ((msr.0 - first) / 2) as usize;
    let register = if (msr.0 - first).is_multiple_of(2) {
        Register::Config
    } else {
        Register::Count
    };
    Some((index, register))
}
