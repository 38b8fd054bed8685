//! A wake-up of the host: a timerfd that can be waited for together with others.
#![allow(unsafe_code)] // timerfd_create(2), timerfd_settime(2), poll(2)

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use chronovisor_abi::quantity::Nanos;
use chronovisor_guest::linux::os_clock::ClockId;

use crate::LabError;

/// The clock that alarms go by: CLOCK_MONOTONIC.
#[must_use]
pub fn now() -> Nanos {
    // Every Linux has this clock.
    ClockId::MONOTONIC.now().unwrap_or(Nanos::ZERO)
}

/// Goes off once, at the time that it was set to.
///
/// A time of the clock, not a distance from now: a thread that is preempted before it sets the alarm does not make it late.
pub struct Alarm(OwnedFd);

impl Alarm {
    /// An alarm that is not set.
    ///
    /// # Errors
    ///
    /// [`LabError::Timer`] if there is no timerfd to be had.
    pub fn new() -> Result<Self, LabError> {
        // SAFETY: the call takes two numbers.
        let descriptor = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(LabError::Timer(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was opened just now, and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Goes off at `at` of [`now`]'s clock, at once if that is over, or never. Forgets that it had gone off.
    pub fn set(&self, at: Option<Nanos>) {
        // Zero would disarm the timerfd; it is long over, and so is 1 ns after boot.
        let ns = at.map_or(0, |at| at.as_ns().max(1));
        let part = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let time = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: part(ns / 1_000_000_000),
                tv_nsec: part(ns % 1_000_000_000),
            },
        };
        // SAFETY: the descriptor is a timerfd; the kernel reads `time` during the call, and no old time is asked for.
        let result = unsafe {
            libc::timerfd_settime(
                self.0.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &raw const time,
                std::ptr::null_mut(),
            )
        };
        debug_assert_eq!(result, 0, "a timerfd takes any valid time");
    }

    /// Whether it has gone off since it was set.
    #[must_use]
    pub fn is_due(&self) -> bool {
        wait_for_any([self], Duration::ZERO)
    }
}

/// Waits until one of `alarms` goes off, a signal comes or `most` is over. Says whether one went off.
#[must_use]
pub fn wait_for_any<const N: usize>(alarms: [&Alarm; N], most: Duration) -> bool {
    let mut polls = alarms.map(|alarm| libc::pollfd {
        fd: alarm.0.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let ms = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
    let count = libc::nfds_t::try_from(N).unwrap_or(0);
    // SAFETY: `count` valid entries; each descriptor is its alarm's, which is borrowed during the call.
    unsafe { libc::poll(polls.as_mut_ptr(), count, ms) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn an_alarm_goes_off_at_its_time_and_not_before() {
        let alarm = Alarm::new().expect("a timerfd");
        assert!(!alarm.is_due(), "not set");
        let at = now().saturating_add(Nanos::from_ns(2_000_000));
        alarm.set(Some(at));
        assert!(wait_for_any([&alarm], LONG));
        assert!(now() >= at);
        alarm.set(Some(at.saturating_add(Nanos::from_ns(3_600_000_000_000))));
        assert!(!alarm.is_due(), "in an hour");
        for over in [Nanos::ZERO, at] {
            alarm.set(Some(over));
            assert!(wait_for_any([&alarm], LONG), "{over:?} is over");
        }
        alarm.set(None);
        assert!(!alarm.is_due());
        alarm.set(Some(Nanos::MAX));
        assert!(!alarm.is_due(), "in 584 years");
    }
}
