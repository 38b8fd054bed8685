//! A counter with its CPU number where `rdtscp` is missing: getcpu on both sides of `lfence; rdtsc`.
//!
//! The CPU is asked before and after the counter, and the reading is taken again until both agree. A thread that is moved to another CPU and back
//! between the two questions, and read the counter there, is not seen: it takes two migrations within some 20 ns of this thread's own time. `rdtscp` has no such gap.
//!
//! References: getcpu(2); Linux `arch/x86/entry/vdso/vgetcpu.c`.

// Why unsafe: one call of the C library.
#![allow(unsafe_code)]

use chronovisor_abi::quantity::Tsc;

use crate::counter::{CpuCounter, lfence_rdtsc};

/// `lfence; rdtsc` between two getcpu calls, by the vDSO.
#[derive(Clone, Copy, Debug, Default)]
pub struct GetcpuRdtsc;

#[inline]
fn cpu() -> usize {
    // SAFETY: sched_getcpu takes nothing and touches no memory of the caller's.
    let cpu = unsafe { libc::sched_getcpu() };
    // It fails only on kernels before 2.6.19; a CPU without a record is then what the reader reports.
    usize::try_from(cpu).unwrap_or(usize::MAX)
}

impl CpuCounter for GetcpuRdtsc {
    #[inline]
    fn read_on_cpu(&self) -> (Tsc, usize) {
        let mut before = cpu();
        loop {
            let tsc = lfence_rdtsc();
            let after = cpu();
            if after == before {
                return (tsc, after);
            }
            before = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::Rdtscp;

    /// Both say the same CPU, unless the thread is moved between them: over many tries one pair agrees.
    #[test]
    fn it_names_the_cpu_that_rdtscp_names() {
        if !crate::cpuid::has_rdtscp() {
            return std::eprintln!("skipped: no rdtscp");
        }
        let agree = (0..100).any(|_| GetcpuRdtsc.read_on_cpu().1 == Rdtscp.read_on_cpu().1);
        assert!(agree);
    }
}
