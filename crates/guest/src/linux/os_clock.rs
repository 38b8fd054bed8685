//! The operating system's clocks, by vDSO and by system call, as plain nanoseconds.
//!
//! The clock ids are those of clock_gettime(2). The fall-back of this crate is [`ClockId::MONOTONIC_RAW`]: the one that no time daemon steers.

// Why unsafe: two system calls that fill a timespec.
#![allow(unsafe_code)]

use chronovisor_abi::quantity::Nanos;

/// A clock of clock_gettime(2); any id can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClockId(pub libc::clockid_t);

impl ClockId {
    /// Wall-clock time since 1970, steered and stepped.
    pub const REALTIME: Self = Self(libc::CLOCK_REALTIME);
    /// Steered by the time daemon, does not count suspend.
    pub const MONOTONIC: Self = Self(libc::CLOCK_MONOTONIC);
    /// Not steered, does not count suspend.
    pub const MONOTONIC_RAW: Self = Self(libc::CLOCK_MONOTONIC_RAW);
    /// As MONOTONIC, and counts suspend.
    pub const BOOTTIME: Self = Self(libc::CLOCK_BOOTTIME);

    /// The clock's time by the C library, which uses the vDSO where it can. `None` if the kernel has no such clock, or it stands before zero.
    #[must_use]
    #[inline]
    pub fn now(self) -> Option<Nanos> {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` is a timespec that this function owns, valid for writes.
        match unsafe { libc::clock_gettime(self.0, &raw mut time) } {
            0 => nanos(time),
            _ => None,
        }
    }

    /// The clock's time by a system call, past the vDSO. `None` as for [`ClockId::now`].
    #[must_use]
    pub fn now_by_system_call(self) -> Option<Nanos> {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: clock_gettime(2) takes a clock id and a timespec that this function owns, valid for writes.
        match unsafe { libc::syscall(libc::SYS_clock_gettime, self.0, &raw mut time) } {
            0 => nanos(time),
            _ => None,
        }
    }
}

#[inline]
fn nanos(time: libc::timespec) -> Option<Nanos> {
    let (sec, nsec) = (
        u64::try_from(time.tv_sec).ok()?,
        u64::try_from(time.tv_nsec).ok()?,
    );
    Some(Nanos::from_ns(
        sec.checked_mul(1_000_000_000)?.checked_add(nsec)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_paths_read_one_clock() {
        for clock in [
            ClockId::MONOTONIC,
            ClockId::MONOTONIC_RAW,
            ClockId::BOOTTIME,
        ] {
            let before = clock.now().unwrap();
            let between = clock.now_by_system_call().unwrap();
            assert!(
                before <= between && between <= clock.now().unwrap(),
                "{clock:?}"
            );
        }
    }

    #[test]
    fn a_clock_that_the_kernel_lacks_is_none() {
        assert_eq!(ClockId(1_000).now(), None);
        assert_eq!(ClockId(1_000).now_by_system_call(), None);
    }
}
