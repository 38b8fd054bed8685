//! What must hold for every reading, and what is noted of it.

use std::rc::Rc;

use chronovisor_abi::quantity::{Hertz, Nanos, RefTime, Tsc};
use chronovisor_guest::sched_clock::SchedClock;
use chronovisor_host::migration::{Adjustments, Destination, ScalingHardware, Source};
use chronovisor_host::partition_clock::Counter;

use super::Policy;
use super::hosts::true_tai_ns;
use super::row::{Clock, ClockSeen};
use crate::clock_guest::{Guest, NoTime, SchedulersReference};
use crate::oracle::{Fine, Oracle};
use crate::watch::{Violation, Watch};
use crate::world_time::WorldTime;

/// The drift budget that the partition clock is given, in ns.
const BUDGET_NS: i128 = 100;
/// pvclock's granularity: 1 ns, and the tick that its shift drops.
const PVCLOCK_GRAIN_NS: i128 = 2;
/// The reference clock's granularity.
const REFERENCE_GRAIN_NS: i128 = 100;

/// A reading of one clock, and what was true at that instant.
#[derive(Clone, Copy, Debug)]
struct Reading {
    ns: u128,
    /// Exact guest time, in 2^-64 ns.
    exact: Fine,
    now: WorldTime,
}

/// The judge of one machine's clocks.
#[derive(Debug)]
pub(super) struct Checks {
    oracle: Oracle,
    boot_rate: Hertz,
    /// What the present host promises of its counter.
    counter: Counter,
    sched: SchedClock<SchedulersReference>,
    sched_started: Fine,
    seen: [ClockSeen; 6],
    last: [Option<Reading>; 6],
    /// The last reading before the move, until the first after it.
    before: [Option<Reading>; 6],
    moved: bool,
}

/// What pvclock and the reference clock show at one counter value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pvclock: Nanos,
    reference: RefTime,
}

impl Checks {
    /// A judge of `guest`, whose counter stands at `start` and runs at `rate`, and whose time is 0 now.
    pub(super) fn new(guest: &Rc<Guest>, start: Tsc, rate: Hertz, counter: Counter) -> Self {
        let Ok(sched) = SchedClock::start(SchedulersReference(Rc::clone(guest)));
        let oracle = Oracle::new(start, 0, rate);
        Self {
            oracle,
            boot_rate: rate,
            counter,
            sched,
            sched_started: oracle.at(guest.tsc()),
            seen: [ClockSeen::default(); 6],
            last: [None; 6],
            before: [None; 6],
            moved: false,
        }
    }

    pub(super) const fn has_moved(&self) -> bool {
        self.moved
    }

    pub(super) fn finish(self) -> [ClockSeen; 6] {
        self.seen
    }

    /// Reads `clock` and judges it. Returns what it showed, in ns.
    pub(super) fn read(
        &mut self,
        clock: Clock,
        guest: &Guest,
        now: WorldTime,
        watch: &Watch,
    ) -> Result<u64, Violation> {
        let fallbacks = guest.fallbacks();
        let value = match self.value(clock, guest) {
            Ok(value) => value,
            Err(NoTime::Unavailable) => {
                self.seen[clock.index()].unavailable += 1;
                return Ok(0);
            }
            Err(NoTime::Broken) => {
                return Err(watch.violation("readable", format!("{} gave no time", clock.name())));
            }
        };
        self.judge_source(clock, guest.fallbacks() - fallbacks, watch)?;
        // A wait of the register has moved the counter on.
        let reading = Reading {
            ns: value.ns,
            exact: self.oracle.at(guest.tsc()),
            now,
        };
        self.judge_order(clock, &reading, watch)?;
        self.judge_value(clock, &reading, value.bound, watch)?;
        let seen = &mut self.seen[clock.index()];
        seen.reads += 1;
        if self.moved
            && let Some(before) = self.before[clock.index()].take()
        {
            let gained = signed(reading.ns) - signed(before.ns);
            let passed = i128::from(now.floor_ns()) - i128::from(before.now.floor_ns());
            let promised = match clock {
                Clock::Vmclock => passed,
                _ => whole_ns(reading.exact.wrapping_sub(before.exact)),
            };
            seen.step_ns = Some(gained - promised);
            seen.loss_ns = Some(passed - gained);
        }
        self.last[clock.index()] = Some(reading);
        Ok(u64::try_from(reading.ns).unwrap_or(u64::MAX))
    }

