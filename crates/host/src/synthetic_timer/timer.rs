//! One synthetic timer: its two registers, its grid, the message that waits for its slot.

use chronovisor_abi::quantity::RefTime;
use chronovisor_abi::synthetic_timer::Config;

use super::Settings;
use super::mutant::{Mutant, is};
use crate::apic::{Due, LostTicks, Spaced, Verdict};

/// One timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Timer {
    pub(super) config: Config,
    pub(super) count: u64,
    /// The next point of the grid, or the time of a one-shot; `None` while it is not armed.
    pub(super) due: Option<RefTime>,
    /// When the message that waits for its slot was due.
    pub(super) undelivered: Option<RefTime>,
    /// Ticks that a catch-up owes.
    pub(super) backlog: u32,
    /// The reference time of the last signal.
    pub(super) last_signal: Option<RefTime>,
}

/// What an expiry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Expired {
    /// The time at which the tick that is to be signalled was due.
    pub(super) signal: Option<RefTime>,
    pub(super) expiries: u64,
    pub(super) merged: u64,
    pub(super) lost: u64,
}

/// Whether `time` is reached at `now`, modulo 2^64: a time less than 2^63 units behind is past.
pub(super) fn is_reached(time: RefTime, now: RefTime) -> bool {
    if is(Mutant::PlainCompare) {
        return now >= time;
    }
    // wrapping: COUNT may wrap without effect (TLFS).
    now.wrapping_sub(time).as_100ns() < 1 << 63
}

impl Timer {
    /// A write of CONFIG; returns the ticks that were owed and are now lost.
    pub(super) fn write_config(&mut self, value: Config, settings: &Settings, now: RefTime) -> u64 {
        let running = self.due;
        let lost = self.forget(settings);
        let mut config = value.without(Config::RESERVED);
        if settings.direct_mode == super::DirectMode::Absent {
            config = config.without(Config::DIRECT_MODE | Config::for_vector(0xff).0);
        }
        self.config = config;
        if is(Mutant::ConfigKeepsGrid) && running.is_some() {
            self.due = running;
            return lost;
        }
        self.start(settings, now);
        lost
    }

    /// A write of COUNT; returns the ticks that were owed and are now lost.
    pub(super) fn write_count(&mut self, value: u64, settings: &Settings, now: RefTime) -> u64 {
        let lost = self.forget(settings);
        self.count = value;
        if value == 0 && !is(Mutant::CountZeroKeepsEnabled) {
            self.config = self.config.without(Config::ENABLED);
        } else if self.config.has(Config::AUTO_ENABLE) {
            self.config = self.config.with(Config::ENABLED);
        }
        self.start(settings, now);
        lost
    }

    /// Cancels what runs; returns the expiries that were owed, under the registers that made them.
    fn forget(&mut self, settings: &Settings) -> u64 {
        let owed = u64::from(self.backlog)
            .saturating_mul(self.stride(settings))
            .saturating_add(u64::from(self.undelivered.is_some()));
        self.backlog = 0;
        self.undelivered = None;
        self.last_signal = None;
        self.due = None;
        owed
    }

    /// Begins anew from the registers.
    fn start(&mut self, settings: &Settings, now: RefTime) {
        let silent = self.config.source() == 0 && !self.config.has(Config::DIRECT_MODE);
        if silent && !is(Mutant::SourceZeroAccepted) {
            self.config = self.config.without(Config::ENABLED);
        }
        if self.config.has(Config::ENABLED) && self.count != 0 {
            self.due = Some(if self.config.has(Config::PERIODIC) {
                now.wrapping_add(RefTime::from_100ns(self.period(settings))) // wrapping: as COUNT does.
            } else {
                RefTime::from_100ns(self.count)
            });
        }
    }

    /// Brings the timer up to `now`.
    pub(super) fn expire(&mut self, settings: &Settings, now: RefTime) -> Expired {
        let Some(due) = self.due else {
            return Expired::default();
        };
        let now = if is(Mutant::FiresEarly) {
            now.wrapping_add(RefTime::from_100ns(1))
        } else {
            now
        };
        if !self.config.has(Config::PERIODIC) {
            if !is_reached(due, now) {
                return Expired::default();
            }
            self.due = None;
            if !is(Mutant::OneShotStaysEnabled) {
                self.config = self.config.without(Config::ENABLED);
            }
            return Expired {
                signal: Some(due),
                expiries: 1,
                ..Expired::default()
            };
        }
        self.expire_periodic(due, settings, now)
    }

