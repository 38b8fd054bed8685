//! KVM before 4.10: the host's software timer alone.

use chronovisor_abi::quantity::Nanos;

use super::{periods_until_after, times};
use crate::host_machine::HostLook;
use crate::lapic_timer::{Fired, LapicTimer, Mode, Wake};

/// One deadline, a time of CLOCK_MONOTONIC, and one back-end.
///
/// Right about the phase. Wrong about the rate: NTP steers the host's clock, so the guest's ticks are fast or slow against its own counter
/// by the slew, and a tick can come before the counter says that it is due. A late callback is followed by one callback for each missed
/// period, back to back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before8003c9ae {
    due: Option<Nanos>,
    period: Nanos,
    periodic: bool,
}

impl LapicTimer for Before8003c9ae {
    fn start(&mut self, mode: Mode, period: Nanos, look: HostLook) -> Fired {
        *self = Self {
            due: Some(look.monotonic.saturating_add(period)),
            period,
            periodic: mode == Mode::Periodic,
        };
        Fired::default()
    }

    fn enter_guest(&mut self, _look: HostLook) {}

    fn halt(&mut self, _look: HostLook) -> Fired {
        Fired::default()
    }

    fn fire(&mut self, look: HostLook) -> Fired {
        let Some(due) = self.due.filter(|due| *due <= look.monotonic) else {
            return Fired::default();
        };
        let expiries = if self.periodic {
            let missed = periods_until_after(due, look.monotonic, self.period);
            self.due = Some(due.saturating_add(times(self.period, missed)));
            missed
        } else {
            self.due = None;
            1
        };
        Fired::merged(expiries)
    }

    fn wake(&self) -> Wake {
        self.due.map_or(Wake::Never, Wake::Monotonic)
    }

    fn fast_forward(&mut self, look: HostLook) -> u64 {
        self.fire(look).expiries
    }

    fn is_armed(&self) -> bool {
        self.due.is_some()
    }
}
