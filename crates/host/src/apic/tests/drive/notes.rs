//! Which rules a step met, told from the model's state before it.

use super::super::exercised::{Exercised, Rule};
use super::super::model::{DEADLINE, ONE_SHOT, PERIODIC, Policy, Switch};
use super::Run;
use crate::apic::{Delivery, Effects, TimerRegister};

impl Run {
    pub(super) fn note_expiry(&self, effects: Effects, exercised: &mut Exercised) {
        let mode = self.model.mode();
        let any = effects.expiries > 0;
        exercised.note_if(Rule::OneShotExpires, any && mode == ONE_SHOT);
        exercised.note_if(Rule::PeriodicExpires, any && mode == PERIODIC);
        exercised.note_if(Rule::ManyPeriods, mode == PERIODIC && effects.expiries > 1);
        exercised.note_if(Rule::DeadlineFires, any && mode == DEADLINE);
        exercised.note_if(Rule::Masked, any && self.model.masked());
        exercised.note_if(
            Rule::IllegalVector,
            matches!(effects.delivery, Delivery::IllegalVector(_)),
        );
        let policy = self.model.policy;
        exercised.note_if(Rule::Merged, policy == Policy::Merge && effects.merged > 0);
        exercised.note_if(
            Rule::Skipped,
            policy == Policy::Skip && !self.model.masked() && effects.lost > 0,
        );
        if let Policy::CatchUp { cap, .. } = policy {
            let backlog = self.model.backlog;
            exercised.note_if(Rule::Backlog, backlog > 0);
            exercised.note_if(
                Rule::BacklogCapped,
                backlog > 0 && backlog == u64::from(cap) && effects.lost > 0,
            );
            exercised.note_if(
                Rule::CatchUpWaits,
                backlog > 0 && effects.delivery == Delivery::Nothing,
            );
        }
    }

    pub(super) fn note_write(
        &self,
        register: TimerRegister,
        value: u64,
        exercised: &mut Exercised,
    ) {
        let model = &self.model;
        if model.switch != Switch::On {
            return;
        }
        let (mode, counting, armed) = (model.mode(), model.is_counting(), model.deadline != 0);
        match register {
            TimerRegister::LvtTimer => {
                let to = (value >> 17) & 3;
                exercised.note_if(
                    Rule::OneShotToPeriodic,
                    mode == ONE_SHOT && to == 1 && counting,
                );
                exercised.note_if(
                    Rule::PeriodicToOneShot,
                    mode == PERIODIC && to == 0 && counting,
                );
                exercised.note_if(
                    Rule::ExpiredToPeriodic,
                    mode == ONE_SHOT && to == 1 && !counting && model.initial > 0,
                );
                exercised.note_if(
                    Rule::ToDeadline,
                    to == 2 && counting && model.deadline_mode_exists,
                );
                exercised.note_if(Rule::FromDeadline, mode == DEADLINE && to != 2 && armed);
                exercised.note_if(
                    Rule::ReservedMode,
                    to == 3 && counting && model.deadline_mode_exists,
                );
            }
            TimerRegister::InitialCount => {
                exercised.note_if(Rule::CountIgnored, mode == DEADLINE && value > 0);
                exercised.note_if(Rule::CountStops, value == 0 && counting);
                exercised.note_if(Rule::CountRestarts, value > 0 && counting);
            }
            TimerRegister::DivideConfiguration => {
                exercised.note_if(Rule::DivideWhileCounting, counting)
            }
            TimerRegister::TscDeadline => {
                let past = value != 0 && value <= self.now().as_ticks();
                exercised.note_if(Rule::DeadlinePast, mode == DEADLINE && past);
                exercised.note_if(Rule::DeadlineDisarmed, armed && value == 0);
                exercised.note_if(Rule::DeadlineReplaced, armed && value != 0);
                exercised.note_if(Rule::DeadlineIgnored, mode != DEADLINE && value != 0);
            }
            TimerRegister::CurrentCount => {}
        }
    }
}
