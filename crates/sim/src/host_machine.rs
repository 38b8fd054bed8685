//! A host: its time-stamp counter and the clocks that its kernel makes of it.
//!
//! # Theory
//!
//! A host's counter runs at a rate that nobody knows exactly: the nominal rate and the crystal's error. The kernel believes a rate in
//! whole kHz and derives two clocks from the counter. CLOCK_MONOTONIC_RAW applies the believed rate as it is. CLOCK_MONOTONIC is steered by
//! NTP: it runs faster or slower than the raw clock by a slew that changes over time. A software timer counts CLOCK_MONOTONIC, a
//! preemption timer counts the counter; their difference is where the trouble of this field comes from.
//!
//! ```text
//! tsc(t)   = f (1 + e) t              raw(t) = tsc(t) / f_believed              monotonic' = raw' (1 + slew(t))
//! ```
//!
//! # Practice
//!
//! A guest's counter is the host's plus an offset, or scaled as well: see the scenarios. [`HostMachine::look`] takes counter and clock at one
//! instant, as a hypervisor must.
//!
//! # Migration
//!
//! Each host has its own lines; hosts share only true time, and TAI to within their synchronisation error.
//!
//! # Caveats
//!
//! The kernel's multipliers (32 bits) are taken as exact: at most 0.3 ppb, far below any slew. Temperature is not modelled; a crystal's
//! error is constant within a run.
//!
//! # References
//!
//! Linux `kernel/time/timekeeping.c`, `kernel/time/ntp.c`.

use chronovisor_abi::quantity::{Hertz, Nanos, Ppb, Tsc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::line::{Line, Slope};
use crate::world_time::WorldTime;

/// What a host is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// The rate that the counter is said to have, in Hz.
    pub tsc_hz: u64,
    /// How far the crystal is off, in ppb; positive is fast.
    pub crystal_ppb: i64,
    /// By how much NTP makes CLOCK_MONOTONIC run faster than CLOCK_MONOTONIC_RAW, in ppb.
    pub slew_ppb: i64,
}

/// A host that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a counter of {tsc_hz} Hz, off by {crystal_ppb} ppb, its clock slewed by {slew_ppb} ppb: take 1 kHz to 255 GHz and errors within half a million ppb"
)]
pub struct ImpossibleHost {
    /// The rate asked for, in Hz.
    pub tsc_hz: u64,
    /// The crystal's error, in ppb.
    pub crystal_ppb: i64,
    /// The slew, in ppb.
    pub slew_ppb: i64,
}

/// Counter and monotonic clock at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLook {
    /// The host's counter.
    pub tsc: Tsc,
    /// CLOCK_MONOTONIC.
    pub monotonic: Nanos,
}

/// A host's counter and clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMachine {
    nominal: Hertz,
    tsc: Line,
    raw: Line,
    monotonic: Line,
}

impl HostMachine {
    /// A host that was switched on at `time`: its counter stands at `tsc`, its clocks at 0.
    ///
    /// # Errors
    ///
    /// [`ImpossibleHost`] if no counter can be like that.
    pub fn new(spec: HostSpec, time: WorldTime, tsc: Tsc) -> Result<Self, ImpossibleHost> {
        let impossible = ImpossibleHost {
            tsc_hz: spec.tsc_hz,
            crystal_ppb: spec.crystal_ppb,
            slew_ppb: spec.slew_ppb,
        };
        let sane = |ppb: i64| ppb.unsigned_abs() <= 500_000;
        if !sane(spec.crystal_ppb) || !sane(spec.slew_ppb) || spec.tsc_hz < 1000 {
            return Err(impossible);
        }
        let nominal = Hertz::from_hz(spec.tsc_hz).ok_or(impossible)?;
        let believed = Hertz::from_hz(spec.tsc_hz / 1000 * 1000).ok_or(impossible)?;
        let crystal = Ppb::from_ppb_saturating(spec.crystal_ppb);
        let counter = Slope::of_counter(nominal, crystal).ok_or(impossible)?;
        // The raw clock's rate against true time is the counter's true rate over the believed one.
        let raw = Slope::TRUE_NS
            .checked_adjust(crystal)
            .and_then(|slope| slope.checked_adjust(nominal.error_against(believed)))
            .ok_or(impossible)?;
        let monotonic = raw
            .checked_adjust(Ppb::from_ppb_saturating(spec.slew_ppb))
            .ok_or(impossible)?;
        Ok(Self {
            nominal,
            tsc: Line::new(time, tsc.as_ticks(), counter),
            raw: Line::new(time, 0, raw),
            monotonic: Line::new(time, 0, monotonic),
        })
    }

    /// The rate that the counter is said to have.
    #[must_use]
    pub const fn nominal(&self) -> Hertz {
        self.nominal
    }

