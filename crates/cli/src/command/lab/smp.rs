//! `chronovisor lab smp`.

use std::fmt::Write;
use std::num::NonZeroU32;

use chronovisor_lab::experiment::smp::{self, Options, Report};
use clap::builder::TypedValueParser;
use schemars::JsonSchema;
use serde::Serialize;

use crate::exit::Exit;
use crate::output;
use crate::progress::Progress;
use crate::provenance::Provenance;
use crate::render::table::table;

/// How long CPUs take to come up when each calibrates its delay loop, copies it from a sibling, or is handed it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many vCPUs to bring up, the boot CPU included
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16", value_parser = clap::value_parser!(u32).range(1..=16))]
    vcpus: Vec<u32>,
    /// NUMA nodes: the first CPU of each calibrates, the others copy
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=16).try_map(NonZeroU32::try_from))]
    numa: NonZeroU32,
    /// The guest's tick rate in Hz
    #[arg(long, default_value = "250", value_parser = clap::value_parser!(u32).range(100..=10_000).try_map(NonZeroU32::try_from))]
    hz: NonZeroU32,
    /// Print one JSON document instead of tables
    #[arg(long)]
    json: bool,
}

/// What `chronovisor lab smp --json` prints.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "chronovisor lab smp --json")]
pub(crate) struct Document {
    /// `chronovisor/lab-smp/1`.
    schema: &'static str,
    /// Where and with what it was measured.
    provenance: Provenance,
    #[serde(flatten)]
    report: Report,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    let backend = super::open()?;
    let options = Options {
        vcpus: args.vcpus.clone(),
        numa: args.numa,
        hz: args.hz,
    };
    let progress = Progress::start();
    let report = smp::run(&backend, &options, &mut |what, share| {
        progress.at(what, share)
    })
    .map_err(super::not_possible)?;
    drop(progress);
    let provenance = super::provenance(&backend);
    if args.json {
        output::json(&Document {
            schema: "chronovisor/lab-smp/1",
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
        "{}; {}; guest tick {} Hz\n",
        provenance.backend, provenance.cpu, report.hz
    );
    let header = [
        "method",
        "vCPUs",
        "NUMA nodes",
        "ms",
        "ms per CPU",
        "worst lpj error, ppm",
    ];
    let mut table = table(&header, 1);
    for row in &report.rows {
        table.add_row([
            row.method.to_owned(),
            row.vcpus.to_string(),
            row.numa.to_string(),
            format!("{:.2}", row.ms),
            format!("{:.2}", row.ms_per_cpu),
            format!("{:.1}", row.worst_lpj_error_ppm),
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
