//! The time-stamp counter, read with as much order as the caller needs.
//!
//! # Theory
//!
//! `rdtsc` is an ordinary instruction to the processor: it may run before earlier loads have finished and after later ones have
//! begun. How far it slips is bounded by the out-of-order window, which is well under 1 us. Each type here fixes one edge or both:
//!
//! | type | not before earlier instructions | not after later ones |
//! | --- | --- | --- |
//! | [`Unordered`] `rdtsc` | no | no |
//! | [`LfenceRdtsc`] `lfence; rdtsc` | yes | no |
//! | [`Rdtscp`] `rdtscp` | yes | no |
//! | [`Fenced`] `mfence; lfence; rdtsc; lfence` | yes, stores too | yes |
//!
//! Each costs more than the one above it or about the same: the example `read_cost` measures them.
//!
//! # Practice
//!
//! A clock reader takes [`Rdtscp`], or [`LfenceRdtsc`] where CPUID has no RDTSCP ([`Ordered`] decides once). A program that measures its
//! own code wants [`read_fenced`]. Readers are generic over [`Counter`], and any `Fn() -> Tsc` is one, so a simulator hands in its own.
//!
//! # Migration
//!
//! The counter may stand at any other value and run at another rate after a migration. Only a page with a sequence number can tell.
//!
//! # Caveats
//!
//! The instructions fault where the kernel forbids them (`prctl(PR_SET_TSC)`, CR4.TSD), and `rdtscp` where the processor lacks it. The CPU
//! number in [`TscAux`] is what the operating system has put there; bare-metal guests must fill the register themselves. On AMD processors `lfence` orders only
//! once the kernel has made it dispatch-serializing (MSR 0xC0011029, bit 1), as Linux does.
//!
//! # References
//!
//! Intel SDM vol. 2B, RDTSC and RDTSCP; AMD APM vol. 3, RDTSC and RDTSCP; Linux `arch/x86/include/asm/segment.h` (layout of TSC_AUX).

// Why unsafe: the counter instructions by inline assembly. The intrinsic of `lfence` belongs to SSE2, which kernels switch off.
#![allow(unsafe_code)]

use core::arch::asm;

use chronovisor_abi::quantity::Tsc;

/// A source of counter values; any `Fn() -> Tsc` is one.
pub trait Counter {
    /// The counter's value now.
    fn read(&self) -> Tsc;
}

impl<F: Fn() -> Tsc> Counter for F {
    #[inline]
    fn read(&self) -> Tsc {
        self()
    }
}

/// A counter that tells on which CPU it was read, in one step that no change of CPU can split.
pub trait CpuCounter {
    /// The counter's value now and the number of the CPU that gave it.
    fn read_on_cpu(&self) -> (Tsc, usize);
}

impl<F: Fn() -> (Tsc, usize)> CpuCounter for F {
    #[inline]
    fn read_on_cpu(&self) -> (Tsc, usize) {
        self()
    }
}

/// What the operating system keeps in TSC_AUX, as Linux lays it out: CPU number and NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TscAux(u32);

impl TscAux {
    /// The register's value.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The register's value.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The CPU number: bits 11:0.
    #[must_use]
    #[inline]
    pub const fn cpu(self) -> usize {
        (self.0 & 0xfff) as usize // 12 bits; `as` because From is not const.
    }

    /// The NUMA node: bits 31:12.
    #[must_use]
    #[inline]
    pub const fn node(self) -> u32 {
        self.0 >> 12
    }
}

/// `rdtsc` alone: the cheapest, and ordered against nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unordered;

/// `lfence; rdtsc`: not read before earlier loads are done.
#[derive(Clone, Copy, Debug, Default)]
pub struct LfenceRdtsc;

/// `rdtscp`: not read before earlier loads are done, and says on which CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rdtscp;

/// `mfence; lfence; rdtsc; lfence`: strictly between what stands before and after it in the program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fenced;

/// The cheaper of [`Rdtscp`] and [`LfenceRdtsc`] that this processor has, chosen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordered {
    /// The processor has RDTSCP.
    Rdtscp,
    /// It has not.
    LfenceRdtsc,
}

impl Ordered {
    /// Asks CPUID 0x80000001.EDX\[27\]. In a virtual machine that takes an exit: ask once.
    #[must_use]
    pub fn detect() -> Self {
        if crate::cpuid::has_rdtscp() {
            Self::Rdtscp
        } else {
            Self::LfenceRdtsc
        }
    }
}

