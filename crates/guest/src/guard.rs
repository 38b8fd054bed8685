//! Keeps a clock from going back between CPUs whose records disagree.
//!
//! # Theory
//!
//! Without the stable flag the records of two vCPUs may part by microseconds: a time read on one CPU can be later than one read afterwards on another.
//! A guard remembers the last time given out, for all CPUs, and gives it again where a clock would go back.
//!
//! | guard | remembers | cost | price |
//! | --- | --- | --- | --- |
//! | [`GlobalGuard`] | every time given out | each read that advances writes one line that all CPUs share | none in resolution |
//! | [`CoarseGuard`] | the last quantum | the line is written once a quantum, by one CPU, and otherwise only read | times are multiples of the quantum |
//!
//! # Practice
//!
//! [`Guarded`] puts a guard over any clock in ns. A guard turns a step back into a run of equal values: who looks for faults must count stalls,
//! not only regressions. [`Guard::admit`] answers later than it was asked exactly then.
//!
//! ```
//! use chronovisor_abi::quantity::Nanos;
//! use chronovisor_guest::guard::{CoarseGuard, GlobalGuard, Guard};
//!
//! let (ns, guard) = (Nanos::from_ns, GlobalGuard::new());
//! assert_eq!(guard.admit(ns(1_000)), ns(1_000));
//! assert_eq!(guard.admit(ns(990)), ns(1_000)); // another CPU, 10 ns behind
//! let coarse = CoarseGuard::with_quantum_of_2_to_the::<10>();
//! assert_eq!(coarse.admit(ns(5_000)), ns(4_096));
//! ```
//!
//! # Migration
//!
//! After a resume, a restore or a migration the clock may start below the last value, and the guard would hold it there for as long: zero it with [`Guard::reset`] before
//! the first read. [`SchedClock::restore`](crate::sched_clock::SchedClock::restore) does.
//!
//! # Caveats
//!
//! A guard hides how far the records disagree. One wild reading far in the future freezes the clock until that time.
//!
//! # References
//!
//! Linux `arch/x86/kernel/pvclock.c` (`last_value`).

use chronovisor_abi::quantity::{Nanos, Reading};
use chronovisor_abi::seqlock::sync::{AtomicU64, Ordering};

use crate::clock::GuestClock;

/// Remembers what was given out, for all CPUs.
pub trait Guard {
    /// `time`, or what was given out already if that is later.
    fn admit(&self, time: Nanos) -> Nanos;

    /// Forgets what was given out: to be called while no other CPU reads, before the first read after a resume.
    fn reset(&self);
}

impl<G: Guard + ?Sized> Guard for &G {
    #[inline]
    fn admit(&self, time: Nanos) -> Nanos {
        (**self).admit(time)
    }

    fn reset(&self) {
        (**self).reset();
    }
}

/// The last value given out, to the ns, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub struct GlobalGuard {
    last_ns: AtomicU64,
}

/// The last quantum given out, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub struct CoarseGuard {
    last_ns: AtomicU64,
    /// Clears what is below the quantum.
    mask: u64,
}

/// Raises `last_ns` to `time_ns` and returns the larger: the same as fetch_max, without a write where nothing advances.
///
/// Relaxed is enough: all goes through one atomic, whose values grow in its modification order, and a read that happens after another cannot see an
/// older value of the same atomic.
#[inline]
fn raise(last_ns: &AtomicU64, time_ns: u64) -> u64 {
    let last = last_ns.load(Ordering::Relaxed);
    if time_ns <= last {
        return last;
    }
    last_ns.fetch_max(time_ns, Ordering::Relaxed).max(time_ns)
}

impl GlobalGuard {
    /// A guard that has given nothing out.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            last_ns: AtomicU64::new(0),
        }
    }

    /// A guard that has given nothing out.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            last_ns: AtomicU64::new(0),
        }
    }
}

impl Default for GlobalGuard {
    fn default() -> Self {
        Self::new()
    }
}

impl CoarseGuard {
    /// A guard with a quantum of 2^`BITS` ns, below 2^63: 10 is about 1 us.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn with_quantum_of_2_to_the<const BITS: u32>() -> Self {
        const { assert!(BITS < 63) };
        Self {
            last_ns: AtomicU64::new(0),
            mask: u64::MAX << BITS,
        }
    }

    /// A guard with a quantum of 2^`BITS` ns, below 2^63.
    #[cfg(loom)]
    #[must_use]
    pub fn with_quantum_of_2_to_the<const BITS: u32>() -> Self {
        const { assert!(BITS < 63) };
        Self {
            last_ns: AtomicU64::new(0),
            mask: u64::MAX << BITS,
        }
    }

    /// The quantum: every time given out is a multiple of it, and up to that much behind the clock.
    #[must_use]
    pub const fn quantum(&self) -> Nanos {
        Nanos::from_ns(1 << self.mask.trailing_zeros())
    }
}

impl Guard for GlobalGuard {
    #[inline]
    fn admit(&self, time: Nanos) -> Nanos {
        Nanos::from_ns(raise(&self.last_ns, time.as_ns()))
    }

    fn reset(&self) {
        self.last_ns.store(0, Ordering::Relaxed);
    }
}

impl Guard for CoarseGuard {
    #[inline]
    fn admit(&self, time: Nanos) -> Nanos {
        Nanos::from_ns(raise(&self.last_ns, time.as_ns() & self.mask))
    }

    fn reset(&self) {
        self.last_ns.store(0, Ordering::Relaxed);
    }
}

/// A clock in ns with a guard over it; the counter of a reading is the clock's own, also where the guard held the time.
#[derive(Clone, Copy, Debug)]
pub struct Guarded<C, G> {
    clock: C,
    guard: G,
}

impl<C: GuestClock<Time = Nanos>, G: Guard> Guarded<C, G> {
    /// `clock` under `guard`; give a reference to a guard that several clocks share.
    #[must_use]
    pub const fn new(clock: C, guard: G) -> Self {
        Self { clock, guard }
    }
}

impl<C: GuestClock<Time = Nanos>, G: Guard> GuestClock for Guarded<C, G> {
    type Time = Nanos;
    type Error = C::Error;

    #[inline]
    fn read(&self) -> Result<Reading<Nanos>, C::Error> {
        self.clock
            .read()
            .map(|reading| reading.map(|time| self.guard.admit(time)))
    }

    fn resumed(&self) {
        self.clock.resumed();
        self.guard.reset();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod model;
