//! The first Rust code of each CPU, in ring 0.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::contract::HELLO_PORT;
use crate::{cpu, experiment, instruction, pages};

const PIC_PRIMARY_MASK: u16 = 0x21;
const PIC_SECONDARY_MASK: u16 = 0xA1;

/// Set by the PVH entry: no VMM of this project loaded us.
#[unsafe(no_mangle)]
static BOOTED_BY_PVH: AtomicU32 = AtomicU32::new(0);

/// Whether the image came in by PVH.
pub fn by_pvh() -> bool {
    BOOTED_BY_PVH.load(Ordering::Relaxed) != 0
}

#[unsafe(no_mangle)]
extern "C" fn boot(index: u64) -> ! {
    cpu::init(index);
    if by_pvh() {
        // Firmware leaves the interval timer ticking, at a vector that means a double fault to us.
        for port in [PIC_PRIMARY_MASK, PIC_SECONDARY_MASK] {
            instruction::out8(port, 0xFF);
        }
    } else {
        instruction::out32(HELLO_PORT, index as u32);
    }
    // Every CPU finds the same clocks registered, however they were started.
    static REGISTERED: AtomicU32 = AtomicU32::new(0);
    if index == 0 {
        // Under another VMM only what CPUID offers is touched: the conformance checks do it.
        if !by_pvh() {
            pages::register_reference();
        }
        REGISTERED.store(1, Ordering::Release);
    }
    while REGISTERED.load(Ordering::Acquire) == 0 {
        core::hint::spin_loop();
    }
    cpu::enter_user(experiment::run)
}
