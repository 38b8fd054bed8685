//! KVM with commit 8003c9ae204e: two deadlines for one timer.

use chronovisor_abi::quantity::{Nanos, Tsc, TscDelta};

use super::{Backend, Khz, periods_until_after, times};
use crate::host_machine::HostLook;
use crate::lapic_timer::{Fired, LapicTimer, Mode, Wake};

/// A deadline in CLOCK_MONOTONIC for the software timer and one in guest TSC for the preemption timer, both advanced at each expiry.
///
/// After a time T the copies are `T * (slew + cut)` apart, with `cut` what whole kHz and whole cycles lose. Where the counter's copy is
/// ahead, a guest that runs for long after a halt gets no tick for the whole difference, and at the next halt the software timer fires at
/// once, once for each of those periods, all merged into one interrupt. Where it is behind, entering the guest fires once for each
/// period, and the next halt then waits out the whole difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoDeadlines {
    khz: Khz,
    backend: Backend,
    armed: bool,
    periodic: bool,
    period: Nanos,
    target: Nanos,
    deadline: Tsc,
}

impl TwoDeadlines {
    /// A timer on a host whose kernel believes in `khz`.
    #[must_use]
    pub const fn new(khz: u64) -> Self {
        Self {
            khz: Khz(khz),
            backend: Backend::Software,
            armed: false,
            periodic: false,
            period: Nanos::ZERO,
            target: Nanos::ZERO,
            deadline: Tsc::from_ticks(0),
        }
    }

    /// `count` expiries: both copies go forward, each in its own unit.
    fn advance(&mut self, count: u64) {
        self.target = self.target.saturating_add(times(self.period, count));
        let ticks = self
            .khz
            .cycles(self.period)
            .as_ticks()
            .saturating_mul(count);
        self.deadline = self.deadline.wrapping_add(TscDelta::from_ticks(ticks));
    }

    fn overdue(&self, look: HostLook) -> u64 {
        match self.backend {
            Backend::Software => periods_until_after(self.target, look.monotonic, self.period),
            Backend::Preemption if look.tsc.is_before(self.deadline) => 0,
            Backend::Preemption => {
                let late = look.tsc.wrapping_delta(self.deadline).as_ticks();
                late / self.khz.cycles(self.period).as_ticks().max(1) + 1
            }
        }
    }
}

impl LapicTimer for TwoDeadlines {
    fn start(&mut self, mode: Mode, period: Nanos, look: HostLook) -> Fired {
        *self = Self {
            khz: self.khz,
            backend: Backend::Preemption,
            armed: true,
            periodic: mode == Mode::Periodic,
            period,
            target: look.monotonic.saturating_add(period),
            deadline: look.tsc.wrapping_add(self.khz.cycles(period)),
        };
        Fired::default()
    }

    fn enter_guest(&mut self, _look: HostLook) {
        self.backend = Backend::Preemption;
    }

    fn halt(&mut self, _look: HostLook) -> Fired {
        self.backend = Backend::Software;
        Fired::default()
    }

    fn fire(&mut self, look: HostLook) -> Fired {
        if !self.armed {
            return Fired::default();
        }
        let overdue = self.overdue(look);
        if self.periodic {
            self.advance(overdue);
            return Fired::merged(overdue);
        }
        self.armed = overdue == 0;
        Fired::merged(overdue.min(1))
    }

    fn wake(&self) -> Wake {
        match self.backend {
            _ if !self.armed => Wake::Never,
            Backend::Software => Wake::Monotonic(self.target),
            Backend::Preemption => Wake::GuestTsc(self.deadline),
        }
    }

    fn fast_forward(&mut self, look: HostLook) -> u64 {
        let missed = periods_until_after(self.target, look.monotonic, self.period);
        self.advance(missed);
        missed
    }

    fn is_armed(&self) -> bool {
        self.armed
    }

    /// How much later the counter's copy is reached than the clock's.
    fn deadlines_apart(&self, look: HostLook) -> i64 {
        let signed = |a: u64, b: u64| i128::from(a) - i128::from(b);
        let to_deadline = signed(self.deadline.as_ticks(), look.tsc.as_ticks());
        let to_target = signed(self.target.as_ns(), look.monotonic.as_ns());
        self.khz.nanos(to_deadline) - i64::try_from(to_target).unwrap_or(i64::MAX)
    }
}
