//! A wake-up of the host: a timerfd that can be waited for together with others.
#![allow(unsafe_code)] // poll(2)

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use vmm_sys_util::timerfd::TimerFd;

use crate::LabError;

/// Goes off once after the time that it was set to.
pub struct Alarm {
    timer: Mutex<TimerFd>,
    descriptor: RawFd,
}

impl Alarm {
    /// An alarm that is not set.
    ///
    /// # Errors
    ///
    /// [`LabError::Guest`] if there is no timerfd to be had.
    pub fn new() -> Result<Self, LabError> {
        let timer =
            TimerFd::new().map_err(|error| LabError::Guest(format!("no timerfd: {error}")))?;
        Ok(Self {
            descriptor: timer.as_raw_fd(),
            timer: Mutex::new(timer),
        })
    }

    /// Goes off `wait` from now, or never. A time of zero is as short as it can be.
    pub fn set(&self, wait: Option<Duration>) {
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        let set = match wait {
            // Zero would disarm the timerfd.
            Some(wait) => timer.reset(wait.max(Duration::from_nanos(1)), None),
            None => timer.clear(),
        };
        debug_assert!(set.is_ok(), "a valid timerfd takes any time");
    }

    /// Whether it has gone off since it was set.
    #[must_use]
    pub fn is_due(&self) -> bool {
        wait_for_any([self], Duration::ZERO)
    }
}

/// Waits until one of `alarms` goes off, a signal comes or `most` is over. Says whether one went off.
pub fn wait_for_any<const N: usize>(alarms: [&Alarm; N], most: Duration) -> bool {
    let mut polls = alarms.map(|alarm| libc::pollfd {
        fd: alarm.descriptor,
        events: libc::POLLIN,
        revents: 0,
    });
    let ms = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
    let count = libc::nfds_t::try_from(N).unwrap_or(0);
    // SAFETY: `count` valid entries; each descriptor is its alarm's, which is borrowed during the call.
    unsafe { libc::poll(polls.as_mut_ptr(), count, ms) > 0 }
}
