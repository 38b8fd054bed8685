//! The first Rust code of each CPU, in ring 0.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::contract::HELLO_PORT;
use crate::{cpu, experiment, instruction, pages};

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
    if !by_pvh() {
        instruction::out32(HELLO_PORT, index as u32);
    }
    // Every CPU finds the same clocks registered, however they were started.
    static REGISTERED: AtomicU32 = AtomicU32::new(0);
    if index == 0 {
        pages::register_reference();
        REGISTERED.store(1, Ordering::Release);
    }
    while REGISTERED.load(Ordering::Acquire) == 0 {
        core::hint::spin_loop();
    }
    cpu::enter_user(experiment::run)
}
