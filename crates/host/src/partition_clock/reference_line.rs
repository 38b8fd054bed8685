//! The line of the reference counter, which the reference TSC page and the counter MSR both show.
//!
//! # Theory
//!
//! The page has no timestamp: its multiplier applies to the whole counter. So at a given counter value the line's sub-unit phase,
//! `frac(tsc * scale / 2^64)`, follows from the multiplier, and a new line that starts at the old line's value lies up to one unit (100 ns)
//! off the master, at random. Over many changes of the rate that would walk away. Where the exact multiplier would leave the budget
//! it is therefore bent by the least amount that does not: one unit of the multiplier moves the phase by `tsc / 2^64` units, so after a day a bend of
//! 10^-12 is enough. A bent line runs towards the master; when it is there a re-base straightens it. A budget below the counter's own
//! granularity of 100 ns is taken as 100 ns here.
//!
//! At or below 10 MHz the page has no multiplier. The MSR then follows the master from the old line's value, cut to units of 100 ns.
//!
//! # References
//!
//! Hyper-V TLFS, "Partition Reference Time Enlightenment".

use chronovisor_abi::quantity::{Nanos, RefTime, Tsc};
use chronovisor_abi::reference_tsc::Parameters;
use chronovisor_abi::scale::ReferenceScale;
use chronovisor_abi::wide;

use super::exact::{self, ExactNanos, Master, divide};
use super::mutant::{self, Mutant};

/// The reference counter's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReferenceLine {
    form: Form,
    /// The counter value from which on the line holds.
    since: Tsc,
    /// What the reference counter stands behind the master: time that passed while it was stopped and the other clocks were not.
    behind: ExactNanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The page's formula, with the multiplier of the rate or a bent one.
    Page(Parameters),
    /// A counter too slow for the page: the master's progress since `since`, from the old line's value.
    Slow(Start),
}

/// Where a line that follows the master starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// The value there.
    pub(crate) value: RefTime,
    /// The fraction of a unit besides, in 2^-64 units.
    pub(crate) phase: u64,
}

impl Start {
    /// The start at `value` that lies as near to `target` (in 2^-64 units) as its fraction can take it.
    fn near(value: RefTime, target: u128) -> Self {
        let phase = target.saturating_sub(u128::from(value.as_100ns()) << 64);
        Self {
            value,
            phase: u64::try_from(phase).unwrap_or(u64::MAX),
        }
    }
}

impl ReferenceLine {
    /// The line of a clock that starts at the master's start.
    pub(crate) fn first(master: &Master, behind: ExactNanos) -> Self {
        let start = master.base();
        let exact = master.at(start).saturating_sub(behind);
        let time = units_floor(exact);
        let form = match Parameters::through(start, time, master.rate()) {
            Ok(parameters) => Form::Page(parameters),
            Err(_) => Form::Slow(Start::near(time, units(exact))),
        };
        Self {
            form,
            since: start,
            behind,
        }
    }

    /// The line of the page with these parameters, or without them the one that follows the master from `start`, as they were saved.
    pub(crate) const fn from_parts(
        parts: Result<Parameters, Start>,
        since: Tsc,
        behind: ExactNanos,
    ) -> Self {
        let form = match parts {
            Ok(line) => Form::Page(line),
            Err(start) => Form::Slow(start),
        };
        Self {
            form,
            since,
            behind,
        }
    }

    /// What [`Self::from_parts`] takes.
    pub(crate) const fn parts(&self) -> Result<Parameters, Start> {
        match self.form {
            Form::Page(parameters) => Ok(parameters),
            Form::Slow(start) => Err(start),
        }
    }

    /// The same line for a reference counter that stood still for `time` while the master went on.
    pub(crate) fn stopped_for(mut self, time: ExactNanos) -> Self {
        if !mutant::is(Mutant::ReferenceAlwaysAdvances) {
            self.behind = self.behind.saturating_add(time);
        }
        self
    }

    pub(crate) const fn since(&self) -> Tsc {
        self.since
    }

    pub(crate) const fn behind(&self) -> ExactNanos {
        self.behind
    }

