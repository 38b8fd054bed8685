//! The publisher of the partition's VMClock page.
//!
//! # Theory
//!
//! The page's time is the master plus the distance to TAI that the VMM told last. When the VMM tells a new one the line starts at the later of
//! its old value and the new target: the time never goes back ([`Flags::TIME_MONOTONIC`]). A line that stands ahead of its target runs slow by
//! 1/2048 (488 ppm) until the two meet, and then is re-based; if that comes late and the line is behind, it runs fast. What it is off counts as
//! error meanwhile, so the bounds always hold the truth.
//!
//! # Practice
//!
//! [`PartitionClock::offer_vmclock`](crate::partition_clock::PartitionClock::offer_vmclock) fills the page once; updates of the clock keep it. The
//! counter's rate error and the time's error at the VMM's reading make the bounds, which grow with the counter as the page says.
//!
//! # Migration
//!
//! [`Disruption`] changes the markers: one for a counter that may have jumped, another for a machine that was copied. Neither value is used
//! twice.
//!
//! # Caveats
//!
//! With unequal vCPU counters no time can be told: the status is then "unreliable", and a VMM that knows it beforehand does not offer the page.
//! The page is TAI; the offset to UTC is a field of it.
//!
//! # References
//!
//! UAPI.13 "VMClock" 1.0; Linux `include/uapi/linux/vmclock-abi.h`.

use chronovisor_abi::quantity::{Hertz, Nanos, Ppb, Tsc, TscDelta};
use chronovisor_abi::vmclock::{
    ClockStatus, Constants, Contents, Flags, LeapIndicator, Period, SmearingHint, WallTime,
};
use chronovisor_abi::wide;

use crate::guest_memory::GuestMemory;
use crate::partition_clock::mutant::{self, Mutant};
use crate::partition_clock::{ExactNanos, Master, Wall, advance};

/// What happened to the machine as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disruption {
    /// The counter may have jumped: a live migration.
    Moved,
    /// The state was copied: a snapshot loaded, a clone made, a backup restored. The counter may have jumped as well.
    Copied,
}

/// Whether a disruption is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Outlook {
    /// None is known.
    #[default]
    Calm,
    /// Within a day.
    WithinDay,
    /// Within an hour.
    WithinHour,
}

/// Whether the device tells the guest of each change, by an interrupt or an ACPI notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Notification {
    /// The guest has to look.
    #[default]
    Absent,
    /// The VMM notifies after each update that wrote the page.
    Present,
}

/// A line ahead of its target runs slow by one part in 2^11, one behind it fast.
const BEND_SHIFT: u32 = 11;
/// What a line may be off without running slow or fast, in 2^-64 s: the cuts of the encodings.
const HALF_NANOSECOND: i128 = (1 << 63) / 1_000_000_000;

/// What a line behind its target does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CatchUp {
    /// It steps: the target itself has moved.
    Step,
    /// It runs fast: it is late, and an update of another kind must not show.
    Run,
}

/// The page's time: TAI in 2^-64 s at a counter value, and the period as the page has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) counter: Tsc,
    pub(crate) time: u128,
    pub(crate) period: Period,
    /// How far the line stands ahead of its target at `counter` (behind if negative), in 2^-64 s.
    pub(crate) ahead: i128,
}

impl Line {
    fn first(now: Tsc, target: u128, rate: Hertz) -> Option<Self> {
        Some(Self {
            counter: now,
            time: target,
            period: Period::of(rate).ok()?,
            ahead: 0,
        })
    }

    /// What a reader makes of the page, in 2^-64 s.
    fn at(&self, tsc: Tsc) -> u128 {
        let ticks = u128::from(tsc.wrapping_delta(self.counter).as_ticks());
        self.time
            .wrapping_add((ticks * u128::from(self.period.frac_sec)) >> self.period.shift) // wrapping: TAI before 1970 is kept modulo 2^128
    }

    fn continued(&self, now: Tsc, target: u128, rate: Hertz, catch_up: CatchUp) -> Option<Self> {
        let old = self.at(now);
        let exact = Self::first(now, target, rate)?;
        // wrapping: a distance
        let ahead = old.wrapping_sub(target).cast_signed();
        let bend = exact.period.frac_sec >> BEND_SHIFT;
        let frac_sec = if ahead > 0 && !mutant::is(Mutant::VmclockGoesBack) {
            if ahead > HALF_NANOSECOND {
                exact.period.frac_sec - bend
            } else {
                exact.period.frac_sec
            }
        } else if ahead < -HALF_NANOSECOND && catch_up == CatchUp::Run {
            // A period at the very top of its range cannot grow: then the line steps after all.
            match exact.period.frac_sec.checked_add(bend) {
                Some(frac_sec) => frac_sec,
                None => return Some(exact),
            }
        } else {
            return Some(exact);
        };
        Some(Self {
            time: old,
            period: Period {
                frac_sec,
                ..exact.period
            },
            ahead,
            ..exact
        })
    }

