//! The line that every pvclock record of the partition shows.
//!
//! # Theory
//!
//! A record holds whole ns and a multiplier of 32 bits, so its line cannot be the master's. Three rules keep the two together:
//!
//! 1. A new line starts at the old line's value at the update's counter reading `now`. Only if that value stands a whole ns or more
//!    behind the master does it start 1 ns higher: without this, updates would lose the fraction of a ns each time.
//! 2. Its timestamp is `now` rounded *down* to the grid of `2^-shift` ticks on which the old line lies. The shift drops the same ticks
//!    from both, so the old line has the same value there, the new line stands at most 1 ns below it afterwards, and no reader ever
//!    finds a timestamp in its future. (Rounding up, as is often advised, puts the timestamp up to 1 ns ahead of the writer's own reading.)
//! 3. A line further from the master than 1 ns takes the multiplier that runs towards it: the next one up or down from the exact value.
//!
//! # References
//!
//! Linux `Documentation/virt/kvm/x86/msr.rst`, `arch/x86/kvm/x86.c` (the field's practice).

use chronovisor_abi::pvclock::{Contents, Flags};
use chronovisor_abi::quantity::{Hertz, Nanos, Tsc, TscDelta};
use chronovisor_abi::scale::{PvclockScale, ReferenceScale, ScaleError};

use super::exact::{self, ExactNanos, Master};
use super::mutant::{self, Mutant};

/// The multipliers of a rate; made once, so that an update at the same rate need not divide for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Multipliers {
    slower: PvclockScale,
    nearest: PvclockScale,
    faster: PvclockScale,
    /// The reference page's, or `None` at or below 10 MHz.
    pub(crate) reference: Option<ReferenceScale>,
}

impl Multipliers {
    pub(crate) fn of(rate: Hertz) -> Result<Self, ScaleError> {
        if mutant::is(Mutant::MultiplierCoarse) {
            let coarse = PvclockScale::nearest(rate)?;
            let coarse = PvclockScale::from_raw(coarse.mul() & !7, coarse.shift())?;
            return Ok(Self {
                slower: coarse,
                nearest: coarse,
                faster: coarse,
                reference: ReferenceScale::from_frequency(rate).ok(),
            });
        }
        let rate = match Hertz::from_hz(rate.floor_hz() / 1000 * 1000) {
            Some(cut) if mutant::is(Mutant::RateInKhz) => cut,
            _ => rate,
        };
        let [floor, nearest, ceil] = PvclockScale::bracket(rate)?;
        let reference = ReferenceScale::from_frequency(rate).ok();
        if floor != ceil {
            return Ok(Self {
                slower: floor,
                nearest,
                faster: ceil,
                reference,
            });
        }
        // An exact multiplier runs neither way: take its neighbours, one unit away (0.47 ppb at most).
        let neighbour = |mul: Option<u32>| match mul {
            Some(mul) => PvclockScale::from_raw(mul, floor.shift()),
            // 2^32 - 1 plus 1 is 2^31 at the next shift.
            None => PvclockScale::from_raw(1 << 31, floor.shift().saturating_add(1)),
        };
        Ok(Self {
            slower: neighbour(floor.mul().checked_sub(1))?,
            nearest,
            faster: neighbour(floor.mul().checked_add(1))?,
            reference,
        })
    }
}

/// A pvclock line in the partition's own counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PvclockLine {
    timestamp: Tsc,
    time: Nanos,
    scale: PvclockScale,
    /// The counter value from which on the line holds: at or after `timestamp`.
    since: Tsc,
}

impl PvclockLine {
    /// The line of a clock that starts at the master's start.
    pub(crate) fn first(master: &Master, multipliers: &Multipliers) -> Self {
        Self::through(master.base(), master.at(master.base()).floor(), multipliers)
    }

    /// The line that shows `time` at `tsc`.
    pub(crate) const fn through(tsc: Tsc, time: Nanos, multipliers: &Multipliers) -> Self {
        Self {
            timestamp: tsc,
            time,
            scale: multipliers.nearest,
            since: tsc,
        }
    }

    /// The line with these fields, as they were saved.
    pub(crate) const fn from_parts(
        timestamp: Tsc,
        time: Nanos,
        scale: PvclockScale,
        since: Tsc,
    ) -> Self {
        Self {
            timestamp,
            time,
            scale,
            since,
        }
    }

    pub(crate) const fn timestamp(&self) -> Tsc {
        self.timestamp
    }

    pub(crate) const fn time(&self) -> Nanos {
        self.time
    }

    pub(crate) const fn scale(&self) -> PvclockScale {
        self.scale
    }

    pub(crate) const fn since(&self) -> Tsc {
        self.since
    }

    /// The same line for a counter that was moved `ahead`.
    pub(crate) const fn moved(&self, ahead: TscDelta) -> Self {
        Self {
            timestamp: self.timestamp.wrapping_add(ahead), // wrapping, both: the counter itself wraps.
            since: self.since.wrapping_add(ahead),
            ..*self
        }
    }

    /// What a record with this line shows at `tsc`.
    pub(crate) const fn at(&self, tsc: Tsc) -> Nanos {
        self.time
            .wrapping_add(self.scale.nanos(tsc.wrapping_delta(self.timestamp))) // wrapping: the interface counts modulo 2^64 ns.
    }

