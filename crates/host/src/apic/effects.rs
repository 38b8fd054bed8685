//! What a call to the timer asks of its VMM, and when the timer wants the next one.

use chronovisor_abi::quantity::{Tsc, TscDelta};

/// Whether an interrupt is to be raised now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Delivery {
    /// No interrupt.
    #[default]
    Nothing,
    /// Raise this vector: fixed delivery, edge. The VMM sets its bit in the interrupt request register.
    Interrupt(u8),
    /// The LVT names a vector below 16: set [`ERROR_RECEIVED_ILLEGAL_VECTOR`](chronovisor_abi::apic::ERROR_RECEIVED_ILLEGAL_VECTOR)
    /// in the error status register instead.
    IllegalVector(u8),
}

/// Whether [`next_deadline`](super::LocalTimer::next_deadline) may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rearm {
    /// The wake-up that is set still fits. (One that has come is used up: after it, ask for the next deadline in any case.)
    #[default]
    Keep,
    /// Ask for the next deadline and set the wake-up again.
    Again,
}

/// What a call did and what the VMM has to do.
///
/// Every expiry is accounted for: over any series of calls `expiries` equals the interrupts (illegal vectors included) plus `merged` plus
/// `lost` plus what [`backlog`](super::LocalTimer::backlog) still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[must_use = "an interrupt may have to be raised and a wake-up to be set again"]
pub struct Effects {
    /// The interrupt to raise.
    pub delivery: Delivery,
    /// How often the timer reached its end since the last call.
    pub expiries: u64,
    /// Expiries that share an interrupt with another one: overdue ones, and those closer than the minimum period.
    pub merged: u64,
    /// Expiries that raise nothing: masked, skipped, dropped from the backlog.
    pub lost: u64,
    /// Whether the wake-up must be set again.
    pub rearm: Rearm,
    /// Set when a write made a periodic timer faster than the minimum period: one interrupt stands for this many periods.
    pub periods_per_interrupt: Option<u64>,
}

impl Effects {
    /// Both calls' effects as one. Two interrupts of one timer without guest code between them are one: the request register has one bit a vector.
    pub(super) fn and(self, later: Self) -> Self {
        let raised = |effects: &Self| u64::from(effects.delivery != Delivery::Nothing);
        let both = raised(&self) + raised(&later) == 2;
        Self {
            delivery: if later.delivery == Delivery::Nothing {
                self.delivery
            } else {
                later.delivery
            },
            expiries: self.expiries.saturating_add(later.expiries),
            merged: self
                .merged
                .saturating_add(later.merged)
                .saturating_add(u64::from(both)),
            lost: self.lost.saturating_add(later.lost),
            rearm: if later.rearm == Rearm::Keep {
                self.rearm
            } else {
                later.rearm
            },
            periods_per_interrupt: later.periods_per_interrupt.or(self.periods_per_interrupt),
        }
    }
}

/// How a deadline is compared with the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    /// By distance, at most 2^63 ticks: a count that ends across the counter's wrap.
    Distance,
    /// As unsigned numbers: the TSC-deadline register (SDM vol. 3A, "TSC-Deadline Mode").
    Unsigned,
}

/// The earliest guest TSC at which a timer has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    at: Tsc,
    comparison: Comparison,
}

impl Deadline {
    /// The end of a count: reached at `at`, less than 2^63 ticks from now.
    #[must_use]
    pub const fn at_distance(at: Tsc) -> Self {
        Self {
            at,
            comparison: Comparison::Distance,
        }
    }

    /// A value of the TSC-deadline register: reached when the counter is not below `at`, as unsigned numbers.
    #[must_use]
    pub const fn unsigned(at: Tsc) -> Self {
        Self {
            at,
            comparison: Comparison::Unsigned,
        }
    }

    /// The guest TSC at which the deadline is reached.
    #[must_use]
    pub const fn at(self) -> Tsc {
        self.at
    }

    /// Ticks from `now` until the deadline; zero if it is reached or past, never a negative distance taken for a huge one.
    ///
    /// ```
    /// # use chronovisor_abi::quantity::{Tsc, TscDelta};
    /// # use chronovisor_host::apic::Deadline;
    /// let deadline = Deadline::at_distance(Tsc::from_ticks(100));
    /// assert_eq!(deadline.remaining(Tsc::from_ticks(40)), TscDelta::from_ticks(60));
    /// assert_eq!(deadline.remaining(Tsc::from_ticks(140)), TscDelta::ZERO);
    /// ```
    #[must_use]
    pub const fn remaining(self, now: Tsc) -> TscDelta {
        let ahead = match self.comparison {
            Comparison::Distance => now.is_before(self.at),
            Comparison::Unsigned => now.as_ticks() < self.at.as_ticks(),
        };
        if ahead {
            self.at.wrapping_delta(now)
        } else {
            TscDelta::ZERO
        }
    }

    /// Whether the deadline is reached at `now`.
    #[must_use]
    pub fn is_reached(self, now: Tsc) -> bool {
        self.remaining(now) == TscDelta::ZERO
    }

    /// The same deadline `lead` ticks earlier, but not before `now`: where a wake-up that needs `lead` ticks to take effect is set.
    #[must_use]
    pub fn earlier_by(self, lead: TscDelta, now: Tsc) -> Self {
        let remaining = self.remaining(now).as_ticks();
        if remaining == 0 {
            return self;
        }
        let ahead = TscDelta::from_ticks(remaining.saturating_sub(lead.as_ticks()));
        Self {
            at: now.wrapping_add(ahead),
            ..self
        }
    }
}