    fn expire_periodic(&mut self, due: RefTime, settings: &Settings, now: RefTime) -> Expired {
        let period = self.period(settings);
        let late = now.wrapping_sub(due).as_100ns(); // wrapping: as COUNT does.
        let (ticks, lateness) = if is_reached(due, now) {
            (late / period + 1, late % period)
        } else {
            (0, 0)
        };
        if ticks == 0 && self.backlog == 0 {
            return Expired::default();
        }
        // wrapping: as COUNT does; ticks * period is at most late + period.
        let next = due.wrapping_add(RefTime::from_100ns(ticks.wrapping_mul(period)));
        self.due = Some(next);
        if is(Mutant::PhaseLost) && ticks > 0 {
            self.due = Some(now.wrapping_add(RefTime::from_100ns(period)));
        }
        let policy = self.policy(settings);
        // The message buffer holds one: a tick that finds it full waits in the backlog, or is lost with policies that have none.
        let verdict = if self.undelivered.is_some() && !matches!(policy, LostTicks::CatchUp(_)) {
            Verdict {
                lost: ticks.saturating_add(u64::from(self.backlog)),
                ..Verdict::default()
            }
        } else {
            policy.judge(&Due {
                ticks,
                lateness: lateness.into(),
                period: period.into(),
                backlog: self.backlog,
                spaced: self.spaced(settings, now),
            })
        };
        self.backlog = verdict.backlog;
        let mut expired = Expired {
            expiries: ticks.saturating_mul(self.stride(settings)),
            lost: verdict.lost.saturating_mul(self.stride(settings)),
            ..Expired::default()
        };
        expired.merged = verdict.merged.saturating_mul(self.stride(settings));
        if verdict.interrupts > 0 {
            // The oldest tick that is still owed is the one that is told.
            let back = u64::from(verdict.backlog).saturating_add(1);
            let behind = RefTime::from_100ns(back.wrapping_mul(period)); // wrapping: as COUNT does.
            expired.signal = Some(next.wrapping_sub(behind)); // wrapping: as COUNT does.
            expired.merged = expired.merged.saturating_add(self.stride(settings) - 1);
            self.last_signal = Some(now);
        }
        expired
    }

    /// The reference time at which the timer has something to do, or `None` if it waits for the guest or for nothing.
    pub(super) fn next_due(&self, settings: &Settings) -> Option<RefTime> {
        let due = self.due?;
        if !self.config.has(Config::PERIODIC) {
            return Some(due);
        }
        if self.undelivered.is_some() {
            // Nothing can be told before the guest frees the slot; the ticks are counted when it does.
            return None;
        }
        let LostTicks::CatchUp(_) = self.policy(settings) else {
            return Some(due);
        };
        let Some(last) = self.last_signal else {
            return Some(due);
        };
        let apart = last.wrapping_add(RefTime::from_100ns(self.spacing(settings))); // wrapping: as COUNT does.
        if self.backlog > 0 || !is_reached(apart, due) {
            return Some(apart);
        }
        Some(due)
    }

    /// The policy for ticks that come late.
    pub(super) fn policy(&self, settings: &Settings) -> LostTicks {
        if self.config.has(Config::LAZY) && !is(Mutant::LazyIgnored) {
            settings.lazy
        } else {
            settings.punctual
        }
    }

    /// Periods of the guest that one signal stands for: more than 1 only below the minimum period.
    pub(super) fn stride(&self, settings: &Settings) -> u64 {
        let periodic = self.config.has(Config::PERIODIC) && self.count != 0;
        if periodic
            && self.count < settings.minimum_period.as_100ns()
            && !is(Mutant::NoMinimumPeriod)
        {
            settings.minimum_period.as_100ns().div_ceil(self.count)
        } else {
            1
        }
    }

    /// The distance of two signals in 100 ns, never 0 for an armed timer. A period of 29 000 years or more is held there: the next due time
    /// must lie less than 2^63 units ahead, or it would be taken for a past one.
    fn period(&self, settings: &Settings) -> u64 {
        const LONGEST: u64 = u64::MAX >> 1;
        self.count
            .saturating_mul(self.stride(settings))
            .clamp(1, LONGEST)
    }

    /// The least distance of two signals in a catch-up, in 100 ns, rounded up; never below the minimum period nor above the period.
    fn spacing(&self, settings: &Settings) -> u64 {
        let LostTicks::CatchUp(limits) = self.policy(settings) else {
            return 0;
        };
        let period = self.period(settings);
        let part = (u128::from(period) * u128::from(limits.spacing()))
            .div_ceil(u128::from(crate::apic::CatchUp::PARTS));
        u64::try_from(part)
            .unwrap_or(period)
            .max(settings.minimum_period.as_100ns())
            .min(period)
    }

    fn spaced(&self, settings: &Settings, now: RefTime) -> Spaced {
        if self.undelivered.is_some() {
            return Spaced::TooClose;
        }
        let far = is(Mutant::NoSpacing)
            || self.last_signal.is_none_or(|last| {
                // wrapping: as COUNT does.
                now.wrapping_sub(last).as_100ns() >= self.spacing(settings)
            });
        if far {
            Spaced::Enough
        } else {
            Spaced::TooClose
        }
    }
}
