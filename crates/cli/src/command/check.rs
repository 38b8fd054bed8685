//! `chronovisor check`: whether a machine's clocks are right, fast and steady, and if not, why.

mod document;
mod fleet;

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Context;
use chronovisor_diagnose::intake::{self, Bundle, Intake, Source};
use chronovisor_diagnose::{Code, Diagnosis, Evidence, Verdict, catalogue, diagnose};
use chronovisor_probe::survey::{Options, survey};

use crate::exit::Exit;
use crate::output;
use crate::render;
pub(crate) use document::Document;

/// Diagnoses the clocks of this machine, or of another one from its log, files or saved bundle
///
/// Reads what the machine shows of its clocks, says what is wrong with the arithmetic that shows it, why, and what to do; or that nothing is
/// wrong; or that the evidence does not settle it, and what would.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Read PATH instead of this machine: a kernel log, a folder that mirrors a machine's files, a saved bundle or a stream of them, each also
    /// as .gz or .xz; `-` is standard input
    #[arg(long, value_name = "PATH|-")]
    from: Option<PathBuf>,
    /// Save the evidence as a bundle, one line of JSON; `-` is standard output
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Leave out of the bundle what no rule needs: names, addresses, free texts
    #[arg(long, requires = "save")]
    redact: bool,
    /// Print one JSON document instead of tables; for a stream of bundles one document a line
    #[arg(long)]
    json: bool,
    /// Print every clock event of the log with its line
    #[arg(long, conflicts_with = "json")]
    timeline: bool,
    /// Explain a finding: what it means, how it is told, what to do
    #[arg(long, value_name = "CODE", conflicts_with_all = ["from", "save", "list_codes"])]
    explain: Option<String>,
    /// List every finding code with its meaning
    #[arg(long, conflicts_with_all = ["from", "save"])]
    list_codes: bool,
}

const EXAMPLES: &str = "\
Examples:
  chronovisor check                          this machine, in under 3 s and without root
  dmesg | chronovisor check --from -         a log from anywhere
  chronovisor check --from other-machine/    a folder with dmesg, proc/.., sys/.., samples.csv, cost.csv
  chronovisor check --save me.json --redact  evidence to send to somebody else
  cat *.json | chronovisor check --from -    a fleet: one line a machine, and totals
  chronovisor check --explain watchdog-wrapped

Exit codes: 0 no fault or inconclusive, 1 nothing could be read, 2 usage, 3 a fault was found.";

/// Diagnoses and prints.
///
/// # Errors
///
/// If nothing can be read, the bundle cannot be saved, or stdout cannot be written.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    if args.list_codes {
        return list_codes(args).map(|()| Exit::Done);
    }
    if let Some(code) = &args.explain {
        return explain(code, args);
    }
    let Some(path) = &args.from else {
        return live(args);
    };
    let source = if path.as_os_str() == "-" {
        Source::Stdin
    } else {
        Source::Path(path.clone())
    };
    match intake::open(&source)? {
        Intake::One(evidence) => one(args, evidence, Document::of_evidence),
        Intake::Many(bundles) => fleet::run(args, bundles, &source.to_string()),
    }
}

fn live(args: &Args) -> anyhow::Result<Exit> {
    let progress = std::io::stderr().is_terminal().then(|| {
        let progress = indicatif::ProgressBar::new_spinner().with_message("reading the clocks");
        progress.enable_steady_tick(std::time::Duration::from_millis(100));
        progress
    });
    let evidence = survey(&Options::default());
    if let Some(progress) = progress {
        progress.finish_and_clear();
    }
    one(args, evidence, Document::of_this_machine)
}

/// One machine: the whole report.
fn one(
    args: &Args,
    evidence: Evidence,
    document: fn(&Evidence, Diagnosis) -> Document,
) -> anyhow::Result<Exit> {
    for complaint in &evidence.complaints {
        anstream::eprintln!("chronovisor: {complaint}");
    }
    let saved_to_stdout = save(args, &evidence)?;
    let diagnosis = diagnose(&evidence);
    let exit = exit(diagnosis.verdict);
    if saved_to_stdout {
        return Ok(exit);
    }
    let document = document(&evidence, diagnosis);
    if args.json {
        output::json(&document)?;
    } else {
        output::text(&render::check::report(&document, args.timeline))?;
    }
    Ok(exit)
}

/// Saves the evidence if that was asked for; tells whether it went to standard output.
fn save(args: &Args, evidence: &Evidence) -> anyhow::Result<bool> {
    let Some(path) = &args.save else {
        return Ok(false);
    };
    let mut kept = evidence.clone();
    if args.redact {
        kept.redact();
    }
    let line = Bundle::new(kept)
        .to_line()
        .context("the evidence does not fit JSON")?;
    if path.as_os_str() == "-" {
        output::text(&line)?;
        return Ok(true);
    }
    std::fs::write(path, line).with_context(|| {
        format!(
            "cannot save the bundle to {}; is the folder writable?",
            path.display()
        )
    })?;
    anstream::eprintln!("chronovisor: evidence saved to {}", path.display());
    Ok(false)
}

const fn exit(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Fault => Exit::Fault,
        Verdict::NoFault | Verdict::Inconclusive => Exit::Done,
    }
}

fn list_codes(args: &Args) -> anyhow::Result<()> {
    if args.json {
        return output::json(&document::codes());
    }
    output::text(&render::check::codes())
}

fn explain(code: &str, args: &Args) -> anyhow::Result<Exit> {
    let Some(known) = Code::from_name(code) else {
        let near = Code::ALL
            .iter()
            .map(|known| known.name())
            .filter(|name| {
                code.split('-')
                    .any(|word| word.len() > 2 && name.contains(word))
            })
            .collect::<Vec<_>>();
        let hint = if near.is_empty() {
            "`chronovisor check --list-codes` lists all".to_owned()
        } else {
            format!("did you mean {}?", near.join(" or "))
        };
        let mut usage = <crate::Cli as clap::CommandFactory>::command();
        usage
            .error(
                clap::error::ErrorKind::InvalidValue,
                format!("no finding is called {code:?}; {hint}"),
            )
            .exit()
    };
    if args.json {
        output::json(&document::explanation(known))?;
    } else {
        output::text(&catalogue::explain(known))?;
    }
    Ok(Exit::Done)
}
