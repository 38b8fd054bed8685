//! Measured loops: the same code in either ring.
//!
//! CPUs that measure at once start together and go on reading until the last of them has its rounds. Even so the host may run
//! them in turns, and a round in which the others stood still tells nothing of contention. So each CPU counts its reads where
//! the others see it, and a round in which all others went on is worth more than any number of those in which one did not.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::contract::MAX_VCPUS;
use crate::cpu;
use crate::instruction::ordered_tsc;

const MOST_ROUNDS: usize = 32;
/// How many times as many rounds are tried if the others stand still.
const PATIENCE: usize = 2;
/// Reads between two signs of life in a long round.
const STRETCH: u64 = 1000;

/// What a measurement found, in cycles of a whole round.
#[derive(Clone, Copy, Default)]
pub struct Rounds {
    /// The quickest round.
    pub best: u64,
    /// The one in the middle.
    pub median: u64,
    /// Whether the rounds that count are those in which the other CPUs were reading, too.
    pub at_once: bool,
}

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Plan {
    rounds: usize,
    /// A round is so many stretches of so many reads.
    stretches: u64,
    stretch: u64,
    cpus: u64,
}

impl Plan {
    /// `rounds` rounds, at most 32, of `reads` reads or somewhat fewer, by `cpus` CPUs at once.
    pub fn new(rounds: u64, reads: u64, cpus: u64) -> Self {
        let stretches = (reads / STRETCH).max(1);
        Self {
            rounds: (rounds as usize).clamp(1, MOST_ROUNDS),
            stretches,
            stretch: reads / stretches,
            cpus: cpus.min(MAX_VCPUS),
        }
    }

    /// Reads of a round.
    pub fn reads(self) -> u64 {
        self.stretches * self.stretch
    }
}

/// Times each round by the counter before its first read and after its last.
#[inline(always)]
pub fn time(plan: Plan, read: impl Fn() -> u64) -> Rounds {
    measure(plan, &read, |me| {
        let start = ordered_tsc();
        each(plan, me, || keep(read()));
        ordered_tsc().wrapping_sub(start)
    })
}

/// The same for reads that give the counter themselves, where nothing else can be read around them: from the value before
/// the first read to that of the last it is exactly that many reads.
#[inline(always)]
pub fn time_by_values(plan: Plan, read: impl Fn() -> u64) -> Rounds {
    measure(plan, &read, |me| {
        let start = read();
        let mut last = start;
        each(plan, me, || {
            last = read();
            keep(last);
        });
        last.wrapping_sub(start)
    })
}

/// Stretches read by a CPU, in a cache line of its own: the others look there between their rounds only.
#[repr(align(128))]
struct Progress(AtomicU64);

static PROGRESS: [Progress; MAX_VCPUS as usize] =
    [const { Progress(AtomicU64::new(0)) }; MAX_VCPUS as usize];

impl Progress {
    #[inline(always)]
    fn advance(&self) {
        // Only this CPU writes here.
        let next = self.0.load(Ordering::Relaxed) + 1;
        self.0.store(next, Ordering::Relaxed);
    }
}

/// Where each of `cpus` CPUs is.
fn positions(cpus: u64) -> [u64; MAX_VCPUS as usize] {
    let mut all = [0; MAX_VCPUS as usize];
    for (position, cpu) in all.iter_mut().zip(&PROGRESS[..cpus as usize]) {
        *position = cpu.0.load(Ordering::Relaxed);
    }
    all
}

#[inline(always)]
fn each(plan: Plan, me: &Progress, mut read: impl FnMut()) {
    for stretch in 0..plan.stretches {
        if stretch > 0 {
            me.advance();
        }
        for _ in 0..plan.stretch {
            read();
        }
    }
}

/// The first rounds of a kind.
struct Kept {
    rounds: [u64; MOST_ROUNDS],
    count: usize,
}

impl Kept {
    fn add(&mut self, round: u64) {
        if let Some(place) = self.rounds.get_mut(self.count) {
            *place = round;
            self.count += 1;
        }
    }
}

#[inline(always)]
fn measure(plan: Plan, read: &impl Fn() -> u64, round: impl Fn(&Progress) -> u64) -> Rounds {
    let index = cpu::this().index.load(Ordering::Relaxed) as usize;
    let me = &PROGRESS[index];
    let [mut any, mut at_once] = [const {
        Kept {
            rounds: [u64::MAX; MOST_ROUNDS],
            count: 0,
        }
    }; 2];
    for _ in 0..plan.rounds * PATIENCE {
        let before = positions(plan.cpus);
        let taken = round(me);
        // After the counter was read: in an interpreted ring 0 each instruction costs as much as a read.
        me.advance();
        any.add(taken);
        if others_went_on(plan, index, &before) {
            at_once.add(taken);
        }
        if at_once.count == plan.rounds {
            break;
        }
    }
    until_all_are_done(plan, me, read);
    // A few are enough for a median.
    let is_at_once = at_once.count * 4 >= plan.rounds;
    let kept = if is_at_once { &mut at_once } else { &mut any };
    let rounds = &mut kept.rounds[..kept.count.min(plan.rounds)];
    sort(rounds);
    Rounds {
        best: rounds[0],
        median: rounds[rounds.len() / 2],
        at_once: is_at_once,
    }
}

/// Whether every other CPU read about half as much as this one since `before`.
fn others_went_on(plan: Plan, me: usize, before: &[u64; MAX_VCPUS as usize]) -> bool {
    let least = (plan.stretches / 2).max(1);
    let now = positions(plan.cpus);
    (0..plan.cpus as usize).all(|cpu| cpu == me || now[cpu] - before[cpu] >= least)
}

/// Goes on reading while another CPU is still measuring.
#[inline(always)]
fn until_all_are_done(plan: Plan, me: &Progress, read: &impl Fn() -> u64) {
    static DONE: AtomicU64 = AtomicU64::new(0);
    if plan.cpus < 2 {
        return;
    }
    // All CPUs measure the same rows in the same order, so each row takes the next `cpus` numbers.
    let row = DONE.fetch_add(1, Ordering::AcqRel) / plan.cpus;
    while DONE.load(Ordering::Acquire) < (row + 1) * plan.cpus {
        for _ in 0..plan.stretch {
            keep(read());
        }
        me.advance();
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
