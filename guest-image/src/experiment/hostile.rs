//! A guest that misbehaves on purpose.

use core::arch::asm;

use crate::contract::{Job, hostile};
use crate::gate::in_ring0;
use crate::instruction;

/// A small generator (xorshift64*), so that a seed in the job repeats a run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Argument 0: how; argument 1: seed; argument 2: how many steps.
pub fn run(job: &Job) {
    let [how, seed, steps, ..] = job.argument;
    let mut random = Random(seed | 1);
    match how {
        hostile::MSRS => in_ring0(|| {
            for _ in 0..steps {
                let index = 0x4000_0000 | (random.next() as u32 & 0x1FF);
                if random.next() & 1 == 0 {
                    let _ = instruction::try_rdmsr(index);
                } else {
                    let _ = instruction::try_wrmsr(index, random.next());
                }
            }
        }),
        hostile::PORTS => in_ring0(|| {
            for _ in 0..steps {
                // Odd ports only: the contract's own are even.
                instruction::out8(random.next() as u16 | 1, random.next() as u8);
            }
        }),
        hostile::SPIN => loop {
            core::hint::spin_loop();
        },
        hostile::TRIPLE_FAULT => in_ring0(|| {
            let nowhere = [0_u16; 5];
            // SAFETY: none: this is the point.
            unsafe { asm!("lidt [{}]", "ud2", in(reg) &nowhere) };
        }),
        hostile::INVALID => in_ring0(|| {
            // SAFETY: faults, and the fault report ends the run.
            unsafe { asm!("ud2") };
        }),
        _ => {}
    }
}
