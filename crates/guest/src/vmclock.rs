//! Reads a VMClock page: the time of day with its error bounds, and whether the machine was moved or copied.
//!
//! # Theory
//!
//! The page gives a time (TAI or UTC) as a line over the counter, how far that can be off, and two markers: one changes when the counter may have
//! jumped (a live migration), the other when the machine's state was copied (a snapshot loaded, a clone). A page may carry the markers alone.
//!
//! # Practice
//!
//! [`VmclockPage::open`] checks the fixed fields once; each [`VmclockPage::observe`] checks that time can be told at all, and gives it with its [`Bounds`].
//! Whoever keeps a calibration or a cache keeps its [`Markers`] too, and asks [`Markers::since`] before trusting it.
//!
//! ```
//! use chronovisor_abi::quantity::{Hertz, Tsc};
//! use chronovisor_abi::vmclock::{ClockStatus, Constants, Contents, Flags, Page, Period};
//! use chronovisor_guest::vmclock::VmclockPage;
//!
//! let period = Period::of(Hertz::from_hz(1_000_000_000).expect("not zero")).expect("above 1 Hz");
//! let page = Page::new();
//! page.write_constants(&Constants::X86_TAI);
//! page.mark(0);
//! page.store(&Contents {
//!     status: ClockStatus::SYNCHRONIZED,
//!     flags: Flags::TAI_OFFSET_VALID,
//!     tai_offset_sec: 37,
//!     period_frac_sec: period.frac_sec,
//!     period_shift: period.shift,
//!     time_sec: 1_800_000_037,
//!     ..Contents::default()
//! });
//! page.publish(0);
//! let clock = VmclockPage::open(&page, || Tsc::from_ticks(1_500_000_000))?;
//! let seen = clock.observe()?;
//! assert_eq!(seen.utc().map(|time| time.sec), Some(1_800_000_001));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Migration
//!
//! The disruption marker changes with the first reading after it. What was calibrated against the counter is void then; the page's own line is right again.
//!
//! # Caveats
//!
//! Without the flags of both error fields a bound is unknown, not zero. A leap second near (`leap_indicator`) is the caller's to handle where it shows UTC.
//! A counter value before the page's, which only an unordered read can yield, counts as the page's.
//!
//! # References
//!
//! UAPI.13 "VMClock" 1.0; Linux `include/uapi/linux/vmclock-abi.h`, `drivers/ptp/ptp_vmclock.c`.

use chronovisor_abi::quantity::{Reading, Tsc};
use chronovisor_abi::seqlock::{DEFAULT_TRIES, ReadError};
use chronovisor_abi::vmclock::{
    Bounds, Constants, Contents, Flags, HeaderError, Page, TimeError, TimeType, WallTime,
};

use crate::clock::GuestClock;
use crate::counter::Counter;

/// Why a page gave no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VmclockError {
    /// No consistent look at the page.
    #[error("no consistent VMClock page: {0}")]
    Inconsistent(#[from] ReadError),
    /// The page carries no time that can be told; its markers may still be of use.
    #[error("no time can be told from the page: {0}")]
    NoTime(#[from] TimeError),
}

/// The two values that say whether what was known before still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Markers {
    /// Changes when the counter may have jumped.
    pub disruption: u64,
    /// Changes when the machine's state was copied; `None` if the page does not carry it.
    pub generation: Option<u64>,
}

/// What happened between two looks at the markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Happened {
    /// Nothing: what was calibrated still holds.
    Nothing,
    /// The counter may have jumped, as in a live migration: calibrations are void.
    CounterDisrupted,
    /// The machine's state was copied, as when a snapshot is loaded: calibrations are void, and so is what must be unique (keys, random state).
    StateCopied,
}

impl Markers {
    fn of(contents: &Contents) -> Self {
        let has_generation = contents.flags.contains(Flags::GENERATION_PRESENT);
        Self {
            disruption: contents.disruption_marker,
            generation: has_generation.then_some(contents.vm_generation_counter),
        }
    }

