//! `chronovisor bench`: what one read of each clock costs on this machine.

mod clock;
mod document;
mod published;
mod rounds;
mod table;
mod together;

use std::thread;
use std::time::Duration;

use chronovisor_abi::quantity::Hertz;
use chronovisor_probe::cpus;
use chronovisor_probe::rate::{MeasuredRate, Sample, tsc_rate};

use crate::exit::{Exit, NotPossibleHere};
use crate::output;
use crate::provenance::Provenance;
use document::{Counter, Document, SCHEMA};

/// Measures what one read of each clock costs: counter instructions, clock pages, vDSO, system call, trap and exit, side by side
///
/// All clocks are read in turn in short batches, round after round, on pinned threads, so that a busy neighbour slows all of them alike; the
/// median batch counts. Ratios inside one run are what to compare; a clock that this machine does not have is named with the reason.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// How many threads read at once, each on a CPU of its own; each number gets a table of its own
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Seconds of measuring for each number of threads
    #[arg(long, default_value_t = 2.5, value_parser = seconds)]
    seconds: f64,
    /// Print one JSON document instead of tables
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  chronovisor bench                    one thread
  chronovisor bench --threads 1,2,4    how each clock scales over CPUs
  chronovisor bench --json > bench.json

Columns: `ns` and `cycles` of the counter for one read, `x rdtscp` against the ordered counter instruction in the same run,
`moves by` the clock's resolution as seen, `stalls` and `back` successive readings of one thread that were equal or went back.";

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.01 to 600".to_owned()),
    }
}

/// Measures and prints.
///
/// # Errors
///
/// If a thread cannot be started, the counter's rate cannot be told, or stdout cannot be written.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    let first = sample()?;
    let (clocks, unavailable) = clock::clocks(quick_rate(&first)?);
    let allowed = cpus::allowed().unwrap_or_default();
    let mut threads: Vec<u16> = Vec::new();
    for count in &args.threads {
        if !threads.contains(count) {
            threads.push(*count);
        }
    }
    let measured = rounds::measure(
        &clocks,
        &threads,
        Duration::from_secs_f64(args.seconds),
        &allowed,
    )?;
    let rate = rate_since(&first)?;
    let document = Document {
        schema: SCHEMA,
        provenance: Provenance::here("host"),
        counter: Counter::new(&rate),
        rows: document::rows(&clocks, &measured, rate.hertz),
        unavailable,
        seed_rows: published::rows(),
    };
    if args.json {
        output::json(&document)?;
    } else {
        output::text(&table::render(&document))?;
    }
    Ok(Exit::Done)
}

fn sample() -> anyhow::Result<Sample> {
    Ok(Sample::take().ok_or_else(|| no_rate("CLOCK_MONOTONIC_RAW is refused"))?)
}

/// The counter's rate, good enough for a page that only this program reads.
fn quick_rate(first: &Sample) -> anyhow::Result<Hertz> {
    thread::sleep(Duration::from_millis(20));
    Ok(rate_since(first)?.hertz)
}

fn rate_since(first: &Sample) -> anyhow::Result<MeasuredRate> {
    let second = sample()?;
    Ok(tsc_rate(first.raw(), second.raw()).ok_or_else(|| no_rate("the counter went back"))?)
}

fn no_rate(why: &str) -> NotPossibleHere {
    NotPossibleHere {
        what: "bench".to_owned(),
        missing: format!("the counter's rate cannot be measured: {why}"),
    }
}
