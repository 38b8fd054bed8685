//! The local APIC timer of `chronovisor-host`, behind the trait that also drives the historical ones.
//!
//! # Theory
//!
//! The timer holds one deadline in its own exact ticks; both back-ends get it converted afresh. Nothing of that is here: this is the few lines
//! with which a VMM calls the timer.
//!
//! # Practice
//!
//! [`HostLapic::new`] with a lost-tick policy; a bus clock of 1 GHz divided by 1, a preemption timer with steps of 32 ticks, as KVM has.
//!
//! # Migration
//!
//! Not used here.
//!
//! # Caveats
//!
//! No lead compensation.
//!
//! # References
//!
//! `chronovisor_host::apic`.

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode};
use chronovisor_abi::quantity::{Hertz, Nanos, Reading, Tsc, TscDelta};
use chronovisor_host::apic::{
    DeadlineMode, Delivery, Effects, LocalTimer, LostTicks, MinimumPeriod, Place, PreemptionTimer,
    RateError, Rates, Set, Settings, SoftwareTimer, TimerRegister, Wake as Woken, Wakeups,
};

use crate::host_machine::HostLook;
use crate::lapic_timer::{Fired, LapicTimer, Mode, Raised, Wake};

const VECTOR: u8 = 0xec;
const BUS_HZ: u64 = 1_000_000_000;
/// KVM's preemption timer counts every 32nd tick of the counter.
const PREEMPTION_STEP_LOG2: u32 = 5;

/// Our timer on its two back-ends.
#[derive(Debug)]
pub struct HostLapic {
    timer: LocalTimer,
    wakeups: Wakeups<SoftwareTimer, PreemptionTimer>,
    place: Place,
    started: Tsc,
}

impl HostLapic {
    /// A timer for a guest whose counter is said to run at `tsc`, at counter value `now`.
    ///
    /// # Errors
    ///
    /// [`RateError`] if the timer cannot count with such a counter.
    ///
    /// # Panics
    ///
    /// Never: the constants are in range.
    pub fn new(lost_ticks: LostTicks, tsc: Hertz, now: Tsc) -> Result<Self, RateError> {
        let bus = Hertz::from_hz(BUS_HZ).expect("the bus rate is not zero");
        let preemption = PreemptionTimer::new(PREEMPTION_STEP_LOG2).expect("the step is below 32");
        let settings = Settings {
            rates: Rates::new(bus, tsc)?,
            minimum_period: MinimumPeriod::KVM,
            lost_ticks,
            deadline_mode: DeadlineMode::Offered,
        };
        Ok(Self {
            timer: LocalTimer::new(settings, now),
            wakeups: Wakeups::new(SoftwareTimer::new(tsc), preemption),
            place: Place::Guest,
            started: now,
        })
    }

    fn set(&mut self, look: HostLook) {
        self.wakeups.set(&self.timer, self.place, reading(look));
    }
}

const fn reading(look: HostLook) -> Reading<Nanos> {
    Reading::new(look.monotonic, look.tsc)
}

fn fired(effects: Effects) -> Fired {
    Fired {
        expiries: effects.expiries,
        raised: match effects.delivery {
            Delivery::Interrupt(_) => Raised::Interrupt,
            Delivery::Nothing | Delivery::IllegalVector(_) => Raised::Nothing,
        },
        callbacks: 1,
    }
}

impl LapicTimer for HostLapic {
    fn start(&mut self, mode: Mode, period: Nanos, look: HostLook) -> Fired {
        self.started = look.tsc;
        let mode = match mode {
            Mode::OneShot => TimerMode::ONE_SHOT,
            Mode::Periodic => TimerMode::PERIODIC,
        };
        let divide = u64::from(DivideConfiguration::BY_1.0);
        let lvt = u64::from(LvtTimer::new(mode, VECTOR).0);
        let mut expiries = 0;
        for (register, value) in [
            (TimerRegister::DivideConfiguration, divide),
            (TimerRegister::LvtTimer, lvt),
            // One bus tick is one ns.
            (TimerRegister::InitialCount, period.as_ns()),
        ] {
            expiries += self.timer.write(register, value, look.tsc).expiries;
        }
        self.set(look);
        Fired {
            expiries,
            ..Fired::default()
        }
    }

    fn enter_guest(&mut self, look: HostLook) {
        self.place = Place::Guest;
        self.set(look);
    }

    fn halt(&mut self, look: HostLook) -> Fired {
        self.place = Place::Host;
        self.set(look);
        Fired::default()
    }

    fn fire(&mut self, look: HostLook) -> Fired {
        match self
            .wakeups
            .wake(&mut self.timer, self.place, reading(look))
        {
            Woken::Done(effects) => fired(effects),
            Woken::Early | Woken::Wait(_) => Fired::default(),
        }
    }

