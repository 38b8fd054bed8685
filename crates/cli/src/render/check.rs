//! The report of `check` for people.

use std::fmt::Write;

use chronovisor_diagnose::code::Severity;
use chronovisor_diagnose::evidence::{FrequencyOrigin, ReadPath};
use chronovisor_diagnose::report::Machine;
use chronovisor_diagnose::report::timeline::{BootTimeline, TimelineEvent};
use chronovisor_diagnose::{Code, Diagnosis, Finding, Verdict, catalogue};
use comfy_table::{CellAlignment, Table, presets};

use crate::command::check::Document;

/// Width that texts are wrapped to.
const WIDTH: usize = 110;

/// Events of a timeline that are shown without being asked for.
const FEW_EVENTS: usize = 10;

/// Colours, written always; the output strips them where stdout shows none.
const BOLD: &str = "\u{1b}[1m";
const DIM: &str = "\u{1b}[2m";
const RED: &str = "\u{1b}[1;31m";
const YELLOW: &str = "\u{1b}[33m";
const GREEN: &str = "\u{1b}[32m";
const PLAIN: &str = "\u{1b}[0m";

/// The whole report of one machine.
pub(crate) fn report(document: &Document, whole_timeline: bool) -> String {
    let mut text = String::new();
    machine(&mut text, document);
    clocks(&mut text, document);
    timelines(&mut text, &document.timeline, whole_timeline);
    for finding in &document.findings {
        text.push('\n');
        finding_text(&mut text, finding);
    }
    text.push('\n');
    verdict(&mut text, document);
    text
}

/// One machine of many, in one line.
pub(crate) fn short(label: Option<&str>, diagnosis: &Diagnosis) -> String {
    let colour = colour(diagnosis.verdict);
    let codes: Vec<&str> = diagnosis
        .findings
        .iter()
        .map(|finding| finding.code.name())
        .collect();
    format!(
        "{colour}{:<12}{PLAIN}  {}{}",
        diagnosis.verdict.to_string(),
        label.map_or(String::new(), |label| format!("{label}  ")),
        codes.join(" ")
    )
    .trim_end()
    .to_owned()
}

/// Every code with its meaning.
pub(crate) fn codes() -> String {
    let width = Code::ALL
        .iter()
        .map(|code| code.name().len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for code in Code::ALL {
        let meaning = wrap(catalogue::entry(*code).meaning, width + 2);
        let _ = writeln!(text, "{BOLD}{:<width$}{PLAIN}  {meaning}", code.name());
    }
    text.push_str("\n`chronovisor check --explain CODE` says how it is told and what to do.\n");
    text
}

const fn colour(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Fault => RED,
        Verdict::Inconclusive => YELLOW,
        Verdict::NoFault => GREEN,
    }
}

/// `text` in lines of at most [`WIDTH`], all but the first indented.
fn wrap(text: &str, indent: usize) -> String {
    let mut wrapped = String::new();
    let mut column = indent;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > WIDTH {
            let _ = write!(wrapped, "\n{:indent$}", "");
            column = indent;
        } else if column > indent {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += length;
    }
    wrapped
}

fn row(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "{DIM}{name:<15}{PLAIN}{}", wrap(value, 15));
}

fn machine(text: &mut String, document: &Document) {
    let machine = &document.machine;
    if let Some(label) = &machine.label {
        row(text, "machine", label);
    }
    if let Some(cpu) = &machine.cpu {
        let count = machine
            .cpus
            .map_or(String::new(), |cpus| format!(", {cpus} CPU(s)"));
        let invariant = match machine.invariant_tsc {
            Some(true) => ", invariant TSC",
            Some(false) => ", no invariant TSC",
            None => "",
        };
        row(text, "processor", &format!("{cpu}{count}{invariant}"));
    }
    if !machine.hypervisors.is_empty() {
        row(text, "hypervisor", &machine.hypervisors.join("; "));
    }
    if let Some(kernel) = &machine.kernel {
        row(text, "kernel", kernel);
    }
    if let Some(current) = &machine.clock_source {
        let others = if machine.available_clock_sources.is_empty() {
            String::new()
        } else {
            format!(
                " (available: {})",
                machine.available_clock_sources.join(" ")
            )
        };
        row(text, "clock source", &format!("{current}{others}"));
    }
    pages(text, machine);
    if let Some(wall_clock) = &document.wall_clock {
        row(text, "wall clock", &wall_clock.summary);
    }
    frequencies(text, machine);
}

