//! Chronovisor's clock beside quanta, minstant, the standard library and the bare counter: nine rounds, interleaved in one process; the medians of the rounds'
//! ratios.
//!
//! `cargo run --release --bin peers` in `bench/`. Exit code 1 if a ratio is above its bound.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use chronovisor_abi::scale::{mul_high, mul_limbs};
use chronovisor_bench::{Contender, hundredths, median, page, record, round};
use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::counter::{Ordered, Rdtscp, Unordered, rdtsc, rdtscp};
use chronovisor_guest::guard::{CoarseGuard, GlobalGuard, Guarded};
use chronovisor_guest::linux::Clock;
use chronovisor_guest::linux::os_clock::ClockId;
use chronovisor_guest::linux::pages::KernelPages;
use chronovisor_guest::pvclock::{SharedRecord, StableBit};
use chronovisor_guest::reference_tsc::ReferencePage;

const ROUNDS: usize = 9;
const CHUNKS: u32 = 40;
const READS: u32 = 5_000;
/// A counter value and a reference page's multiplier.
const LEFT: u64 = 0x1234_5678_9abc_def0;
const RIGHT: u64 = 0x00fc_0fc0_fc0f_c0fc;
/// Each a row of the printed table: the first is to cost at most so many times the second.
const BOUNDS: [(&str, &str, f64); 9] = [
    ("chronovisor now", "rdtsc", 1.10),
    ("chronovisor now", "quanta now", 1.05),
    ("chronovisor now", "minstant now", 1.05),
    ("chronovisor now", "std Instant", 0.50),
    ("chronovisor now_ordered", "rdtscp", 1.13),
    ("reference page", "rdtscp", 1.10),
    ("reference page, rdtsc", "rdtsc", 1.10),
    ("pvclock page", "rdtscp", 1.25),
    ("pvclock page", "vDSO MONOTONIC", 1.00),
];

macro_rules! contender {
    ($name:literal, $read:expr) => {
        Contender {
            name: $name,
            chunk: Box::new(move |reads| hundredths(reads, $read)),
        }
    };
}

fn main() -> ExitCode {
    let clock = Clock::new();
    let quanta = quanta::Clock::new();
    let (page, own_record) = (page(), record());
    let (page, clock) = (&*page, &clock);
    let kernel = KernelPages::find()
        .ok()
        .and_then(|pages| pages.pvclock().ok());
    // The kernel's own record where there is one; else a record of this program's.
    let pvclock = kernel.map_or_else(
        || SharedRecord::new(&own_record, Ordered::detect(), StableBit::Advertised),
        |page| page.reader(Ordered::detect(), StableBit::Advertised),
    );
    let by_page = ReferencePage::new(page, Rdtscp);
    let by_page_unordered = ReferencePage::new(page, Unordered);
    let quanta = &quanta;
    let pvclock = &pvclock;
    let (global, coarse) = (
        GlobalGuard::new(),
        CoarseGuard::with_quantum_of_2_to_the::<10>(),
    );
    let (guarded, coarsely_guarded) = (
        Guarded::new(pvclock, &global),
        Guarded::new(pvclock, &coarse),
    );
    let mut contenders = [
        contender!("rdtsc", rdtsc),
        contender!("chronovisor now", || clock.now()),
        contender!("quanta now", || quanta.now()),
        contender!("minstant now", minstant::Instant::now),
        contender!("std Instant", Instant::now),
        contender!("rdtscp", rdtscp),
        contender!("chronovisor now_ordered", || clock.now_ordered()),
        contender!("reference page", || by_page.read()),
        contender!("reference page, rdtsc", || by_page_unordered.read()),
        contender!("pvclock page", || pvclock.read()),
        contender!("vDSO MONOTONIC", || ClockId::MONOTONIC.now()),
        contender!("pvclock, guarded", || guarded.read()),
        contender!("pvclock, coarse guard", || coarsely_guarded.read()),
        contender!("64x64 bits by u128", || mul_high(
            black_box(LEFT),
            black_box(RIGHT)
        )),
        // Both halves: a compiler for 64 bits turns limbs of which only the upper half is used into its one multiplication.
        contender!("64x64 bits by limbs", || mul_limbs(
            black_box(LEFT),
            black_box(RIGHT)
        )),
    ];
    round(&mut contenders, 5, READS);
    let rounds: Vec<Vec<u64>> = (0..ROUNDS)
        .map(|_| round(&mut contenders, CHUNKS, READS))
        .collect();

    let place = |name: &str| {
        contenders
            .iter()
            .position(|c| c.name == name)
            .expect("a contender")
    };
    println!("clock                      cycles (median of {ROUNDS} rounds)");
    for (at, contender) in contenders.iter().enumerate() {
        let mut costs: Vec<f64> = rounds
            .iter()
            .map(|round| round[at] as f64 / 100.0)
            .collect();
        println!("{:24} {:8.1}", contender.name, median(&mut costs));
    }
    println!();
    let mut all_hold = true;
    for (first, second, bound) in BOUNDS {
        let (a, b) = (place(first), place(second));
        let mut ratios: Vec<f64> = rounds
            .iter()
            .map(|round| round[a] as f64 / round[b] as f64)
            .collect();
        let ratio = median(&mut ratios);
        let verdict = if ratio <= bound { "holds" } else { "BROKEN" };
        all_hold &= ratio <= bound;
        println!("{first:24} / {second:16} {ratio:6.3}  (at most {bound:.2}: {verdict})");
    }
    println!(
        "minstant reads the TSC here: {}",
        minstant::is_tsc_available()
    );
    println!("chronovisor stands on the {}", clock.report().source);
    if all_hold {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
