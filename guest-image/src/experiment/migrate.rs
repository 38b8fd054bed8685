//! Reads every clock on every CPU while the VMM updates, pauses and moves the guest, and counts what a reader must not see.

use core::sync::atomic::{AtomicU64, Ordering};

use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::counter::rdtscp;

use crate::contract::{Job, STOP_WORD_GPA, record, row};
use crate::experiment::barrier;
use crate::gate::in_ring0;
use crate::pages::{self, user};
use crate::report;

/// One of how many turns reads the counter MSR: it exits.
const MSR_EVERY: u64 = 64;

/// What all CPUs have seen of a clock.
struct Shared {
    last: AtomicU64,
}

impl Shared {
    const fn new() -> Self {
        Self {
            last: AtomicU64::new(0),
        }
    }
}

/// What this CPU has seen of a clock.
#[derive(Default)]
struct Seen {
    last: u64,
    reads: u64,
    steps_back: u64,
    largest_step: u64,
    largest_gap: u64,
}

impl Seen {
    #[inline(always)]
    fn read(&mut self, shared: &Shared, read: impl FnOnce() -> Option<u64>) {
        // Acquire: the clock is read after it.
        let before = shared.last.load(Ordering::Acquire);
        let Some(now) = read() else { return };
        if now < before {
            self.steps_back += 1;
            self.largest_step = self.largest_step.max(before - now);
        }
        if self.reads > 0 {
            self.largest_gap = self.largest_gap.max(now.saturating_sub(self.last));
        }
        self.reads += 1;
        self.last = now;
        shared.last.fetch_max(now, Ordering::AcqRel);
    }

    fn report(&self, clock: u32) {
        let clock = u64::from(clock);
        report::push(
            record::MIGRATE_STEPS,
            3,
            [clock, self.steps_back, self.largest_step],
        );
        report::push(
            record::MIGRATE_GAP,
            3,
            [clock, self.reads, self.largest_gap],
        );
    }
}

fn stop() -> bool {
    // SAFETY: a word of the contract's, aligned, written by the VMM and read as an atomic.
    let word = unsafe {
        AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(
            STOP_WORD_GPA as usize,
        ))
    };
    word.load(Ordering::Acquire) != 0
}

/// Reads until the VMM says stop.
pub fn run(job: &Job) {
    static PAGE: Shared = Shared::new();
    static MSR: Shared = Shared::new();
    static PVCLOCK: Shared = Shared::new();
    static SCHED: Shared = Shared::new();
    static TSC: Shared = Shared::new();
    let [_, ours] = in_ring0(|| pages::register_pvclock().map(|result| result.is_ok()));
    barrier(job.vcpus);
    let [mut page, mut msr, mut pvclock, mut sched, mut tsc] =
        [const { 0 }; 5].map(|_: u8| Seen::default());
    let reference = user::reference_clock();
    // One clock for all CPUs, which goes with the machine.
    let scheduler = user::sched_clock();
    let mut turn = 0_u64;
    loop {
        // One more turn after the VMM's word: every clock is read on both sides of every move.
        let is_last = stop();
        page.read(&PAGE, || Some(reference.observe().reading.time.as_100ns()));
        sched.read(&SCHED, || {
            let Ok(now) = scheduler?.now();
            Some(now.as_ns())
        });
        if ours {
            pvclock.read(&PVCLOCK, || {
                user::pvclock(pages::our_record())
                    .read()
                    .ok()
                    .map(|reading| reading.time.as_ns())
            });
        }
        if turn % MSR_EVERY == 0 || is_last {
            msr.read(&MSR, || Some(user::counter_msr().as_100ns()));
        }
        tsc.read(&TSC, || Some(rdtscp().0.as_ticks()));
        if turn == 0 {
            report::step(row::REFERENCE_TSC_PAGE);
        }
        if is_last {
            break;
        }
        turn += 1;
    }
    page.report(row::REFERENCE_TSC_PAGE);
    msr.report(row::REFERENCE_COUNTER_MSR);
    pvclock.report(row::PVCLOCK_PAGE_OURS);
    sched.report(row::SCHED_CLOCK_PAGE);
    tsc.report(row::RDTSC);
}
