//! [`Clock`]: the fastest clock that stays right in this virtual machine.
//!
//! # Theory
//!
//! The kernel maps the hypervisor's clock page into each process. A clock read can be as cheap as the counter instruction if the page's line is kept at
//! hand and one word of the page is looked at to see that it still holds. [`Clock`] does that, and takes what it can get:
//!
//! | order | source | why it stays right | the word that is watched |
//! | --- | --- | --- | --- |
//! | 1 | pvclock page, stable | the hypervisor rewrites it when counter or rate change | version |
//! | 2 | Hyper-V reference TSC page | the same | sequence |
//! | 3 | TSC, invariant, and the kernel's own clock runs on it | the kernel watches it; its rate is measured against MONOTONIC_RAW | the kernel's clock mode |
//! | 4 | `clock_gettime(CLOCK_MONOTONIC_RAW)` | the kernel's affair | none |
//!
//! A source that is not usable now (stable flag cleared, sequence 0, mode changed) is answered by 4 until it is usable again.
//!
//! # Practice
//!
//! ```
//! use chronovisor_guest::linux::Clock;
//!
//! let clock = Clock::new();
//! let before = clock.now();
//! let taken = clock.elapsed_since(before);
//! println!("{taken} by {:?}", clock.report().source);
//! ```
//!
//! It counts ns from its creation, at the rate of its source: the host's undisciplined rate, so that two readings' difference is not bent by a time daemon.
//! Making one takes a check of the source's rate over 0.1 ms and some CPUID exits; share it by reference, or use [`Clock::of_process`]. [`Clock::now`] costs what `rdtsc` costs,
//! [`Clock::now_ordered`] what `rdtscp` costs.
//!
//! **What "never back" means.** A reading that happens before another (same thread, or handed over by any synchronisation) is never later than it, for
//! [`Clock::now_ordered`], in all threads. [`Clock::now`] reads the counter out of order: in one thread it never goes back either, but between threads it can
//! seem early by as much as the processor looks ahead, less than 1 us; the crate's own test provokes it and sees 0 to some tens of ns. Both hold over
//! every change of the source: see [`Events`] for what changed. One case no reader can see: the host sets the counter back *and* its page's time with it, or
//! says nothing of it.
//!
//! # Migration
//!
//! The page's version changes, the next read notices before it gives a time, takes the new line, and goes on from where the old one stood. A pause that the
//! hypervisor counts is a step forward; one that it does not count is not seen. A step back of the hypervisor is not followed: the clock goes on
//! from its own value, and [`Events::held_ns`] grows by the step.
//!
//! # Caveats
//!
//! - The slow path (a change, or a check against the operating system's clock every 1 ms to 64 s) takes a lock: a signal handler that interrupts it must not read the
//!   same clock, and a process forked while another thread is in it must not use it.
//! - With source 3 a migration to a counter of another rate is noticed by the next check at the latest, and only if the kernel's clock notices it.
//! - Where the counter moves and its page becomes unusable in one step, the clock goes on by the operating system's clock since the last check, at the rate at which the
//!   two have run against each other so far: right as long as that has not changed.
//! - Time that the machine is suspended is counted if the source counts it: the pages do, the TSC may, MONOTONIC_RAW does not.
//!
//! # References
//!
//! Linux `lib/vdso/gettimeofday.c`, `arch/x86/include/asm/vdso/gettimeofday.h` (what the vDSO does with the pages); Intel SDM vol. 3B, "Time-Stamp Counter".

mod engine;
mod line;
mod machine;
mod published;
mod realtime;
mod report;
mod source;
mod steering;

pub use realtime::RealtimePair;
pub use report::{Events, Report};
pub use source::{Rejected, SourceKind, Unusable};

use std::sync::OnceLock;

use chronovisor_abi::quantity::Nanos;

use self::engine::Engine;
use self::machine::ThisMachine;
use crate::counter::{Counter, Ordered, rdtsc};
use crate::linux::os_clock::ClockId;

/// A clock that counts ns from its creation: see the [module's text](self).
#[derive(Debug)]
pub struct Clock {
    engine: Engine<ThisMachine>,
    ordered: Ordered,
}

impl Clock {
    /// A clock that starts at 0 now, on the best source of this machine. It takes some CPUID exits and a check of the source's rate over 0.1 ms.
    #[must_use]
    pub fn new() -> Self {
        let (sources, rejected) = source::candidates(crate::cpuid::leaf);
        Self {
            engine: Engine::new(ThisMachine::new(), sources, rejected),
            ordered: Ordered::detect(),
        }
    }

    /// The one clock of this process, made at the first call.
    pub fn of_process() -> &'static Self {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        CLOCK.get_or_init(Self::new)
    }

    /// Time since the clock's creation, with the counter read out of order: the cheapest, for measuring spans well above 1 us and for time stamps
    /// within one thread.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.engine.read(rdtsc)
    }

    /// Time since the clock's creation, with the counter read not before earlier instructions are done: never earlier than any reading, of any
    /// thread, that happened before it.
    #[inline]
    #[must_use]
    pub fn now_ordered(&self) -> Nanos {
        self.engine.read(|| self.ordered.read())
    }

    /// The time from `earlier`, a reading of this clock, to now; zero if `earlier` is later, as another thread's unordered reading can be by a few ns.
    #[inline]
    #[must_use]
    pub fn elapsed_since(&self, earlier: Nanos) -> Nanos {
        self.now().saturating_sub(earlier)
    }

    /// This clock and CLOCK_REALTIME at one instant, to within half a bracket around the wall clock's reading. `None` if the wall clock stands before 1970.
    #[must_use]
    pub fn to_realtime(&self) -> Option<RealtimePair> {
        realtime::pair(|| self.now_ordered(), || ClockId::REALTIME.now())
    }

    /// What the clock stands on, what was passed over and why, and what has happened since its creation.
    #[must_use]
    pub fn report(&self) -> Report {
        self.engine.report()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