    /// What the clock shows, in ns.
    fn value(&self, clock: Clock, guest: &Guest) -> Result<Value, NoTime> {
        let exact = |ns: u64| Value {
            ns: u128::from(ns),
            bound: None,
        };
        let reference = |time: RefTime| Value {
            ns: u128::from(time.as_100ns()) * 100,
            bound: None,
        };
        Ok(match clock {
            Clock::RawTsc => {
                let per_second = 1_000_000_000 * u128::from(self.boot_rate.denominator());
                let ticks = u128::from(guest.tsc().as_ticks());
                Value {
                    ns: ticks * per_second / u128::from(self.boot_rate.numerator()),
                    bound: None,
                }
            }
            Clock::Pvclock => exact(guest.pvclock()?.time.as_ns()),
            Clock::ReferenceTscPage => reference(guest.reference().time),
            Clock::ReferenceCounterMsr => reference(guest.counter()?),
            Clock::SchedClock => {
                let Ok(time) = self.sched.now();
                exact(time.as_ns())
            }
            Clock::Vmclock => {
                let (frac, bound) = guest.vmclock()?;
                let (sec, rest) = (frac >> 64, frac & u128::from(u64::MAX));
                Value {
                    ns: sec * 1_000_000_000 + ((rest * 1_000_000_000) >> 64),
                    bound,
                }
            }
        })
    }

    /// The page serves on a counter that keeps its rate, the register on one that does not.
    fn judge_source(&self, clock: Clock, fell_back: u64, watch: &Watch) -> Result<(), Violation> {
        let by_register = matches!(clock, Clock::ReferenceTscPage | Clock::SchedClock)
            && self.counter == Counter::Varying;
        if fell_back == u64::from(by_register) {
            return Ok(());
        }
        let details = format!(
            "{} fell back {fell_back} times on a counter that is {:?}",
            clock.name(),
            self.counter
        );
        Err(watch.violation("page-while-invariant", details))
    }

    /// No clock goes back, on whichever vCPU; the register is strictly increasing.
    fn judge_order(
        &mut self,
        clock: Clock,
        reading: &Reading,
        watch: &Watch,
    ) -> Result<(), Violation> {
        let Some(last) = self.last[clock.index()] else {
            return Ok(());
        };
        let back = match clock {
            Clock::ReferenceCounterMsr => reading.ns <= last.ns,
            _ => reading.ns < last.ns,
        };
        if !back {
            return Ok(());
        }
        self.seen[clock.index()].backward_steps += 1;
        if clock == Clock::RawTsc {
            return Ok(());
        }
        let (name, value, last) = (clock.name(), reading.ns, last.ns);
        Err(watch.violation("never-back", format!("{name}: {value} ns after {last} ns")))
    }

    /// Every encoding is the exact time to within its granularity and the drift budget.
    fn judge_value(
        &mut self,
        clock: Clock,
        reading: &Reading,
        bound: Option<Nanos>,
        watch: &Watch,
    ) -> Result<(), Violation> {
        let (behind, low, high) = match clock {
            Clock::RawTsc => return Ok(()),
            Clock::Pvclock => (
                whole_ns(reading.exact) - signed(reading.ns),
                -BUDGET_NS,
                BUDGET_NS + PVCLOCK_GRAIN_NS,
            ),
            Clock::ReferenceTscPage | Clock::ReferenceCounterMsr => (
                whole_ns(reading.exact) - signed(reading.ns),
                -BUDGET_NS,
                BUDGET_NS + REFERENCE_GRAIN_NS,
            ),
            // The difference of two readings.
            Clock::SchedClock => (
                whole_ns(reading.exact.wrapping_sub(self.sched_started)) - signed(reading.ns),
                -2 * BUDGET_NS - REFERENCE_GRAIN_NS,
                2 * BUDGET_NS + REFERENCE_GRAIN_NS,
            ),
            Clock::Vmclock => {
                let tai = i128::from(true_tai_ns(reading.now));
                let Some(bound) = bound else {
                    return Err(watch.violation("bounded", "vmclock tells no error".into()));
                };
                // The page's time is rounded down to ns here, and true time as well.
                let bound = i128::from(bound.as_ns()) + 1;
                (tai - signed(reading.ns), -bound, bound)
            }
        };
        let seen = &mut self.seen[clock.index()];
        let error = u64::try_from(behind.unsigned_abs()).unwrap_or(u64::MAX);
        seen.error_ns = seen.error_ns.max(error);
        if (low..=high).contains(&behind) {
            return Ok(());
        }
        let name = clock.name();
        let details = format!("{name} is {behind} ns behind exact time, {low} to {high} allowed");
        Err(watch.violation("on-the-line", details))
    }

