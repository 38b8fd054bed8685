//! A scheduler's clock: starts at 0, never jumps, goes on over suspend, hibernation and migration.
//!
//! # Theory
//!
//! ```text
//! sched_clock = clock - offset          offset = clock at init
//! ```
//!
//! A scheduler needs a clock that starts near 0, so that the change-over from whatever served before prints no step, and whose differences are run times. The
//! paravirtual clock below it counts from the partition's creation, and restarts when the guest comes back from hibernation on a new virtual machine.
//! Whatever the clock does over such an event, the rule is the same: `offset' = clock now - saved`, modulo 2^64, so the offset may become "negative".
//!
//! # Practice
//!
//! [`SchedClock::save`] before the event, [`SchedClock::restore`] after it, while no other CPU reads. The order inside `restore` is the one that matters:
//! the page must be enabled by then; a guard is zeroed; the offset is taken; then comes the first read.
//!
//! ```
//! use chronovisor_abi::quantity::{Nanos, Reading, Tsc};
//! use chronovisor_guest::sched_clock::SchedClock;
//! # use chronovisor_guest::clock::GuestClock;
//! # use core::{cell::Cell, convert::Infallible};
//! # struct Fake(Cell<u64>);
//! # impl GuestClock for Fake {
//! #     type Time = Nanos;
//! #     type Error = Infallible;
//! #     fn read(&self) -> Result<Reading<Nanos>, Infallible> { Ok(Reading::new(Nanos::from_ns(self.0.get()), Tsc::from_ticks(0))) }
//! # }
//! # let pvclock = Fake(Cell::new(5_000));
//! let clock = SchedClock::start(&pvclock)?;
//! # pvclock.0.set(5_700);
//! assert_eq!(clock.now()?, Nanos::from_ns(700));
//! let saved = clock.save()?;
//! # pvclock.0.set(40); // hibernation: the clock restarts
//! clock.restore(saved)?;
//! # pvclock.0.set(50);
//! assert_eq!(clock.now()?, Nanos::from_ns(710));
//! # Ok::<(), Infallible>(())
//! ```
//!
//! # Migration
//!
//! A migration that the hypervisor's clock bridges needs nothing. One that it does not (another partition, a restored image) is a save and a restore.
//!
//! # Caveats
//!
//! Time spent suspended is not counted. A clock in units of 100 ns gives times in steps of 100 ns; the saved time is kept to the ns.
//!
//! # References
//!
//! Linux `drivers/clocksource/hyperv_timer.c`, `arch/x86/kernel/kvmclock.c`, `arch/x86/kernel/tsc.c` (save and restore of sched_clock).

use chronovisor_abi::quantity::{Nanos, RefTime};
use chronovisor_abi::seqlock::sync::{AtomicU64, Ordering};

use crate::clock::GuestClock;

/// A unit of time that becomes ns, modulo 2^64.
pub trait WrappingNanos: Copy + Ord {
    /// The time in ns, modulo 2^64 ns.
    fn wrapping_nanos(self) -> Nanos;
}

impl WrappingNanos for Nanos {
    #[inline]
    fn wrapping_nanos(self) -> Nanos {
        self
    }
}

impl WrappingNanos for RefTime {
    #[inline]
    fn wrapping_nanos(self) -> Nanos {
        Nanos::from_ns(self.as_100ns().wrapping_mul(100)) // wrapping: a clock that is subtracted from modulo 2^64.
    }
}

/// What a scheduler's clock said before the machine went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Saved {
    /// The scheduler's time at the save.
    pub time: Nanos,
}

/// A scheduler's clock over any [`GuestClock`].
#[derive(Debug)]
pub struct SchedClock<C> {
    clock: C,
    /// The clock's time at the scheduler's 0, modulo 2^64 ns.
    offset_ns: AtomicU64,
}

impl<C: GuestClock<Time: WrappingNanos>> SchedClock<C> {
    /// A scheduler's clock that is 0 now. Start it first thing at boot, before anything has read the time.
    ///
    /// # Errors
    ///
    /// The clock's own.
    pub fn start(clock: C) -> Result<Self, C::Error> {
        let offset = clock.read()?.time.wrapping_nanos();
        Ok(Self {
            clock,
            offset_ns: AtomicU64::new(offset.as_ns()),
        })
    }

    /// The scheduler's time.
    ///
    /// # Errors
    ///
    /// The clock's own.
    #[inline]
    pub fn now(&self) -> Result<Nanos, C::Error> {
        let time = self.clock.read()?.time.wrapping_nanos();
        let offset = Nanos::from_ns(self.offset_ns.load(Ordering::Relaxed));
        Ok(time.wrapping_sub(offset)) // wrapping: the offset is "negative" once the clock has restarted.
    }

    /// What [`Self::restore`] needs after the machine was away.
    ///
    /// # Errors
    ///
    /// The clock's own.
    pub fn save(&self) -> Result<Saved, C::Error> {
        Ok(Saved { time: self.now()? })
    }

    /// Goes on from what was saved, whatever the clock below has done: resets the clock's own memory of the time before (a guard), then takes the new
    /// offset. To be called while no other CPU reads, with the clock's page enabled again.
    ///
    /// # Errors
    ///
    /// The clock's own; the old offset then stays.
    pub fn restore(&self, saved: Saved) -> Result<(), C::Error> {
        self.clock.resumed();
        let time = self.clock.read()?.time.wrapping_nanos();
        // wrapping: see `now`.
        self.offset_ns
            .store(time.wrapping_sub(saved.time).as_ns(), Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
