//! The two clocks that a [`Clock`](super::Clock) compares: the counter and the operating system's. A trait, so that the tests' machine is simulated.

use chronovisor_abi::quantity::{Nanos, Tsc, TscDelta};

use crate::counter::read_fenced;
use crate::linux::os_clock::ClockId;

/// A machine with a counter and a clock of the operating system.
pub(crate) trait Machine {
    /// The counter, read strictly between what stands before and after the call.
    fn counter(&self) -> Tsc;
    /// The operating system's clock.
    fn raw(&self) -> Nanos;
    /// How long the machine has slept, which the operating system's clock does not count, in ns modulo 2^64; some ns to ms off.
    fn suspended(&self) -> u64;
}

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThisMachine {
    clock: ClockId,
}

impl ThisMachine {
    /// With MONOTONIC_RAW, or MONOTONIC if a sandbox forbids that.
    pub(crate) fn new() -> Self {
        let clock = [ClockId::MONOTONIC_RAW, ClockId::MONOTONIC]
            .into_iter()
            .find(|clock| clock.now().is_some())
            .unwrap_or(ClockId::MONOTONIC);
        Self { clock }
    }
}

impl Machine for ThisMachine {
    fn counter(&self) -> Tsc {
        read_fenced()
    }

    fn raw(&self) -> Nanos {
        // The clock was readable when it was chosen; clocks do not go away.
        self.clock.now().unwrap_or(Nanos::ZERO)
    }

    fn suspended(&self) -> u64 {
        // BOOTTIME is MONOTONIC and the time slept, by definition.
        let (awake, all) = (ClockId::MONOTONIC.now(), ClockId::BOOTTIME.now());
        awake.zip(all).map_or(0, |(awake, all)| {
            // wrapping: a time namespace may have moved either.
            all.wrapping_sub(awake).as_ns()
        })
    }
}

/// Counter and operating system's clock at one instant, to within the width of the bracket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The middle of the bracket around the clock's reading.
    pub(crate) tsc: Tsc,
    /// The clock's reading, in ns.
    pub(crate) raw_ns: u64,
    /// The bracket's width, in ticks: the counter at the clock's reading is within half of it from `tsc`.
    pub(crate) width: u64,
    /// [`Machine::suspended`], just after.
    pub(crate) suspended_ns: u64,
}

impl Pair {
    /// The narrowest of five brackets: one that an interrupt falls into is not used.
    pub(crate) fn take(machine: &impl Machine) -> Self {
        let narrowest =
            (1..5)
                .map(|_| Self::bracket(machine))
                .fold(Self::bracket(machine), |best, next| {
                    if next.width < best.width { next } else { best }
                });
        Self {
            suspended_ns: machine.suspended(),
            ..narrowest
        }
    }

    fn bracket(machine: &impl Machine) -> Self {
        let before = machine.counter();
        let raw_ns = machine.raw().as_ns();
        let width = machine.counter().wrapping_delta(before).as_ticks();
        let half = TscDelta::from_ticks(width / 2);
        Self {
            tsc: before.wrapping_add(half),
            raw_ns,
            width,
            suspended_ns: 0,
        }
    }
}
