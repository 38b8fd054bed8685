//! What guest and VMM do at a step: each on the timer and on the model.

use std::format;
use std::string::String;

use chronovisor_abi::apic::LvtTimer;
use chronovisor_abi::quantity::{Hertz, Tsc};

use super::super::exercised::{Exercised, Rule};
use super::super::model::{PERIODIC, Switch, Told};
use super::super::world::{fraction, rates};
use super::Run;
use crate::apic::{LocalTimer, Power, Rates, TimerRegister};

impl Run {
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

    pub(super) fn write(
        &mut self,
        register: TimerRegister,
        exercised: &mut Exercised,
    ) -> Result<(), String> {
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

    pub(super) fn expire(&mut self, exercised: &mut Exercised) -> Result<(), String> {
        let t = self.world.t;
        self.say(format!("{t}: expire"));
        let effects = self.timer.expire(self.now());
        let expected = self.model.evaluate(t);
        self.note_expiry(effects, exercised);
        self.agree("expire", effects, expected)
    }

    pub(super) fn save_and_restore(&mut self, exercised: &mut Exercised) -> Result<(), String> {
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
        self.asked_again = true;
        Ok(())
    }

    pub(super) fn change_rates(&mut self, exercised: &mut Exercised) -> Result<(), String> {
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

    pub(super) fn move_tsc(&mut self, exercised: &mut Exercised) -> Result<(), String> {
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

    pub(super) fn switch(&mut self, exercised: &mut Exercised) -> Result<(), String> {
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
    pub(super) fn read_behind(&mut self, exercised: &mut Exercised) -> Result<(), String> {
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
}
