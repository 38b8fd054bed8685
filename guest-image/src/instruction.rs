//! Single instructions.

use core::arch::asm;

unsafe extern "C" {
    fn rdmsr_checked(index: u32, value: *mut u64) -> u64;
    fn wrmsr_checked(index: u32, value: u64) -> u64;
}

/// The hypervisor refused an MSR access with #GP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Reads an MSR; ring 0 only.
#[inline(always)]
pub fn rdmsr(index: u32) -> u64 {
    let (low, high): (u64, u64);
    // SAFETY: ring 0 by this module's contract; a refused read ends in the fault report.
    unsafe {
        asm!("rdmsr", in("ecx") index, out("rax") low, out("rdx") high, options(nomem, nostack, preserves_flags))
    };
    (high << 32) | low
}

/// Writes an MSR; ring 0 only.
#[inline(always)]
pub fn wrmsr(index: u32, value: u64) {
    // SAFETY: as above; memory is clobbered, since the hypervisor may write a page in answer.
    unsafe {
        asm!("wrmsr", in("ecx") index, in("rax") value, in("rdx") value >> 32, options(nostack, preserves_flags))
    };
}

/// Reads an MSR that may not exist; ring 0 only.
pub fn try_rdmsr(index: u32) -> Result<u64, Refused> {
    let mut value = 0;
    // SAFETY: the routine's one faulting instruction is known to the #GP handler.
    match unsafe { rdmsr_checked(index, &mut value) } {
        0 => Ok(value),
        _ => Err(Refused),
    }
}

/// Writes an MSR that may not exist; ring 0 only.
pub fn try_wrmsr(index: u32, value: u64) -> Result<(), Refused> {
    // SAFETY: as above.
    match unsafe { wrmsr_checked(index, value) } {
        0 => Ok(()),
        _ => Err(Refused),
    }
}

/// `out` of 8 bits; either ring: the I/O bitmap opens the ports below 0x400.
#[inline(always)]
pub fn out8(port: u16, value: u8) {
    // SAFETY: the ports of this image touch no memory of its own.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) };
}

/// `out` of 32 bits.
#[inline(always)]
pub fn out32(port: u16, value: u32) {
    // SAFETY: as above.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags))
    };
}

/// `rdtsc` that waits for earlier loads: the brackets of every measurement (ring 0 of a software KVM has no `rdtscp`).
#[inline(always)]
pub fn ordered_tsc() -> u64 {
    let (low, high): (u64, u64);
    // SAFETY: reads the counter only.
    unsafe {
        asm!("lfence", "rdtsc", out("rax") low, out("rdx") high, options(nostack, preserves_flags))
    };
    (high << 32) | low
}

/// `cpuid`.
pub fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let found = core::arch::x86_64::__cpuid_count(leaf, subleaf);
    [found.eax, found.ebx, found.ecx, found.edx]
}

unsafe extern "C" {
    #[link_name = "wait_for_interrupt"]
    fn sti_hlt_cli();
}

/// Waits for an interrupt; ring 0. Interrupts are off before and after.
pub fn wait_for_interrupt() {
    // SAFETY: handlers run on stacks of their own and return.
    unsafe { sti_hlt_cli() };
}

/// KVM's clock-pairing hypercall; ring 0. The result: 0, or an error number.
pub fn clock_pairing(intel: bool) -> u64 {
    const CLOCK_PAIRING: u64 = 9;
    #[repr(align(64))]
    struct Pairing(core::cell::UnsafeCell<[u64; 8]>);
    let pairing = Pairing(core::cell::UnsafeCell::new([0; 8]));
    let address = pairing.0.get() as u64;
    let mut result = CLOCK_PAIRING;
    // SAFETY: RBX is kept; the hypervisor writes 64 bytes at `address`, which is identity-mapped and ours.
    unsafe {
        if intel {
            asm!("xchg rbx, {a}", "vmcall", "xchg rbx, {a}", a = inout(reg) address => _, inout("rax") result, in("rcx") 0_u64, options(nostack));
        } else {
            asm!("xchg rbx, {a}", "vmmcall", "xchg rbx, {a}", a = inout(reg) address => _, inout("rax") result, in("rcx") 0_u64, options(nostack));
        }
    }
    result
}
