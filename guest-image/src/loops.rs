//! Measured loops: the same code in either ring.

use core::arch::asm;

use crate::instruction::ordered_tsc;

const MOST_ROUNDS: usize = 32;

/// What a measurement found, in cycles of a whole round.
#[derive(Clone, Copy, Default)]
pub struct Rounds {
    /// The quickest round.
    pub best: u64,
    /// The one in the middle.
    pub median: u64,
}

/// Times `rounds` rounds (at most 32) of `reads` calls.
#[inline(always)]
pub fn time(rounds: u64, reads: u64, mut read: impl FnMut() -> u64) -> Rounds {
    let rounds = (rounds as usize).clamp(1, MOST_ROUNDS);
    let mut taken = [u64::MAX; MOST_ROUNDS];
    for round in &mut taken[..rounds] {
        let start = ordered_tsc();
        for _ in 0..reads {
            keep(read());
        }
        *round = ordered_tsc().wrapping_sub(start);
    }
    sort(&mut taken[..rounds]);
    Rounds {
        best: taken[0],
        median: taken[rounds / 2],
    }
}

/// By insertion: a few values, and no code that a software-only KVM could not interpret.
fn sort(values: &mut [u64]) {
    for end in 1..values.len() {
        let mut at = end;
        while at > 0 && values[at - 1] > values[at] {
            values.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// Makes the compiler compute `value`, at no cost in the loop.
#[inline(always)]
pub fn keep(value: u64) {
    // SAFETY: no instruction at all.
    unsafe { asm!("/* {} */", in(reg) value, options(nomem, nostack, preserves_flags)) };
}
