//! What happens to a timer from outside its registers: reset, power, other rates, a counter that moves.

use chronovisor_abi::quantity::Tsc;

use super::effects::{Effects, Rearm};
use super::mutant::{Mutant, is};
use super::settings::Rates;
use super::timer::{LocalTimer, Power};

impl LocalTimer {
    /// INIT or reset of the processor: every register as after reset. The APIC is then disabled by software, as bit 8 of the spurious-interrupt vector
    /// register says, until [`Self::set_power`] tells that the guest has enabled it; one that is off stays off.
    pub fn reset(&mut self, now: Tsc) {
        let power = match self.power {
            Power::On | Power::SoftwareDisabled => Power::SoftwareDisabled,
            Power::Off => Power::Off,
        };
        *self = Self::new(self.settings, self.count.not_back(now));
        self.power = power;
    }

    /// The APIC is switched on or off, by software or as a whole. A pending timer interrupt is dropped when it is switched off.
    pub fn set_power(&mut self, power: Power, now: Tsc) -> Effects {
        if power == self.power {
            return Effects::default();
        }
        let mut effects = match self.power {
            Power::On => self.expire(now),
            Power::SoftwareDisabled | Power::Off => Effects::default(),
        };
        match power {
            Power::On => {}
            Power::SoftwareDisabled => {
                self.pending = 0;
                effects.lost = effects.lost.saturating_add(self.drop_backlog());
                if !is(Mutant::SoftwareDisableKeepsMask) {
                    self.lvt = self.lvt.masked();
                }
            }
            Power::Off => {
                effects.lost = effects.lost.saturating_add(self.drop_backlog());
                self.reset(now);
            }
        }
        self.power = power;
        effects.rearm = Rearm::Again;
        effects
    }

    /// The guest's TSC or its bus runs at other rates from `now` on: the count keeps its value and its fraction.
    /// Ticks that a catch-up still owes are counted as lost.
    pub fn set_rates(&mut self, rates: Rates, now: Tsc) -> Effects {
        let mut effects = self.expire(now);
        effects.lost = effects.lost.saturating_add(self.drop_backlog());
        self.settings.rates = rates;
        self.count.set_ratio(rates.ratio());
        self.set_minimum();
        self.set_stride(&mut effects);
        effects.rearm = Rearm::Again;
        effects
    }

    /// The guest's TSC jumps from `before` to `after`: a write to it, to TSC_ADJUST, or a new offset. Counts keep their time,
    /// since the bus did not jump; a TSC deadline is compared with the new value.
    pub fn tsc_moved(&mut self, before: Tsc, after: Tsc) -> Effects {
        let effects = self.expire(before);
        if !is(Mutant::CounterMoveCountsAsTime) {
            self.count.move_base(after);
        }
        let mut effects = effects.and(self.expire(after));
        effects.rearm = Rearm::Again;
        effects
    }
}
