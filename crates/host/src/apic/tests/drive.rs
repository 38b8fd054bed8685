//! One random history, carried out on the timer and on the model side by side.

mod notes;

use std::string::String;
use std::{format, vec::Vec};

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer};
use chronovisor_abi::quantity::{Hertz, Nanos, Tsc};

use super::exercised::{Exercised, Rule};
use super::model::{Model, ONE_SHOT, PERIODIC, Policy, Switch, Told};
use super::random::Random;
use super::world::{World, fraction, rates};
use crate::apic::{
    CatchUp, DeadlineMode, Delivery, Effects, LocalTimer, LostTicks, MinimumPeriod, Place, Power,
    Rates, Settings, TimerRegister, Wake,
};

/// The history of `seed`: 20 to 28 steps. `Err` tells the first difference.
pub(super) fn sequence(seed: u64, exercised: &mut Exercised) -> Result<(), String> {
    let mut run = Run::new(seed);
    let steps = 20 + run.random.below(9);
    for step in 0..steps {
        exercised.note(Rule::Steps);
        run.pass_time(exercised)
            .and_then(|()| run.act(exercised))
            .and_then(|()| run.compare(exercised))
            .map_err(|difference| {
                format!(
                    "step {step}: {difference}\n{:#?}\n{:#?}\n{}",
                    run.timer,
                    run.model,
                    run.trace.join("\n")
                )
            })?;
    }
    Ok(())
}

struct Run {
    random: Random,
    timer: LocalTimer,
    model: Model,
    world: World,
    rate_changes: u32,
    /// Interrupts, expiries, merged, lost so far.
    account: [u64; 4],
    trace: Vec<String>,
}

