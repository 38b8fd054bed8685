//! What one read of each clock costs.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::contract::{Job, NULL_MSR, TIME_PORT, row};
use crate::gate::in_ring0;
use crate::{cpu, gate, instruction, loops, report};

/// All CPUs of the job arrive before any leaves.
pub fn barrier(vcpus: u64) {
    static ARRIVED: AtomicU64 = AtomicU64::new(0);
    let turn = ARRIVED.fetch_add(1, Ordering::AcqRel) / vcpus;
    while ARRIVED.load(Ordering::Acquire) < (turn + 1) * vcpus {
        core::hint::spin_loop();
    }
}

/// Runs the rows of the job that this CPU has.
pub fn run(job: &Job) {
    let exits = job.reads_exit;
    both(job, row::RDTSC, rdtsc);
    both(job, row::LFENCE_RDTSC, instruction::ordered_tsc);
    both(job, row::RDTSCP, rdtscp);
    user(job, row::NULL_MSR_EXIT, exits, || gate::rdmsr(NULL_MSR));
    kernel(job, row::NULL_MSR_EXIT, exits, || {
        instruction::rdmsr(NULL_MSR)
    });
    user(job, row::REFERENCE_COUNTER_MSR, exits, || {
        gate::rdmsr(0x4000_0020)
    });
    kernel(job, row::REFERENCE_COUNTER_MSR, exits, || {
        instruction::rdmsr(0x4000_0020)
    });
    user(job, row::TRAP_ROUND_TRIP, exits, || {
        gate::nothing();
        0
    });
    both_exit(job, row::CPUID, || u64::from(instruction::cpuid(0, 0)[0]));
    both_exit(job, row::HYPERCALL_TIME, hypercall_time);
}

fn rdtsc() -> u64 {
    let (low, high): (u64, u64);
    // SAFETY: reads the counter only.
    unsafe {
        asm!("rdtsc", out("rax") low, out("rdx") high, options(nomem, nostack, preserves_flags))
    };
    (high << 32) | low
}

fn rdtscp() -> u64 {
    let (low, high): (u64, u64);
    // SAFETY: reads the counter only.
    unsafe {
        asm!("rdtscp", out("rax") low, out("rdx") high, out("ecx") _, options(nomem, nostack, preserves_flags))
    };
    (high << 32) | low
}

/// The VMM answers in RAX.
fn hypercall_time() -> u64 {
    let time: u64;
    // SAFETY: the port's handler changes RAX only.
    unsafe {
        asm!("out dx, al", in("dx") TIME_PORT, inout("rax") 0_u64 => time, options(nostack, preserves_flags))
    };
    time
}

#[inline(always)]
fn both(job: &Job, row: u32, read: impl Fn() -> u64 + Copy) {
    user(job, row, job.reads_user, read);
    kernel(job, row, job.reads_kernel, read);
}

#[inline(always)]
fn both_exit(job: &Job, row: u32, read: impl Fn() -> u64 + Copy) {
    user(job, row, job.reads_exit, read);
    kernel(job, row, job.reads_exit, read);
}

#[inline(always)]
fn user(job: &Job, row: u32, reads: u64, read: impl Fn() -> u64) {
    if job.rows >> row & 1 == 1 {
        report::step(row);
        barrier(job.vcpus);
        let best = loops::best_of(job.rounds, reads, read);
        report::push(
            row,
            3,
            [best, reads, cpu::this().index.load(Ordering::Relaxed)],
        );
    }
}

#[inline(always)]
fn kernel(job: &Job, row: u32, reads: u64, read: impl Fn() -> u64) {
    if job.rows >> (32 + row) & 1 == 1 {
        report::step(32 + row);
        barrier(job.vcpus);
        let rounds = job.rounds;
        let best = in_ring0(|| loops::best_of(rounds, reads, read));
        report::push(
            row,
            0,
            [best, reads, cpu::this().index.load(Ordering::Relaxed)],
        );
    }
}
