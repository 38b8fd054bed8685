//! `chronovisor lab clocks`.

use std::fmt::Write;

use chronovisor_lab::experiment::beside::Beside;
use chronovisor_lab::experiment::clocks::{self, KvmHyperv, Options, Report, Row};
use comfy_table::Table;
use schemars::JsonSchema;
use serde::Serialize;

use crate::exit::Exit;
use crate::output;
use crate::progress::Progress;
use crate::provenance::Provenance;
use crate::render::table::table;

/// Cost of one read of each clock in ring 3 and ring 0, and whether clocks that must agree do
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many vCPUs read at once; each number gets a table of its own
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u32).range(1..=16))]
    vcpus: Vec<u32>,
    /// Also put another implementation of a clock beside ours, in one guest
    #[arg(long, value_enum)]
    enlighten: Option<Enlighten>,
    /// Print one JSON document instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Enlighten {
    /// KVM's own in-kernel Hyper-V clock; needs a KVM that has one, as scripts/nested gives it
    KvmHyperv,
}

/// What `chronovisor lab clocks --json` prints.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "chronovisor lab clocks --json")]
pub(crate) struct Document {
    /// `chronovisor/lab-clocks/1`.
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
        kvm_hyperv: match args.enlighten {
            Some(Enlighten::KvmHyperv) => KvmHyperv::Compared,
            None => KvmHyperv::Absent,
        },
        ..Options::default()
    };
    let progress = Progress::start();
    let report = clocks::run(&backend, &options, &mut |what, share| {
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
            schema: "chronovisor/lab-clocks/1",
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
        "{}; {}; guest TSC {:.3} MHz",
        provenance.backend,
        provenance.cpu,
        mhz(report.tsc_hz)
    );
    let mut vcpus: Vec<u32> = report.rows.iter().map(|row| row.vcpus).collect();
    vcpus.dedup();
    for vcpus in vcpus {
        let how = match vcpus {
            1 => "1 vCPU, quickest round".to_owned(),
            _ if report.runs_at_once(vcpus) => format!("{vcpus} vCPUs at once, median round"),
            _ => format!(
                "{vcpus} vCPUs in turns (CPUs of this host: {}), median round",
                report.host_cpus
            ),
        };
        let _ = writeln!(text, "\nOne read, {how}:");
        let _ = writeln!(text, "{}", costs(report, vcpus));
    }
    let _ = writeln!(text, "\nRatios:\n{}", ratios(report));
    let _ = writeln!(text, "\n{}", agreement(report));
    if let Some(first) = report.sched_clock_first_ns {
        let _ = writeln!(
            text,
            "\nScheduler's clock at its first read, the guest's first act: {first} ns"
        );
    }
    for warning in &report.warnings {
        let _ = writeln!(
            text,
            "\nWarning {}: {}: {}. Try {}.",
            warning.code, warning.seen, warning.means, warning.remedy
        );
    }
    if let Some(beside) = &report.beside {
        let _ = writeln!(
            text,
            "\nKVM's own Hyper-V clock beside ours:\n{}",
            both(beside)
        );
    }
    text
}

fn both(beside: &Beside) -> String {
    let header = [
        "page",
        "sequence",
        "scale",
        "offset, 100 ns",
        "rate error, ppb",
        "frequency MSR, Hz",
        "brackets",
        "violated",
    ];
    let mut table = table(&header, 1);
    for side in &beside.sides {
        table.add_row([
            side.who.to_owned(),
            side.sequence.to_string(),
            format!("{:#018x}", side.scale),
            side.offset_100ns.to_string(),
            format!("{:.6}", side.rate_error_ppb),
            side.frequency_msr_hz.to_string(),
            side.brackets.to_string(),
            side.violations.to_string(),
        ]);
    }
    format!(
        "{table}\nOurs less KVM's at one counter value: {} to {} ns over {} comparisons\n{}",
        beside.difference_min_ns,
        beside.difference_max_ns,
        beside.compared,
        verdict(beside.holds())
    )
}

const fn verdict(holds: bool) -> &'static str {
    if holds { "holds" } else { "VIOLATED" }
}

