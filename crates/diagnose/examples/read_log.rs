//! Reads a kernel log and says how many events it holds: the streaming reader alone, for measuring it.
//!
//! `cargo run --release -p chronovisor-diagnose --example read_log -- FILE`

use std::fs::File;
use std::time::Instant;

use chronovisor_diagnose::intake::log;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    let started = Instant::now();
    let reading = log::read(File::open(path)?)?;
    let kept: usize = reading
        .log
        .boots
        .iter()
        .map(|boot| boot.events.iter().count())
        .sum();
    println!(
        "{} lines, {} boots, {kept} events kept, {:.3} s",
        reading.log.lines,
        reading.log.boots.len(),
        started.elapsed().as_secs_f64()
    );
    Ok(())
}
