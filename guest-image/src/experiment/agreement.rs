//! Whether clocks that must agree do: zero tolerance.

use core::sync::atomic::{AtomicU64, Ordering};

use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::counter::rdtscp;
use chronovisor_guest::pvclock::{SharedRecord, StableBit};
use chronovisor_guest::reference_tsc::ReferencePage;

use crate::contract::{Job, record, row};
use crate::experiment::barrier;
use crate::gate::in_ring0;
use crate::pages::{self, user};
use crate::report;

/// Argument 0: rounds of the cheap checks; 1: rounds of those that exit.
pub fn run(job: &Job) {
    let [cheap, costly, ..] = job.argument;
    let [kvm, ours] = in_ring0(|| pages::register_pvclock().map(|result| result.is_ok()));
    barrier(job.vcpus);
    bracket(costly);
    if ours {
        same_instant(cheap);
    }
    let page = || {
        user::reference()
            .read()
            .map(|reading| reading.time.as_100ns())
            .ok()
    };
    static PAGE: AtomicU64 = AtomicU64::new(0);
    across(job, row::REFERENCE_TSC_PAGE, cheap, &PAGE, page);
    static MSR: AtomicU64 = AtomicU64::new(0);
    across(job, row::REFERENCE_COUNTER_MSR, costly, &MSR, || {
        Some(user::counter_msr().as_100ns())
    });
    // Page and MSR are one clock, whichever CPU reads which.
    static EITHER: AtomicU64 = AtomicU64::new(0);
    let turn = AtomicU64::new(0);
    across(job, record::PAGE_AND_MSR_IN_TURN, costly, &EITHER, || {
        if turn.fetch_add(1, Ordering::Relaxed) & 1 == 0 {
            page()
        } else {
            Some(user::counter_msr().as_100ns())
        }
    });
    let pvclock = |record| {
        move || {
            user::pvclock(record)
                .read()
                .map(|reading| reading.time.as_ns())
                .ok()
        }
    };
    if ours {
        static OURS: AtomicU64 = AtomicU64::new(0);
        across(
            job,
            row::PVCLOCK_PAGE_OURS,
            cheap,
            &OURS,
            pvclock(pages::our_record()),
        );
    }
    if kvm {
        static KVM: AtomicU64 = AtomicU64::new(0);
        across(
            job,
            row::PVCLOCK_PAGE,
            cheap,
            &KVM,
            pvclock(pages::kvm_record()),
        );
    }
}

/// page <= MSR <= page.
fn bracket(rounds: u64) {
    let page = || {
        user::reference()
            .read()
            .map(|reading| reading.time.as_100ns())
    };
    let (mut violations, mut done, mut widest) = (0, 0, 0);
    for _ in 0..rounds {
        let (Ok(before), msr, Ok(after)) = (page(), user::counter_msr().as_100ns(), page()) else {
            continue;
        };
        done += 1;
        violations += u64::from(before > msr || msr > after);
        widest = after.wrapping_sub(before).max(widest);
    }
    report::push(record::BRACKET, 3, [violations, done, widest]);
}

/// Both encodings at one and the same counter value.
fn same_instant(rounds: u64) {
    let (mut smallest, mut largest, mut done) = (i64::MAX, i64::MIN, 0);
    for _ in 0..rounds {
        let now = rdtscp().0;
        let page = ReferencePage::new(&pages::REFERENCE, || now).read();
        let pvclock = SharedRecord::new(pages::our_record(), || now, StableBit::Advertised).read();
        if let (Ok(page), Ok(pvclock)) = (page, pvclock) {
            let difference = pvclock
                .time
                .as_ns()
                .wrapping_sub(page.time.as_100ns().wrapping_mul(100))
                .cast_signed();
            smallest = smallest.min(difference);
            largest = largest.max(difference);
            done += 1;
        }
    }
    report::push(
        record::PAGE_PVCLOCK,
        3,
        [smallest.cast_unsigned(), largest.cast_unsigned(), done],
    );
}

/// No CPU reads less than what any CPU read before.
fn across(job: &Job, clock: u32, rounds: u64, last: &AtomicU64, read: impl Fn() -> Option<u64>) {
    barrier(job.vcpus);
    let (mut steps, mut largest, mut reads) = (0, 0, 0);
    for _ in 0..rounds {
        // Acquire: the counter is read after it, since `rdtscp` waits for earlier loads.
        let before = last.load(Ordering::Acquire);
        let Some(now) = read() else { continue };
        reads += 1;
        if now < before {
            steps += 1;
            largest = largest.max(before - now);
        }
        last.fetch_max(now, Ordering::AcqRel);
    }
    let clock = u64::from(clock);
    report::push(record::CROSS_VCPU, 3, [clock, steps, largest]);
    report::push(record::CROSS_VCPU_READS, 3, [clock, reads, rounds - reads]);
}
