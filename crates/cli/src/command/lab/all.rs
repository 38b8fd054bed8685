//! `chronovisor lab all`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use chronovisor_lab::experiment::all::{self, Line, Report, Size};
use comfy_table::CellAlignment;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::exit::Exit;
use crate::output;
use crate::progress::Progress;
use crate::provenance::Provenance;
use crate::render::table::table;

/// Every experiment in one run, and one table beside the published figures
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Small: a few seconds, to see that everything works
    #[arg(long)]
    quick: bool,
    /// vCPUs of the guests that read the clocks at once and that are moved
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    vcpus: u32,
    /// Add the rows of another run's JSON, e.g. one from scripts/nested: all that have a figure. One of ours without gives way
    #[arg(long, value_name = "FILE")]
    also: Vec<PathBuf>,
    /// Print one JSON document instead of tables
    #[arg(long)]
    json: bool,
}

/// What `chronovisor lab all --json` prints.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "chronovisor lab all --json")]
pub(crate) struct Document {
    /// `chronovisor/lab-all/1`.
    schema: &'static str,
    /// Where and with what it was measured.
    provenance: Provenance,
    #[serde(flatten)]
    report: Report,
}

/// What is read of another run's document.
#[derive(Deserialize)]
struct Other {
    schema: String,
    rows: Vec<Line>,
}

const SCHEMA: &str = "chronovisor/lab-all/1";

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    // Before the run, which takes a while.
    let others = args
        .also
        .iter()
        .map(read)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let backend = super::open()?;
    let progress = Progress::start();
    let size = if args.quick { Size::Small } else { Size::Usual };
    let mut report = all::run(&backend, size, args.vcpus, &mut |what, share| {
        progress.at(what, share)
    })
    .map_err(super::not_possible)?;
    drop(progress);
    for line in others.into_iter().flatten() {
        merge(&mut report.rows, line);
    }
    let exit = if report.holds() {
        Exit::Done
    } else {
        Exit::Fault
    };
    let provenance = super::provenance(&backend);
    if args.json {
        output::json(&Document {
            schema: SCHEMA,
            provenance,
            report,
        })?;
    } else {
        output::text(&render(&provenance, &report))?;
    }
    Ok(exit)
}

fn read(path: impl AsRef<Path>) -> anyhow::Result<Vec<Line>> {
    let path = path.as_ref();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let other: Other = serde_json::from_str(&text)
        .with_context(|| format!("{} is no document of `lab all --json`", path.display()))?;
    anyhow::ensure!(
        other.schema == SCHEMA,
        "{} has schema {}, not {SCHEMA}",
        path.display(),
        other.schema
    );
    Ok(other.rows)
}

/// Puts `line` behind the last line of its system; a line that has no figure here gives way.
fn merge(rows: &mut Vec<Line>, line: Line) {
    if line.value.is_none() {
        return;
    }
    rows.retain(|row| row.value.is_some() || row.what != line.what || row.system != line.system);
    let at = rows
        .iter()
        .rposition(|row| row.system <= line.system)
        .map_or(0, |last| last + 1);
    rows.insert(at, line);
}

fn render(provenance: &Provenance, report: &Report) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = writeln!(text, "{}; {}\n", provenance.backend, provenance.cpu);
    let header = ["", "what", "measured", "unit", "published", "backend"];
    let mut table = table(&header, 6);
    let mut notes = Vec::new();
    for row in &report.rows {
        let measured = match (row.value, &row.why_not) {
            (Some(value), _) => number(value),
            (None, why) => {
                let why = why.clone().unwrap_or_default();
                let known = notes.iter().position(|note| *note == why);
                let at = known.unwrap_or_else(|| {
                    notes.push(why);
                    notes.len() - 1
                });
                format!("[{}]", at + 1)
            }
        };
        table.add_row([
            row.system.clone(),
            row.what.clone(),
            measured,
            row.unit.clone(),
            row.published.map_or_else(String::new, number),
            row.backend.clone(),
        ]);
    }
    for column in [2, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let _ = writeln!(text, "{table}");
    for (at, note) in (1..).zip(notes) {
        let _ = writeln!(text, "  [{at}] {note}");
    }
    let verdict = if report.holds() {
        "The clocks agree; none of ours stepped back, and at each move ours did what the policy says."
    } else {
        "A CLOCK DISAGREES, STEPPED BACK, OR DID NOT DO WHAT THE POLICY SAYS."
    };
    let _ = writeln!(text, "{verdict}");
    text
}

fn number(value: f64) -> String {
    if value == value.trunc() {
        format!("{value:.0}")
    } else if value.abs() < 10.0 {
        format!("{value:.3}")
    } else {
        format!("{value:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(system: &str, what: &str, value: Option<f64>) -> Line {
        Line {
            system: system.into(),
            what: what.into(),
            value,
            why_not: None,
            unit: "cycles".into(),
            published: None,
            backend: "test".into(),
        }
    }

    #[test]
    fn a_row_from_elsewhere_takes_the_place_of_one_without_a_figure() {
        let mut rows = vec![
            line("S1", "a", Some(1.0)),
            line("S6", "trap", None),
            line("S7", "b", Some(2.0)),
        ];
        merge(&mut rows, line("S6", "trap", Some(9.0)));
        merge(&mut rows, line("S1", "a", Some(3.0)));
        merge(&mut rows, line("S7", "c", None));
        let found: Vec<_> = rows
            .iter()
            .map(|row| (row.system.as_str(), row.value))
            .collect();
        assert_eq!(
            found,
            [
                ("S1", Some(1.0)),
                ("S1", Some(3.0)),
                ("S6", Some(9.0)),
                ("S7", Some(2.0))
            ]
        );
    }
}
