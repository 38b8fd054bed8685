//! `chronovisor lab migrate`.

use std::fmt::Write;
use std::time::Duration;

use chronovisor_lab::experiment::migrate::{self, Options, Policy, Report};
use schemars::JsonSchema;
use serde::Serialize;

use crate::exit::Exit;
use crate::output;
use crate::progress::Progress;
use crate::provenance::Provenance;
use crate::render::table::table;

/// Moves a guest that reads every clock from VM to VM: what its vCPUs see go back, and whether each policy does what it says
#[derive(clap::Args)]
pub(crate) struct Args {
    /// vCPUs, all of which read
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    vcpus: u32,
    /// Moves under each policy
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// How long the saved state waits at each move, in ms, besides what the move takes
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3000))]
    pause: u64,
    /// What the guest's clocks do during the downtime; all of them if not given
    #[arg(long, value_enum, value_delimiter = ',')]
    policy: Vec<PolicyName>,
    /// Print one JSON document instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PolicyName {
    /// They stand
    Stop,
    /// They go on
    Advance,
    /// Counter and pvclock go on, reference time stands
    PerEncoding,
}

/// What `chronovisor lab migrate --json` prints.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "chronovisor lab migrate --json")]
pub(crate) struct Document {
    /// `chronovisor/lab-migrate/1`.
    schema: &'static str,
    /// Where and with what it was measured.
    provenance: Provenance,
    #[serde(flatten)]
    report: Report,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    let backend = super::open()?;
    let policies = args.policy.iter().map(|policy| match policy {
        PolicyName::Stop => Policy::Stop,
        PolicyName::Advance => Policy::Advance,
        PolicyName::PerEncoding => Policy::PerEncoding,
    });
    let policies = if args.policy.is_empty() {
        Policy::ALL.to_vec()
    } else {
        policies.collect()
    };
    let options = Options {
        vcpus: args.vcpus,
        count: args.count,
        pause: Duration::from_millis(args.pause),
        policies,
        ..Options::default()
    };
    let progress = Progress::start();
    let report = migrate::run(&backend, &options, &mut |what, share| {
        progress.at(what, share)
    })
    .map_err(super::not_possible)?;
    drop(progress);
    let exit = if report.holds() {
        Exit::Done
    } else {
        Exit::Fault
    };
    let provenance = super::provenance(&backend);
    if args.json {
        output::json(&Document {
            schema: "chronovisor/lab-migrate/1",
            provenance,
            report,
        })?;
    } else {
        output::text(&render(&provenance, &report))?;
    }
    Ok(exit)
}

fn render(provenance: &Provenance, report: &Report) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = writeln!(
        text,
        "{}; {}; {} vCPUs; destination: {}\n",
        provenance.backend, provenance.cpu, report.vcpus, report.destination
    );
    let header = [
        "policy",
        "moves",
        "live updates",
        "mean downtime ms",
        "longest ms",
        "longest transfer ms",
        "state bytes",
        "largest TSC jump",
    ];
    let mut by_policy = table(&header, 1);
    for moves in &report.moves {
        by_policy.add_row([
            name(moves.policy).to_owned(),
            moves.count.to_string(),
            moves.live_updates.to_string(),
            format!("{:.2}", moves.mean_downtime_ms),
            format!("{:.2}", moves.longest_downtime_ms),
            format!("{:.2}", moves.longest_transfer_ms),
            moves.state_bytes.to_string(),
            moves.largest_tsc_jump.to_string(),
        ]);
    }
    let _ = writeln!(text, "{by_policy}\n");
    let header = [
        "policy",
        "clock",
        "reads",
        "went back",
        "largest step us",
        "largest gap us",
        "least on a vCPU",
        "allowed us",
    ];
    let mut by_clock = table(&header, 2);
    for row in &report.rows {
        by_clock.add_row([
            name(row.policy).to_owned(),
            row.clock.to_owned(),
            row.reads.to_string(),
            row.steps_back.to_string(),
            format!("{:.1}", row.largest_step_us),
            format!("{:.1}", row.largest_gap_us),
            format!("{:.1}", row.least_gap_us),
            row.allowed_gap_us
                .map_or_else(String::new, |[least, most]| {
                    format!("{least:.0} to {most:.0}")
                }),
        ]);
    }
    let verdict = if report.holds() {
        "No clock of ours stepped back, and at each move ours did what the policy says."
    } else {
        "A CLOCK STEPPED BACK, OR DID NOT DO WHAT THE POLICY SAYS."
    };
    let _ = writeln!(text, "{by_clock}\n{verdict}");
    text
}

const fn name(policy: Policy) -> &'static str {
    match policy {
        Policy::Stop => "stop",
        Policy::Advance => "advance",
        Policy::PerEncoding => "per-encoding",
    }
}
