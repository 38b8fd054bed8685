//! `bench` for people.

use std::fmt::Write;

use comfy_table::Table;

use super::clock::Path;
use super::document::{Document, Row};
use super::published::SeedRow;
use crate::render::table::table;

/// The whole answer as text.
pub(super) fn render(document: &Document) -> String {
    let mut text = String::new();
    // Writing into a String cannot fail.
    let _ = write_all(&mut text, document);
    text
}

fn write_all(text: &mut String, document: &Document) -> std::fmt::Result {
    let provenance = &document.provenance;
    let counter = &document.counter;
    writeln!(
        text,
        "{} on {}, {}, clock source {}\ncounter {}.{:06} MHz within {} ppb of CLOCK_MONOTONIC_RAW's second\n",
        provenance.cpu,
        provenance.hypervisor,
        provenance.kernel,
        provenance.clock_source,
        counter.hz / 1_000_000,
        counter.hz % 1_000_000,
        counter.error_ppb
    )?;
    let mut counts: Vec<u16> = document.rows.iter().map(|row| row.threads).collect();
    counts.dedup();
    for threads in counts {
        let rows: Vec<&Row> = document
            .rows
            .iter()
            .filter(|row| row.threads == threads)
            .collect();
        let plural = if threads == 1 { "" } else { "s" };
        writeln!(
            text,
            "One read, {threads} thread{plural}\n{}",
            clocks(&rows)
        )?;
        let least = rows.iter().map(|row| row.overlap).fold(1.0, f64::min);
        if least < 0.5 {
            writeln!(
                text,
                "At some clocks the threads ran at once for only {:.0} % of the time: too few CPUs, or busy ones.",
                least * 100.0
            )?;
        }
        writeln!(text)?;
    }
    if !document.unavailable.is_empty() {
        writeln!(text, "Not on this machine")?;
        for missing in &document.unavailable {
            writeln!(text, "  {}: {}", missing.clock, missing.reason)?;
        }
        writeln!(text)?;
    }
    published(text, &document.seed_rows)
}

fn clocks(rows: &[&Row]) -> Table {
    let mut table = table(
        &[
            "clock", "path", "ns", "cycles", "x rdtscp", "moves by", "stalls", "back",
        ],
        2,
    );
    for row in rows {
        let counted = |count: u64| match row.readings {
            0 => "-".to_owned(),
            _ => count.to_string(),
        };
        table.add_row([
            row.clock.to_owned(),
            path(row.path).to_owned(),
            format!("{:.1}", row.ns),
            format!("{:.1}", row.cycles),
            row.ratio_to_rdtscp
                .map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            row.resolution_ns.map_or("-".to_owned(), step),
            counted(row.stalls),
            counted(row.regressions),
        ]);
    }
    table
}

/// Machine by machine, as the rows stand.
fn published(text: &mut String, rows: &[SeedRow]) -> std::fmt::Result {
    writeln!(text, "Published by others, of other machines")?;
    let mut last = None;
    for row in rows {
        let machine = (row.machine, row.source);
        if last.replace(machine) != Some(machine) {
            writeln!(text, "  {} ({})", row.machine, row.source)?;
        }
        let threads = match row.threads {
            1 => String::new(),
            threads => format!(", {threads} threads"),
        };
        let figure = |figure: Option<f64>, unit: &str| {
            figure.map_or(String::new(), |figure| format!("{figure} {unit}"))
        };
        let line = format!(
            "    {:58}{:>10}  {:>11}",
            format!("{}{threads}", row.read),
            figure(row.ns, "ns"),
            figure(row.cycles, "cycles")
        );
        writeln!(text, "{}", line.trim_end())?;
    }
    Ok(())
}

const fn path(path: Path) -> &'static str {
    match path {
        Path::Instruction => "instruction",
        Path::Page => "page",
        Path::Vdso => "vDSO",
        Path::SystemCall => "system call",
        Path::Trap => "trap",
        Path::Exit => "exit",
    }
}

fn step(ns: f64) -> String {
    if ns >= 1e6 {
        format!("{:.1} ms", ns / 1e6)
    } else if ns >= 1e4 {
        format!("{:.1} us", ns / 1e3)
    } else if ns < 1.0 {
        format!("{ns:.2} ns")
    } else {
        format!("{ns:.0} ns")
    }
}