    /// The counter value at which a line that runs slow or fast has met its target.
    fn rebase_due(&self, rate: Hertz) -> Option<Tsc> {
        if self.ahead == 0 {
            return None;
        }
        // |ahead| = ticks * |exact - period| / 2^shift
        let exact = Period::of(rate).ok()?;
        // No bend is none due: the division by 0 below.
        let bend = u128::from(exact.frac_sec.abs_diff(self.period.frac_sec));
        let ticks = wide::mul_div_floor(self.ahead.unsigned_abs(), 1 << self.period.shift, bend)?;
        let ticks = u64::try_from(ticks).ok().filter(|ticks| *ticks < 1 << 63)?;
        // A tick at least, or a re-base when it is due would change nothing.
        let ticks = ticks.max(1);
        Some(self.counter.wrapping_add(TscDelta::from_ticks(ticks))) // wrapping: the counter itself wraps.
    }
}

/// Whether the page is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Offered {
    #[default]
    No,
    Yes,
}

/// The partition's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Publisher {
    pub(crate) offered: Offered,
    pub(crate) sequence: u32,
    pub(crate) disruption_marker: u64,
    pub(crate) generation: u64,
    pub(crate) outlook: Outlook,
    pub(crate) notification: Notification,
    pub(crate) line: Option<Line>,
}

impl Publisher {
    /// Starts or continues the line at `now`; without a time of day there is none.
    pub(crate) fn set_line(
        &mut self,
        now: Tsc,
        exact: ExactNanos,
        rate: Hertz,
        wall: Option<&Wall>,
        catch_up: CatchUp,
    ) {
        let target = wall.map(|wall| wall.tai_at(exact));
        self.line = target.and_then(|target| match self.line {
            Some(old) => old.continued(now, target, rate, catch_up),
            None => Line::first(now, target, rate),
        });
    }

    /// The same line for a counter that was moved `ahead`.
    pub(crate) fn counter_moved(&mut self, ahead: TscDelta) {
        if let Some(line) = &mut self.line {
            line.counter = line.counter.wrapping_add(ahead); // wrapping: the counter itself wraps.
        }
    }

    pub(crate) fn disrupt(&mut self, disruption: Disruption) {
        // wrapping: 2^64 migrations do not happen.
        self.disruption_marker = self.disruption_marker.wrapping_add(1);
        if disruption == Disruption::Copied {
            self.generation = self.generation.wrapping_add(1);
        }
    }

    pub(crate) fn rebase_due(&self, rate: Hertz) -> Option<Tsc> {
        self.line.as_ref()?.rebase_due(rate)
    }

    /// What the page shows at `tsc`, in 2^-64 s of TAI.
    pub(crate) fn at(&self, tsc: Tsc) -> Option<u128> {
        self.line.as_ref().map(|line| line.at(tsc))
    }

    pub(crate) fn mark(&self, memory: &(impl GuestMemory + ?Sized)) {
        if self.offered == Offered::Yes
            && let Some(page) = memory.vmclock_page()
        {
            page.mark(self.sequence);
        }
    }

    /// Makes a marked page valid again as it was.
    pub(crate) fn reopen(&mut self, memory: &(impl GuestMemory + ?Sized)) {
        if self.offered == Offered::Yes
            && let Some(page) = memory.vmclock_page()
        {
            self.sequence = page.publish(self.sequence);
        }
    }

    /// The fixed fields, once.
    pub(crate) fn write_constants(&self, memory: &(impl GuestMemory + ?Sized)) {
        if self.offered == Offered::Yes
            && let Some(page) = memory.vmclock_page()
        {
            page.write_constants(&Constants::X86_TAI);
        }
    }

    /// Fills a marked page and makes it valid; `true` if there is one.
    pub(crate) fn publish(
        &mut self,
        master: &Master,
        wall: Option<&Wall>,
        stability: Stability,
        memory: &(impl GuestMemory + ?Sized),
    ) -> bool {
        if self.offered == Offered::No {
            return false;
        }
        let Some(page) = memory.vmclock_page() else {
            return false;
        };
        page.store(&self.contents(master, wall, stability));
        self.sequence = page.publish(self.sequence);
        true
    }

