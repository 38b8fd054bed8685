//! Measured loops: the same code in either ring.

use core::arch::asm;

use crate::instruction::ordered_tsc;

/// Cycles of the quickest of `rounds` rounds of `reads` calls.
#[inline(always)]
pub fn best_of(rounds: u64, reads: u64, mut read: impl FnMut() -> u64) -> u64 {
    let mut best = u64::MAX;
    for _ in 0..rounds {
        let start = ordered_tsc();
        for _ in 0..reads {
            keep(read());
        }
        best = best.min(ordered_tsc().wrapping_sub(start));
    }
    best
}

/// Makes the compiler compute `value`, at no cost in the loop.
#[inline(always)]
pub fn keep(value: u64) {
    // SAFETY: no instruction at all.
    unsafe { asm!("/* {} */", in(reg) value, options(nomem, nostack, preserves_flags)) };
}
