//! The CPUs that this process may use, and threads pinned to one.

// Why unsafe: the affinity calls take pointers.
#![allow(unsafe_code)]

use std::io;
use std::mem;

/// Words of the mask that is asked for: 8192 CPUs, the most that Linux can be built for.
const WORDS: usize = 8192 / 64;

/// Numbers of the CPUs that the calling thread may run on, lowest first.
///
/// # Errors
///
/// If the kernel does not tell.
pub fn allowed() -> io::Result<Vec<usize>> {
    let mut mask = [0_u64; WORDS];
    // SAFETY: the mask is as long as is said, and lives over the call; a mask longer than `cpu_set_t` is what the kernel asks for on large
    // machines.
    let answer =
        unsafe { libc::sched_getaffinity(0, mem::size_of_val(&mask), mask.as_mut_ptr().cast()) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((0..WORDS * 64)
        .filter(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1)
        .collect())
}

/// Ties the calling thread to one CPU.
///
/// # Errors
///
/// If the kernel refuses: no such CPU, or not one of this process.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    let mut mask = [0_u64; WORDS];
    let word = mask
        .get_mut(cpu / 64)
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    *word = 1 << (cpu % 64);
    // SAFETY: the mask is as long as is said, and lives over the call.
    let answer =
        unsafe { libc::sched_setaffinity(0, mem::size_of_val(&mask), mask.as_ptr().cast()) };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Number of CPUs that are online; 1 if the system does not tell.
#[must_use]
pub fn online() -> u32 {
    // SAFETY: sysconf takes no pointer.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(count).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronovisor_guest::{counter, cpuid};

    #[test]
    fn a_pinned_thread_runs_where_it_was_put() {
        for cpu in allowed().unwrap() {
            let seen = std::thread::spawn(move || {
                pin_to(cpu).unwrap();
                (
                    allowed().unwrap(),
                    cpuid::has_rdtscp().then(|| counter::rdtscp().1.cpu()),
                )
            })
            .join()
            .unwrap();
            assert_eq!(seen.0, [cpu]);
            if let Some(by_rdtscp) = seen.1 {
                assert_eq!(by_rdtscp, cpu);
            }
        }
    }

    #[test]
    fn no_such_cpu_is_an_error() {
        assert!(pin_to(usize::MAX).is_err());
        assert!(pin_to(8191).is_err());
    }
}
