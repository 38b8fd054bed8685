//! The first patch for the spikes, as it was posted in April 2018 and not merged.

use chronovisor_abi::quantity::{Nanos, Tsc, TscDelta};

use super::{Backend, Khz, periods_until_after, times};
use crate::host_machine::HostLook;
use crate::lapic_timer::{Fired, LapicTimer, Mode, Wake};

/// The deadline of the clock is dropped; what is left is the counter's, and the software timer's own.
///
/// At each halt the software timer starts a full period from now: the time since the last tick is forgotten, and the phase with it. The
/// counter's deadline meanwhile goes on by whole periods, so it falls behind and fires as soon as the guest runs: extra ticks, early
/// ones. A one-shot timer that is still counting at a halt is called expired at once, and the software timer is never armed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeedPatch {
    khz: Khz,
    backend: Backend,
    armed: bool,
    periodic: bool,
    period: Nanos,
    deadline: Tsc,
    /// The software timer's own expiry, while it runs.
    software: Nanos,
}

impl SeedPatch {
    /// A timer on a host whose kernel believes in `khz`.
    #[must_use]
    pub const fn new(khz: u64) -> Self {
        Self {
            khz: Khz(khz),
            backend: Backend::Software,
            armed: false,
            periodic: false,
            period: Nanos::ZERO,
            deadline: Tsc::from_ticks(0),
            software: Nanos::ZERO,
        }
    }

    fn advance(&mut self, count: u64) {
        let ticks = self
            .khz
            .cycles(self.period)
            .as_ticks()
            .saturating_mul(count);
        self.deadline = self.deadline.wrapping_add(TscDelta::from_ticks(ticks));
    }
}

impl LapicTimer for SeedPatch {
    fn start(&mut self, mode: Mode, period: Nanos, look: HostLook) -> Fired {
        *self = Self {
            khz: self.khz,
            backend: Backend::Preemption,
            armed: true,
            periodic: mode == Mode::Periodic,
            period,
            deadline: look.tsc.wrapping_add(self.khz.cycles(period)),
            software: look.monotonic.saturating_add(period),
        };
        Fired::default()
    }

    fn enter_guest(&mut self, _look: HostLook) {
        self.backend = Backend::Preemption;
    }

    fn halt(&mut self, look: HostLook) -> Fired {
        self.backend = Backend::Software;
        if self.armed && !self.periodic {
            self.armed = false;
            return Fired::merged(1);
        }
        self.software = look.monotonic.saturating_add(self.period);
        Fired::default()
    }

    fn fire(&mut self, look: HostLook) -> Fired {
        if !self.armed {
            return Fired::default();
        }
        let overdue = match self.backend {
            Backend::Software => periods_until_after(self.software, look.monotonic, self.period),
            Backend::Preemption if look.tsc.is_before(self.deadline) => 0,
            Backend::Preemption => {
                let late = look.tsc.wrapping_delta(self.deadline).as_ticks();
                late / self.khz.cycles(self.period).as_ticks().max(1) + 1
            }
        };
        if !self.periodic {
            self.armed = overdue == 0;
            return Fired::merged(overdue.min(1));
        }
        self.advance(overdue);
        if self.backend == Backend::Software {
            self.software = self.software.saturating_add(times(self.period, overdue));
        }
        Fired::merged(overdue)
    }

    fn wake(&self) -> Wake {
        match self.backend {
            _ if !self.armed => Wake::Never,
            Backend::Software => Wake::Monotonic(self.software),
            Backend::Preemption => Wake::GuestTsc(self.deadline),
        }
    }

    fn fast_forward(&mut self, look: HostLook) -> u64 {
        let missed = periods_until_after(self.software, look.monotonic, self.period);
        self.software = self.software.saturating_add(times(self.period, missed));
        self.advance(missed);
        missed
    }

    fn is_armed(&self) -> bool {
        self.armed
    }
}
