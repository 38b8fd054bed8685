//! A guest that misbehaves on purpose.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use chronovisor_abi::msr::Msr;
use chronovisor_guest::clock::GuestClock;

use crate::contract::{Job, OUR_SYSTEM_TIME_MSR, hostile};
use crate::gate::in_ring0;
use crate::instruction;
use crate::pages::{self, user};

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

/// Scribbles over the pages that the hypervisor fills, goes on reading them, and moves them about.
fn pages(random: &mut Random, steps: u64) {
    in_ring0(|| {
        let _ = pages::register_pvclock();
    });
    for step in 0..steps {
        for page in [
            core::ptr::from_ref(&pages::REFERENCE).cast(),
            core::ptr::from_ref(pages::our_record()).cast::<u64>(),
        ] {
            let word = random.next() % 4;
            // SAFETY: inside the page or record, which is made of atomics; the hypervisor may write there at the same time.
            unsafe { AtomicU64::from_ptr(page.cast_mut().add(word as usize)) }
                .store(random.next(), Ordering::Relaxed);
        }
        // Whatever they give, they come back.
        let _ = user::reference().with_tries(10).read();
        let _ = user::pvclock(pages::our_record()).with_tries(10).read();
        if step % 16 == 0 {
            let (reference, record) = (random.next(), random.next());
            in_ring0(|| {
                let _ = instruction::try_wrmsr(Msr::HV_REFERENCE_TSC.0, reference);
                let _ = instruction::try_wrmsr(OUR_SYSTEM_TIME_MSR, record);
                pages::register_reference();
                let _ = pages::register_pvclock();
            });
        }
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
        hostile::PAGES => pages(&mut random, steps),
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