fn told(effects: Effects) -> Told {
    let raised = match effects.delivery {
        Delivery::Nothing => None,
        Delivery::Interrupt(vector) | Delivery::IllegalVector(vector) => Some(vector),
    };
    Told {
        raised,
        expiries: effects.expiries,
        merged: effects.merged,
        lost: effects.lost,
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (bus, tsc) = rates(&mut random);
        let (lost_ticks, policy) = match random.below(4) {
            0 | 1 => (LostTicks::Merge, Policy::Merge),
            2 => (LostTicks::SkipOnGrid, Policy::Skip),
            _ => {
                let spacing_128ths = u8::try_from(1 + random.below(128)).unwrap();
                let cap = random.below(20);
                let limits = CatchUp::new(spacing_128ths, cap).unwrap();
                (
                    LostTicks::CatchUp(limits),
                    Policy::CatchUp {
                        spacing_128ths,
                        cap,
                    },
                )
            }
        };
        let minimum = Nanos::from_ns(random.pick(&[0, 0, 200_000, 1_000_000]));
        let exists = !random.one_in(8);
        let settings = Settings {
            rates: Rates::new(bus, tsc).unwrap(),
            minimum_period: MinimumPeriod::new(minimum).unwrap(),
            lost_ticks,
            deadline_mode: if exists {
                DeadlineMode::Offered
            } else {
                DeadlineMode::Absent
            },
        };
        // A quarter of the histories begins shortly before the counter wraps.
        let offset = if random.one_in(4) {
            u64::MAX - random.magnitude(36)
        } else {
            random.magnitude(62)
        };
        let world = World::new(tsc, &mut random);
        let model = Model::new(
            fraction(bus),
            fraction(tsc),
            minimum.as_ns().into(),
            policy,
            exists,
            offset,
        );
        Self {
            timer: LocalTimer::new(settings, Tsc::from_ticks(offset)),
            random,
            model,
            world,
            rate_changes: 0,
            account: [0; 4],
            trace: Vec::new(),
        }
    }

    fn now(&self) -> Tsc {
        Tsc::from_ticks(self.model.guest(self.world.t))
    }

    fn say(&mut self, what: String) {
        // A trace is worth its time only when something is to be told: keep the last few.
        if self.trace.len() == 12 {
            self.trace.remove(0);
        }
        self.trace.push(what);
    }

    fn pass_time(&mut self, exercised: &mut Exercised) -> Result<(), String> {
        let from = self.now().as_ticks();
        self.world.place = if self.random.one_in(3) {
            Place::Host
        } else {
            Place::Guest
        };
        self.world.set(&self.timer, from, exercised);
        match self.random.below(8) {
            0 => {}
            1 | 2 => self.world.t += u128::from(self.random.magnitude(34)),
            3 => {
                // Until somewhere inside the wait, then the processor halts or comes back.
                if let Some((_, Some(due))) = self.model.next() {
                    let left = due.saturating_sub(self.world.t).min(1 << 34);
                    let part = u128::from(self.random.next());
                    self.world.t += (left * part) >> 32;
                }
                self.world.place = if self.world.place == Place::Guest {
                    Place::Host
                } else {
                    Place::Guest
                };
                let at = self.now().as_ticks();
                self.world.set(&self.timer, at, exercised);
                self.follow_wakeups(exercised)?;
            }
            _ => self.follow_wakeups(exercised)?,
        }
        let wrapped = self.now().as_ticks() < from && self.model.is_counting();
        exercised.note_if(Rule::TscWraps, wrapped);
        Ok(())
    }

    /// Sleeps until the back-end wakes the host, as often as it does so early, and looks at the timer then.
    fn follow_wakeups(&mut self, exercised: &mut Exercised) -> Result<(), String> {
        for _ in 0..64 {
            let at = self.now().as_ticks();
            let Some((_, Some(due))) = self.model.next() else {
                return Ok(());
            };
            let Some((wake, late)) = self.world.wake_time(at) else {
                return Ok(());
            };
            if due > self.world.t + (1 << 36) {
                return Ok(());
            }
            let set_at = core::mem::replace(&mut self.world.t, wake);
            let reading = self.world.reading(self.now().as_ticks());
            let woken = self
                .world
                .wakeups
                .wake(&mut self.timer, self.world.place, reading);
            match woken {
                Wake::Early if wake < due => {
                    exercised.note(Rule::EarlyWake);
                    if self.world.slew_ppm() <= 0 {
                        return Err(format!(
                            "woken at {wake}, {} before the deadline {due}, by a clock that is not fast",
                            due - wake
                        ));
                    }
                }
                Wake::Done(effects) if wake >= due => {
                    if wake - due.max(set_at) > late {
                        return Err(format!(
                            "woken {} ticks after the deadline {due}, bound {late}",
                            wake - due
                        ));
                    }
                    exercised.note(Rule::OnTime);
                    let expected = self.model.evaluate(wake);
                    self.note_expiry(effects, exercised);
                    return self.agree("wake", effects, expected);
                }
                other => return Err(format!("{other:?} at {wake} with the deadline at {due}")),
            }
        }
        Err(String::from("64 wake-ups without reaching the deadline"))
    }

    fn agree(&mut self, what: &str, effects: Effects, expected: Told) -> Result<(), String> {
        let is = told(effects);
        if is != expected {
            return Err(format!("{what}: {is:?} where {expected:?} is right"));
        }
        let illegal = is.raised.is_some_and(|vector| vector < 16);
        if illegal != matches!(effects.delivery, Delivery::IllegalVector(_)) {
            return Err(format!("{what}: {:?}", effects.delivery));
        }
        let parts = [
            u64::from(is.raised.is_some()),
            is.expiries,
            is.merged,
            is.lost,
        ];
        for (sum, part) in self.account.iter_mut().zip(parts) {
            *sum += part;
        }
        let [raised, expiries, merged, lost] = self.account;
        if expiries != raised + merged + lost + self.timer.backlog() {
            return Err(format!(
                "{what}: the account does not close: {:?}, backlog {}",
                self.account,
                self.timer.backlog()
            ));
        }
        Ok(())
    }

    fn act(&mut self, exercised: &mut Exercised) -> Result<(), String> {
        match self.random.below(20) {
            0..=3 => self.write(TimerRegister::LvtTimer, exercised),
            4..=7 => self.write(TimerRegister::InitialCount, exercised),
            8 | 9 => self.write(TimerRegister::DivideConfiguration, exercised),
            10 | 11 => self.write(TimerRegister::TscDeadline, exercised),
            12 => self.save_and_restore(exercised),
            13 => self.change_rates(exercised),
            14 => self.move_tsc(exercised),
            15 => self.switch(exercised),
            16 => self.read_behind(exercised),
            _ => self.expire(exercised),
        }
    }

    fn value(&mut self, register: TimerRegister) -> u64 {
        match register {
            TimerRegister::LvtTimer => {
                let mode = self.random.pick(&[0, 0, 0, 1, 1, 1, 1, 2, 2, 3]) << 17;
                let mask = u32::from(self.random.one_in(6)) << 16;
                let vector = if self.random.one_in(16) {
                    self.random.below(16)
                } else {
                    16 + self.random.below(240)
                };
                let reserved = self.random.next() & LvtTimer::RESERVED & !1;
                u64::from(mode | mask | vector | reserved)
            }
            TimerRegister::InitialCount if self.random.one_in(8) => 0,
            TimerRegister::InitialCount if self.random.one_in(8) => u64::from(u32::MAX),
            TimerRegister::InitialCount => 1 + self.random.magnitude(28),
            TimerRegister::DivideConfiguration => u64::from(self.random.below(16)),
            TimerRegister::TscDeadline => {
                let now = self.now().as_ticks();
                match self.random.below(8) {
                    0 => 0,
                    1 => now.saturating_sub(self.random.magnitude(32)),
                    2 => self.random.next_u64(),
                    _ => now.saturating_add(self.random.magnitude(34)),
                }
            }
            TimerRegister::CurrentCount => self.random.next_u64(),
        }
    }

    fn write(&mut self, register: TimerRegister, exercised: &mut Exercised) -> Result<(), String> {
        let value = self.value(register);
        let t = self.world.t;
        self.note_write(register, value, exercised);
        self.say(format!("{t}: write {register:?} {value:#x}"));
        let effects = self.timer.write(register, value, self.now());
        let low = u32::try_from(value & 0xffff_ffff).unwrap();
        let expected = match register {
            TimerRegister::LvtTimer => self.model.write_lvt(low, t),
            TimerRegister::InitialCount => self.model.write_initial(low, t),
            TimerRegister::DivideConfiguration => self.model.write_divide(low, t),
            TimerRegister::TscDeadline => self.model.write_deadline(value, t),
            TimerRegister::CurrentCount => Told::default(),
        };
        exercised.note_if(Rule::DueBeforeWrite, effects.expiries > 0);
        let stride = u64::try_from(self.model.stride()).unwrap();
        let reports = register != TimerRegister::TscDeadline && stride > 1;
        exercised.note_if(Rule::MinimumPeriod, reports);
        if let Some(periods) = effects.periods_per_interrupt
            && periods != stride
        {
            return Err(format!(
                "{periods} periods an interrupt where {stride} is right"
            ));
        }
        if register == TimerRegister::InitialCount
            && reports
            && self.model.mode() == PERIODIC
            && effects.periods_per_interrupt.is_none()
        {
            return Err(String::from(
                "the minimum period was applied and not reported",
            ));
        }
        self.agree("write", effects, expected)
    }

    fn expire(&mut self, exercised: &mut Exercised) -> Result<(), String> {
        let t = self.world.t;
        self.say(format!("{t}: expire"));
        let effects = self.timer.expire(self.now());
        let expected = self.model.evaluate(t);
        self.note_expiry(effects, exercised);
        self.agree("expire", effects, expected)
    }

    fn save_and_restore(&mut self, exercised: &mut Exercised) -> Result<(), String> {
        let t = self.world.t;
        let state = self.timer.save(self.now());
        exercised.note_if(Rule::SavedCounting, self.model.is_counting());
        exercised.note_if(Rule::SavedArmed, self.model.deadline != 0);
        exercised.note_if(Rule::SavedDue, state.pending > 0);
        // The counter goes on where it was, or elsewhere.
        let offset = if self.random.one_in(2) {
            self.model.offset
        } else {
            self.random.next_u64()
        };
        self.say(format!("{t}: save and restore, offset {offset:#x}"));
        self.model.save_and_restore(offset, t);
        self.timer = LocalTimer::restore(self.timer.settings(), &state, self.now())
            .map_err(|error| format!("{error}"))?;
        Ok(())
    }

    fn change_rates(&mut self, exercised: &mut Exercised) -> Result<(), String> {
        if self.rate_changes == 2 {
            return self.expire(exercised);
        }
        self.rate_changes += 1;
        let (bus, tsc): (Hertz, Hertz) = rates(&mut self.random);
        let t = self.world.t;
        exercised.note_if(Rule::RatesChanged, self.model.is_counting());
        self.say(format!("{t}: rates {bus}, {tsc}"));
        self.world.set_tsc_rate(tsc);
        let effects = self
            .timer
            .set_rates(Rates::new(bus, tsc).unwrap(), self.now());
        let expected = self.model.set_rates(fraction(bus), fraction(tsc), t);
        self.agree("rates", effects, expected)
    }

    fn move_tsc(&mut self, exercised: &mut Exercised) -> Result<(), String> {
        let t = self.world.t;
        exercised.note_if(Rule::TscMovedCounting, self.model.is_counting());
        exercised.note_if(Rule::TscMovedArmed, self.model.deadline != 0);
        let offset = self
            .model
            .offset
            .wrapping_add(self.random.magnitude(63))
            .wrapping_sub(self.random.magnitude(63));
        self.say(format!("{t}: tsc offset {offset:#x}"));
        let before = self.now();
        let expected = self.model.tsc_moved(offset, t);
        let effects = self.timer.tsc_moved(before, self.now());
        self.agree("tsc moved", effects, expected)
    }

    fn switch(&mut self, exercised: &mut Exercised) -> Result<(), String> {
        let (switch, power) = match self.random.below(if self.model.switch == Switch::On {
            3
        } else {
            6
        }) {
            0 => (Switch::Software, Power::SoftwareDisabled),
            1 => (Switch::Off, Power::Off),
            _ => (Switch::On, Power::On),
        };
        let t = self.world.t;
        let counting = self.model.is_counting() && self.model.switch == Switch::On;
        exercised.note_if(
            Rule::SoftwareDisabled,
            counting && switch == Switch::Software,
        );
        exercised.note_if(Rule::PoweredOff, counting && switch == Switch::Off);
        self.say(format!("{t}: {power:?}"));
        let effects = self.timer.set_power(power, self.now());
        let expected = self.model.set_switch(switch, t);
        self.agree("power", effects, expected)
    }

    /// A call with a reading that lies a little behind the last one, as another CPU's counter may.
    fn read_behind(&mut self, exercised: &mut Exercised) -> Result<(), String> {
        let behind = u128::from(self.random.magnitude(10)).min(self.world.t);
        let t = self.world.t - behind;
        exercised.note_if(
            Rule::BehindReading,
            t < self.model.last && self.model.is_counting(),
        );
        self.say(format!("{t}: expire, {behind} behind"));
        let effects = self.timer.expire(Tsc::from_ticks(self.model.guest(t)));
        let expected = self.model.evaluate(t);
        self.agree("behind", effects, expected)
    }

    /// Everything that a guest and a VMM can see is as the model says.
    fn compare(&mut self, exercised: &mut Exercised) -> Result<(), String> {
        // A poll in between must not matter: look twice, a few ticks apart.
        for _ in 0..2 {
            let (t, now) = (self.world.t, self.now());
            let model = &self.model;
            let divide = model.divide & DivideConfiguration::WRITABLE;
            let count = model.current_count(t);
            for (register, expected) in [
                (TimerRegister::LvtTimer, u64::from(model.lvt)),
                (TimerRegister::InitialCount, u64::from(model.initial)),
                (TimerRegister::CurrentCount, u64::from(count)),
                (TimerRegister::DivideConfiguration, u64::from(divide)),
                (TimerRegister::TscDeadline, model.deadline_register(t)),
            ] {
                let read = self.timer.read(register, now);
                if read != expected {
                    return Err(format!(
                        "{register:?} reads {read:#x} at {t} where {expected:#x} is right"
                    ));
                }
            }
            exercised.note_if(Rule::PollCounting, count > 0);
            exercised.note_if(
                Rule::PollExpired,
                model.is_counting() && model.mode() == ONE_SHOT && count == 0,
            );
            self.world.t += u128::from(self.random.magnitude(12));
        }
        let next = self
            .timer
            .next_deadline()
            .map(|deadline| deadline.at().as_ticks());
        let expected = self.model.next().map(|(at, _)| at);
        if next != expected {
            return Err(format!(
                "next deadline {next:x?} where {expected:x?} is right"
            ));
        }
        Ok(())
    }
}
