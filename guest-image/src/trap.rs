//! Exceptions and interrupts.

use core::sync::atomic::Ordering;

use crate::contract::status;
use crate::{cpu, gate, instruction, report, serial};

core::arch::global_asm!(
    ".set CPU_SHIFT, {shift}",
    ".set KERNEL_STACK_TOP, {top}",
    ".set TRAMPOLINE, {trampoline}",
    include_str!("boot.s"),
    shift = const cpu::SHIFT,
    top = const cpu::KERNEL_STACK_TOP,
    trampoline = const crate::contract::TRAMPOLINE_GPA,
    options(att_syntax)
);

unsafe extern "C" {
    static trampoline_start: u8;
    static trampoline_end: u8;
    static trampoline_cr3: u8;
}

/// Copies the trampoline of the SIPI to `to` and tells it this CPU's page tables.
pub fn install_trampoline(to: u64) {
    let start = &raw const trampoline_start;
    let bytes = &raw const trampoline_end as usize - start as usize;
    let cr3 = gate::in_ring0(|| {
        let cr3: u64;
        // SAFETY: ring 0; reads only.
        unsafe {
            core::arch::asm!("mov {}, cr3", out(reg) cr3, options(nomem, nostack, preserves_flags))
        };
        cr3
    });
    // SAFETY: the contract sets `to` apart for this; it is below 1 MiB, mapped, and no AP runs yet.
    unsafe {
        let to = core::ptr::with_exposed_provenance_mut::<u8>(to as usize);
        to.copy_from_nonoverlapping(start, bytes);
        to.add(&raw const trampoline_cr3 as usize - start as usize)
            .cast::<u64>()
            .write_volatile(cr3);
    }
}

const INVALID_OPCODE: u64 = 6;
const GENERAL_PROTECTION: u64 = 13;
const UD2_BYTES: u64 = 2;
const HLT_BYTES: u64 = 1;
const RDTSC: [u8; 2] = [0x0F, 0x31];
const X2APIC_EOI: u32 = 0x80B;
/// The vector that the APIC itself may raise; it takes no EOI.
pub const SPURIOUS_VECTOR: u64 = 0xFF;

/// What the stubs leave on the stack.
#[repr(C)]
pub struct Frame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rcx: u64,
    rax: u64,
    vector: u64,
    /// Error code of an exception, TSC at the entry of an interrupt.
    code: u64,
    rip: u64,
    cs: u64,
    flags: u64,
    rsp: u64,
    ss: u64,
}

unsafe extern "C" {
    static rdmsr_checked_at: u8;
    static wrmsr_checked_at: u8;
    static msr_refused: u8;
    static wait_for_interrupt_hlt: u8;
}

#[unsafe(no_mangle)]
extern "C" fn exception(frame: &mut Frame) {
    let from_user = frame.cs & 3 == 3;
    match frame.vector {
        INVALID_OPCODE if from_user => {
            frame.rax = gate::serve(frame.rax, frame.rdi, frame.rsi);
            frame.rip += UD2_BYTES;
        }
        GENERAL_PROTECTION
            if frame.rip == &raw const rdmsr_checked_at as u64
                || frame.rip == &raw const wrmsr_checked_at as u64 =>
        {
            frame.rip = &raw const msr_refused as u64;
        }
        GENERAL_PROTECTION if from_user && is_rdtsc(frame.rip) => {
            let now = instruction::ordered_tsc();
            frame.rax = now & 0xFFFF_FFFF;
            frame.rdx = now >> 32;
            frame.rip += RDTSC.len() as u64;
            cpu::this().emulated_rdtsc.fetch_add(1, Ordering::Relaxed);
        }
        _ => fatal(frame),
    }
}

fn is_rdtsc(rip: u64) -> bool {
    // SAFETY: the CPU has just tried to run the instruction there, so it is mapped.
    let bytes = unsafe { core::ptr::with_exposed_provenance::<[u8; 2]>(rip as usize).read() };
    bytes == RDTSC
}

#[unsafe(no_mangle)]
extern "C" fn interrupt(frame: &mut Frame) {
    let cpu = cpu::this();
    let taken = cpu.interrupts.load(Ordering::Relaxed);
    if let Some(sample) = report::sample(taken) {
        sample.store(frame.code, Ordering::Relaxed);
    }
    // Release: who sees the count sees the sample.
    cpu.interrupts.store(taken + 1, Ordering::Release);
    if frame.rip == &raw const wait_for_interrupt_hlt as u64 {
        frame.rip += HLT_BYTES;
    }
    if frame.vector != SPURIOUS_VECTOR {
        instruction::wrmsr(X2APIC_EOI, 0);
    }
}

fn fatal(frame: &Frame) -> ! {
    serial::text("exception ");
    serial::decimal(frame.vector);
    for (name, value) in [
        (" code ", frame.code),
        (" rip ", frame.rip),
        (" cs ", frame.cs),
        (" rsp ", frame.rsp),
        (" rax ", frame.rax),
        (" rdi ", frame.rdi),
        (" flags ", frame.flags),
    ] {
        serial::text(name);
        serial::hex(value);
    }
    serial::line("");
    report::finish(status::FAULT)
}