    /// What the page shows, or `None` if the counter is too slow for it.
    pub(crate) const fn parameters(&self) -> Option<Parameters> {
        match self.form {
            Form::Page(parameters) => Some(parameters),
            Form::Slow(_) => None,
        }
    }

    /// The reference counter at `tsc`.
    pub(crate) fn at(&self, tsc: Tsc, master: &Master) -> RefTime {
        match self.form {
            Form::Page(parameters) => parameters.time_at(tsc),
            Form::Slow(start) => {
                let whole = (self.progress(tsc, master) + u128::from(start.phase)) >> 64;
                // The progress has at most 122 bits, so the whole has 58.
                let whole = u64::try_from(whole).unwrap_or(u64::MAX);
                start.value.wrapping_add(RefTime::from_100ns(whole)) // wrapping: the counter is modulo 2^64
            }
        }
    }

    /// What the reference counter would show at `tsc` if it were the master.
    pub(crate) fn master_at(&self, tsc: Tsc, master: &Master) -> RefTime {
        units_floor(master.at(tsc).saturating_sub(self.behind))
    }

    /// How far the master has come since the line's start, in 2^-64 units.
    fn progress(&self, tsc: Tsc, master: &Master) -> u128 {
        units(master.at(tsc).saturating_sub(master.at(self.since)))
    }

    /// The first counter value at or after `since` at which the reference counter exceeds `time`, or `None` if there is none.
    pub(crate) fn first_after(&self, time: RefTime, master: &Master) -> Option<Tsc> {
        let next = time.as_100ns().checked_add(1)?;
        match self.form {
            Form::Page(line) => {
                // hi64(tsc * scale) >= next - offset  <=>  tsc >= (next - offset) * 2^64 / scale, rounded up.
                let ticks = next.wrapping_add_signed(line.offset.wrapping_neg()); // wrapping: the interface adds modulo 2^64.
                let scale = u128::from(line.scale.as_raw());
                let tsc = wide::mul_div_ceil(u128::from(ticks), 1 << 64, scale)?;
                u64::try_from(tsc).ok().map(Tsc::from_ticks)
            }
            Form::Slow(start) => {
                // progress + phase >= next - value  <=>  master - start >= 100 * (next - value - phase)
                let missing = u128::from(next.checked_sub(start.value.as_100ns())?) << 64;
                let missing = missing
                    .saturating_sub(u128::from(start.phase))
                    .checked_mul(100)?;
                let begun = master.at(self.since);
                master.first_at_or_after(begun.saturating_add(ExactNanos::from_raw(missing)))
            }
        }
    }

    /// How far the line lies above the master at `tsc`, before it is cut to units, in 2^-64 units of 100 ns.
    pub(crate) fn error_at(&self, tsc: Tsc, master: &Master) -> i128 {
        let line = match self.form {
            Form::Page(line) => line_at(&line, tsc),
            Form::Slow(start) => (u128::from(start.value.as_100ns()) << 64)
                .wrapping_add(u128::from(start.phase)) // wrapping: modulo 2^64 units
                .wrapping_add(self.progress(tsc, master)),
        };
        line.wrapping_sub(units(master.at(tsc).saturating_sub(self.behind))) // wrapping: a distance, modulo 2^64 units
            .cast_signed()
    }

    /// The line after an update at `now`, which starts at `time`, this line's value there. `exact` is the master's time there, `scale` the exact
    /// multiplier of the rate from there on.
    pub(crate) fn continued(
        &self,
        now: Tsc,
        time: RefTime,
        exact: ExactNanos,
        scale: Option<ReferenceScale>,
        budget: Nanos,
    ) -> Self {
        let target = exact.saturating_sub(self.behind);
        let time = if mutant::is(Mutant::ReferenceJumpsToMaster) {
            units_floor(target)
        } else {
            time
        };
        let form = match scale.map(|scale| through(now, time, scale)) {
            Some(straight) if mutant::is(Mutant::ReferenceNeverBent) => Form::Page(straight),
            Some(straight) => bend(straight, now, time, units(target), budget),
            None => Form::Slow(Start::near(time, units(target))),
        };
        Self {
            form,
            since: now,
            behind: self.behind,
        }
    }