fn pages(text: &mut String, machine: &Machine) {
    if let Some(vdso) = &machine.vdso {
        row(text, "vDSO reads", &vdso.mode);
    }
    if let Some(record) = &machine.pvclock {
        let mut line = format!(
            "version {}, mul {}, shift {}, flags {:#x}{}",
            record.version,
            record.mul,
            record.shift,
            record.flags,
            if record.flags & 1 == 1 {
                " (stable)"
            } else {
                " (not stable)"
            },
        );
        if let Some(hz) = record.implied {
            let _ = write!(line, ", implies {} MHz", mhz(hz.numerator, hz.denominator));
        }
        if let Some(offset) = record.offset_boottime_ns {
            let _ = write!(line, "; {offset:+} ns from BOOTTIME");
        }
        if let Some(drift) = record.drift_boottime_ppb {
            let _ = write!(line, " drifting {drift:+} ppb");
        }
        if let Some(offset) = record.offset_monotonic_raw_ns {
            let _ = write!(line, "; {offset:+} ns from MONOTONIC_RAW");
        }
        if let Some(drift) = record.drift_monotonic_raw_ppb {
            let _ = write!(line, " drifting {drift:+} ppb");
        }
        if let Some(error) = record.drift_error_ppb {
            let _ = write!(line, " (drifts to {error} ppb)");
        }
        row(text, "pvclock page", &line);
    }
    if let Some(page) = &machine.reference_page {
        let number = |value: Option<String>| value.unwrap_or_else(|| "?".to_owned());
        row(
            text,
            "reference page",
            &format!(
                "sequence {}, scale {}, offset {}",
                number(page.sequence.map(|v| format!("{v:#x}"))),
                number(page.scale.map(|v| format!("{v:#x}"))),
                number(page.offset_100ns.map(|v| v.to_string())),
            ),
        );
    }
    if let Some(page) = &machine.vmclock {
        row(
            text,
            "VMClock",
            &format!(
                "{}, sequence {}, disruption marker {}",
                page.device, page.seq_count, page.disruption_marker
            ),
        );
    }
}

/// A fraction of hertz in MHz with six decimals, rounded down.
fn mhz(numerator: u64, denominator: u64) -> String {
    let hz = u128::from(numerator) / u128::from(denominator.max(1));
    format!("{}.{:06}", hz / 1_000_000, hz % 1_000_000)
}

