//! Bring-up of the application processors, one after the other as a kernel does it, and the value of each one's delay loop.

use core::sync::atomic::{AtomicU64, Ordering};

use chronovisor_guest::clock::GuestClock;

use crate::contract::{Job, MAX_VCPUS, TRAMPOLINE_GPA, calibration, record, status};
use crate::gate::in_ring0;
use crate::instruction::ordered_tsc;
use crate::pages::user;
use crate::{apic, cpu, report, trap};

/// Loops per jiffy of each CPU; 0 until it is up.
static LPJ: [AtomicU64; MAX_VCPUS as usize] = [const { AtomicU64::new(0) }; MAX_VCPUS as usize];

/// A calibration as Linux does it when the counter is the delay's clock: so many rounds, each of HZ/100 jiffies.
const ROUNDS: u64 = 5;
/// Argument 0: how an AP gets its value; 1: HZ; 2: NUMA nodes; 3: the preset, for which the host knows the rate.
pub fn run(job: &Job) {
    let [how, hz, nodes, preset, ..] = job.argument;
    let me = cpu::this().index.load(Ordering::Relaxed);
    if me == 0 {
        LPJ[0].store(preset, Ordering::Release);
        boot_cpu(job);
        return;
    }
    let lpj = match how {
        calibration::PRESET => Some(preset),
        calibration::SIBLING => sibling(me, nodes, job.vcpus),
        _ => None,
    };
    let lpj = lpj.unwrap_or_else(|| calibrate(hz));
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
fn sibling(me: u64, nodes: u64, cpus: u64) -> Option<u64> {
    let node = |cpu: u64| cpu * nodes / cpus;
    (0..me)
        .find(|cpu| node(*cpu) == node(me))
        .map(|cpu| LPJ[cpu as usize].load(Ordering::Acquire))
}

/// Counts TSC ticks over jiffies of the reference clock: the mean of the rounds that were not disturbed, or the least
/// disturbed one.
///
/// As in a kernel, a round counts only if its two edges were seen closely enough: the shortest and the longest span that
/// they allow differ by less than an eighth.
fn calibrate(hz: u64) -> u64 {
    let jiffies = || {
        user::reference()
            .read()
            .map_or(0, |reading| reading.time.as_100ns() * hz / 10_000_000)
    };
    // The last counter value known to lie before the edge, and the first after it.
    let edge = |after: u64, mut before: u64| {
        loop {
            let seen = jiffies() > after;
            let now = ordered_tsc();
            if seen {
                return (before, now);
            }
            before = now;
        }
    };
    let span = (hz / 100).max(1);
    let (mut sum, mut good) = (0, 0);
    let (mut narrowest, mut fallback) = (u64::MAX, 0);
    for _ in 0..ROUNDS {
        let before = ordered_tsc();
        let now = jiffies();
        let (start_before, start_after) = edge(now, before);
        let (end_before, end_after) = edge(now + span, start_after);
        let shortest = end_before.saturating_sub(start_after);
        let longest = end_after.saturating_sub(start_before);
        let doubt = longest - shortest;
        let found = (shortest + doubt / 2) / span;
        if doubt < narrowest {
            (narrowest, fallback) = (doubt, found);
        }
        if doubt <= longest / 8 {
            sum += found;
            good += 1;
        }
    }
    if good > 0 { sum / good } else { fallback }
}
