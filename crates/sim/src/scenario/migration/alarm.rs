//! A TSC-deadline timer that is armed while the machine moves.

use chronovisor_abi::apic::{LvtTimer, TimerMode};
use chronovisor_abi::quantity::{Hertz, Tsc, TscDelta};
use chronovisor_host::apic::{
    DeadlineMode, Delivery, LocalTimer, LostTicks, MinimumPeriod, Rates, Settings, TimerRegister,
};
use chronovisor_host::migration::Adjustments;

use crate::oracle::Fine;
use crate::watch::{Violation, Watch};

const VECTOR: u8 = 0xec;
const BUS_HZ: u64 = 1_000_000_000;
/// How far exact time may be below the truth, in 2^-64 ns: one for each change of rate, and one for the reading.
const ORACLE_CUTS: Fine = 3;

/// The timer and what was promised.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: LocalTimer,
    /// Exact guest time at which it is due.
    due: Fine,
    fired: u32,
}

/// What became of the timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fate {
    /// Still armed.
    #[default]
    Armed,
    /// Its interrupt came before the move.
    FiredBefore,
    /// Its interrupt came after the move.
    FiredAfter,
    /// The destination moved the counter, and the deadline means another time.
    Stranded,
}

fn settings(tsc: Hertz, watch: &Watch) -> Result<Settings, Violation> {
    let bus = Hertz::from_hz(BUS_HZ).expect("the bus rate is not zero");
    Ok(Settings {
        rates: Rates::new(bus, tsc)
            .map_err(|error| watch.violation("possible-host", error.to_string()))?,
        minimum_period: MinimumPeriod::KVM,
        lost_ticks: LostTicks::Merge,
        deadline_mode: DeadlineMode::Offered,
    })
}

impl Alarm {
    /// A timer that is to fire when the guest's counter, now at `now`, has reached `deadline`, which is exact time `due`.
    pub(super) fn set(
        rate: Hertz,
        now: Tsc,
        deadline: Tsc,
        due: Fine,
        watch: &Watch,
    ) -> Result<Self, Violation> {
        let mut timer = LocalTimer::new(settings(rate, watch)?, now);
        let lvt = LvtTimer::new(TimerMode::TSC_DEADLINE, VECTOR);
        for (register, value) in [
            (TimerRegister::LvtTimer, u64::from(lvt.0)),
            (TimerRegister::TscDeadline, deadline.as_ticks()),
        ] {
            // The deadline lies ahead: no write fires.
            let _ = timer.write(register, value, now);
        }
        Ok(Self {
            timer,
            due,
            fired: 0,
        })
    }

    /// When it wants to be looked at.
    pub(super) fn wake(&self) -> Option<Tsc> {
        self.timer.next_deadline().map(|deadline| deadline.at())
    }

    /// The counter stands at `now`, which is exact time `exact`. Whether it fired.
    pub(super) fn look(
        &mut self,
        now: Tsc,
        exact: Fine,
        watch: &Watch,
    ) -> Result<Option<()>, Violation> {
        let effects = self.timer.expire(now);
        if effects.delivery == Delivery::Nothing {
            return Ok(None);
        }
        self.fired += 1;
        // Exact time is cut to 2^-64 ns where its rate changes: at the move, and where a counter jumps.
        if exact + ORACLE_CUTS < self.due {
            let early = (self.due - exact) >> 64;
            return Err(watch.violation("never-early", format!("the deadline timer by {early} ns")));
        }
        if self.fired > 1 {
            let details = format!("the deadline timer fired {} times", self.fired);
            return Err(watch.violation("once", details));
        }
        Ok(Some(()))
    }

    /// The machine moves: saved at `paused`, restored as `adjustments` say at `resumed`.
    pub(super) fn travel(
        &mut self,
        paused: Tsc,
        resumed: Tsc,
        adjustments: &Adjustments,
        watch: &Watch,
    ) -> Result<(), Violation> {
        let mut state = self.timer.save(paused);
        if state.deadline != 0 {
            state.deadline = adjustments
                .deadline(Tsc::from_ticks(state.deadline))
                .as_ticks();
        }
        self.timer = LocalTimer::restore(settings(adjustments.rate, watch)?, &state, resumed)
            .map_err(|error| watch.violation("restore", error.to_string()))?;
        Ok(())
    }
}

/// A deadline `ticks` after `now`; never 0, which would disarm the timer.
pub(super) const fn deadline_after(now: Tsc, ticks: u64) -> Tsc {
    // wrapping: the counter itself wraps.
    let deadline = now.wrapping_add(TscDelta::from_ticks(ticks));
    if deadline.as_ticks() == 0 {
        Tsc::from_ticks(1)
    } else {
        deadline
    }
}
