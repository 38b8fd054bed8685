//! Measured loops: the same code in either ring.
//!
//! CPUs that measure at once start together and go on reading until the last of them has its rounds: every round of each
//! is then under the others' load. What counts with several CPUs is the median, since a single round may still have met a
//! CPU that the host took away.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

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

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Rounds, at most 32.
    pub rounds: u64,
    /// Reads of a round.
    pub reads: u64,
    /// CPUs that measure the same at once.
    pub cpus: u64,
}

/// Times each round by the counter before its first read and after its last.
#[inline(always)]
pub fn time(plan: Plan, read: impl Fn() -> u64) -> Rounds {
    measure(plan, &read, || {
        let start = ordered_tsc();
        for _ in 0..plan.reads {
            keep(read());
        }
        ordered_tsc().wrapping_sub(start)
    })
}

/// The same for reads that give the counter themselves, where nothing else can be read around them: from the value before
/// the first read to that of the last it is exactly that many reads.
#[inline(always)]
pub fn time_by_values(plan: Plan, read: impl Fn() -> u64) -> Rounds {
    measure(plan, &read, || {
        let start = read();
        let mut last = start;
        for _ in 0..plan.reads {
            last = read();
            keep(last);
        }
        last.wrapping_sub(start)
    })
}

#[inline(always)]
fn measure(plan: Plan, read: &impl Fn() -> u64, round: impl Fn() -> u64) -> Rounds {
    let rounds = (plan.rounds as usize).clamp(1, MOST_ROUNDS);
    let mut taken = [u64::MAX; MOST_ROUNDS];
    for one in &mut taken[..rounds] {
        *one = round();
    }
    until_all_are_done(plan.cpus, read);
    sort(&mut taken[..rounds]);
    Rounds {
        best: taken[0],
        median: taken[rounds / 2],
    }
}

/// Goes on reading while another CPU is still measuring.
#[inline(always)]
fn until_all_are_done(cpus: u64, read: &impl Fn() -> u64) {
    static DONE: AtomicU64 = AtomicU64::new(0);
    if cpus < 2 {
        return;
    }
    // All CPUs measure the same rows in the same order, so each row takes the next `cpus` numbers.
    let row = DONE.fetch_add(1, Ordering::AcqRel) / cpus;
    while DONE.load(Ordering::Acquire) < (row + 1) * cpus {
        keep(read());
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
