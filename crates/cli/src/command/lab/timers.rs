//! `chronovisor lab timers`.

use std::fmt::Write;

use chronovisor_lab::experiment::timers::{self, Load, Options, Policy, Report};
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
    #[arg(long, value_delimiter = ',', default_value = "1")]
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

fn render(provenance: &Provenance, report: &Report) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = writeln!(
        text,
        "{}; {}; ticks of {:.0} us\n",
        provenance.backend, provenance.cpu, report.period_us
    );
    let header = [
        "APIC",
        "timer",
        "policy",
        "load",
        "vCPUs",
        "ticks",
        "min us",
        "mean",
        "max",
        "deviation",
        "p99",
        "lost",
    ];
    let mut table = table(&header, 4);
    for row in &report.rows {
        table.add_row([
            row.apic.to_owned(),
            row.timer.to_owned(),
            row.policy.unwrap_or_default().to_owned(),
            match row.load {
                Load::Idle => "idle".to_owned(),
                Load::Stress => "stress".to_owned(),
            },
            row.vcpus.to_string(),
            (row.intervals + u64::from(row.vcpus)).to_string(),
            format!("{:.1}", row.min_us),
            format!("{:.1}", row.mean_us),
            format!("{:.1}", row.max_us),
            format!("{:.1}", row.deviation_us),
            row.p99_us
                .map_or_else(String::new, |p99| format!("{p99:.1}")),
            row.lost.map_or_else(String::new, |lost| lost.to_string()),
        ]);
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
