//! The local APIC in x2APIC mode, from ring 0.

use crate::instruction::{rdmsr, wrmsr};
use crate::trap::SPURIOUS_VECTOR;

const APIC_BASE: u32 = 0x1B;
const ENABLE_X2APIC: u64 = 0xC00;
const SPURIOUS: u32 = 0x80F;
const SOFTWARE_ENABLE: u64 = 0x100;
const COMMAND: u32 = 0x830;
const LVT_TIMER: u32 = 0x832;
const INITIAL_COUNT: u32 = 0x838;
const DIVIDE: u32 = 0x83E;
const TSC_DEADLINE: u32 = 0x6E0;
const DIVIDE_BY_1: u64 = 0xB;
const MASKED: u64 = 1 << 16;
const INIT: u64 = 0x4500;
const STARTUP: u64 = 0x4600;

/// The timer's mode, as it stands in the LVT.
#[derive(Clone, Copy)]
#[repr(u64)]
pub enum Mode {
    /// One interrupt for each write of the initial count.
    OneShot = 0,
    /// Reloads.
    Periodic = 1 << 17,
    /// One interrupt for each write of the deadline MSR.
    TscDeadline = 2 << 17,
}

/// Switches this CPU's APIC on.
pub fn enable() {
    wrmsr(APIC_BASE, rdmsr(APIC_BASE) | ENABLE_X2APIC);
    wrmsr(SPURIOUS, SOFTWARE_ENABLE | SPURIOUS_VECTOR);
    wrmsr(LVT_TIMER, MASKED);
    wrmsr(DIVIDE, DIVIDE_BY_1);
}

/// Sets the timer's mode and vector, counting undivided.
pub fn set_timer(mode: Mode, vector: u64) {
    wrmsr(LVT_TIMER, mode as u64 | vector);
}

/// Masks the timer and stops it.
pub fn stop_timer() {
    wrmsr(INITIAL_COUNT, 0);
    wrmsr(LVT_TIMER, MASKED);
}

/// Starts counting down from `count`.
pub fn count_down(count: u64) {
    wrmsr(INITIAL_COUNT, count);
}

/// Arms the deadline, in guest TSC.
pub fn arm_deadline(tsc: u64) {
    wrmsr(TSC_DEADLINE, tsc);
}

/// INIT, then start-up at `page << 12`, to the CPU with this APIC id.
pub fn start_cpu(id: u64, page: u64) {
    wrmsr(COMMAND, id << 32 | INIT);
    wrmsr(COMMAND, id << 32 | STARTUP | page);
}