fn frequencies(text: &mut String, machine: &Machine) {
    if machine.frequencies.is_empty() {
        return;
    }
    let mut table = plain_table();
    table.set_header(["TSC frequency from", "MHz", "ppm", "known to ppm", ""]);
    for row in &machine.frequencies {
        table.add_row([
            row.channel.clone(),
            format!("{:.6}", row.hz / 1e6),
            format!("{:+.3}", row.ppm_from_first),
            format!("{:.3}", row.error_ppm),
            match row.origin {
                FrequencyOrigin::Declared => "declared".to_owned(),
                FrequencyOrigin::Measured => "measured".to_owned(),
            },
        ]);
    }
    right(&mut table, &[1, 2, 3]);
    let _ = writeln!(text, "\n{table}");
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

fn clocks(text: &mut String, document: &Document) {
    if document.clocks.is_empty() {
        return;
    }
    let mut table = plain_table();
    table.set_header([
        "clock",
        "by",
        "ns",
        "cycles",
        "moves by ns",
        "stalls",
        "back",
    ]);
    let number = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
    for clock in &document.clocks {
        table.add_row([
            clock.clock.clone(),
            match clock.path {
                ReadPath::Rdtsc => "instruction",
                ReadPath::Page => "page",
                ReadPath::Vdso => "vDSO",
                ReadPath::Syscall => "system call",
                ReadPath::Msr => "MSR (exit)",
            }
            .to_owned(),
            format!("{:.1}", clock.ns_per_read),
            clock
                .cycles
                .map_or(String::new(), |cycles| format!("{cycles:.1}")),
            number(clock.resolution_ns),
            number(clock.stalls),
            number(clock.regressions),
        ]);
    }
    right(&mut table, &[2, 3, 4, 5, 6]);
    let _ = writeln!(text, "\n{table}");
}

fn timelines(text: &mut String, boots: &[BootTimeline], whole: bool) {
    for (i, boot) in boots.iter().enumerate() {
        if boot.events.is_empty() {
            continue;
        }
        let number = if boots.len() > 1 {
            format!(" of boot {} (line {})", i + 1, boot.first_line)
        } else {
            String::new()
        };
        let _ = writeln!(text, "\n{DIM}timeline{number}{PLAIN}");
        let chosen: Vec<&TimelineEvent> = if whole {
            boot.events.iter().collect()
        } else {
            weighty(&boot.events)
        };
        for event in &chosen {
            let stamp = event.us.map_or(String::new(), |us| {
                format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
            });
            let _ = writeln!(
                text,
                "{DIM}{:>8}{PLAIN} {stamp:>16}  {}",
                event.line,
                wrap(&event.text, 27)
            );
        }
        let hidden = boot.events.len() - chosen.len();
        let more = u64::try_from(hidden)
            .unwrap_or(u64::MAX)
            .saturating_add(boot.left_out);
        if more > 0 {
            let how = if hidden > 0 {
                "; --timeline shows them"
            } else {
                ""
            };
            let _ = writeln!(text, "{DIM}         and {more} more event(s){how}{PLAIN}");
        }
    }
}

/// The events that tell most, in order.
fn weighty(events: &[TimelineEvent]) -> Vec<&TimelineEvent> {
    let weight = |event: &TimelineEvent| match event.kind.as_str() {
        "tsc-unstable" | "synchronisation" | "interruption" => 0,
        "watchdog" | "switch" => 1,
        "calibration" | "sched-clock" | "boot" | "wall-clock" => 2,
        _ => 3,
    };
    let mut order: Vec<usize> = (0..events.len()).collect();
    order.sort_by_key(|i| weight(&events[*i]));
    order.truncate(FEW_EVENTS);
    order.sort_unstable();
    order.into_iter().filter_map(|i| events.get(i)).collect()
}

fn finding_text(text: &mut String, finding: &Finding) {
    let (colour, word) = match finding.severity {
        Severity::Fault => (RED, "fault"),
        Severity::Observation => (YELLOW, "seen"),
        Severity::Note => (DIM, "note"),
    };
    let boot = finding
        .boot
        .map_or(String::new(), |boot| format!(" (boot {boot})"));
    let _ = writeln!(
        text,
        "{colour}{word}{PLAIN} {BOLD}{}{PLAIN}{boot}: {}",
        finding.code.name(),
        wrap(&finding.summary, 2)
    );
    for observation in &finding.evidence {
        let _ = writeln!(
            text,
            "  {DIM}seen{PLAIN}   {}",
            wrap(&format!("{} [{}]", observation.seen, observation.source), 9)
        );
    }
    if !finding.figures.is_empty() {
        let figures: Vec<String> = finding
            .figures
            .iter()
            .map(|(name, figure)| format!("{name}={figure}"))
            .collect();
        let _ = writeln!(
            text,
            "  {DIM}figures{PLAIN} {}",
            wrap(&figures.join("  "), 10)
        );
    }
    if !finding.cause.is_empty() {
        let _ = writeln!(text, "  {DIM}why{PLAIN}    {}", wrap(&finding.cause, 9));
    }
    let _ = writeln!(text, "  {DIM}do{PLAIN}     {}", wrap(&finding.remedy, 9));
}

fn verdict(text: &mut String, document: &Document) {
    let colour = colour(document.verdict);
    let faults: Vec<&str> = document
        .findings
        .iter()
        .filter(|finding| finding.severity == Severity::Fault)
        .map(|finding| finding.code.name())
        .collect();
    let reason = match document.verdict {
        Verdict::Fault => faults.join(", "),
        Verdict::NoFault => format!("nothing wrong in {}", document.looked_at.join(", ")),
        Verdict::Inconclusive if document.looked_at.is_empty() => {
            "nothing could be looked at".to_owned()
        }
        Verdict::Inconclusive => format!("{} does not settle it", document.looked_at.join(", ")),
    };
    for why in &document.not_readable {
        row(text, "not readable", why);
    }
    for wanted in &document.would_settle {
        row(text, "would settle", wanted);
    }
    let _ = writeln!(
        text,
        "{BOLD}verdict{PLAIN}        {colour}{}{PLAIN}: {}",
        document.verdict,
        wrap(&reason, 15)
    );
}
