//! The timer itself: its registers, what an expiry does, when the next one is due.

use chronovisor_abi::apic::{DivideConfiguration, LOWEST_VECTOR, LvtTimer, TimerMode};
use chronovisor_abi::quantity::Tsc;

use super::count::Count;
use super::effects::{Deadline, Delivery, Effects, Rearm};
use super::lost_ticks::{CatchUp, Due, LostTicks, Spaced};
use super::mutant::{Mutant, is};
use super::registers::TimerRegister;
use super::settings::Settings;

/// How far the APIC is switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Power {
    /// Enabled in IA32_APIC_BASE and in the spurious-interrupt vector register.
    #[default]
    On,
    /// Bit 8 of the spurious-interrupt vector register is 0: every LVT entry is masked, counts go on.
    SoftwareDisabled,
    /// Bit 11 of IA32_APIC_BASE is 0: the registers are as after reset and take nothing.
    Off,
}

/// Whether the initial count is being counted down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    Stopped,
    Counting,
}

/// The timer of one local APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTimer {
    pub(super) settings: Settings,
    pub(super) power: Power,
    pub(super) lvt: LvtTimer,
    pub(super) initial: u32,
    pub(super) divide: DivideConfiguration,
    /// Periods that one interrupt stands for; above 1 only for a periodic timer below the minimum period.
    pub(super) stride: u64,
    /// The minimum period in counts.
    pub(super) minimum: u64,
    pub(super) run: Run,
    pub(super) count: Count,
    pub(super) backlog: u32,
    /// The TSC-deadline register; 0 is "not armed".
    pub(super) deadline: u64,
    /// Expiries from before a restore that were not yet delivered.
    pub(super) pending: u64,
}

impl LocalTimer {
    /// A timer whose registers are as after reset, of an APIC that is switched on, at guest TSC `now`.
    ///
    /// ```
    /// # use chronovisor_abi::{apic::{DivideConfiguration, LvtTimer, TimerMode}, quantity::{Hertz, Tsc}};
    /// # use chronovisor_host::apic::{DeadlineMode, Delivery, LocalTimer, LostTicks, MinimumPeriod, Rates, Settings, TimerRegister};
    /// let rates = Rates::new(Hertz::from_hz(1_000_000_000).expect("positive"), Hertz::from_hz(2_600_000_000).expect("positive"))?;
    /// let settings = Settings {
    ///     rates,
    ///     minimum_period: MinimumPeriod::KVM,
    ///     lost_ticks: LostTicks::Merge,
    ///     deadline_mode: DeadlineMode::Offered,
    /// };
    /// let at = Tsc::from_ticks;
    /// let mut timer = LocalTimer::new(settings, at(0));
    /// let lvt = LvtTimer::new(TimerMode::PERIODIC, 0xec).0;
    /// let _ = timer.write(TimerRegister::DivideConfiguration, DivideConfiguration::BY_1.0.into(), at(0));
    /// let _ = timer.write(TimerRegister::LvtTimer, lvt.into(), at(0));
    /// let _ = timer.write(TimerRegister::InitialCount, 1_000_000, at(0));
    /// // 1 ms at 2.6 GHz, and 1 ms later the next: on the grid, however late the call.
    /// assert_eq!(timer.next_deadline().map(|deadline| deadline.at()), Some(at(2_600_000)));
    /// assert_eq!(timer.expire(at(2_700_000)).delivery, Delivery::Interrupt(0xec));
    /// assert_eq!(timer.next_deadline().map(|deadline| deadline.at()), Some(at(5_200_000)));
    /// # Ok::<(), chronovisor_host::apic::RateError>(())
    /// ```
    #[must_use]
    pub fn new(settings: Settings, now: Tsc) -> Self {
        let divide = DivideConfiguration::RESET;
        let log2 = if is(Mutant::DivideResetIsOne) {
            0
        } else {
            divide.log2()
        };
        let mut timer = Self {
            settings,
            power: Power::On,
            lvt: LvtTimer::RESET,
            initial: 0,
            divide,
            stride: 1,
            minimum: 0,
            run: Run::Stopped,
            count: Count::new(settings.rates.ratio(), log2, now),
            backlog: 0,
            deadline: 0,
            pending: 0,
        };
        timer.set_minimum();
        timer
    }