    /// What happened since `earlier`. A copy also counts as one where the page began or ceased to carry the generation.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Happened {
        if self.generation != earlier.generation {
            Happened::StateCopied
        } else if self.disruption != earlier.disruption {
            Happened::CounterDisrupted
        } else {
            Happened::Nothing
        }
    }
}

/// Everything that one read saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The page's fields under its sequence.
    pub contents: Contents,
    /// Which time it is.
    pub time_type: TimeType,
    /// The time and the counter value that it was computed from.
    pub reading: Reading<WallTime>,
    /// How far the time can be off.
    pub bounds: Bounds,
}

impl Observation {
    /// The markers at this reading.
    #[must_use]
    pub fn markers(&self) -> Markers {
        Markers::of(&self.contents)
    }

    /// The time as UTC: TAI less the page's offset. `None` for a monotonic page, for TAI without a valid offset, and before 1970.
    #[must_use]
    pub fn utc(&self) -> Option<WallTime> {
        match self.time_type {
            TimeType::UTC => Some(self.reading.time),
            TimeType::TAI if self.contents.flags.contains(Flags::TAI_OFFSET_VALID) => self
                .reading
                .time
                .checked_sub_secs(self.contents.tai_offset_sec),
            _ => None,
        }
    }

    /// The time as TAI: UTC plus the page's offset. `None` for a monotonic page, for UTC without a valid offset, and out of range.
    #[must_use]
    pub fn tai(&self) -> Option<WallTime> {
        match self.time_type {
            TimeType::TAI => Some(self.reading.time),
            TimeType::UTC if self.contents.flags.contains(Flags::TAI_OFFSET_VALID) => {
                let behind = self.contents.tai_offset_sec.checked_neg()?;
                self.reading.time.checked_sub_secs(behind)
            }
            _ => None,
        }
    }
}

/// A VMClock page whose fixed fields were checked.
#[derive(Clone, Copy, Debug)]
pub struct VmclockPage<'a, C> {
    page: &'a Page,
    counter: C,
    constants: Constants,
    tries: u32,
}

impl<'a, C: Counter> VmclockPage<'a, C> {
    /// A reader of `page` with `counter`, which should be ordered.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] if this is no VMClock page of a known version.
    pub fn open(page: &'a Page, counter: C) -> Result<Self, HeaderError> {
        Ok(Self {
            page,
            counter,
            constants: page.constants()?,
            tries: DEFAULT_TRIES,
        })
    }

    /// The same reader that gives up after `tries` looks.
    #[must_use]
    pub fn with_tries(self, tries: u32) -> Self {
        Self { tries, ..self }
    }

    /// The fields that never change.
    #[must_use]
    pub const fn constants(&self) -> Constants {
        self.constants
    }

    /// The time with its bounds, and all that the read saw.
    ///
    /// # Errors
    ///
    /// [`VmclockError`] if the page is inconsistent or carries no time.
    #[inline]
    pub fn observe(&self) -> Result<Observation, VmclockError> {
        let (contents, tsc) = self.page.read(self.tries, || self.counter.read())?;
        contents.check(&self.constants)?;
        let at = if tsc.is_before(contents.counter_value) {
            contents.counter_value
        } else {
            tsc
        };
        Ok(Observation {
            contents,
            time_type: self.constants.time_type,
            reading: Reading::new(contents.time_at(at)?, tsc),
            bounds: contents.bounds_at(at),
        })
    }

    /// The fields as they stand, consistent, with the counter; also from a page that carries no time.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if the page is inconsistent.
    pub fn contents(&self) -> Result<(Contents, Tsc), ReadError> {
        self.page.read(self.tries, || self.counter.read())
    }

    /// The page's sequence as it stands: it changes with each update.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.page.sequence()
    }

    /// The markers; also from a page that carries no time.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if the page is inconsistent.
    pub fn markers(&self) -> Result<Markers, ReadError> {
        self.page
            .read(self.tries, || ())
            .map(|(contents, ())| Markers::of(&contents))
    }
}

impl<C: Counter> GuestClock for VmclockPage<'_, C> {
    type Time = WallTime;
    type Error = VmclockError;

    #[inline]
    fn read(&self) -> Result<Reading<WallTime>, VmclockError> {
        self.observe().map(|seen| seen.reading)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
