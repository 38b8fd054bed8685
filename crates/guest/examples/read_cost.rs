//! What a read of each clock costs here, in TSC cycles: the smallest of nine interleaved rounds.
//!
//! `cargo run --release -p chronovisor-guest --example read_cost`

use std::hint::black_box;

use chronovisor_guest::counter::{lfence_rdtsc, rdtsc, rdtscp, read_fenced};
use chronovisor_guest::linux::Clock;

const READS: u32 = 200_000;

fn cycles(mut read: impl FnMut() -> u64) -> u64 {
    let start = read_fenced();
    for _ in 0..READS {
        black_box(read());
    }
    read_fenced().wrapping_delta(start).as_ticks() * 10 / u64::from(READS)
}

fn main() {
    let clock = Clock::new();
    let origin = std::time::Instant::now();
    let mut best = [u64::MAX; 7];
    let names = [
        "rdtsc",
        "Clock::now",
        "lfence; rdtsc",
        "rdtscp",
        "Clock::now_ordered",
        "fenced on both sides",
        "std Instant",
    ];
    for _ in 0..9 {
        let round = [
            cycles(|| rdtsc().as_ticks()),
            cycles(|| clock.now().as_ns()),
            cycles(|| lfence_rdtsc().as_ticks()),
            cycles(|| rdtscp().0.as_ticks()),
            cycles(|| clock.now_ordered().as_ns()),
            cycles(|| read_fenced().as_ticks()),
            cycles(|| u64::from(black_box(origin).elapsed().subsec_nanos())),
        ];
        for (best, now) in best.iter_mut().zip(round) {
            *best = now.min(*best);
        }
    }
    for (name, tenths) in names.iter().zip(best) {
        println!("{name:22} {}.{} cycles", tenths / 10, tenths % 10);
    }
    println!("the clock stands on the {}", clock.report().source);
}