    fn contents(&self, master: &Master, wall: Option<&Wall>, stability: Stability) -> Contents {
        let mut flags = Flags::GENERATION_PRESENT;
        for (flag, set) in [
            (Flags::DISRUPTION_SOON, self.outlook == Outlook::WithinDay),
            (
                Flags::DISRUPTION_IMMINENT,
                self.outlook == Outlook::WithinHour,
            ),
            (
                Flags::NOTIFICATION_PRESENT,
                self.notification == Notification::Present,
            ),
        ] {
            if set {
                flags = flags.union(flag);
            }
        }
        let markers = Contents {
            disruption_marker: self.disruption_marker,
            vm_generation_counter: self.generation,
            flags,
            status: match stability {
                Stability::Unequal => ClockStatus::UNRELIABLE,
                Stability::Equal => ClockStatus::UNKNOWN,
            },
            smearing_hint: SmearingHint::STRICT,
            leap_indicator: LeapIndicator::NONE,
            ..Contents::default()
        };
        match (self.line, wall, stability) {
            (Some(line), Some(wall), Stability::Equal) => with_time(markers, &line, master, wall),
            _ => markers,
        }
    }
}

/// Whether all vCPUs count the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stability {
    Equal,
    Unequal,
}

fn with_time(markers: Contents, line: &Line, master: &Master, wall: &Wall) -> Contents {
    let told = wall.told();
    let time = WallTime::from_frac(line.time);
    // From the VMM's reading to the line's start, in ns, rounded up.
    let since_told = if told.tsc.is_before(line.counter) {
        let delta = line.counter.wrapping_delta(told.tsc);
        advance(master.rate(), delta)
            .floor()
            .saturating_add(Nanos::from_ns(1))
    } else {
        Nanos::ZERO
    };
    let ahead = if mutant::is(Mutant::VmclockHidesItsError) {
        0
    } else {
        line.ahead.unsigned_abs()
    };
    let ahead = wide::mul_div_ceil(ahead, 1_000_000_000, 1 << 64)
        .and_then(|ns| u64::try_from(ns).ok())
        .map_or(Nanos::MAX, Nanos::from_ns);
    let time_error = |error: Option<Nanos>, rate: Option<Ppb>| {
        error.map(|error| {
            let grown = rate.map_or(Nanos::ZERO, |rate| share_of(since_told.as_ns(), rate));
            error.saturating_add(grown).saturating_add(ahead).as_ns()
        })
    };
    let bend = if line.ahead != 0 {
        (line.period.frac_sec >> (BEND_SHIFT - 1)).saturating_add(1)
    } else {
        0
    };
    let period_error = |rate: Option<Ppb>| {
        rate.map(|rate| {
            // One more for the period's own rounding.
            share_of(line.period.frac_sec, rate)
                .as_ns()
                .saturating_add(bend)
                .saturating_add(1)
        })
    };
    let estimated = time_error(told.estimated_error, told.rate_estimated_error);
    let maximum = time_error(told.maximum_error, told.rate_maximum_error);
    let rate_estimated = period_error(told.rate_estimated_error);
    let rate_maximum = period_error(told.rate_maximum_error);
    let mut flags = markers.flags.union(Flags::TIME_MONOTONIC);
    for (flag, set) in [
        (Flags::TAI_OFFSET_VALID, told.tai_offset_sec.is_some()),
        (Flags::TIME_ESTERROR_VALID, estimated.is_some()),
        (Flags::TIME_MAXERROR_VALID, maximum.is_some()),
        (Flags::PERIOD_ESTERROR_VALID, rate_estimated.is_some()),
        (Flags::PERIOD_MAXERROR_VALID, rate_maximum.is_some()),
    ] {
        if set {
            flags = flags.union(flag);
        }
    }
    Contents {
        flags,
        status: told.status,
        tai_offset_sec: told.tai_offset_sec.unwrap_or(0),
        leap_indicator: told.leap,
        period_shift: line.period.shift,
        counter_value: line.counter,
        period_frac_sec: line.period.frac_sec,
        period_esterror: rate_estimated.unwrap_or(0),
        period_maxerror: rate_maximum.unwrap_or(0),
        time_sec: time.sec,
        time_frac_sec: time.frac_sec,
        time_esterror_ns: estimated.unwrap_or(0),
        time_maxerror_ns: maximum.unwrap_or(0),
        ..markers
    }
}

/// `value * error`, without its sign, rounded up.
fn share_of(value: u64, error: Ppb) -> Nanos {
    let share = u128::from(value) * u128::from(error.as_femto().unsigned_abs());
    let share = share.div_ceil(1_000_000_000_000_000);
    Nanos::from_ns(u64::try_from(share).unwrap_or(u64::MAX))
}