    /// What the clocks show at `tsc`.
    pub(super) fn shown(guest: &Guest, tsc: Tsc) -> Shown {
        let surface = guest.surface().borrow();
        Shown {
            pvclock: surface.clock().pvclock_at(tsc),
            reference: surface.clock().reference_at(tsc),
        }
    }

    /// At the counter value of an update the new lines equal the old ones: pvclock within 1 ns, the reference clock exactly.
    pub(super) fn same_line(before: Shown, after: Shown, watch: &Watch) -> Result<(), Violation> {
        let pvclock = before.pvclock.as_ns().abs_diff(after.pvclock.as_ns());
        if pvclock <= 1 && before.reference == after.reference {
            return Ok(());
        }
        Err(watch.violation("same-line", format!("{before:?} before, {after:?} after")))
    }

    /// The machine arrives: what the code under test says is compared with what follows from the hosts, and exact time goes on.
    pub(super) fn arrive(
        &mut self,
        promised: &Promised,
        adjustments: &Adjustments,
        watch: &Watch,
    ) -> Result<(), Violation> {
        if adjustments.tsc != promised.tsc || adjustments.rate != promised.rate {
            let details = format!(
                "counter {:?} at {}, promised {:?} at {}",
                adjustments.tsc, adjustments.rate, promised.tsc, promised.rate
            );
            return Err(watch.violation("adjust", details));
        }
        self.oracle = self.oracle.go_on(promised.tsc, promised.tsc, promised.rate);
        self.before = self.last;
        self.counter = promised.counter;
        self.moved = true;
        Ok(())
    }

    /// The guest's counter shows `new` where it showed `old`.
    pub(super) fn counter_moved(&mut self, old: Tsc, new: Tsc, rate: Hertz) {
        self.oracle = self.oracle.go_on(old, new, rate);
    }
}

/// What one reading showed.
struct Value {
    ns: u128,
    /// The clock's own bound on its error.
    bound: Option<Nanos>,
}

/// What the policy promises, worked out from the hosts alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promised {
    /// The guest's counter at the destination's instant.
    tsc: Tsc,
    /// Its rate from then on.
    rate: Hertz,
    counter: Counter,
}

impl Promised {
    /// `None` if the destination cannot run the guest at all.
    pub(super) fn of(
        source: &Source,
        destination: &Destination,
        guest_rate: Hertz,
        policy: Policy,
    ) -> Option<Self> {
        // wrapping: the counter itself wraps.
        let tsc = source
            .scaling
            .scale(source.pair.host_tsc)
            .wrapping_add(source.offset);
        let downtime = destination.pair.tai.saturating_sub(source.pair.tai);
        let ticks = u128::from(downtime.as_ns()) * u128::from(guest_rate.numerator())
            / (1_000_000_000 * u128::from(guest_rate.denominator()));
        let tsc = match policy {
            Policy::Stop => tsc.as_ticks(),
            // wrapping: the counter itself wraps.
            Policy::Advance => tsc.as_ticks().wrapping_add(u64::try_from(ticks).ok()?),
        };
        let host = destination.host_rate;
        let bits = match destination.scaling {
            ScalingHardware::None => None,
            ScalingHardware::Bits32 => Some(32),
            ScalingHardware::Bits48 => Some(48),
        };
        let rate = match bits {
            Some(bits) if guest_rate != host => {
                // The nearest ratio: guest / host * 2^bits, both whole Hz or fractions of the same kind.
                let numerator = u128::from(guest_rate.numerator()) * u128::from(host.denominator());
                let denominator =
                    u128::from(guest_rate.denominator()) * u128::from(host.numerator());
                let ratio = ((numerator << bits) + denominator / 2) / denominator;
                Hertz::from_ratio_floor(
                    u128::from(host.numerator()) * ratio,
                    u128::from(host.denominator()) << bits,
                )?
            }
            _ => host,
        };
        Some(Self {
            tsc: Tsc::from_ticks(tsc),
            rate,
            counter: destination.counter,
        })
    }
}

/// 2^-64 ns in whole ns, rounded down.
fn whole_ns(fine: Fine) -> i128 {
    signed(fine >> 64)
}

fn signed(ns: u128) -> i128 {
    i128::try_from(ns).unwrap_or(i128::MAX)
}
