//! A guest that misbehaves on purpose.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use chronovisor_abi::msr::{ENABLE, Msr};
use chronovisor_guest::clock::GuestClock;

use crate::contract::{
    Job, MEMORY_BYTES, OUR_SYSTEM_TIME_MSR, SAMPLES_GPA, hostile, record, status,
};
use crate::gate::in_ring0;
use crate::instruction::{self, try_rdmsr, try_wrmsr};
use crate::pages::{self, user};
use crate::{cpu, report};

/// Accesses between two looks out of ring 0, where interrupts are off: what the APIC holds back comes in then.
const BLOCK: u64 = 16;

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

/// What to write into a register that may name a page: one time in four any 64 bits, else an address with the enable bit. Those
/// lie where the hypervisor may write without harm to this program, in the sample arrays, and one time in four where the
/// memory ends.
fn page_register(random: &mut Random) -> u64 {
    let any = random.next();
    let address = match random.next() & 3 {
        0 => return any,
        1 => MEMORY_BYTES - 64 + (any & 0x7F),
        _ => SAMPLES_GPA + any % (MEMORY_BYTES - SAMPLES_GPA),
    };
    address | ENABLE
}

/// Registers behind which something happens: identity and hypercall page, counter and reference page, the message interface,
/// timers, re-enlightenment; the APIC's priority, end of interrupt, switch, command, timer and self-interrupt.
const WITH_EFFECT: [u32; 32] = [
    0x4000_0000,
    0x4000_0001,
    0x4000_0020,
    0x4000_0021,
    0x4000_0080,
    0x4000_0082,
    0x4000_0083,
    0x4000_0084,
    0x4000_0090,
    0x4000_00B0,
    0x4000_00B1,
    0x4000_00B2,
    0x4000_00B3,
    0x4000_00B6,
    0x4000_00B7,
    0x4000_0106,
    0x4000_0107,
    0x4000_0118,
    0x4B56_4D00,
    0x4B56_4D01,
    0x1B,
    0x6E0,
    0x808,
    0x80B,
    0x80F,
    0x830,
    0x832,
    0x838,
    0x839,
    0x83E,
    0x83F,
    OUR_SYSTEM_TIME_MSR,
];

/// Half of the time one of those, else any of Hyper-V's, KVM's or the local APIC's.
fn msr(random: &mut Random) -> u32 {
    let any = random.next() as u32;
    match random.next() & 7 {
        0..4 => WITH_EFFECT[any as usize % WITH_EFFECT.len()],
        4 | 5 => 0x4000_0000 | any & 0x1FF,
        6 => 0x4B56_4D00 | any & 7,
        _ => 0x800 | any & 0xFF,
    }
}

/// The same value with a vector of 32 at least, if the register holds one: vectors below are exceptions, and this program would
/// die of its own doing.
fn with_harmless_vector(index: u32, value: u64) -> u64 {
    match index {
        0x4000_00B0..=0x4000_00B7 => value | 0x20 << 4,
        0x800..=0x8FF => value | 0x20,
        _ => value,
    }
}

fn msrs(random: &mut Random, steps: u64) {
    // Priority, switch, periodic timer at a vector of ours, and its count: without them hardly a tick would come of random values.
    let ticking = [(0x808, 0), (0x80F, 0x1FF), (0x832, 0x2_0040), (0x838, 1000)];
    let mut accepted = 0;
    for _ in 0..steps / BLOCK {
        in_ring0(|| {
            if random.next() & 1 == 0 {
                for (index, value) in ticking {
                    let _ = try_wrmsr(index, value);
                }
            }
            for _ in 0..BLOCK {
                let index = msr(random);
                let done = if random.next() & 1 == 0 {
                    try_rdmsr(index).map(|_| ())
                } else {
                    let value = page_register(random);
                    try_wrmsr(index, with_harmless_vector(index, value))
                };
                accepted += u64::from(done.is_ok());
            }
        });
    }
    // Without another way through ring 3, where a timer of the shortest period leaves no time for anything but its ticks.
    in_ring0(|| -> () {
        let interrupts = cpu::this().interrupts.load(Ordering::Relaxed);
        let refused = steps / BLOCK * BLOCK - accepted;
        report::push(record::HOSTILE_ACCESSES, 0, [accepted, refused, interrupts]);
        report::finish(status::DONE)
    });
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
            let (reference, record) = (page_register(random), page_register(random));
            in_ring0(|| {
                let _ = try_wrmsr(Msr::HV_REFERENCE_TSC.0, reference);
                let _ = try_wrmsr(OUR_SYSTEM_TIME_MSR, record);
                pages::register_reference();
                let _ = pages::register_pvclock();
            });
        }
    }
}

/// Argument 0: how; argument 1: seed, the CPU's number above it; argument 2: how many steps.
pub fn run(job: &Job) {
    let [how, seed, steps, ..] = job.argument;
    let cpu = cpu::this().index.load(Ordering::Relaxed);
    let mut random = Random(cpu << 32 | seed | 1);
    match how {
        hostile::MSRS => msrs(&mut random, steps),
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
