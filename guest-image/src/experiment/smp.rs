//! Bring-up of the application processors, one after the other as a kernel does it, and the value of each one's delay loop.

use core::sync::atomic::{AtomicU64, Ordering};

use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::delay_loop::{Bring, Cpu, LoopsPerJiffy, Tsc};

use crate::contract::{Job, MAX_VCPUS, TRAMPOLINE_GPA, calibration, record, status};
use crate::gate::in_ring0;
use crate::instruction::ordered_tsc;
use crate::pages::user;
use crate::{apic, cpu, report, trap};

/// Loops per jiffy of each CPU; 0 until it is up.
static LPJ: [AtomicU64; MAX_VCPUS as usize] = [const { AtomicU64::new(0) }; MAX_VCPUS as usize];

/// A calibration takes as long as Linux's with the counter as the delay's clock: so many rounds, each of HZ/100 jiffies.
const ROUNDS: u64 = 5;
/// An edge is seen closely if the polls around it are no further apart than this, in TSC ticks: 4 us at 2.5 GHz.
const CLOSE: u64 = 10_000;
/// After so many edges the closest one has to do.
const MOST_EDGES: u32 = 50;
/// Argument 0: how an AP gets its value; 1: HZ; 2: NUMA nodes; 3: the preset, for which the host knows the rate.
pub fn run(job: &Job) {
    let [how, hz, nodes, preset, ..] = job.argument;
    let me = cpu::this().index.load(Ordering::Relaxed);
    if me == 0 {
        LPJ[0].store(preset, Ordering::Release);
        boot_cpu(job);
        return;
    }
    // As on Hyper-V without the invariant bit: the counter is constant and not trusted, so CPUs copy within a node only.
    let known = Bring {
        cpu: Cpu::Secondary,
        tsc: Tsc::Unstable,
        preset: LoopsPerJiffy::new(preset).filter(|_| how == calibration::PRESET),
        sibling: sibling(me, nodes, job.vcpus).filter(|_| how == calibration::SIBLING),
        ..Bring::default()
    };
    let lpj = known
        .choose()
        .value
        .map_or_else(|| calibrate(hz), LoopsPerJiffy::get);
    LPJ[me as usize].store(lpj.max(1), Ordering::Release);
}

fn boot_cpu(job: &Job) {
    trap::install_trampoline(TRAMPOLINE_GPA);
    let first = ordered_tsc();
    for id in 1..job.vcpus {
        let start = ordered_tsc();
        in_ring0(|| {
            if id == 1 {
                apic::enable();
            }
            apic::start_cpu(id, TRAMPOLINE_GPA >> 12);
        });
        let Some(slot) = LPJ.get(id as usize) else {
            report::finish(status::BAD_JOB)
        };
        while slot.load(Ordering::Acquire) == 0 {
            core::hint::spin_loop();
        }
        report::push(
            record::AP_READY,
            3,
            [start, ordered_tsc(), slot.load(Ordering::Relaxed)],
        );
    }
    report::push(
        record::SMP_DONE,
        3,
        [first, ordered_tsc(), LPJ[0].load(Ordering::Relaxed)],
    );
}

/// The value of the first CPU of the same node, if there is one and this is not it. The boot CPU knew its own.
fn sibling(me: u64, nodes: u64, cpus: u64) -> Option<LoopsPerJiffy> {
    let node = |cpu: u64| cpu * nodes / cpus;
    let first = (0..me).find(|cpu| node(*cpu) == node(me))?;
    LoopsPerJiffy::new(LPJ[first as usize].load(Ordering::Acquire))
}

/// Counts TSC ticks over jiffies of the reference clock.
///
/// An edge between two jiffies counts only if it was seen closely: one jiffy followed the other, and the polls before and
/// after it are close together. A CPU that was taken away meanwhile waits for the
/// next edge; that is how a noisy neighbour costs time and not truth.
fn calibrate(hz: u64) -> u64 {
    let jiffies = || {
        user::reference()
            .read()
            .map_or(0, |reading| reading.time.as_100ns() * hz / 10_000_000)
    };
    let edge = |not_before: u64| {
        // Before the poll that saw `jiffy`: a CPU may be taken away within a poll, too.
        let (mut tsc, mut jiffy) = (ordered_tsc(), jiffies());
        let (mut closest, mut best) = (u64::MAX, (tsc, jiffy));
        let mut edges = 0;
        loop {
            let begin = ordered_tsc();
            let next = jiffies();
            let now = ordered_tsc();
            if next != jiffy {
                let doubt = now - tsc;
                if next >= not_before && next == jiffy + 1 {
                    if doubt < closest {
                        (closest, best) = (doubt, (tsc + doubt / 2, next));
                    }
                    edges += 1;
                    if doubt < CLOSE || edges == MOST_EDGES {
                        return best;
                    }
                }
                jiffy = next;
            }
            tsc = begin;
        }
    };
    let span = ROUNDS * (hz / 100).max(1);
    let (start, first) = edge(0);
    let (end, last) = edge(first + span);
    (end - start) / (last - first)
}
