//! What a guest's write does to each register, once everything that came due before it has happened.

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode};
use chronovisor_abi::quantity::Tsc;

use super::effects::{Effects, Rearm};
use super::mutant::{Mutant, is};
use super::settings::DeadlineMode;
use super::timer::{LocalTimer, Power, Run};

impl LocalTimer {
    pub(super) fn write_lvt(&mut self, value: LvtTimer) -> Effects {
        let mut effects = Effects {
            rearm: Rearm::Again,
            ..Effects::default()
        };
        let mut bits = value.0 & LvtTimer::WRITABLE;
        if self.settings.deadline_mode == DeadlineMode::Absent {
            bits &= !LvtTimer::MODE_HIGH;
        }
        let mut new = LvtTimer(bits);
        if self.power == Power::SoftwareDisabled && !is(Mutant::SoftwareDisableKeepsMask) {
            new = new.masked();
        }
        let (from, to) = (self.lvt.mode(), new.mode());
        self.lvt = new;
        if from != to || new.is_masked() {
            effects.lost = self.drop_backlog();
        }
        if from == to {
            return effects;
        }
        if from.counts() && to.counts() {
            // The count goes on; the mode is looked at when it reaches 0 (hardware and KVM; the SDM's text would stop it).
            if is(Mutant::ModeChangeStops) {
                self.run = Run::Stopped;
            }
            if is(Mutant::ExpiredOneShotRestarts) && self.run == Run::Stopped && self.initial > 0 {
                self.run = Run::Counting;
                self.count.restart(self.count.base(), self.period());
            }
            self.set_stride(&mut effects);
        } else if !is(Mutant::DeadlineModeKeepsCount) {
            self.run = Run::Stopped;
            self.initial = 0;
            self.stride = 1;
            self.deadline = 0;
        }
        effects
    }

    pub(super) fn write_initial_count(&mut self, value: u32, now: Tsc) -> Effects {
        if !self.lvt.mode().counts() && !is(Mutant::CountTakenInDeadlineMode) {
            return Effects::default();
        }
        let mut effects = Effects {
            lost: self.drop_backlog(),
            rearm: Rearm::Again,
            ..Effects::default()
        };
        self.initial = value;
        self.run = if value == 0 {
            Run::Stopped
        } else {
            Run::Counting
        };
        self.count.restart(now, 0);
        self.set_stride(&mut effects);
        effects
    }

    pub(super) fn write_divide(&mut self, value: DivideConfiguration) -> Effects {
        let mut effects = Effects {
            lost: self.drop_backlog(),
            rearm: Rearm::Again,
            ..Effects::default()
        };
        self.divide = DivideConfiguration(value.0 & DivideConfiguration::WRITABLE);
        self.count.set_divide(self.divide.log2());
        self.set_minimum();
        self.set_stride(&mut effects);
        effects
    }

    pub(super) fn write_deadline(&mut self, value: u64, now: Tsc) -> Effects {
        let in_mode = self.lvt.mode() == TimerMode::TSC_DEADLINE;
        if !in_mode && !is(Mutant::DeadlineTakenInAnyMode) {
            return Effects::default();
        }
        self.deadline = value;
        let mut effects = self.expire(now);
        effects.rearm = Rearm::Again;
        effects
    }

    /// Forgets the backlog and returns how many expiries that were.
    pub(super) fn drop_backlog(&mut self) -> u64 {
        let dropped = self.backlog();
        self.backlog = 0;
        dropped
    }

    /// The minimum period in counts of the present divider.
    pub(super) fn set_minimum(&mut self) {
        self.minimum = self
            .settings
            .rates
            .counts_ceil(self.settings.minimum_period.period(), self.divide.log2());
    }

    /// The number of periods that one interrupt stands for, after a change of period, mode or minimum; told if it is not 1.
    pub(super) fn set_stride(&mut self, effects: &mut Effects) {
        self.stride = 1;
        if self.run == Run::Stopped {
            return;
        }
        // Within the period that the guest sees, the count does not move.
        self.count.wrap_progress(self.period());
        let initial = u64::from(self.initial);
        if self.lvt.mode() == TimerMode::PERIODIC
            && initial < self.minimum
            && !is(Mutant::NoMinimumPeriod)
        {
            self.stride = self.minimum.div_ceil(initial);
            effects.periods_per_interrupt = Some(self.stride);
        }
    }
}