    /// How far the line lies above the master at `tsc`, before the record's two roundings, in 2^-64 ns.
    pub(crate) fn error_at(&self, tsc: Tsc, master: &Master) -> i128 {
        let line = ExactNanos::from_nanos(self.time)
            .as_raw()
            .wrapping_add(span_of(self.scale, tsc.wrapping_delta(self.timestamp))); // wrapping: see `wrapping_error`
        ExactNanos::from_raw(line).wrapping_error(master.at(tsc))
    }

    /// The line after an update at `now`: see the module's rules. `exact` is the master's time there; a counter that may
    /// stand up to `lead` behind the partition's must still find the timestamp in its past.
    pub(crate) fn continued(
        &self,
        now: Tsc,
        exact: ExactNanos,
        multipliers: &Multipliers,
        lead: TscDelta,
    ) -> Self {
        let old = if mutant::is(Mutant::PvclockJumpsToMaster) {
            exact.floor()
        } else {
            self.at(now)
        };
        let behind = exact.wrapping_error(ExactNanos::from_nanos(old));
        let (time, behind) =
            if behind >= ONE_NANOSECOND && !mutant::is(Mutant::PvclockLosesFractions) {
                // wrapping: the interface counts modulo 2^64 ns.
                (old.wrapping_add(Nanos::from_ns(1)), behind - ONE_NANOSECOND)
            } else {
                (old, behind)
            };
        let behind = if mutant::is(Mutant::RunsAwayFromMaster) {
            -behind
        } else {
            behind
        };
        let scale = if behind >= ONE_NANOSECOND {
            multipliers.faster
        } else if behind <= -ONE_NANOSECOND {
            multipliers.slower
        } else {
            multipliers.nearest
        };
        let mut timestamp = self.grid_point(now);
        if mutant::is(Mutant::TimestampInFuture) {
            timestamp = timestamp.wrapping_add(TscDelta::from_ticks(step_of(self.scale)));
        }
        if scale.nanos(now.wrapping_delta(timestamp)) != Nanos::ZERO
            && !mutant::is(Mutant::TimestampInFuture)
            || mutant::is(Mutant::TimestampOffGrid)
        {
            // At a much lower rate the ticks back to the grid are worth a ns or more.
            timestamp = now;
        }
        // wrapping, both: the counter itself wraps, and the interface counts modulo 2^64 ns.
        let lead = if mutant::is(Mutant::NoLead) {
            TscDelta::ZERO
        } else {
            lead
        };
        let timestamp = timestamp.wrapping_sub(whole_steps(scale, lead));
        Self {
            timestamp,
            time: if mutant::is(Mutant::TimestampInFuture) {
                time
            } else {
                time.wrapping_sub(scale.nanos(now.wrapping_delta(timestamp)))
            },
            scale,
            since: now,
        }
    }

    /// The last counter value at or before `now` on this line's grid of `2^-shift` ticks.
    fn grid_point(&self, now: Tsc) -> Tsc {
        let past = now.wrapping_delta(self.timestamp).as_ticks() & (step_of(self.scale) - 1);
        now.wrapping_sub(TscDelta::from_ticks(past)) // wrapping: the counter itself wraps.
    }

    /// The counter value at which the line has left the master by `budget`, or `None` if that is more than 2^63 ticks away.
    pub(crate) fn rebase_due(&self, master: &Master, budget: Nanos) -> Option<Tsc> {
        let span = exact::comparison_span(master.rate());
        let ours = ExactNanos::from_raw(span_of(self.scale, span));
        let per_span = ours.wrapping_error(exact::advance(master.rate(), span));
        // One ns less: a line that starts between two updates may lose it to the ticks that the shift drops.
        let bound = budget
            .saturating_sub(Nanos::from_ns(1))
            .max(Nanos::from_ns(1));
        let bound = bound.min(Nanos::from_ns(1 << 60));
        let bound = ExactNanos::from_nanos(bound).as_raw().cast_signed();
        exact::ticks_until(self.error_at(self.since, master), per_span, span, bound).map(|ticks| {
            let twice = TscDelta::from_ticks(ticks.as_ticks() * 2);
            let late = mutant::is(Mutant::RebaseTwiceAsLate);
            self.since.wrapping_add(if late { twice } else { ticks }) // wrapping: the counter itself wraps.
        })
    }

    /// The contents of a record for a counter that stands `offset` ahead of the partition's.
    pub(crate) const fn contents(&self, flags: Flags, offset: TscDelta) -> Contents {
        // wrapping: the counter itself wraps.
        Contents::new(
            self.timestamp.wrapping_add(offset),
            self.time,
            self.scale,
            flags,
        )
    }
}

/// The ticks that the shift drops, plus one: a power of two.
fn step_of(scale: PvclockScale) -> u64 {
    1 << (-i32::from(scale.shift())).max(0).unsigned_abs()
}

/// `delta` rounded up to whole steps of the shift.
fn whole_steps(scale: PvclockScale, delta: TscDelta) -> TscDelta {
    let step = step_of(scale);
    TscDelta::from_ticks(delta.as_ticks().checked_next_multiple_of(step).unwrap_or(0))
}

const ONE_NANOSECOND: i128 = 1 << 64;

/// The time that `delta` takes on the exact line of `scale`, in 2^-64 ns modulo 2^128; the shift drops nothing.
fn span_of(scale: PvclockScale, delta: TscDelta) -> u128 {
    let product = u128::from(delta.as_ticks()) * u128::from(scale.mul());
    // ticks * mul * 2^(shift - 32) ns; shift is in -31..=31, and bits that leave at the top stand for multiples of 2^64 ns.
    product << u32::try_from(32 + i32::from(scale.shift())).unwrap_or(0)
}
