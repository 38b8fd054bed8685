//! Whether the timers and the model agree: on what a call told, on every register, on the next wake-up, on the account of all expiries.

use std::string::String;
use std::{format, vec::Vec};

use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::RefTime;

use super::super::model::{Policy, TIMERS, Told};
use super::super::rules::Rules;
use super::{Run, msr};
use crate::apic::Rearm;
use crate::synic::EndOfInterrupt;
use crate::synthetic_timer::{Effects, Presence};

impl Run {
    pub(super) fn agree(
        &mut self,
        what: &str,
        effects: Effects,
        expected: &Told,
        rules: &mut Rules,
    ) -> Result<(), String> {
        let interrupts: Vec<_> = effects
            .interrupts()
            .map(|raised| (raised.vector, raised.end == EndOfInterrupt::Automatic))
            .collect();
        let told = Told {
            expiries: effects.expiries,
            signals: effects.signals,
            merged: effects.merged,
            lost: effects.lost,
            interrupts,
            periods_per_signal: effects.periods_per_signal,
        };
        if told != *expected {
            return Err(format!("{what}: {told:?} where {expected:?} is right"));
        }
        self.asked_again |= effects.rearm == Rearm::Again;
        let parts = [told.expiries, told.signals, told.merged, told.lost];
        for (sum, part) in self.account.iter_mut().zip(parts) {
            *sum += part;
        }
        let [expiries, signals, merged, lost] = self.account;
        let held = self.model.held();
        if expiries != signals + merged + lost + held {
            return Err(format!(
                "{what}: the account does not close: {:?}, held {held}",
                self.account
            ));
        }
        self.note(&told, rules);
        Ok(())
    }

    fn note(&self, told: &Told, rules: &mut Rules) {
        let model = &self.model;
        let any = |periodic| {
            let mut timers = model.timers.iter();
            told.expiries > 0 && timers.all(|timer| timer.is_periodic() == periodic)
        };
        rules.note_if("one-shot expires", any(false));
        rules.note_if("periodic expires", any(true));
        rules.note_if("several periods in one call", told.expiries > 4);
        let merges = model.minimum == 0 && told.merged > 0;
        rules.note_if("ticks merged", merges);
        let skips = model.punctual == Policy::Skip && model.lazy == Policy::Skip;
        rules.note_if("ticks skipped on the grid", skips && told.lost > 1);
        for timer in &model.timers {
            rules.note_if("backlog of a catch-up", timer.owed() > 0);
            if let Policy::CatchUp { cap, .. } = model.policy(timer) {
                let full = cap > 0 && timer.owed() == u64::from(cap);
                rules.note_if("backlog at its cap", full);
            }
        }
        let low = |timer: &super::Timer| timer.config & 0x1f00 == 0x1000;
        rules.note_if(
            "direct vector below 16",
            told.lost == 1 && model.timers.iter().any(low),
        );
        let messages = model.slots.iter().any(|slot| slot.message.is_some());
        let interrupts = u64::try_from(told.interrupts.len()).unwrap();
        rules.note_if("direct interrupt", interrupts > 0 && !messages);
        rules.note_if("message with its interrupt", interrupts > 0 && messages);
        rules.note_if("message without an interrupt", told.signals > interrupts);
        let auto = told.interrupts.iter().any(|(_, automatic)| *automatic);
        rules.note_if("auto-eoi source", auto);
        let waiting = model.timers.iter().filter(|timer| timer.message.is_some());
        let waiting = waiting.count();
        let page = model.controller_on && model.page_on && model.page_there;
        rules.note_if("message waits for its slot", waiting > 0 && page);
        rules.note_if("message waits for its page", waiting > 0 && !page);
        rules.note_if("two messages wait", waiting > 1);
    }

    /// Everything that a guest and a VMM can see is as the model says.
    pub(super) fn compare(&mut self, rules: &mut Rules) -> Result<(), String> {
        for index in 0..TIMERS {
            for (first, expected) in [
                (
                    Msr::HV_STIMER0_CONFIG,
                    self.model.config_register(index, self.t),
                ),
                (Msr::HV_STIMER0_COUNT, self.model.timers[index].count),
            ] {
                let read = self.timers.read(msr(first, 2 * index), self.now());
                if read != Ok(expected) {
                    return Err(format!(
                        "{first} of timer {index} reads {read:x?} where {expected:#x} is right"
                    ));
                }
            }
        }
        let wrapped = |t: u128| RefTime::from_100ns(u64::try_from(t % (1 << 64)).unwrap());
        for (presence, away) in [(Presence::Present, false), (Presence::Away, true)] {
            let next = self.timers.next_due(presence);
            let expected = self.model.next(away).map(wrapped);
            if next != expected {
                return Err(format!(
                    "{presence:?}: next due {next:x?} where {expected:x?} is right"
                ));
            }
        }
        let lazy = |timer: &super::Timer| timer.is_lazy() && timer.waits();
        rules.note_if(
            "lazy timer does not wake an absent processor",
            self.model.timers.iter().any(lazy),
        );
        // A wake-up that is set and still to come is only another one if a call said so.
        let next = self.timers.next_due(Presence::Present);
        if next != self.wakeup && !self.asked_again {
            return Err(format!(
                "the wake-up moved from {:x?} to {next:x?} without a word",
                self.wakeup
            ));
        }
        (self.wakeup, self.asked_again) = (next, false);
        Ok(())
    }
}