    /// The guest writes `value` to `register` at guest TSC `now`. 32-bit registers take the low half; bits that do not exist are dropped
    /// ([`Self::write_msr`] refuses them first, as x2APIC does).
    pub fn write(&mut self, register: TimerRegister, value: u64, now: Tsc) -> Effects {
        if self.power == Power::Off {
            return Effects::default();
        }
        // Whatever came due before the write happened under the old registers.
        let before = if is(Mutant::WriteBeforeEvaluation) {
            Effects::default()
        } else {
            self.expire(now)
        };
        let low = u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
        let written = match register {
            TimerRegister::LvtTimer => self.write_lvt(LvtTimer(low)),
            TimerRegister::InitialCount => self.write_initial_count(low, now),
            TimerRegister::DivideConfiguration => self.write_divide(DivideConfiguration(low)),
            TimerRegister::TscDeadline => self.write_deadline(value, now),
            TimerRegister::CurrentCount => Effects::default(),
        };
        let effects = before.and(written);
        if is(Mutant::WriteBeforeEvaluation) {
            return effects.and(self.expire(now));
        }
        effects
    }

    /// What a guest reads from `register` at guest TSC `now`. Reading changes nothing, so polling cannot disturb the count.
    #[must_use]
    pub fn read(&self, register: TimerRegister, now: Tsc) -> u64 {
        match register {
            TimerRegister::LvtTimer => u64::from(self.lvt.0),
            TimerRegister::InitialCount => u64::from(self.initial),
            TimerRegister::CurrentCount => u64::from(self.current_count(now)),
            TimerRegister::DivideConfiguration => u64::from(self.divide.0),
            TimerRegister::TscDeadline if self.deadline_reached(now) => 0,
            TimerRegister::TscDeadline => self.deadline,
        }
    }

    /// Brings the timer up to guest TSC `now` and says what to deliver: the answer to a wake-up. In closed form: years take as long as
    /// a tick, and a call before the deadline does nothing.
    pub fn expire(&mut self, now: Tsc) -> Effects {
        let now = self.count.not_back(now);
        let pending = core::mem::take(&mut self.pending);
        let mode = self.lvt.mode();
        if self.run == Run::Stopped || !mode.counts() {
            let mut expiries = pending;
            let reached = self.deadline_reached(now);
            self.count.move_base(now);
            if reached {
                expiries = expiries.saturating_add(1);
                if !is(Mutant::DeadlineStaysArmed) {
                    self.deadline = 0;
                }
            }
            return self.deliver(expiries, expiries.min(1), 0);
        }
        let position = self.count.position(now, self.period());
        self.count.settle(now, position);
        if mode == TimerMode::ONE_SHOT {
            let expiries = pending.saturating_add(position.periods.min(1));
            if position.periods > 0 {
                self.run = Run::Stopped;
            }
            return self.deliver(expiries, expiries.min(1), 0);
        }
        self.expire_periodic(pending.saturating_add(position.periods))
    }

