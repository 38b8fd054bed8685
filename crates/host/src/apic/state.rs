//! A timer at rest: everything that a snapshot or a migration carries.
//!
//! # Theory
//!
//! A running count is saved as the counts gone by with their fraction, not as the rounded current-count register and not as a host
//! time: so it goes on to the tick on another host with other rates. What came due but was not delivered is a number of its own,
//! [`TimerState::pending`]: a deadline register that reads 0 cannot say whether its interrupt is still to come.
//!
//! # Practice
//!
//! [`LocalTimer::save`], [`LocalTimer::restore`]. For a VMM whose state is the register page there is [`TimerState::from_registers`]
//! and [`TimerState::registers`], whole counts only.
//!
//! # Migration
//!
//! Restore the guest's TSC first, then this. A TSC deadline is a value of the guest's TSC and stays as it is if that counter goes on at its rate;
//! otherwise see [`TimerState::with_tsc_rate`].
//!
//! # Caveats
//!
//! The state comes from outside and is judged: a contradiction is an error that names it, never a timer in a state that cannot be.
//!
//! # References
//!
//! Linux `Documentation/virt/kvm/api.rst`, "KVM_SET_LAPIC"; Firecracker's and OpenVMM's snapshot notes on lost timers.

mod registers;

pub use registers::LastInterrupt;

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode};
use chronovisor_abi::quantity::Tsc;

use super::count::{Count, Grains};
use super::effects::Effects;
use super::lost_ticks::LostTicks;
use super::mutant::{Mutant, is};
use super::settings::{DeadlineMode, Settings};
use super::timer::{LocalTimer, Power, Run};

/// Counts with an exact fraction: `counts + numerator / denominator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountFraction {
    /// Whole counts, in divided bus ticks.
    pub counts: u64,
    /// The fraction's numerator, below the denominator.
    pub numerator: u128,
    /// The fraction's denominator, 1 to 2^70.
    pub denominator: u128,
}

impl CountFraction {
    /// `counts` without a fraction.
    #[must_use]
    pub const fn whole(counts: u64) -> Self {
        Self {
            counts,
            numerator: 0,
            denominator: 1,
        }
    }

    fn from_grains(grains: Grains) -> Self {
        let Grains {
            grains,
            grains_per_count,
        } = grains;
        Self {
            counts: u64::try_from(grains / grains_per_count).unwrap_or(u64::MAX),
            numerator: grains % grains_per_count,
            denominator: grains_per_count,
        }
    }

    /// As grains, if the parts are in range and the whole is below 2^45 counts: a second of a 16 THz bus, the longest minimum period, and an initial
    /// count on top.
    fn grains(self) -> Option<Grains> {
        let fits = (1..=1 << 70).contains(&self.denominator)
            && self.numerator < self.denominator
            && self.counts >> 45 == 0;
        fits.then(|| Grains {
            grains: u128::from(self.counts) * self.denominator + self.numerator,
            grains_per_count: self.denominator,
        })
    }
}

/// Whether a count was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedCount {
    /// Not counting: never started, stopped, or an expired one-shot.
    Stopped,
    /// Counting.
    Running {
        /// Counts since the last expiry.
        elapsed: CountFraction,
        /// Counts since the last interrupt: a catch-up keeps its distance from it.
        since_interrupt: CountFraction,
    },
}

/// A timer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerState {
    /// How far the APIC is switched on.
    pub power: Power,
    /// The LVT entry; its mode is the timer's mode, whatever CPUID says on the new host.
    pub lvt: LvtTimer,
    /// The initial count.
    pub initial_count: u32,
    /// The divider.
    pub divide: DivideConfiguration,
    /// IA32_TSC_DEADLINE in ticks of the guest's TSC; 0 is "not armed".
    pub deadline: u64,
    /// The count.
    pub count: SavedCount,
    /// Expiries that were due and not delivered. They are delivered by the first [`LocalTimer::expire`] after the restore.
    pub pending: u64,
    /// Ticks that a catch-up still owed.
    pub backlog: u32,
}

