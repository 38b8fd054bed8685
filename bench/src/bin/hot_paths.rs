//! The hot paths, each a function of its own that is called a thousand times, for `./instructions` to count.

use std::hint::black_box;

use chronovisor_abi::pvclock::Record;
use chronovisor_abi::quantity::Nanos;
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_bench::{page, record};
use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::counter::{LfenceRdtsc, Unordered};
use chronovisor_guest::guard::{CoarseGuard, GlobalGuard, Guard};
use chronovisor_guest::linux::Clock;
use chronovisor_guest::pvclock::{SharedRecord, StableBit};
use chronovisor_guest::reference_tsc::ReferencePage;

const CALLS: u32 = 1_000;

#[inline(never)]
fn pvclock_read(record: &Record) -> u64 {
    let clock = SharedRecord::new(record, LfenceRdtsc, StableBit::Advertised);
    clock.read().map_or(0, |reading| reading.time.as_ns())
}

#[inline(never)]
fn reference_page_read(page: &ReferenceTscPage) -> u64 {
    let clock = ReferencePage::new(page, LfenceRdtsc);
    clock.read().map_or(0, |reading| reading.time.as_100ns())
}

#[inline(never)]
fn reference_page_read_unordered(page: &ReferenceTscPage) -> u64 {
    let clock = ReferencePage::new(page, Unordered);
    clock.read().map_or(0, |reading| reading.time.as_100ns())
}

#[inline(never)]
fn clock_now(clock: &Clock) -> u64 {
    clock.now().as_ns()
}

#[inline(never)]
fn clock_now_ordered(clock: &Clock) -> u64 {
    clock.now_ordered().as_ns()
}

#[inline(never)]
fn global_guard_admit(guard: &GlobalGuard, ns: u64) -> u64 {
    guard.admit(Nanos::from_ns(ns)).as_ns()
}

#[inline(never)]
fn coarse_guard_admit(guard: &CoarseGuard, ns: u64) -> u64 {
    guard.admit(Nanos::from_ns(ns)).as_ns()
}

fn main() {
    let (record, page, clock) = (record(), page(), Clock::new());
    let (global, coarse) = (
        GlobalGuard::new(),
        CoarseGuard::with_quantum_of_2_to_the::<10>(),
    );
    for call in 0..CALLS {
        let ns = u64::from(call) * 50;
        black_box(pvclock_read(black_box(&record)));
        black_box(reference_page_read(black_box(&page)));
        black_box(reference_page_read_unordered(black_box(&page)));
        black_box(clock_now(black_box(&clock)));
        black_box(clock_now_ordered(black_box(&clock)));
        black_box(global_guard_admit(black_box(&global), ns));
        black_box(coarse_guard_admit(black_box(&coarse), ns));
    }
    println!("clock stands on the {}", clock.report().source);
}
