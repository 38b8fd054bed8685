//! The time of day: what the VMM tells about TAI, and what follows from it.

use chronovisor_abi::pvclock::WallClock;
use chronovisor_abi::quantity::{Nanos, Ppb, Tsc, TscDelta};
use chronovisor_abi::vmclock::{ClockStatus, LeapIndicator, WallTime};

use super::exact::{ExactNanos, Master, divide};

/// What the VMM knows about the time of day at one reading of the guest's counter.
///
/// TAI and not UTC: a leap second between two readings would break UTC by 1 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeOfDay {
    /// The guest's counter at the reading.
    pub tsc: Tsc,
    /// TAI at that instant.
    pub tai: WallTime,
    /// TAI less UTC (37 s in 2026), or `None` if unknown.
    pub tai_offset_sec: Option<i16>,
    /// Whether a leap second is near.
    pub leap: LeapIndicator,
    /// Whether the host's clock is disciplined: [`ClockStatus::SYNCHRONIZED`] or [`ClockStatus::FREERUNNING`].
    pub status: ClockStatus,
    /// How far `tai` is estimated to be off.
    pub estimated_error: Option<Nanos>,
    /// How far `tai` may be off.
    pub maximum_error: Option<Nanos>,
    /// How far the counter's rate is estimated to be off.
    pub rate_estimated_error: Option<Ppb>,
    /// How far the counter's rate may be off.
    pub rate_maximum_error: Option<Ppb>,
}

/// Why the wall-clock record cannot be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WallClockError {
    /// The VMM has not told the time of day.
    #[error(
        "the time of day is not known: update the clock with Change::TimeOfDay before the guest asks"
    )]
    Unknown,
    /// The offset between TAI and UTC is not known.
    #[error("the wall-clock record is UTC and the offset of TAI is not known: give tai_offset_sec")]
    NoTaiOffset,
    /// The record's 32 bits of seconds are over.
    #[error(
        "the wall-clock record ends in February 2106 (2^32 s), and the guest's clock began at {sec} s: let the guest use VMClock"
    )]
    EndedIn2106 {
        /// Seconds since 1970.
        sec: u64,
    },
    /// UTC at the start of the guest's clock lies before 1970.
    #[error("the guest's clock began before 1970: the time of day or the clock's value is wrong")]
    Before1970,
}

/// The relation between the master and TAI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wall {
    /// TAI when the master stood at zero, in 2^-64 s, modulo 2^128.
    origin: u128,
    told: TimeOfDay,
}

impl Wall {
    pub(crate) fn new(told: TimeOfDay, master: &Master) -> Self {
        let origin = told
            .tai
            .as_frac()
            .wrapping_sub(seconds(master.at(told.tsc))); // wrapping: may lie before 1970
        Self { origin, told }
    }

    /// The relation as it was saved.
    pub(crate) const fn restored(origin: u128, told: TimeOfDay) -> Self {
        Self { origin, told }
    }

    /// The same relation for a counter that was moved `ahead`.
    pub(crate) const fn moved(mut self, ahead: TscDelta) -> Self {
        self.told.tsc = self.told.tsc.wrapping_add(ahead); // wrapping: the counter itself wraps.
        self
    }

    /// The same relation for a master that stood still for `time` while TAI went on.
    pub(crate) const fn stopped_for(mut self, time: ExactNanos) -> Self {
        self.origin = self.origin.wrapping_add(seconds(time)); // wrapping: see `origin`
        self
    }

    /// The same relation with larger errors.
    pub(crate) fn less_certain(mut self, by: Nanos) -> Self {
        for error in [&mut self.told.estimated_error, &mut self.told.maximum_error] {
            *error = error.map(|error| error.saturating_add(by));
        }
        self
    }

    pub(crate) const fn origin(&self) -> u128 {
        self.origin
    }

    pub(crate) const fn told(&self) -> &TimeOfDay {
        &self.told
    }

    /// TAI in 2^-64 s at a master time.
    pub(crate) const fn tai_at(&self, time: ExactNanos) -> u128 {
        self.origin.wrapping_add(seconds(time)) // wrapping: see `origin`
    }

    /// The wall-clock record: UTC when pvclock stood at 0.
    pub(crate) fn wall_clock(&self) -> Result<WallClock, WallClockError> {
        let offset = self
            .told
            .tai_offset_sec
            .ok_or(WallClockError::NoTaiOffset)?;
        if self.origin >> 127 == 1 {
            return Err(WallClockError::Before1970);
        }
        let utc = WallTime::from_frac(self.origin)
            .checked_sub_secs(offset)
            .ok_or(WallClockError::Before1970)?;
        let sec =
            u32::try_from(utc.sec).map_err(|_| WallClockError::EndedIn2106 { sec: utc.sec })?;
        Ok(WallClock {
            sec,
            nsec: utc.subsec_nanos(),
        })
    }
}

/// A master time in 2^-64 s, rounded down.
pub(crate) const fn seconds(time: ExactNanos) -> u128 {
    divide(time.as_raw(), 1_000_000_000)
}