#[allow(clippy::cast_precision_loss, reason = "a rate for the eye")]
fn mhz(hz: u64) -> f64 {
    hz as f64 / 1e6
}

fn costs(report: &Report, vcpus: u32) -> String {
    let header = [
        "clock",
        "ring 3 cycles",
        "ns",
        "ring 0 cycles",
        "ns",
        "published",
    ];
    let mut table = table(&header, 1);
    let mut clocks: Vec<&str> = Vec::new();
    for row in report.rows.iter().filter(|row| row.vcpus == vcpus) {
        if !clocks.contains(&row.clock) {
            clocks.push(row.clock);
        }
    }
    let mut notes: Vec<String> = Vec::new();
    for clock in clocks {
        let find = |ring| {
            report
                .rows
                .iter()
                .find(|row| row.clock == clock && row.vcpus == vcpus && row.ring == ring)
        };
        let mut cells = vec![clock.to_owned()];
        for ring in [3, 0] {
            cells.extend(find(ring).map_or_else(
                || ["".to_owned(), "".to_owned()],
                |row| figures(row, &mut notes),
            ));
        }
        let published: Vec<String> = report
            .seed_rows
            .iter()
            .filter(|seed| seed.clock == clock)
            .map(|seed| format!("{} {}", seed.value, seed.unit))
            .collect();
        cells.push(published.join("; "));
        table.add_row(cells);
    }
    let mut text = table.to_string();
    for (number, note) in (1..).zip(notes) {
        let _ = write!(text, "\n  [{number}] {note}");
    }
    text
}

fn figures(row: &Row, notes: &mut Vec<String>) -> [String; 2] {
    match (row.cycles, row.ns, &row.why_not) {
        (Some(cycles), Some(ns), _) if row.at_once => [format!("{cycles:.1}"), format!("{ns:.1}")],
        (Some(cycles), Some(ns), _) => {
            let note = note(notes, "in turns: some vCPU stood still meanwhile");
            [format!("{note} {cycles:.1}"), format!("{ns:.1}")]
        }
        (_, _, Some(why)) => [note(notes, why), String::new()],
        _ => [String::new(), String::new()],
    }
}

/// The number of `text` among the notes, as the table shows it.
fn note(notes: &mut Vec<String>, text: &str) -> String {
    let known = notes.iter().position(|note| note == text);
    let number = known.unwrap_or_else(|| {
        notes.push(text.to_owned());
        notes.len() - 1
    });
    format!("[{}]", number + 1)
}

fn ratios(report: &Report) -> Table {
    let header = ["ratio", "ring", "vCPUs", "measured", "published"];
    let mut table = table(&header, 1);
    for ratio in &report.ratios {
        table.add_row([
            ratio.name.to_owned(),
            ratio.ring.to_string(),
            ratio.vcpus.to_string(),
            format!("{:.3}", ratio.ratio),
            ratio.seed.map_or_else(String::new, |seed| seed.to_string()),
        ]);
    }
    table
}

fn agreement(report: &Report) -> String {
    let mut text = String::from("Agreement:");
    for agreement in &report.agreement {
        let _ = write!(
            text,
            "\n  {} vCPU: page <= MSR <= page violated {} of {} times; ",
            agreement.vcpus, agreement.bracket_violations, agreement.brackets,
        );
        let _ = match (
            agreement.pvclock_less_page_min_ns,
            agreement.pvclock_less_page_max_ns,
        ) {
            (Some(min), Some(max)) => write!(
                text,
                "pvclock less page {min} to {max} ns over {} comparisons",
                agreement.compared
            ),
            _ => write!(text, "pvclock and page were never compared"),
        };
        for across in &agreement.across_vcpus {
            let _ = write!(
                text,
                "\n    {}: {} of {} reads stepped back (largest {} ns), {} gave no time",
                across.clock,
                across.steps_back,
                across.reads,
                across.largest_step_ns,
                across.failed_reads
            );
        }
        let _ = write!(text, "\n    {}", verdict(agreement.holds()));
    }
    text
}
