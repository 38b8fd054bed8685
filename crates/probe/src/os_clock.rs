//! The operating system's clocks, read through the vDSO and by a plain system call.
//!
//! The two paths answer the same question at very different cost, and only the cost tells whether the vDSO really answers in user space.

// Why unsafe: clock_gettime writes through a pointer.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use chronovisor_abi::quantity::Nanos;

/// A clock of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OsClock {
    /// Wall time.
    Realtime,
    /// Slewed by NTP, never stepped; stands still during suspend.
    Monotonic,
    /// The clock source's own rate, untouched by NTP.
    MonotonicRaw,
    /// [`Self::Monotonic`] plus the time of suspends.
    Boottime,
}

impl OsClock {
    /// Every clock of this list.
    pub const ALL: [Self; 4] = [
        Self::Realtime,
        Self::Monotonic,
        Self::MonotonicRaw,
        Self::Boottime,
    ];

    /// The name under which the evidence speaks of it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Realtime => "realtime",
            Self::Monotonic => "monotonic",
            Self::MonotonicRaw => "monotonic-raw",
            Self::Boottime => "boottime",
        }
    }

    const fn id(self) -> libc::clockid_t {
        match self {
            Self::Realtime => libc::CLOCK_REALTIME,
            Self::Monotonic => libc::CLOCK_MONOTONIC,
            Self::MonotonicRaw => libc::CLOCK_MONOTONIC_RAW,
            Self::Boottime => libc::CLOCK_BOOTTIME,
        }
    }

    /// The time, by the C library's entry point, which is the vDSO's where there is one. `None` if the call is refused (a sandbox) or
    /// the time lies before 1970.
    #[must_use]
    #[inline]
    pub fn now(self) -> Option<Nanos> {
        let mut time = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: the pointer is to a timespec of our own that lives over the call.
        let answer = unsafe { libc::clock_gettime(self.id(), time.as_mut_ptr()) };
        if answer != 0 {
            return None;
        }
        // SAFETY: the call succeeded, so it has filled the timespec.
        nanos(unsafe { time.assume_init_ref() })
    }

    /// The same by a system call, past the vDSO.
    #[must_use]
    #[inline]
    pub fn now_by_system_call(self) -> Option<Nanos> {
        let mut time = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: the call number fits its two arguments, and the pointer is to a timespec of our own that lives over the call.
        let answer =
            unsafe { libc::syscall(libc::SYS_clock_gettime, self.id(), time.as_mut_ptr()) };
        if answer != 0 {
            return None;
        }
        // SAFETY: the call succeeded, so it has filled the timespec.
        nanos(unsafe { time.assume_init_ref() })
    }
}

#[inline]
fn nanos(time: &libc::timespec) -> Option<Nanos> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let below = u64::try_from(time.tv_nsec).ok()?;
    seconds
        .checked_mul(1_000_000_000)?
        .checked_add(below)
        .map(Nanos::from_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// vdso <= system call <= vdso, for every clock: the two paths are one clock.
    #[test]
    fn both_paths_are_one_clock() {
        for clock in OsClock::ALL {
            if clock == OsClock::Realtime {
                continue; // It may be stepped between two reads.
            }
            for _ in 0..100 {
                let before = clock.now().unwrap();
                let between = clock.now_by_system_call().unwrap();
                let after = clock.now().unwrap();
                assert!(before <= between && between <= after, "{clock:?}");
            }
        }
    }

    #[test]
    fn a_time_before_1970_is_none() {
        let time = |tv_sec, tv_nsec| nanos(&libc::timespec { tv_sec, tv_nsec });
        assert_eq!(time(-1, 0), None);
        assert_eq!(time(i64::MAX, 0), None);
        assert_eq!(time(2, 5), Some(Nanos::from_ns(2_000_000_005)));
    }
}