    /// The rate that the kernel works with, in kHz: the nominal one cut to whole kHz.
    #[must_use]
    pub const fn believed_khz(&self) -> u64 {
        self.nominal.floor_hz() / 1000
    }

    /// The counter.
    #[must_use]
    #[inline]
    pub const fn tsc(&self, now: WorldTime) -> Tsc {
        Tsc::from_ticks(self.tsc.at(now))
    }

    /// CLOCK_MONOTONIC.
    #[must_use]
    #[inline]
    pub const fn monotonic(&self, now: WorldTime) -> Nanos {
        Nanos::from_ns(self.monotonic.at(now))
    }

    /// CLOCK_MONOTONIC_RAW.
    #[must_use]
    #[inline]
    pub const fn monotonic_raw(&self, now: WorldTime) -> Nanos {
        Nanos::from_ns(self.raw.at(now))
    }

    /// Counter and CLOCK_MONOTONIC at one instant.
    #[must_use]
    #[inline]
    pub const fn look(&self, now: WorldTime) -> HostLook {
        HostLook {
            tsc: self.tsc(now),
            monotonic: self.monotonic(now),
        }
    }

    /// The first instant at which the counter is `tsc` or more.
    #[must_use]
    #[inline]
    pub fn when_tsc(&self, tsc: Tsc) -> WorldTime {
        self.tsc.first_reaching(tsc.as_ticks())
    }

    /// The first instant at which CLOCK_MONOTONIC is `time` or more, if the slew stays as it is.
    #[must_use]
    #[inline]
    pub fn when_monotonic(&self, time: Nanos) -> WorldTime {
        self.monotonic.first_reaching(time.as_ns())
    }

    /// NTP changes the slew at `now`: CLOCK_MONOTONIC runs on from where it is. Nothing happens if no clock can run so.
    pub fn slew(&mut self, now: WorldTime, ppb: i64) {
        if let Some(slope) = self
            .raw
            .slope()
            .checked_adjust(Ppb::from_ppb_saturating(ppb))
        {
            self.monotonic = self.monotonic.bent(now, slope);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world_time::WorldSpan;

    fn day() -> WorldTime {
        WorldTime::ZERO.saturating_add(WorldSpan::from_ns(86_400_000_000_000))
    }

    /// raw = tsc / f_believed, monotonic = raw * (1 + slew): a day at 5 ppm fast, slewed by 7 ppm, kHz cut from 2 599 999.5.
    #[test]
    fn the_clocks_differ_by_what_was_asked_for() {
        let spec = HostSpec {
            tsc_hz: 2_599_999_500,
            crystal_ppb: 5_000,
            slew_ppb: 7_000,
        };
        let host = HostMachine::new(spec, WorldTime::ZERO, Tsc::from_ticks(0)).unwrap();
        assert_eq!(host.believed_khz(), 2_599_999);
        // 2 599 999 500 * 86 400 * 1.000 005 = 224 641 079 999 784; the rounded slope loses 0.001 tick.
        assert_eq!(host.tsc(day()), Tsc::from_ticks(224_641_079_999_783));
        // 86 400 s * 1.000 005 * 2 599 999.5 / 2 599 999
        let raw = host.monotonic_raw(day()).as_ns();
        assert!(raw.abs_diff(86_400_448_615_474) <= 1, "{raw}");
        // 7 ppm of that
        let ahead = host.monotonic(day()).as_ns() - raw;
        assert!(ahead.abs_diff(604_803_140) <= 1, "{ahead}");
    }

    #[test]
    fn a_slew_bends_the_clock_without_a_step() {
        let spec = HostSpec {
            tsc_hz: 2_600_000_000,
            crystal_ppb: 0,
            slew_ppb: 0,
        };
        let mut host = HostMachine::new(spec, WorldTime::ZERO, Tsc::from_ticks(0)).unwrap();
        let before = host.look(day());
        host.slew(day(), -100_000);
        assert_eq!(host.look(day()), before);
        let later = day().saturating_add(WorldSpan::from_ns(1_000_000_000));
        let passed = host.monotonic(later).as_ns() - before.monotonic.as_ns();
        assert_eq!(passed.abs_diff(999_900_000) / 2, 0, "{passed}");
    }

    #[test]
    fn impossible_hosts_are_refused_with_their_figures() {
        let spec = HostSpec {
            tsc_hz: 0,
            crystal_ppb: 0,
            slew_ppb: 0,
        };
        for spec in [
            spec,
            HostSpec {
                tsc_hz: u64::MAX,
                ..spec
            },
            HostSpec {
                tsc_hz: 1_000_000,
                slew_ppb: i64::MIN,
                ..spec
            },
        ] {
            let refused = HostMachine::new(spec, WorldTime::ZERO, Tsc::from_ticks(0));
            assert!(
                matches!(refused, Err(e) if e.tsc_hz == spec.tsc_hz),
                "{spec:?}"
            );
        }
    }
}
