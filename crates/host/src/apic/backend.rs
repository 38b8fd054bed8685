//! What wakes a timer: a software timer of the host, or a timer of the virtual processor.
//!
//! # Theory
//!
//! A back-end knows no period and keeps no deadline of its own. It is given the timer's deadline, which exists once, together with one reading of
//! host time and guest TSC, and converts it there and then. So a switch between two back-ends cannot move the deadline, and nothing
//! accumulates. The errors are those of one conversion, and they only decide when the host looks at the timer:
//!
//! | | [`SoftwareTimer`] | [`PreemptionTimer`] |
//! | --- | --- | --- |
//! | counts | host monotonic time, ns | guest TSC, in steps of 2^n |
//! | runs | always | while the guest runs |
//! | wakes late by | less than 3 ns, plus the host clock's drift since it was set | less than 2^n ticks |
//! | range | 2^64 ns | 2^(32 + n) ticks, else [`OutOfRange`] |
//!
//! A host clock that is slewed fast may also wake it early. Then the timer is not due, nothing happens, and the wake-up is set again;
//! [`SoftwareTimer::with_slew`] trades that second wake-up for a later first one.
//!
//! # Practice
//!
//! [`Wakeups`] holds one of each and uses the preemption timer while the guest runs and the deadline is in its range. The VMM calls
//! [`Wakeups::set`] whenever the timer says so, at each entry into the guest, and when the guest halts; and [`Wakeups::wake`] when it is woken.
//! [`Lead`] makes up for the way from the wake-up to the guest: it fires early by a learnt amount and has the VMM wait for the rest.
//!
//! # Migration
//!
//! Nothing to save: after a restore, set the wake-up.
//!
//! # Caveats
//!
//! The preemption timer stands still in host mode, so a value loaded at one entry means nothing at the next: [`Wakeups::set`] at *each* entry.
//!
//! # References
//!
//! Intel SDM vol. 3C, "VMX-Preemption Timer"; Linux `arch/x86/kvm/lapic.c` (both back-ends, timer advance).

mod lead;
mod models;

pub use lead::{Lead, LeadBounds};
pub use models::{OutOfRange, PreemptionTimer, SoftwareTimer};

use chronovisor_abi::quantity::{Nanos, Reading, Tsc, TscDelta};

use super::effects::{Deadline, Effects};
use super::mutant::{Mutant, is};
use super::timer::LocalTimer;

/// Something that wakes the VMM when a deadline is near.
pub trait Backend {
    /// Sets the wake-up for `deadline`, converted at `now`: host monotonic time and guest TSC of one instant.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] if the back-end cannot count that far; it is then not set.
    fn set(&mut self, deadline: Deadline, now: Reading<Nanos>) -> Result<(), OutOfRange>;

    /// Takes the wake-up back.
    fn clear(&mut self);
}

/// Where the virtual processor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// About to run guest code.
    Guest,
    /// Halted, or in the host for long.
    Host,
}

/// Which back-end is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// None: the timer has nothing to come.
    Nothing,
    /// The software timer.
    Software,
    /// The preemption timer.
    Preemption,
}

/// What a wake-up led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The deadline is not near: the wake-up is set again.
    Early,
    /// The deadline is near: wait until the guest's TSC has this value, then call [`Wakeups::wake`] again.
    Wait(Tsc),
    /// The timer was looked at; the wake-up is set again.
    Done(Effects),
}

/// A timer's two back-ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wakeups<S, P> {
    software: S,
    preemption: P,
    lead: Option<Lead>,
    set: Set,
}

impl<S: Backend, P: Backend> Wakeups<S, P> {
    /// Back-ends that are not set, without lead compensation.
    pub const fn new(software: S, preemption: P) -> Self {
        Self {
            software,
            preemption,
            lead: None,
            set: Set::Nothing,
        }
    }

    /// The same with lead compensation.
    #[must_use]
    pub fn with_lead(mut self, lead: Lead) -> Self {
        self.lead = Some(lead);
        self
    }

    /// Sets the wake-up for the timer's deadline afresh: at each entry into the guest ([`Place::Guest`]), when it halts ([`Place::Host`]), and
    /// after each call whose effects ask for it.
    pub fn set(&mut self, timer: &LocalTimer, place: Place, now: Reading<Nanos>) -> Set {
        let next = self.advance(timer.next_deadline(), place, now);
        self.set = next;
        next
    }

    /// The back-end says that the time has come.
    pub fn wake(&mut self, timer: &mut LocalTimer, place: Place, now: Reading<Nanos>) -> Wake {
        let Some(deadline) = timer.next_deadline() else {
            self.set(timer, place, now);
            return Wake::Early;
        };
        let left = deadline.remaining(now.tsc);
        if left != TscDelta::ZERO && !is(Mutant::EarlyWakeExpires) {
            if let Some(lead) = &mut self.lead
                && left <= lead.ticks()
            {
                lead.learn_waited(left);
                return Wake::Wait(deadline.at());
            }
            self.set(timer, place, now);
            return Wake::Early;
        }
        if let Some(lead) = &mut self.lead {
            lead.learn_late(now.tsc.wrapping_delta(deadline.at()));
        }
        let at = if is(Mutant::EarlyWakeExpires) {
            now.tsc.wrapping_add(left)
        } else {
            now.tsc
        };
        let effects = timer.expire(at);
        self.set(timer, place, now);
        Wake::Done(effects)
    }

    /// Which back-end is set.
    #[must_use]
    pub const fn which(&self) -> Set {
        self.set
    }

    /// The software timer.
    #[must_use]
    pub const fn software(&self) -> &S {
        &self.software
    }

    /// The preemption timer.
    #[must_use]
    pub const fn preemption(&self) -> &P {
        &self.preemption
    }

    /// The lead that is in force.
    #[must_use]
    pub const fn lead(&self) -> Option<&Lead> {
        self.lead.as_ref()
    }

    fn advance(&mut self, deadline: Option<Deadline>, place: Place, now: Reading<Nanos>) -> Set {
        let Some(deadline) = deadline else {
            self.software.clear();
            self.preemption.clear();
            return Set::Nothing;
        };
        let deadline = match &self.lead {
            Some(lead) => deadline.earlier_by(lead.ticks(), now.tsc),
            None => deadline,
        };
        // After a long pause the deadline is past, the distance 0, and the first choice is the preemption timer again.
        if place == Place::Guest && self.preemption.set(deadline, now).is_ok() {
            self.software.clear();
            return Set::Preemption;
        }
        self.preemption.clear();
        match self.software.set(deadline, now) {
            Ok(()) => Set::Software,
            Err(OutOfRange { .. }) => Set::Nothing,
        }
    }
}
