//! What each event does to a vCPU.

use chronovisor_abi::quantity::{Hertz, Nanos, Tsc, TscDelta};

use super::{Event, Invariants, State, Vcpu, WATCHDOG};
use crate::lapic_timer::{Fired, LapicTimer, Mode, Raised, Wake};
use crate::watch::{Violation, Watch};
use crate::world_time::{WorldSpan, WorldTime};

impl<T: LapicTimer> Vcpu<'_, T> {
    /// Starts the timer, reaches the uptime, and schedules the first events.
    pub(super) fn begin(&mut self, watch: &mut Watch) -> Result<(), Violation> {
        let look = self.host.look(self.world.now());
        self.started = look.tsc;
        let fired = self
            .timer
            .start(self.program.mode, self.program.period, look);
        self.take(fired, watch)?;
        if self.program.mode == Mode::Periodic && self.program.uptime > Nanos::ZERO {
            let uptime = WorldSpan::from_ns(self.program.uptime.as_ns());
            self.world.start_at(WorldTime::ZERO.saturating_add(uptime));
            let look = self.host.look(self.world.now());
            self.seen.expiries = self.timer.fast_forward(look);
            self.seen.expiries_before = self.seen.expiries;
            self.timer.enter_guest(look);
        }
        self.due_before = self.periods_due(self.host.tsc(self.world.now()));
        self.halt_at = self
            .world
            .now()
            .saturating_add(self.noise.span(self.load.work));
        self.set_halt();
        self.schedule_preemption();
        if let Some(slewing) = self.load.slewing {
            self.world
                .after(WorldSpan::from_ns(slewing.every_ns), Event::Slew);
        }
        self.set_wake();
        Ok(())
    }

    /// The back-end's wake-up.
    pub(super) fn wake(&mut self, watch: &mut Watch) -> Result<(), Violation> {
        let look = self.host.look(self.world.now());
        let (what, count) = match self.wake_set {
            Wake::GuestTsc(_) => ("preemption timer", &mut self.seen.preemption_wakes),
            Wake::Monotonic(_) | Wake::Never => ("software timer", &mut self.seen.software_wakes),
        };
        *count += 1;
        self.wake_set = Wake::Never;
        let fired = self.timer.fire(look);
        self.world.note(watch, what, 0, fired.expiries);
        self.take(fired, watch)?;
        self.set_wake();
        Ok(())
    }

    /// The guest executes HLT, unless an interrupt is pending.
    pub(super) fn halt(&mut self, watch: &mut Watch) -> Result<(), Violation> {
        if self.state != State::Running {
            return Ok(());
        }
        self.state = State::Halted;
        let look = self.host.look(self.world.now());
        let fired = self.timer.halt(look);
        self.world.note(watch, "halt", 0, fired.expiries);
        self.take(fired, watch)?;
        self.set_wake();
        if self.state == State::Halted && self.timer.wake() == Wake::Never {
            self.lose(watch)?;
        }
        Ok(())
    }

    /// The vCPU enters guest mode: after a halt, or after it was off its CPU.
    pub(super) fn enter(&mut self, what: &'static str, watch: &mut Watch) -> Result<(), Violation> {
        self.world.note(watch, what, 0, 0);
        let woken = self.state == State::Waking;
        self.state = State::Running;
        let now = self.world.now();
        if woken && let Some(burst) = self.load.burst {
            self.halt_at = now.saturating_add(self.noise.span(burst));
        }
        self.timer.enter_guest(self.host.look(now));
        if self.pending == Raised::Interrupt {
            self.tick(watch)?;
        }
        self.set_halt();
        self.set_wake();
        Ok(())
    }

    /// A neighbour takes the physical CPU, if the vCPU has it.
    pub(super) fn preempt(&mut self, watch: &mut Watch) {
        if self.state == State::Running {
            let span = self.noise.span(self.load.preempt_for);
            self.world.note(watch, "preempt", 0, span.floor_ns());
            self.off_for(span);
        }
        self.schedule_preemption();
    }

    /// NTP changes the slew.
    pub(super) fn slew(&mut self, watch: &mut Watch) {
        let Some(slewing) = self.load.slewing else {
            return;
        };
        let width = u64::from(slewing.by_ppb) * 2;
        let offset = i64::try_from(self.noise.uniform(0..=width)).unwrap_or(0);
        let ppb = slewing.around_ppb - i64::from(slewing.by_ppb) + offset;
        self.world.note(watch, "slew", 0, ppb.unsigned_abs());
        self.host.slew(self.world.now(), ppb);
        self.world
            .after(WorldSpan::from_ns(slewing.every_ns), Event::Slew);
        // The software timer counts on at the new rate.
        self.wake_set = Wake::Never;
        self.set_wake();
    }

    /// The guest finds that no tick has come for long, and programs its timer again.
    pub(super) fn watchdog(&mut self, watch: &mut Watch) -> Result<(), Violation> {
        if self.state != State::Halted {
            return Ok(());
        }
        self.world.note(watch, "watchdog", 0, 0);
        self.state = State::Running;
        self.start_again(watch)?;
        self.halt_at = self.world.now();
        self.set_halt();
        self.set_wake();
        Ok(())
    }

    /// The end of the run.
    pub(super) fn end(&mut self, watch: &mut Watch) -> Result<(), Violation> {
        let look = self.host.look(self.world.now());
        self.seen.due = self.periods_due(look.tsc).saturating_sub(self.due_before);
        if self.program.mode == Mode::Periodic && self.invariants == Invariants::Enforced {
            // Whatever is due has been taken, or is taken now: neither a tick too many nor one too few.
            let fired = self.timer.fire(look);
            self.take(fired, watch)?;
            let due = self.periods_due(look.tsc);
            if self.seen.expiries != due {
                let details = format!("{} expiries, {due} periods", self.seen.expiries);
                return Err(watch.violation("on-the-grid", details));
            }
        }
        Ok(())
    }

    /// Takes what a call of the timer led to.
    pub(super) fn take(&mut self, fired: Fired, watch: &mut Watch) -> Result<(), Violation> {
        self.seen.expiries += fired.expiries;
        self.seen.longest_burst = self.seen.longest_burst.max(fired.callbacks);
        if fired.raised == Raised::Nothing {
            return Ok(());
        }
        self.check_never_early(watch)?;
        self.pending = Raised::Interrupt;
        match self.state {
            State::Running => self.tick(watch),
            State::Halted => {
                self.state = State::Waking;
                let latency = self.noise.span(self.load.wake_latency);
                self.world.after(latency, Event::Enter);
                Ok(())
            }
            State::Waking | State::Off => Ok(()),
        }
    }

    /// Sets the back-end to what the timer wants.
    pub(super) fn set_wake(&mut self) {
        let wanted = match self.timer.wake() {
            // Only guest mode has a preemption timer.
            Wake::GuestTsc(_) if self.state != State::Running => Wake::Never,
            wake => wake,
        };
        if wanted == self.wake_set {
            return;
        }
        self.wake_set = wanted;
        // wrapping: only equality with the last number counts.
        self.wake_number = self.wake_number.wrapping_add(1);
        let time = match wanted {
            Wake::Never => return,
            Wake::Monotonic(time) => self.host.when_monotonic(time),
            Wake::GuestTsc(tsc) => self.host.when_tsc(tsc),
        };
        self.world.at(time, Event::Wake(self.wake_number));
    }

    pub(super) fn set_halt(&mut self) {
        // wrapping: only equality with the last number counts.
        self.halt_number = self.halt_number.wrapping_add(1);
        self.world.at(self.halt_at, Event::Halt(self.halt_number));
    }

    /// The guest's handler takes the pending interrupt.
    fn tick(&mut self, watch: &mut Watch) -> Result<(), Violation> {
        self.pending = Raised::Nothing;
        let now = self.world.now();
        let tsc = self.host.tsc(now);
        if let Some(last) = self.last_tick {
            let interval = nanos_of(tsc.wrapping_delta(last), self.host.nominal());
            self.seen.intervals.record(interval);
            self.world.note(watch, "tick", 0, interval);
        }
        self.last_tick = Some(tsc);
        let apart = self
            .timer
            .deadlines_apart(self.host.look(now))
            .unsigned_abs();
        self.seen.deadlines_apart_ns = self.seen.deadlines_apart_ns.max(apart);
        let ticks = self.seen.intervals.count();
        let mut work = self.noise.span(self.load.work);
        if let Some(job) = self.load.job
            && job.at_tick == ticks
        {
            work = WorldSpan::from_ns(job.for_ns);
        }
        self.halt_at = self.halt_at.max(now.saturating_add(work));
        self.set_halt();
        if self.program.mode == Mode::OneShot {
            self.start_again(watch)?;
        }
        if self.load.pause_ns > 0 && ticks == self.program.ticks / 2 {
            self.world.note(watch, "pause", 0, self.load.pause_ns);
            self.off_for(WorldSpan::from_ns(self.load.pause_ns));
        }
        Ok(())
    }

    fn start_again(&mut self, watch: &mut Watch) -> Result<(), Violation> {
        let look = self.host.look(self.world.now());
        self.started = look.tsc;
        self.seen.expiries_ended += self.seen.expiries;
        self.seen.expiries = 0;
        let fired = self
            .timer
            .start(self.program.mode, self.program.period, look);
        self.take(fired, watch)
    }

    fn off_for(&mut self, span: WorldSpan) {
        self.state = State::Off;
        self.off_since = self.world.now();
        self.world.after(span, Event::Resume);
        self.set_wake();
    }

    fn schedule_preemption(&mut self) {
        if let Some(every) = self.load.preempt_every {
            let span = self.noise.span(every);
            self.world.after(span, Event::Preempt);
        }
    }

    /// The vCPU halts, its timer is armed, and nothing will fire it.
    fn lose(&mut self, watch: &mut Watch) -> Result<(), Violation> {
        self.seen.lost_timers += 1;
        if self.invariants == Invariants::Enforced {
            let details = "the vCPU halts and no back-end is armed".to_owned();
            return Err(watch.violation("no-lost-timer", details));
        }
        self.world
            .after(WATCHDOG, Event::Watchdog(self.wake_number));
        Ok(())
    }

    /// So many periods have passed since the timer was started, by the guest's counter.
    fn periods_due(&self, tsc: Tsc) -> u64 {
        nanos_of(tsc.wrapping_delta(self.started), self.host.nominal())
            / self.program.period.as_ns().max(1)
    }

    fn check_never_early(&mut self, watch: &mut Watch) -> Result<(), Violation> {
        let tsc = self.host.tsc(self.world.now());
        let passed = nanos_of(tsc.wrapping_delta(self.started), self.host.nominal());
        let taken = self
            .program
            .period
            .as_ns()
            .saturating_mul(self.seen.expiries);
        let Some(early) = taken.checked_sub(passed).filter(|early| *early > 0) else {
            return Ok(());
        };
        self.seen.early += 1;
        self.seen.earliest_ns = self.seen.earliest_ns.max(early);
        if self.invariants == Invariants::Counted {
            return Ok(());
        }
        let details = format!(
            "{} expiries of {} after {passed} ns: {early} ns early",
            self.seen.expiries, self.program.period
        );
        Err(watch.violation("never-early", details))
    }
}

/// The ns that `ticks` take at the nominal `rate`, rounded down.
#[inline]
pub(super) fn nanos_of(ticks: TscDelta, rate: Hertz) -> u64 {
    let per_second = 1_000_000_000 * u128::from(rate.denominator());
    let ns = u128::from(ticks.as_ticks()) * per_second / u128::from(rate.numerator());
    u64::try_from(ns).unwrap_or(u64::MAX)
}
