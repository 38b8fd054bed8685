//! A state from and to the registers that other VMMs keep, and for a counter of another rate.

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode, TimerRegisters};
use chronovisor_abi::quantity::{Hertz, Tsc};
use chronovisor_abi::wide;

use super::super::timer::Power;
use super::{CountFraction, SavedCount, TimerState};

/// Whether the interrupt of a deadline that has fired may have been lost with the machine that was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastInterrupt {
    /// It is known to be delivered, or in the saved interrupt request register.
    Delivered,
    /// It may be lost: better one spurious interrupt than a processor that never wakes.
    MayBeLost,
}

impl TimerState {
    /// A state from the registers alone, as KVM_GET_LAPIC and the deadline MSR give them: whole counts. A current count above the initial one is
    /// taken as the initial one; 0 is a full period for a periodic timer and "expired" for a one-shot.
    #[must_use]
    pub fn from_registers(registers: TimerRegisters, last: LastInterrupt) -> Self {
        let TimerRegisters {
            lvt,
            initial_count,
            current_count,
            divide,
            deadline,
        } = registers;
        let left = match current_count.min(initial_count) {
            0 if lvt.mode() == TimerMode::PERIODIC => initial_count,
            left => left,
        };
        let count = if left == 0 || !lvt.mode().counts() {
            SavedCount::Stopped
        } else {
            SavedCount::Running {
                elapsed: CountFraction::whole(u64::from(initial_count - left)),
                since_interrupt: CountFraction::whole(u64::from(initial_count)),
            }
        };
        let maybe_lost = last == LastInterrupt::MayBeLost
            && lvt.mode() == TimerMode::TSC_DEADLINE
            && deadline == 0;
        Self {
            power: Power::On,
            lvt: LvtTimer(lvt.0 & LvtTimer::WRITABLE),
            initial_count,
            divide: DivideConfiguration(divide.0 & DivideConfiguration::WRITABLE),
            deadline: if lvt.mode() == TimerMode::TSC_DEADLINE {
                deadline
            } else {
                0
            },
            count,
            pending: u64::from(maybe_lost),
            backlog: 0,
        }
    }

    /// The registers of this state, with the count rounded as the guest reads it.
    #[must_use]
    pub fn registers(&self) -> TimerRegisters {
        let current_count = match self.count {
            SavedCount::Stopped => 0,
            SavedCount::Running { elapsed, .. } => {
                let gone = elapsed.counts % u64::from(self.initial_count.max(1));
                self.initial_count
                    .saturating_sub(u32::try_from(gone).unwrap_or(u32::MAX))
            }
        };
        TimerRegisters {
            lvt: self.lvt,
            initial_count: self.initial_count,
            current_count,
            divide: self.divide,
            deadline: self.deadline,
        }
    }

    /// The same state for a TSC that read `saved` at the rate `from` and goes on from `restored` at the rate `to`, on a host that cannot scale:
    /// the deadline keeps its distance in time, rounded up.
    ///
    /// ```text
    /// deadline' = restored + ceil((deadline - saved) * to / from)
    /// ```
    #[must_use]
    pub fn with_tsc_rate(mut self, saved: Tsc, from: Hertz, restored: Tsc, to: Hertz) -> Self {
        if self.deadline == 0 {
            return self;
        }
        let ahead = self.deadline.saturating_sub(saved.as_ticks());
        // to/from as one fraction of two 128-bit terms; a product beyond 2^128 is a deadline that is never reached.
        let scaled = u128::from(to.numerator())
            .checked_mul(u128::from(from.denominator()))
            .and_then(|numerator| {
                let divisor = u128::from(to.denominator()) * u128::from(from.numerator());
                wide::mul_div_ceil(u128::from(ahead), numerator, divisor)
            })
            .and_then(|ahead| u64::try_from(ahead).ok())
            .unwrap_or(u64::MAX);
        self.deadline = restored.as_ticks().saturating_add(scaled).max(1);
        self
    }
}
