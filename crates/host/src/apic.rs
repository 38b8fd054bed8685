//! The local APIC timer: one-shot, periodic, TSC-deadline; exact on any back-end and across every switch between two.
//!
//! # Theory
//!
//! The timer counts a bus clock down, divided by 1 to 128. The model has no clock: each call brings the guest's TSC, and the count follows
//! from it, with the exact ratio of the two rates:
//!
//! ```text
//! counts gone = floor((tsc - tsc at start) * f_bus / (f_tsc * divider))
//! ```
//!
//! Start and fraction are kept without rounding through polls, expiries, changes of the divider and changes of the rates, so after
//! 723 days of 1 ms ticks the next one is still due on the tick. A deadline exists once, in these counts. A back-end, which turns it into a wake-up, gets it
//! converted afresh each time; two copies that could drift apart do not exist.
//!
//! # Practice
//!
//! The VMM hands each guest access to [`LocalTimer::write_msr`] / [`LocalTimer::write_page`] / [`LocalTimer::read`], sets a wake-up for
//! [`LocalTimer::next_deadline`] when [`Effects::rearm`] says so, and calls [`LocalTimer::expire`] when it is woken. Waking early is harmless.
//! [`Effects::delivery`] is the interrupt to raise. Nothing here allocates, blocks, or loops over ticks.
//!
//! Where sources differ: a write that changes one-shot to periodic or back leaves the count running, as processors and KVM do, although the SDM's text says it
//! disarms. The reserved mode 11b stops the timer like a change to TSC-deadline mode. The current count of a running timer reads 1 to the initial count.
//!
//! # Migration
//!
//! [`LocalTimer::save`] keeps the count with its fraction, a deadline, and an expiry that was not yet delivered; [`LocalTimer::restore`] goes on from there at
//! any TSC and with any rates. [`LocalTimer::set_rates`] and [`LocalTimer::tsc_moved`] are the same moves without leaving the host.
//!
//! # Caveats
//!
//! Time is the *guest's* TSC. A TSC that the guest itself moves must be reported with [`LocalTimer::tsc_moved`]. A reading that lies a
//! little behind an earlier one counts as that earlier one; a call must come at least every 2^63 ticks (112 years at 2.6 GHz).
//!
//! # References
//!
//! Intel SDM vol. 3A, "APIC Timer" and "TSC-Deadline Mode"; Linux `arch/x86/kvm/lapic.c`; kvm-unit-tests `x86/apic.c`.

mod backend;
mod changes;
mod count;
mod effects;
mod lost_ticks;
mod mutant;
mod ratio;
mod registers;
mod settings;
mod state;
mod timer;
mod writes;

pub use backend::{
    Backend, Lead, LeadBounds, OutOfRange, Place, PreemptionTimer, Set, SoftwareTimer, Wake,
    Wakeups,
};
pub use effects::{Deadline, Delivery, Effects, Rearm};
pub use lost_ticks::{CatchUp, LostTicks};
pub(crate) use lost_ticks::{Due, Spaced, Verdict};
pub use ratio::RateError;
pub use registers::{AccessFault, TimerRegister};
pub use settings::{DeadlineMode, MinimumPeriod, Rates, Settings};
pub use state::{CountFraction, LastInterrupt, SavedCount, StateError, TimerState};
pub use timer::{LocalTimer, Power};

#[cfg(test)]
pub(crate) mod tests;