    /// The guest TSC at which [`Self::expire`] has to be called, or `None` if nothing is to come: stopped, or masked (the state of a masked
    /// timer follows from the time of the next call).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Deadline> {
        if self.lvt.is_masked() || self.power == Power::Off {
            return None;
        }
        if self.pending > 0 {
            return Some(Deadline::at_distance(self.count.base()));
        }
        if !self.lvt.mode().counts() {
            let (armed, at) = (self.deadline != 0, Tsc::from_ticks(self.deadline));
            // Within reach of a distance the counter may even wrap; a deadline further away is a number like any other.
            let base = self.count.base();
            let deadline = if base.is_before(at) && base.as_ticks() < self.deadline {
                Deadline::at_distance(at)
            } else {
                Deadline::unsigned(at)
            };
            return armed.then_some(deadline);
        }
        if self.run == Run::Stopped {
            return None;
        }
        let mut wait = self.period() - self.count.progress();
        if let (LostTicks::CatchUp(limits), TimerMode::PERIODIC) =
            (self.settings.lost_ticks, self.lvt.mode())
        {
            let apart = self
                .spacing(limits)
                .saturating_sub(self.count.since_interrupt());
            wait = if self.backlog > 0 {
                apart
            } else {
                wait.max(apart)
            };
        }
        Some(Deadline::at_distance(self.count.tsc_after(wait)))
    }

    /// The settings in force.
    #[must_use]
    pub const fn settings(&self) -> Settings {
        self.settings
    }

    /// Expiries that a catch-up still owes the guest.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        u64::from(self.backlog).saturating_mul(self.stride)
    }

    /// The value of the current-count register: 1 to the initial count while counting, 0 when stopped or expired.
    fn current_count(&self, now: Tsc) -> u32 {
        if self.run == Run::Stopped || !self.lvt.mode().counts() {
            return 0;
        }
        let position = self.count.position(now, self.period());
        if self.lvt.mode() == TimerMode::ONE_SHOT && position.periods > 0 {
            return 0;
        }
        let mut progress = position.progress;
        if self.stride > 1 {
            progress %= self.count.per_count() * u128::from(self.initial);
        }
        let gone = u32::try_from(progress / self.count.per_count()).unwrap_or(u32::MAX);
        let one_less = u32::from(is(Mutant::CountReadsOneLess));
        self.initial.saturating_sub(gone).saturating_sub(one_less)
    }

    pub(super) fn deadline_reached(&self, now: Tsc) -> bool {
        let now = self.count.not_back(now);
        let reached = if is(Mutant::DeadlineComparedSigned) {
            !now.is_before(Tsc::from_ticks(self.deadline))
        } else {
            // Below the base: the counter has wrapped since, and passed the deadline on its way.
            now.as_ticks() >= self.deadline || now.as_ticks() < self.count.base().as_ticks()
        };
        self.deadline != 0 && reached
    }

    /// Grains between two interrupts.
    pub(super) fn period(&self) -> u128 {
        let counts = u64::from(self.initial)
            .saturating_mul(self.stride)
            .saturating_add(u64::from(is(Mutant::PeriodOneTooLong)));
        self.count.per_count() * u128::from(counts)
    }

    /// Grains that a catch-up keeps between two interrupts: its part of a period, and never less than the minimum period.
    fn spacing(&self, limits: CatchUp) -> u128 {
        let part = self.period() / u128::from(CatchUp::PARTS) * u128::from(limits.spacing());
        part.max(self.count.per_count() * u128::from(self.minimum))
            .min(self.period())
    }

    fn expire_periodic(&mut self, ticks: u64) -> Effects {
        if ticks == 0 && self.backlog == 0 {
            return Effects::default();
        }
        if self.lvt.is_masked() && !is(Mutant::MaskLatches) {
            let dropped = self.drop_backlog();
            let expiries = ticks.saturating_mul(self.stride);
            let mut effects = self.deliver(expiries, 0, expiries);
            effects.lost = effects.lost.saturating_add(dropped);
            return effects;
        }
        let mut policy = self.settings.lost_ticks;
        let mut spaced = Spaced::Enough;
        if let LostTicks::CatchUp(limits) = policy {
            if self.count.since_interrupt() < self.spacing(limits) && !is(Mutant::NoSpacing) {
                spaced = Spaced::TooClose;
            }
            if is(Mutant::NoBacklogCap) {
                policy =
                    LostTicks::CatchUp(CatchUp::new(limits.spacing(), u32::MAX).unwrap_or(limits));
            }
        }
        if policy == LostTicks::SkipOnGrid && is(Mutant::SkipDelivers) {
            policy = LostTicks::Merge;
        }
        let verdict = policy.judge(&Due {
            ticks,
            lateness: self.count.progress(),
            period: self.period(),
            backlog: self.backlog,
            spaced,
        });
        self.backlog = verdict.backlog;
        if verdict.interrupts > 0 {
            self.count.note_interrupt();
        }
        if is(Mutant::PhaseLost) && ticks > 0 {
            self.count.wrap_progress(1);
        }
        // Each tick stands for `stride` expiries: one of them is the interrupt, the others are merged into it.
        let expiries = ticks.saturating_mul(self.stride);
        let lost = verdict.lost.saturating_mul(self.stride);
        let mut effects = self.deliver(expiries, verdict.interrupts, lost);
        effects.merged = verdict
            .merged
            .saturating_mul(self.stride)
            .saturating_add(verdict.interrupts.saturating_mul(self.stride - 1));
        effects
    }

    /// The effects of `expiries` of which `interrupts` (0 or 1) is raised and `lost` are lost; the rest is merged.
    fn deliver(&self, expiries: u64, interrupts: u64, lost: u64) -> Effects {
        let mut effects = Effects {
            expiries,
            lost,
            merged: expiries.saturating_sub(interrupts).saturating_sub(lost),
            ..Effects::default()
        };
        if expiries > 0 || interrupts > 0 {
            effects.rearm = Rearm::Again;
        }
        if interrupts > 0 {
            let vector = self.lvt.vector();
            if self.lvt.is_masked() && !is(Mutant::MaskLatches) {
                effects.lost = effects.expiries;
                effects.merged = 0;
            } else if vector < LOWEST_VECTOR {
                effects.delivery = Delivery::IllegalVector(vector);
            } else {
                effects.delivery = Delivery::Interrupt(vector);
            }
        }
        effects
    }
}
