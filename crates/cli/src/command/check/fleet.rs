//! A stream of bundles: one line a machine, and totals.

use std::thread;

use anyhow::bail;
use chronovisor_diagnose::intake::{Bundle, Bundles};
use chronovisor_diagnose::{Verdict, diagnose};

use super::document::Document;
use super::{Args, exit, one};
use crate::exit::Exit;
use crate::output;
use crate::render;

/// Bundles that are handed to the threads at once.
const BATCH: usize = 512;

/// What became of one bundle.
struct Outcome {
    verdict: Verdict,
    line: String,
}

/// Diagnoses every bundle of the stream. A stream of one is one machine, with the whole report.
///
/// # Errors
///
/// If no bundle in it can be read, the source cannot be saved, or stdout cannot be written.
pub(super) fn run(args: &Args, mut bundles: Bundles, source: &str) -> anyhow::Result<Exit> {
    let Some(first) = first_good(&mut bundles) else {
        bail!(
            "{source}: no bundle in it could be read; a bundle is made by `chronovisor check --save FILE`"
        );
    };
    let Some(second) = first_good(&mut bundles) else {
        return one(args, first.evidence, Document::of_evidence);
    };
    if args.save.is_some() {
        bail!("--save takes one machine, and {source} holds several");
    }
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let mut totals = Totals::default();
    totals.take(args, outcome(args, first)?)?;
    totals.take(args, outcome(args, second)?)?;
    loop {
        let mut batch = Vec::with_capacity(BATCH);
        while batch.len() < BATCH {
            match bundles.next_line() {
                Some(Ok(line)) => batch.push(line),
                Some(Err(error)) => totals.refused(&error),
                None => break,
            }
        }
        if batch.is_empty() {
            break;
        }
        for done in diagnosed(args, &batch, workers) {
            match done {
                Ok(outcome) => totals.take(args, outcome)?,
                Err(error) => totals.refused(&error),
            }
        }
    }
    if args.json {
        anstream::eprintln!("chronovisor: {}", totals.text());
    } else {
        output::text(&format!("{}\n", totals.text()))?;
    }
    Ok(if totals.faults > 0 {
        exit(Verdict::Fault)
    } else {
        Exit::Done
    })
}

/// The next bundle that can be read; the others are named.
fn first_good(bundles: &mut Bundles) -> Option<Bundle> {
    for bundle in bundles {
        match bundle {
            Ok(bundle) => return Some(bundle),
            Err(error) => anstream::eprintln!("chronovisor: {error}"),
        }
    }
    None
}

/// Diagnoses a batch on all threads; the results come in the order of the lines.
fn diagnosed(
    args: &Args,
    batch: &[(u64, Vec<u8>)],
    workers: usize,
) -> Vec<Result<Outcome, String>> {
    let share = batch.len().div_ceil(workers).max(1);
    thread::scope(|scope| {
        let running: Vec<_> = batch
            .chunks(share)
            .map(|chunk| {
                scope.spawn(move || {
                    chunk
                        .iter()
                        .map(|(line, text)| {
                            let bundle = Bundle::parse(text)
                                .map_err(|error| format!("line {line}: {error}"))?;
                            outcome(args, bundle).map_err(|error| format!("line {line}: {error}"))
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        running
            .into_iter()
            .flat_map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| vec![Err("a diagnosis stopped short".to_owned())])
            })
            .collect()
    })
}

fn outcome(args: &Args, bundle: Bundle) -> anyhow::Result<Outcome> {
    let evidence = bundle.evidence;
    let diagnosis = diagnose(&evidence);
    let verdict = diagnosis.verdict;
    let line = if args.json {
        serde_json::to_string(&Document::of_evidence(&evidence, diagnosis))?
    } else {
        render::check::short(evidence.label.as_deref(), &diagnosis)
    };
    Ok(Outcome { verdict, line })
}

#[derive(Default)]
struct Totals {
    machines: u64,
    faults: u64,
    inconclusive: u64,
    refused: u64,
}

impl Totals {
    fn take(&mut self, args: &Args, outcome: Outcome) -> anyhow::Result<()> {
        self.machines += 1;
        match outcome.verdict {
            Verdict::Fault => self.faults += 1,
            Verdict::Inconclusive => self.inconclusive += 1,
            Verdict::NoFault => {}
        }
        let number = if args.json {
            String::new()
        } else {
            format!("{:>6}  ", self.machines)
        };
        output::text(&format!("{number}{}\n", outcome.line))
    }

    fn refused(&mut self, error: &str) {
        self.refused += 1;
        // A broken stream must not bury the rest.
        if self.refused <= 20 {
            anstream::eprintln!("chronovisor: {error}");
        }
    }

    fn text(&self) -> String {
        format!(
            "{} machines: {} with a fault, {} inconclusive, {} without fault{}",
            self.machines,
            self.faults,
            self.inconclusive,
            self.machines - self.faults - self.inconclusive,
            if self.refused > 0 {
                format!("; {} line(s) could not be read", self.refused)
            } else {
                String::new()
            }
        )
    }
}