/// The counter from EDX:EAX. The instructions clear the upper halves of 64-bit registers, so a register's full width is its value.
#[inline]
const fn joined(high: usize, low: usize) -> Tsc {
    Tsc::from_ticks((high as u64) << 32 | low as u64) // `as` because From is not const and not there for usize; it widens.
}

/// `rdtsc`: the counter, ordered against nothing.
#[must_use]
#[inline]
pub fn rdtsc() -> Tsc {
    let (low, high): (usize, usize);
    // SAFETY: `rdtsc` writes EDX:EAX and nothing else. No `nomem`: the compiler must not move memory accesses over it, as a sequence
    // lock's loads stand on both sides.
    unsafe {
        asm!("rdtsc", out("ax") low, out("dx") high, options(nostack, preserves_flags));
    }
    joined(high, low)
}

/// `lfence; rdtsc`: the counter, not before earlier loads are done.
#[must_use]
#[inline]
pub fn lfence_rdtsc() -> Tsc {
    let (low, high): (usize, usize);
    // SAFETY: as for `rdtsc`; `lfence` changes no register and no memory and is part of every processor with SSE2, so of each x86-64 one.
    unsafe {
        asm!("lfence", "rdtsc", out("ax") low, out("dx") high, options(nostack, preserves_flags));
    }
    joined(high, low)
}

/// `rdtscp`: the counter, not before earlier loads are done, and TSC_AUX from the same instant. An invalid-opcode fault where
/// CPUID 0x80000001.EDX\[27\] is clear.
#[must_use]
#[inline]
pub fn rdtscp() -> (Tsc, TscAux) {
    let (low, high): (usize, usize);
    let aux: u32;
    // SAFETY: `rdtscp` writes EDX:EAX and ECX and nothing else; without the instruction it faults, which is no undefined behaviour.
    unsafe {
        asm!("rdtscp", out("ax") low, out("dx") high, out("ecx") aux, options(nostack, preserves_flags));
    }
    (joined(high, low), TscAux(aux))
}

/// `mfence; lfence; rdtsc; lfence`: the counter strictly between what stands before and after the call, stores included.
#[must_use]
#[inline]
pub fn read_fenced() -> Tsc {
    let (low, high): (usize, usize);
    // SAFETY: as for `lfence_rdtsc`; `mfence` changes no register and no memory and is part of every processor with SSE2, so of each x86-64 one.
    unsafe {
        asm!("mfence", "lfence", "rdtsc", "lfence", out("ax") low, out("dx") high, options(nostack, preserves_flags));
    }
    joined(high, low)
}

impl Counter for Unordered {
    #[inline]
    fn read(&self) -> Tsc {
        rdtsc()
    }
}

impl Counter for LfenceRdtsc {
    #[inline]
    fn read(&self) -> Tsc {
        lfence_rdtsc()
    }
}

impl Counter for Rdtscp {
    #[inline]
    fn read(&self) -> Tsc {
        rdtscp().0
    }
}

impl CpuCounter for Rdtscp {
    #[inline]
    fn read_on_cpu(&self) -> (Tsc, usize) {
        let (tsc, aux) = rdtscp();
        (tsc, aux.cpu())
    }
}

impl Counter for Fenced {
    #[inline]
    fn read(&self) -> Tsc {
        read_fenced()
    }
}

impl Counter for Ordered {
    #[inline]
    fn read(&self) -> Tsc {
        match self {
            Self::Rdtscp => rdtscp().0,
            Self::LfenceRdtsc => lfence_rdtsc(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// One thread, one counter: no later read is before an earlier one, whatever the instruction.
    #[test]
    fn each_instruction_advances() {
        let counters: [&dyn Counter; 5] = [
            &Unordered,
            &LfenceRdtsc,
            &Rdtscp,
            &Fenced,
            &Ordered::detect(),
        ];
        for _ in 0..1000 {
            let mut last = read_fenced();
            for counter in counters {
                let next = counter.read();
                assert!(!next.is_before(last), "{next:?} after {last:?}");
                last = next;
            }
        }
    }

    #[test]
    fn tsc_aux_is_cpu_and_node() {
        let aux = TscAux::from_bits(0x0000_3025);
        assert_eq!((aux.cpu(), aux.node(), aux.bits()), (0x25, 3, 0x3025));
    }
}
