//! What the guest's and the VMM's actions should do.

use super::super::fraction::Fraction;
use super::{Counting, DEADLINE, MASK, Model, ONE_SHOT, Switch, Told};

impl Model {
    pub(in super::super) fn write_lvt(&mut self, value: u32, t: u128) -> Told {
        if self.switch == Switch::Off {
            return Told::default();
        }
        let told = self.evaluate(t);
        let mut new = value & 0x7_00ff;
        if !self.deadline_mode_exists {
            new &= !(1 << 18);
        }
        if self.switch == Switch::Software {
            new |= MASK;
        }
        let (from, to) = (self.mode(), (new >> 17) & 3);
        let dropped = if from != to || new & MASK != 0 {
            self.forget_backlog()
        } else {
            Told::default()
        };
        let t = self.last;
        if from < 2 && to < 2 && from != to {
            self.new_grid(t);
        }
        self.lvt = new;
        if from != to && (from >= 2 || to >= 2) {
            self.counting = None;
            self.initial = 0;
            self.deadline = 0;
        }
        told.then(dropped)
    }

    pub(in super::super) fn write_initial(&mut self, value: u32, t: u128) -> Told {
        if self.switch == Switch::Off {
            return Told::default();
        }
        let told = self.evaluate(t);
        if self.mode() >= 2 {
            return told;
        }
        let dropped = self.forget_backlog();
        self.initial = value;
        self.counting = (value != 0).then_some(Counting {
            carried: Fraction::ZERO,
            since: self.last,
            origin: Fraction::ZERO,
            seen: 0,
            last_interrupt: None,
        });
        told.then(dropped)
    }

    pub(in super::super) fn write_divide(&mut self, value: u32, t: u128) -> Told {
        if self.switch == Switch::Off {
            return Told::default();
        }
        let told = self.evaluate(t);
        let dropped = self.forget_backlog();
        self.carry(self.last);
        self.divide = value & 0xb;
        self.new_grid(self.last);
        told.then(dropped)
    }

    pub(in super::super) fn write_deadline(&mut self, value: u64, t: u128) -> Told {
        if self.switch == Switch::Off {
            return Told::default();
        }
        let told = self.evaluate(t);
        if self.mode() != DEADLINE {
            return told;
        }
        self.deadline = value;
        let at_once = self.evaluate(t);
        told.then(at_once)
    }

    pub(in super::super) fn set_rates(&mut self, bus: Fraction, tsc: Fraction, t: u128) -> Told {
        let told = self.evaluate(t);
        let dropped = self.forget_backlog();
        self.carry(self.last);
        (self.bus, self.tsc) = (bus, tsc);
        self.new_grid(self.last);
        told.then(dropped)
    }

    pub(in super::super) fn tsc_moved(&mut self, offset: u64, t: u128) -> Told {
        let told = self.evaluate(t);
        self.offset = offset;
        let after = self.evaluate(t);
        told.then(after)
    }

    pub(in super::super) fn set_switch(&mut self, to: Switch, t: u128) -> Told {
        if to == self.switch {
            return Told::default();
        }
        let mut told = if self.switch == Switch::On {
            self.evaluate(t)
        } else {
            Told::default()
        };
        if to != Switch::On {
            told = told.then(self.forget_backlog());
            self.pending = 0;
        }
        if to == Switch::Software {
            self.lvt |= MASK;
        }
        if to == Switch::Off {
            self.lvt = MASK;
            self.initial = 0;
            self.divide = 0;
            self.deadline = 0;
            self.counting = None;
            self.last = self.last.max(t);
        }
        self.switch = to;
        told
    }

    /// A snapshot at `t`, restored with another TSC: what came due is kept, unless it is masked.
    pub(in super::super) fn save_and_restore(&mut self, offset: u64, t: u128) {
        let t = t.max(self.last);
        let mut due = 0;
        if let Some(mut counting) = self.counting {
            let points = self.points(&counting, t);
            due = u64::try_from(points - counting.seen).unwrap();
            counting.seen = points;
            self.counting = Some(counting);
            if self.mode() == ONE_SHOT && points > 0 {
                due = 1;
                self.counting = None;
            }
        } else if self.deadline_passed(t) {
            self.deadline = 0;
            due = 1;
        }
        self.pending = if self.masked() { 0 } else { self.pending + due };
        self.offset = offset;
        self.last = t;
    }
}
