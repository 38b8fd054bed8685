//! `chronovisor lab timers`.

use std::fmt::Write;

use chronovisor_lab::experiment::timers::{self, Load, Options, Policy, Report, Row};
use schemars::JsonSchema;
use serde::Serialize;

use crate::exit::Exit;
use crate::output;
use crate::progress::Progress;
use crate::provenance::Provenance;
use crate::render::table::table;

/// 1 ms ticks of local APIC timers: KVM's in-kernel APIC and ours in user space, each mode
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many vCPUs tick at once, each with a timer of its own; each number gets rows of its own
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=16))]
    vcpus: Vec<u32>,
    /// Also with two busy threads on each CPU of this machine
    #[arg(long)]
    stress: bool,
    /// Every lost-tick policy and 150 000 ticks a row: takes 20 minutes a load
    #[arg(long, conflicts_with = "ticks")]
    full: bool,
    /// Ticks of each row, on each vCPU
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(3..=200_000))]
    ticks: u64,
    /// Print one JSON document instead of tables
    #[arg(long)]
    json: bool,
}

/// What `chronovisor lab timers --json` prints.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "chronovisor lab timers --json")]
pub(crate) struct Document {
    /// `chronovisor/lab-timers/1`.
    schema: &'static str,
    /// Where and with what it was measured.
    provenance: Provenance,
    #[serde(flatten)]
    report: Report,
}

const FULL_TICKS: u64 = 150_000;

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    let backend = super::open()?;
    let loads = if args.stress {
        vec![Load::Idle, Load::Stress]
    } else {
        vec![Load::Idle]
    };
    let (ticks, policies) = if args.full {
        (FULL_TICKS, Policy::ALL.to_vec())
    } else {
        (args.ticks, Options::default().policies)
    };
    let options = Options {
        ticks,
        vcpus: args.vcpus.clone(),
        loads,
        policies,
    };
    let progress = Progress::start();
    let report = timers::run(&backend, &options, &mut |what, share| {
        progress.at(what, share)
    })
    .map_err(super::not_possible)?;
    drop(progress);
    let provenance = super::provenance(&backend);
    if args.json {
        output::json(&Document {
            schema: "chronovisor/lab-timers/1",
            provenance,
            report,
        })?;
    } else {
        output::text(&render(&provenance, &report))?;
    }
    Ok(Exit::Done)
}

type Percentile = fn(&Row) -> Option<f64>;

fn render(provenance: &Provenance, report: &Report) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = writeln!(
        text,
        "{}; {}; ticks of {:.0} us\n",
        provenance.backend, provenance.cpu, report.period_us
    );
    // Rare values of a short run would be its maximum under another name.
    let rare: Vec<(&str, Percentile)> = [
        ("p99.9 us", (|row| row.p99_9_us) as Percentile),
        ("p99.99 us", |row| row.p99_99_us),
    ]
    .into_iter()
    .filter(|(_, value)| report.rows.iter().any(|row| value(row).is_some()))
    .collect();
    let mut header = vec![
        "APIC",
        "timer",
        "policy",
        "load",
        "vCPUs",
        "ticks",
        "min us",
        "mean us",
        "max us",
        "deviation us",
        "p99 us",
    ];
    header.extend(rare.iter().map(|(name, _)| *name));
    header.push("lost");
    let mut table = table(&header, 4);
    let us = |us: Option<f64>| us.map_or_else(String::new, |us| format!("{us:.1}"));
    for row in &report.rows {
        let mut cells = vec![
            row.apic.to_owned(),
            row.timer.to_owned(),
            row.policy.unwrap_or_default().to_owned(),
            match row.load {
                Load::Idle => "idle".to_owned(),
                Load::Stress => "stress".to_owned(),
            },
            row.vcpus.to_string(),
            (row.intervals + u64::from(row.vcpus)).to_string(),
            us(Some(row.min_us)),
            us(Some(row.mean_us)),
            us(Some(row.max_us)),
            us(Some(row.deviation_us)),
            us(row.p99_us),
        ];
        cells.extend(rare.iter().map(|(_, value)| us(value(row))));
        cells.push(row.lost.map_or_else(String::new, |lost| lost.to_string()));
        table.add_row(cells);
    }
    let _ = writeln!(text, "{table}\n\nPublished:");
    for seed in report.seed_rows {
        let _ = writeln!(
            text,
            "  {}: {} {} ({})",
            seed.clock, seed.value, seed.unit, seed.source
        );
    }
    text
}