    /// The counter value at which a bent line has reached the master and can be straightened.
    pub(crate) fn rebase_due(&self, master: &Master) -> Option<Tsc> {
        let Form::Page(line) = self.form else {
            return None;
        };
        if ReferenceScale::from_frequency(master.rate()) == Ok(line.scale) {
            return None;
        }
        let span = exact::comparison_span(master.rate());
        let ours = u128::from(span.as_ticks()) * u128::from(line.scale.as_raw());
        let exact = units(exact::advance(master.rate(), span));
        let per_span = ours.wrapping_sub(exact).cast_signed(); // wrapping: a distance
        let error = self.error_at(self.since, master);
        // The distance to zero is the distance to the far end of a budget of nothing.
        exact::ticks_until(error, per_span, span, 0).map(|ticks| self.since.wrapping_add(ticks)) // wrapping: the counter itself wraps.
    }
}

/// `exact` if it stays within 15/16 of the budget of `target` (the master at `now`, in 2^-64 units), else bent until it does.
fn bend(exact: Parameters, now: Tsc, time: RefTime, target: u128, budget: Nanos) -> Form {
    // Below one unit of 100 ns there need not be a straight line inside the budget, and the line would be bent for ever.
    let budget = budget.max(Nanos::from_ns(100));
    let bound = u128::from(budget.as_ns()) * (ONE_UNIT / 1600 * 15);
    let bound = bound.min(ONE_UNIT << 32).cast_signed();
    // wrapping: a distance, modulo 2^64 units
    let error = line_at(&exact, now).wrapping_sub(target).cast_signed();
    let correction = error.clamp(-bound, bound).saturating_sub(error);
    if correction == 0 || now.as_ticks() == 0 {
        return Form::Page(exact);
    }
    // The phase must stay inside the unit that the old line shows.
    let phase = i128::from(phase_at(&exact, now));
    let wanted = phase
        .saturating_add(correction)
        .clamp(0, i128::from(u64::MAX));
    // Towards zero: a step too many could take the phase out of the unit.
    let steps = (wanted - phase) / i128::from(now.as_ticks());
    let largest = i128::from(exact.scale.as_raw() >> 7);
    let scale = i128::from(exact.scale.as_raw()) + steps.clamp(-largest, largest);
    match u64::try_from(scale) {
        Ok(scale) if scale != exact.scale.as_raw() => {
            let scale = ReferenceScale::from_raw(scale);
            Form::Page(through(now, time, scale))
        }
        _ => Form::Page(exact),
    }
}

const ONE_UNIT: u128 = 1 << 64;

/// The line with this multiplier that shows `time` at `now`.
fn through(now: Tsc, time: RefTime, scale: ReferenceScale) -> Parameters {
    // wrapping: the interface adds modulo 2^64.
    let offset = time.as_100ns().wrapping_sub(scale.ticks(now)).cast_signed();
    Parameters { scale, offset }
}

/// The line before it is cut to whole units, in 2^-64 units modulo 2^128.
fn line_at(line: &Parameters, tsc: Tsc) -> u128 {
    let ticks = u128::from(tsc.as_ticks()) * u128::from(line.scale.as_raw());
    // wrapping: the interface adds modulo 2^64 units.
    ticks.wrapping_add(u128::from(line.offset.cast_unsigned()) << 64)
}

/// The fraction of a unit that the page's formula drops at `tsc`, in 2^-64 units.
fn phase_at(line: &Parameters, tsc: Tsc) -> u64 {
    tsc.as_ticks().wrapping_mul(line.scale.as_raw()) // wrapping: the lower half of the product is what is asked for.
}

/// The time in 2^-64 units of 100 ns, rounded down.
fn units(time: ExactNanos) -> u128 {
    divide(time.as_raw(), 100)
}

fn units_floor(time: ExactNanos) -> RefTime {
    RefTime::from_nanos_floor(time.floor())
}