/// Why a state is no state of this timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A bit is set that no write can set.
    #[error(
        "register value {value:#x} has the reserved bits {reserved:#x} set: the state is damaged or from a newer model"
    )]
    ReservedBits {
        /// The value.
        value: u32,
        /// The bits.
        reserved: u32,
    },
    /// The timer was in TSC-deadline mode, which the settings do not offer.
    #[error(
        "the timer was saved in tsc-deadline mode, which this vm does not offer: set cpuid 1.ecx[24] before the restore"
    )]
    DeadlineModeNotOffered,
    /// A deadline without its mode.
    #[error(
        "deadline {deadline:#x} is armed but the timer's mode is {mode:?}: restore the lvt entry of the same snapshot"
    )]
    DeadlineOutsideItsMode {
        /// The deadline.
        deadline: u64,
        /// The mode.
        mode: TimerMode,
    },
    /// The APIC is disabled and its timer is not masked, or it is off and its registers are not those of a reset.
    #[error(
        "the apic is {power:?} but the timer's lvt entry is {lvt:?} or a count or deadline is set: restore the registers and the apic's enable bits of the same snapshot"
    )]
    PowerContradictsRegisters {
        /// How far the APIC is switched on.
        power: Power,
        /// The LVT entry.
        lvt: LvtTimer,
    },
    /// A count runs in a mode that has none, or from an initial count of 0.
    #[error(
        "a count is running in mode {mode:?} with initial count {initial_count}: the state is damaged"
    )]
    RunsWithoutCount {
        /// The mode.
        mode: TimerMode,
        /// The initial count.
        initial_count: u32,
    },
    /// More has elapsed of a one-shot than there is.
    #[error("{} counts have elapsed of an initial count of {initial_count}: the state is damaged", elapsed.counts)]
    ElapsedBeyondEnd {
        /// What has elapsed.
        elapsed: CountFraction,
        /// The initial count.
        initial_count: u32,
    },
    /// A fraction's parts are out of range.
    #[error("{} / {} is no fraction of a count: the state is damaged", fraction.numerator, fraction.denominator)]
    BadFraction {
        /// The fraction.
        fraction: CountFraction,
    },
}

impl LocalTimer {
    /// The state at guest TSC `now`: what came due by then and was not delivered is pending in it.
    #[must_use]
    pub fn save(&self, now: Tsc) -> TimerState {
        let mut due = u64::from(self.deadline_reached(now));
        let mut count = SavedCount::Stopped;
        if self.run == Run::Counting && self.lvt.mode().counts() {
            let position = self.count.position(now, self.period());
            let expired = self.lvt.mode() == TimerMode::ONE_SHOT && position.periods > 0;
            due = if expired { 1 } else { position.periods };
            let fraction = |grains| CountFraction::from_grains(self.count.in_counts(grains));
            if !expired {
                count = SavedCount::Running {
                    elapsed: fraction(position.progress),
                    since_interrupt: fraction(position.since_interrupt),
                };
            }
        }
        TimerState {
            power: self.power,
            lvt: self.lvt,
            initial_count: self.initial,
            divide: self.divide,
            deadline: if self.deadline_reached(now) {
                0
            } else {
                self.deadline
            },
            count,
            pending: if self.lvt.is_masked() {
                0
            } else {
                self.pending.saturating_add(due)
            },
            backlog: self.backlog,
        }
    }

