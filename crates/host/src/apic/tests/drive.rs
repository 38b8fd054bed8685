//! One random history, carried out on the timer and on the model side by side.

mod actions;
mod notes;

use std::string::String;
use std::{format, vec::Vec};

use chronovisor_abi::apic::DivideConfiguration;
use chronovisor_abi::quantity::{Nanos, Tsc};

use super::exercised::{Exercised, Rule};
use super::model::{Model, ONE_SHOT, Policy, Told};
use super::random::Random;
use super::world::{World, fraction, rates};
use crate::apic::{
    CatchUp, DeadlineMode, Delivery, Effects, LocalTimer, LostTicks, MinimumPeriod, Place, Rates,
    Rearm, Settings, TimerRegister, Wake,
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
    /// The deadline that was asked for last, and whether the timer has said since that it may have changed.
    deadline: Option<u64>,
    asked_again: bool,
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
            deadline: None,
            asked_again: true,
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
            if due > self.world.t + (1 << 36) {
                return Ok(());
            }
            let Some((wake, late)) = self.world.wake_time(at) else {
                return Err(format!("no wake-up for the deadline {due}"));
            };
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
        self.asked_again |= effects.rearm == Rearm::Again;
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
        // A wake-up that is set and still to come is only another one if a call said so.
        if next != self.deadline && !self.asked_again {
            return Err(format!(
                "the deadline moved from {:x?} to {next:x?} without a word",
                self.deadline
            ));
        }
        (self.deadline, self.asked_again) = (next, false);
        Ok(())
    }
}
