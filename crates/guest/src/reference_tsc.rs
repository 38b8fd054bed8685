//! Reads the Hyper-V reference TSC page, and the reference counter where the page is not usable.
//!
//! # Theory
//!
//! Page and reference counter (MSR 0x40000020) are one clock. The page costs no exit; while its sequence is 0, which the hypervisor sets
//! around a migration, the guest reads the counter. A reader may change between them at any read, in both directions, and time never goes
//! back.
//!
//! # Practice
//!
//! [`ReferenceClock`] takes the fall-back from its caller: an MSR read in a kernel, a system call or a hypercall elsewhere. It is called when
//! the sequence is invalid at the first look, or the page changed during every look.
//!
//! ```
//! use chronovisor_abi::quantity::{RefTime, Tsc};
//! use chronovisor_abi::reference_tsc::ReferenceTscPage;
//! use chronovisor_guest::reference_tsc::{ReferenceClock, Source};
//!
//! let page = ReferenceTscPage::new(); // sequence 0: not usable
//! let clock = ReferenceClock::new(&page, || Tsc::from_ticks(7), || RefTime::from_100ns(42));
//! let seen = clock.observe();
//! assert_eq!((seen.reading.time, seen.source), (RefTime::from_100ns(42), Source::Counter));
//! ```
//!
//! # Migration
//!
//! Reference time stands still between save and restore. The page's sequence is 0 until the new host has filled it.
//!
//! # Caveats
//!
//! The unit is 100 ns. A reading from the counter carries the TSC taken just before the counter was read, not at the same instant.
//!
//! # References
//!
//! Hyper-V TLFS, "Partition Reference Time Enlightenment"; Linux `drivers/clocksource/hyperv_timer.c`.

use core::convert::Infallible;

use chronovisor_abi::quantity::{Reading, RefTime};
use chronovisor_abi::reference_tsc::{Parameters, ReferenceTscPage};
use chronovisor_abi::seqlock::{DEFAULT_TRIES, ReadError};

use crate::clock::GuestClock;
use crate::counter::Counter;

/// Where a reading came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The page.
    Page,
    /// The caller's fall-back: the reference counter.
    Counter,
}

/// A reading and where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The time and the counter value that it was taken at.
    pub reading: Reading<RefTime>,
    /// The page or the fall-back.
    pub source: Source,
}

/// The page alone: a reading, or why there is none.
#[derive(Clone, Copy, Debug)]
pub struct ReferencePage<'a, C> {
    page: &'a ReferenceTscPage,
    counter: C,
    tries: u32,
}

impl<'a, C: Counter> ReferencePage<'a, C> {
    /// A reader of `page` with `counter`, which should be ordered.
    #[must_use]
    pub const fn new(page: &'a ReferenceTscPage, counter: C) -> Self {
        Self {
            page,
            counter,
            tries: DEFAULT_TRIES,
        }
    }

    /// The same reader that gives up after `tries` looks.
    #[must_use]
    pub fn with_tries(self, tries: u32) -> Self {
        Self { tries, ..self }
    }

    /// Scale and offset, taken together.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if the page is not usable now.
    pub fn parameters(&self) -> Result<Parameters, ReadError> {
        self.page.read(self.tries, || ()).map(|(line, ())| line)
    }

    /// The page's sequence as it stands: it changes with each update, and is 0 while the page is not usable.
    #[must_use]
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.page.sequence()
    }
}

impl<C: Counter> GuestClock for ReferencePage<'_, C> {
    type Time = RefTime;
    type Error = ReadError;

    #[inline]
    fn read(&self) -> Result<Reading<RefTime>, ReadError> {
        let (line, tsc) = self.page.read(self.tries, || self.counter.read())?;
        Ok(Reading::new(line.time_at(tsc), tsc))
    }
}

/// The page, with a fall-back for the times when it is not usable.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceClock<'a, C, F> {
    page: ReferencePage<'a, C>,
    fall_back: F,
}

impl<'a, C: Counter, F: Fn() -> RefTime> ReferenceClock<'a, C, F> {
    /// A reader of `page` with `counter`; `fall_back` reads the reference counter.
    #[must_use]
    pub const fn new(page: &'a ReferenceTscPage, counter: C, fall_back: F) -> Self {
        Self {
            page: ReferencePage::new(page, counter),
            fall_back,
        }
    }

    /// The same reader that falls back after `tries` looks.
    #[must_use]
    pub fn with_tries(self, tries: u32) -> Self {
        Self {
            page: self.page.with_tries(tries),
            ..self
        }
    }

    /// The time and where it came from.
    #[inline]
    #[must_use]
    pub fn observe(&self) -> Observation {
        match self.page.read() {
            Ok(reading) => Observation {
                reading,
                source: Source::Page,
            },
            Err(_) => self.observe_counter(),
        }
    }

    #[cold]
    fn observe_counter(&self) -> Observation {
        let tsc = self.page.counter.read();
        Observation {
            reading: Reading::new((self.fall_back)(), tsc),
            source: Source::Counter,
        }
    }
}

impl<C: Counter, F: Fn() -> RefTime> GuestClock for ReferenceClock<'_, C, F> {
    type Time = RefTime;
    type Error = Infallible;

    #[inline]
    fn read(&self) -> Result<Reading<RefTime>, Infallible> {
        Ok(self.observe().reading)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
