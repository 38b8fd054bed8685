//! KVM since the repair of 2018 (d8f2f498d9ed), and with that of 2025 (18ab3fc8e880) on top.

use chronovisor_abi::quantity::{Nanos, Tsc};

use super::{Backend, Khz, periods_until_after, times};
use crate::host_machine::HostLook;
use crate::lapic_timer::{Fired, LapicTimer, Mode, Wake};

/// What happens when an expiry is taken so late that the next one is past already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterStall {
    /// 2018: the distance to the next deadline is negative, which unsigned is huge: too far for the preemption timer. The software timer takes over, fires
    /// once for each missed period in a row, and keeps the timer until the guest programs it again.
    HugeDeadline,
    /// 2025: the next deadline is set to now and counts from there.
    StartFromNow,
}

/// The clock's deadline is the only truth; the counter's is derived from it at each expiry, from one pair of readings.
///
/// The copies no longer drift. The timer still counts the host's steered clock, so its rate against the guest's counter is off by the slew,
/// within a period the two back-ends differ by the slew of one period (7 ns of 1 ms at 7 ppm), and a stall is
/// handled as [`AfterStall`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resynchronised {
    after_stall: AfterStall,
    khz: Khz,
    backend: Backend,
    /// Set once the preemption timer was given up (2018 only).
    stuck: bool,
    armed: bool,
    periodic: bool,
    period: Nanos,
    target: Nanos,
    deadline: Tsc,
}

impl Resynchronised {
    /// A timer on a host whose kernel believes in `khz`.
    #[must_use]
    pub const fn new(after_stall: AfterStall, khz: u64) -> Self {
        Self {
            after_stall,
            khz: Khz(khz),
            backend: Backend::Software,
            stuck: false,
            armed: false,
            periodic: false,
            period: Nanos::ZERO,
            target: Nanos::ZERO,
            deadline: Tsc::from_ticks(0),
        }
    }

    fn is_overdue(&self, look: HostLook) -> bool {
        match self.backend {
            Backend::Software => self.target <= look.monotonic,
            Backend::Preemption => !look.tsc.is_before(self.deadline),
        }
    }

    /// Takes one expiry and sets the next deadline; returns how many further expiries follow at once.
    fn advance(&mut self, look: HostLook) -> u64 {
        self.target = self.target.saturating_add(self.period);
        let mut more = 0;
        if self.target < look.monotonic {
            match self.after_stall {
                AfterStall::StartFromNow => self.target = look.monotonic,
                AfterStall::HugeDeadline => {
                    if self.backend == Backend::Preemption {
                        self.backend = Backend::Software;
                        self.stuck = true;
                    }
                    more = periods_until_after(self.target, look.monotonic, self.period);
                    self.target = self.target.saturating_add(times(self.period, more));
                }
            }
        }
        let ahead = self.target.saturating_sub(look.monotonic);
        self.deadline = look.tsc.wrapping_add(self.khz.cycles(ahead));
        more
    }
}

impl LapicTimer for Resynchronised {
    fn start(&mut self, mode: Mode, period: Nanos, look: HostLook) -> Fired {
        *self = Self {
            backend: Backend::Preemption,
            stuck: false,
            armed: true,
            periodic: mode == Mode::Periodic,
            period,
            target: look.monotonic.saturating_add(period),
            deadline: look.tsc.wrapping_add(self.khz.cycles(period)),
            ..*self
        };
        Fired::default()
    }

    fn enter_guest(&mut self, _look: HostLook) {
        if !self.stuck {
            self.backend = Backend::Preemption;
        }
    }

    fn halt(&mut self, _look: HostLook) -> Fired {
        self.backend = Backend::Software;
        Fired::default()
    }

    fn fire(&mut self, look: HostLook) -> Fired {
        if !self.armed || !self.is_overdue(look) {
            return Fired::default();
        }
        if self.periodic {
            return Fired::merged(1 + self.advance(look));
        }
        self.armed = false;
        Fired::merged(1)
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
        self.target = self.target.saturating_add(times(self.period, missed));
        let ahead = self.target.saturating_sub(look.monotonic);
        self.deadline = look.tsc.wrapping_add(self.khz.cycles(ahead));
        missed
    }

    fn is_armed(&self) -> bool {
        self.armed
    }
}