    fn wake(&self) -> Wake {
        let wake = match self.wakeups.which() {
            Set::Nothing => None,
            Set::Software => self.wakeups.software().expires().map(Wake::Monotonic),
            Set::Preemption => self.wakeups.preemption().expires().map(Wake::GuestTsc),
        };
        wake.unwrap_or(Wake::Never)
    }

    fn fast_forward(&mut self, look: HostLook) -> u64 {
        // Every tick was taken in its time, so a catch-up owes nothing: the leap is made under `merge`.
        let settings = self.timer.settings();
        let merge = Settings {
            lost_ticks: LostTicks::Merge,
            ..settings
        };
        let under = |timer: &LocalTimer, settings, now| {
            LocalTimer::restore(settings, &timer.save(now), now)
        };
        let Ok(mut leaping) = under(&self.timer, merge, self.started) else {
            return 0;
        };
        let mut expiries = leaping.expire(look.tsc).expiries;
        // Once more, to the last tick only: the distance to the last interrupt is then that of a tick in its time.
        if let Some(next) = leaping.next_deadline()
            && expiries > 1
            && let Ok(mut again) = under(&self.timer, merge, self.started)
        {
            let period = next.at().wrapping_delta(self.started).as_ticks() / (expiries + 1);
            // wrapping: the counter itself wraps.
            let before = next
                .at()
                .wrapping_sub(TscDelta::from_ticks(period + period / 2));
            expiries = again.expire(before).expiries;
            if let Some(last) = again.next_deadline()
                && last.is_reached(look.tsc)
            {
                expiries += again.expire(last.at()).expiries;
            }
            leaping = again;
        }
        if let Ok(timer) = under(&leaping, settings, look.tsc) {
            self.timer = timer;
        }
        self.set(look);
        expiries
    }

    fn is_armed(&self) -> bool {
        self.timer.next_deadline().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronovisor_host::apic::{SavedCount, TimerState};

    use crate::host_machine::{HostMachine, HostSpec};
    use crate::world_time::{WorldSpan, WorldTime};

    /// An hour of ticks one by one, each by the software timer of a clock that is 7 ppm fast, and the same hour in closed form: the same state.
    #[test]
    fn closed_form_equals_ticking_under_every_policy() {
        let spec = HostSpec {
            tsc_hz: 2_599_999_500,
            crystal_ppb: 3_000,
            slew_ppb: 7_000,
        };
        let host = HostMachine::new(spec, WorldTime::ZERO, Tsc::from_ticks(12_345)).unwrap();
        let policies = [
            LostTicks::Merge,
            LostTicks::SkipOnGrid,
            LostTicks::CatchUp(chronovisor_host::apic::CatchUp::DEFAULT),
        ];
        for policy in policies {
            let begin = host.look(WorldTime::ZERO);
            let new = || HostLapic::new(policy, host.nominal(), begin.tsc).unwrap();
            let (mut ticking, mut leaping) = (new(), new());
            for timer in [&mut ticking, &mut leaping] {
                let period = Nanos::from_ns(1_000_000);
                let _ = timer.start(Mode::Periodic, period, begin);
                let _ = timer.halt(begin);
            }
            let end = WorldTime::ZERO.saturating_add(WorldSpan::from_ns(3_600_000_000_000));
            let mut expiries = 0;
            while let Wake::Monotonic(time) = ticking.wake() {
                let wake = host.when_monotonic(time);
                if wake > end {
                    break;
                }
                expiries += ticking.fire(host.look(wake)).expiries;
            }
            let last = host.look(end);
            assert_eq!(expiries, leaping.fast_forward(last), "{policy:?}");
            assert_eq!(
                expiries, 3_600_010,
                "an hour of a counter that is 3 ppm fast"
            );
            let (ticked, leapt) = (ticking.timer.save(last.tsc), leaping.timer.save(last.tsc));
            let elapsed = |state: &TimerState| match state.count {
                SavedCount::Running {
                    elapsed,
                    since_interrupt,
                } => (elapsed, since_interrupt.counts),
                SavedCount::Stopped => panic!("stopped"),
            };
            // The last interrupt was noted at the wake-up, up to 1 ns (one count) late.
            let ((a, last_a), (b, last_b)) = (elapsed(&ticked), elapsed(&leapt));
            assert_eq!(a, b, "{policy:?}");
            assert!(
                last_b.abs_diff(last_a) <= 1,
                "{policy:?}: {last_a}, {last_b}"
            );
            assert_eq!(ticking.timer.backlog(), leaping.timer.backlog());
            assert_eq!(ticking.timer.next_deadline(), leaping.timer.next_deadline());
        }
    }
}