    /// The timer with `state`, going on at guest TSC `now`. Ask for [`Self::next_deadline`] and set the wake-up.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state contradicts itself or the settings.
    ///
    /// ```
    /// # use chronovisor_abi::{apic::{LvtTimer, TimerMode}, quantity::{Hertz, Tsc}};
    /// # use chronovisor_host::apic::{DeadlineMode, LocalTimer, LostTicks, MinimumPeriod, Rates, Settings, TimerRegister};
    /// # let rates = Rates::new(Hertz::from_hz(1_000_000_000).expect("positive"), Hertz::from_hz(2_000_000_000).expect("positive"))?;
    /// # let settings = Settings { rates, minimum_period: MinimumPeriod::NONE, lost_ticks: LostTicks::Merge, deadline_mode: DeadlineMode::Offered };
    /// let at = Tsc::from_ticks;
    /// let mut timer = LocalTimer::new(settings, at(0));
    /// let _ = timer.write(TimerRegister::LvtTimer, LvtTimer::new(TimerMode::ONE_SHOT, 0x30).0.into(), at(0));
    /// let _ = timer.write(TimerRegister::InitialCount, 1000, at(0));
    /// // 4000 TSC ticks (divide by 2); a quarter is gone when the machine is saved. It goes on at another TSC.
    /// let moved = LocalTimer::restore(settings, &timer.save(at(1000)), at(70_000))?;
    /// assert_eq!(moved.next_deadline().map(|deadline| deadline.at()), Some(at(73_000)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restore(settings: Settings, state: &TimerState, now: Tsc) -> Result<Self, StateError> {
        let mode = judge_registers(settings, state)?;
        let mut timer = Self::new(settings, now);
        timer.power = state.power;
        timer.lvt = state.lvt;
        timer.initial = state.initial_count;
        timer.divide = state.divide;
        timer.deadline = state.deadline;
        timer.count = Count::new(settings.rates.ratio(), state.divide.log2(), now);
        timer.set_minimum();
        timer.pending = state.pending;
        if let SavedCount::Running {
            elapsed,
            since_interrupt,
        } = state.count
        {
            timer.restore_count(mode, elapsed, since_interrupt)?;
        }
        match settings.lost_ticks {
            LostTicks::CatchUp(_) => timer.backlog = state.backlog,
            // This host does not catch up: what was owed is due now, and the policy decides.
            LostTicks::Merge | LostTicks::SkipOnGrid => {
                timer.pending = timer.pending.saturating_add(u64::from(state.backlog));
            }
        }
        if is(Mutant::RestoreForgetsPending) {
            timer.pending = 0;
        }
        Ok(timer)
    }

    fn restore_count(
        &mut self,
        mode: TimerMode,
        elapsed: CountFraction,
        since_interrupt: CountFraction,
    ) -> Result<(), StateError> {
        let initial_count = self.initial;
        if !mode.counts() || initial_count == 0 {
            return Err(StateError::RunsWithoutCount {
                mode,
                initial_count,
            });
        }
        let grains = |fraction: CountFraction| {
            fraction
                .grains()
                .ok_or(StateError::BadFraction { fraction })
        };
        let (progress, since) = (grains(elapsed)?, grains(since_interrupt)?);
        self.run = Run::Counting;
        self.set_stride(&mut Effects::default());
        self.count.put_progress(progress);
        let period = self.period();
        if self.count.progress() >= period {
            if mode == TimerMode::ONE_SHOT {
                return Err(StateError::ElapsedBeyondEnd {
                    elapsed,
                    initial_count,
                });
            }
            // Where it was saved one interrupt stood for more periods than here: those that are over are due.
            let periods = self.count.settle_overdue(period);
            self.pending = self.pending.saturating_add(periods);
        }
        if is(Mutant::RestoreStartsOver) {
            self.count.wrap_progress(1);
        }
        self.count
            .put_since_interrupt(self.count.grains_of(since).min(period));
        Ok(())
    }
}

/// The mode of a state whose registers are possible ones.
fn judge_registers(settings: Settings, state: &TimerState) -> Result<TimerMode, StateError> {
    let mode = state.lvt.mode();
    for (value, writable) in [
        (state.lvt.0, LvtTimer::WRITABLE),
        (state.divide.0, DivideConfiguration::WRITABLE),
    ] {
        if value & !writable != 0 {
            let reserved = value & !writable;
            return Err(StateError::ReservedBits { value, reserved });
        }
    }
    if settings.deadline_mode == DeadlineMode::Absent && !mode.counts() {
        return Err(StateError::DeadlineModeNotOffered);
    }
    if state.deadline != 0 && mode != TimerMode::TSC_DEADLINE {
        return Err(StateError::DeadlineOutsideItsMode {
            deadline: state.deadline,
            mode,
        });
    }
    let contradicts = match state.power {
        Power::On => false,
        Power::SoftwareDisabled => !state.lvt.is_masked(),
        Power::Off => {
            let reset = (
                LvtTimer::RESET,
                DivideConfiguration::RESET,
                SavedCount::Stopped,
            );
            (state.lvt, state.divide, state.count) != reset || state.initial_count != 0
        }
    };
    if contradicts {
        return Err(StateError::PowerContradictsRegisters {
            power: state.power,
            lvt: state.lvt,
        });
    }
    Ok(mode)
}
