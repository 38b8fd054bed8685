//! From ring 3 down to ring 0 and back: `ud2`, which the handler steps over.
//!
//! `syscall` would be quicker on real hardware, but a software-only KVM runs its handler with ring-3 rights, and `int n`
//! ends in an emulation failure there. An exception works everywhere.

use crate::instruction;

/// What the gate does.
#[repr(u64)]
#[derive(Clone, Copy)]
pub enum Operation {
    /// Nothing: the bare round trip.
    Nothing = 0,
    /// `rdmsr` of the first argument.
    Rdmsr = 1,
    /// Calls the function in the first argument with the second one.
    Call = 2,
}

unsafe extern "C" {
    fn gate_call(first: u64, second: u64, operation: u64) -> u64;
}

/// The bare round trip.
#[inline(always)]
pub fn nothing() {
    // SAFETY: the handler changes RAX and RIP only.
    unsafe { gate_call(0, 0, Operation::Nothing as u64) };
}

/// Reads an MSR from ring 3.
#[inline(always)]
pub fn rdmsr(index: u32) -> u64 {
    // SAFETY: as above.
    unsafe { gate_call(u64::from(index), 0, Operation::Rdmsr as u64) }
}

/// Runs `work` in ring 0 on this CPU's ring-0 stack, interrupts off.
pub fn in_ring0<R: Default>(work: impl FnOnce() -> R) -> R {
    struct Call<F, R>(Option<F>, R);
    extern "C" fn enter<F: FnOnce() -> R, R>(call: &mut Call<F, R>) -> u64 {
        if let Some(work) = call.0.take() {
            call.1 = work();
        }
        0
    }
    fn entry_of<F: FnOnce() -> R, R>(_: &F) -> extern "C" fn(&mut Call<F, R>) -> u64 {
        enter::<F, R>
    }
    let entry = entry_of(&work);
    let mut call = Call(Some(work), R::default());
    // SAFETY: `entry` takes exactly this argument and returns before the gate does.
    unsafe {
        gate_call(
            entry as usize as u64,
            &raw mut call as u64,
            Operation::Call as u64,
        )
    };
    call.1
}

/// The ring-0 side.
pub fn serve(operation: u64, first: u64, second: u64) -> u64 {
    const RDMSR: u64 = Operation::Rdmsr as u64;
    const CALL: u64 = Operation::Call as u64;
    match operation {
        RDMSR => instruction::rdmsr(first as u32),
        CALL => {
            // SAFETY: only `in_ring0` asks for a call, with a function of this type and its argument.
            let function: extern "C" fn(u64) -> u64 =
                unsafe { core::mem::transmute(first as usize) };
            function(second)
        }
        _ => 0,
    }
}
