//! A guest's clocks, and what must hold for every reading of them.
//!
//! # Theory
//!
//! | invariant | what it says |
//! | --- | --- |
//! | `never-back` | no reading is smaller than an earlier one of the same clock, on whichever vCPU; the register's are strictly larger |
//! | `on-the-line` | every reading is exact time to within the encoding's granularity and the drift budget; VMClock's is TAI to within its own bound |
//! | `same-line` | at the counter value of an update the new line equals the old one: pvclock within 1 ns, the reference clock exactly |
//! | `page-while-invariant` | the page serves on a counter that keeps its rate, the register on one that does not |
//! | `readable` | a clock that does not say that it is unusable gives a time |
//!
//! # Practice
//!
//! A scenario reads through `Checks::read` and tells it of every change of rate and every move, from the hosts' true parameters.
//!
//! # Migration
//!
//! `Checks::moved` tells of one: the next reading of each clock is the first after it.
//!
//! # Caveats
//!
//! The raw counter is read and noted, not judged: it promises nothing.
//!
//! # References
//!
//! `docs/simulation.md`.

use std::rc::Rc;

use chronovisor_abi::quantity::{Hertz, Nanos, RefTime, Tsc};
use chronovisor_guest::sched_clock::SchedClock;
use chronovisor_host::partition_clock::Counter;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock_guest::{Guest, NoTime, SchedulersReference};
use crate::oracle::{Fine, Oracle};
use crate::watch::{Violation, Watch};
use crate::world_time::WorldTime;

/// TAI when the world began: 2026-12-01, in ns since 1970.
pub(crate) const EPOCH_TAI_NS: u64 = 1_796_083_237_000_000_000;

/// True TAI in whole ns since 1970.
pub(crate) const fn true_tai_ns(now: WorldTime) -> u64 {
    EPOCH_TAI_NS + now.floor_ns()
}

/// A clock of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// The counter over the rate found at boot.
    RawTsc,
    /// kvm-clock.
    Pvclock,
    /// The reference TSC page, with its fall-back.
    ReferenceTscPage,
    /// The reference counter register.
    ReferenceCounterMsr,
    /// A scheduler's clock over the reference clock.
    SchedClock,
    /// VMClock's time of day.
    Vmclock,
}

impl Clock {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 6] = [
        Self::RawTsc,
        Self::Pvclock,
        Self::ReferenceTscPage,
        Self::ReferenceCounterMsr,
        Self::SchedClock,
        Self::Vmclock,
    ];

    /// The name, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RawTsc => "raw-tsc",
            Self::Pvclock => "pvclock",
            Self::ReferenceTscPage => "reference-tsc-page",
            Self::ReferenceCounterMsr => "reference-counter-msr",
            Self::SchedClock => "sched-clock",
            Self::Vmclock => "vmclock",
        }
    }

    /// The clock's place in [`Self::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// What one machine's clock did over its migration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClockSeen {
    pub(crate) reads: u64,
    pub(crate) unavailable: u64,
    pub(crate) backward_steps: u64,
    /// The largest distance of a reading from the exact time, in ns.
    pub(crate) error_ns: u64,
    /// Over the move, what the clock gained less what was promised, in ns; `None` if it could not be read on both sides.
    pub(crate) step_ns: Option<i128>,
    /// Over the move, true time less what the clock gained, in ns.
    pub(crate) loss_ns: Option<i128>,
}

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
pub(crate) struct Checks {
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
pub(crate) struct Shown {
    pvclock: Nanos,
    reference: RefTime,
}

impl Shown {
    /// How far apart two are: pvclock, and the reference clock, in ns.
    pub(crate) fn distance_ns(&self, other: &Self) -> (u64, u64) {
        let units = self
            .reference
            .as_100ns()
            .abs_diff(other.reference.as_100ns());
        (
            self.pvclock.as_ns().abs_diff(other.pvclock.as_ns()),
            units.saturating_mul(100),
        )
    }
}

impl Checks {
    /// A judge of `guest`, whose counter stands at `start` and runs at `rate`, and whose time is 0 now.
    pub(crate) fn new(guest: &Rc<Guest>, start: Tsc, rate: Hertz, counter: Counter) -> Self {
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

    pub(crate) const fn has_moved(&self) -> bool {
        self.moved
    }

    pub(crate) fn finish(self) -> [ClockSeen; 6] {
        self.seen
    }

    /// Exact guest time at `tsc`.
    pub(crate) fn exact(&self, tsc: Tsc) -> Fine {
        self.oracle.at(tsc)
    }

    /// Reads `clock` and judges it. Returns what it showed, in ns.
    pub(crate) fn read(
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
    pub(crate) fn shown(guest: &Guest, tsc: Tsc) -> Shown {
        let surface = guest.surface().borrow();
        Shown {
            pvclock: surface.clock().pvclock_at(tsc),
            reference: surface.clock().reference_at(tsc),
        }
    }

    /// At the counter value of an update the new lines equal the old ones: pvclock within 1 ns, the reference clock exactly.
    pub(crate) fn same_line(before: Shown, after: Shown, watch: &Watch) -> Result<(), Violation> {
        let pvclock = before.pvclock.as_ns().abs_diff(after.pvclock.as_ns());
        if pvclock <= 1 && before.reference == after.reference {
            return Ok(());
        }
        Err(watch.violation("same-line", format!("{before:?} before, {after:?} after")))
    }

    /// Exact time goes on at `rate` from `tsc`, which is called `new_tsc` from now on.
    pub(crate) fn go_on(&mut self, tsc: Tsc, new_tsc: Tsc, rate: Hertz) {
        self.oracle = self.oracle.go_on(tsc, new_tsc, rate);
    }

    /// The machine is moved to a host with `counter`: the next reading of each clock is the first after the move.
    pub(crate) fn moved(&mut self, counter: Counter) {
        self.before = self.last;
        self.counter = counter;
        self.moved = true;
    }
}

/// What one reading showed.
struct Value {
    ns: u128,
    /// The clock's own bound on its error.
    bound: Option<Nanos>,
}

/// 2^-64 ns in whole ns, rounded down.
fn whole_ns(fine: Fine) -> i128 {
    signed(fine >> 64)
}

fn signed(ns: u128) -> i128 {
    i128::try_from(ns).unwrap_or(i128::MAX)
}
