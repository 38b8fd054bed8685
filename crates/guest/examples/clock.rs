//! The fastest clock that stays right here: what it stands on, what it costs, and the wall-clock time of one of its readings.
//!
//! `cargo run --release -p chronovisor-guest --example clock`

use std::time::{Instant, SystemTime};

use chronovisor_guest::linux::Clock;

fn main() {
    let making = Instant::now();
    let clock = Clock::new();
    println!("made in {:?}", making.elapsed());

    let report = clock.report();
    println!("source: {}", report.source);
    if let Some(rate) = report.rate {
        println!("rate: {rate}");
    }
    for rejected in &report.rejected {
        println!("not the {}: {}", rejected.source, rejected.why);
    }

    let start = clock.now_ordered();
    let sum: u64 = (0..1_000_000_u64).map(std::hint::black_box).sum();
    println!(
        "adding a million numbers ({sum}) took {}",
        clock.elapsed_since(start)
    );

    if let Some(pair) = clock.to_realtime() {
        let stamp = pair.at(start).unwrap_or(SystemTime::UNIX_EPOCH);
        println!("it began at {stamp:?}, to within {}", pair.uncertainty);
    }
}
