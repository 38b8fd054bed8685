//! `chronovisor sim`: the same clocks and timers in deterministic virtual time.

mod clock_update;
mod document;
mod guard_scaling;
mod kind;
mod lapic_spikes;
mod merge;
mod migration;
mod smp_boot;
mod table;
mod threads;

use std::fs::{self, File};
use std::io::BufWriter;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use anyhow::Context;
use chronovisor_sim::runner::{self, RunError, Shard};
use chronovisor_sim::scenario::guard_scaling::GuardScaling;
use chronovisor_sim::scenario::{self, BUILTIN, Scenario};
use chronovisor_sim::watch::{Violation, Watch};
use clap::Subcommand;

use crate::exit::Exit;
use crate::output;
use crate::progress::Progress;
use document::{Document, Measured, Speed};
use kind::Kind;

/// Runs a scenario in virtual time: the very code of the host and guest crates on simulated machines
///
/// One seed decides everything that is random, so a run can be repeated bit by bit on any machine and with any number of threads. The
/// first invariant that breaks stops it, with the seed, the number of the event and the last events.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// A built-in scenario, or a TOML file
    #[arg(value_name = "NAME|FILE")]
    scenario: Option<String>,
    #[command(flatten)]
    options: Options,
}

#[derive(clap::Args)]
struct Options {
    /// The seed, instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// How often everything is repeated, or how many machines there are, instead of the scenario's number
    #[arg(long)]
    runs: Option<NonZeroU64>,
    /// Run only part I of N (from 0), and print what `sim merge` needs
    #[arg(long, value_name = "I/N", value_parser = shard)]
    shard: Option<Shard>,
    /// Threads; the result is the same with any number
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Write every event of one unit to FILE and run only that unit
    #[arg(long, value_name = "FILE", conflicts_with = "shard")]
    trace: Option<PathBuf>,
    /// Which unit to trace
    #[arg(long, default_value_t = 0, requires = "trace")]
    unit: u64,
    /// Print one JSON document instead of tables
    #[arg(long)]
    json: bool,
    /// guard-scaling only: run the guards on real threads too, and show them beside the model with this machine's costs
    #[arg(long, conflicts_with_all = ["shard", "trace"])]
    measure: bool,
    /// Leave out the speed, the only figure that is not a function of the seed
    #[arg(long)]
    no_speed: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Names the built-in scenarios
    List,
    /// Prints a built-in scenario's TOML, to start from
    Show {
        /// The scenario
        name: String,
    },
    /// Joins the documents of all shards of a run: the result equals the whole run's
    Merge(merge::Args),
}

const EXAMPLES: &str = "\
Examples:
  chronovisor sim list
  chronovisor sim lapic-spikes                     a 1 ms timer under our policies and five historical ones
  chronovisor sim show lapic-spikes > mine.toml    a scenario to start from
  chronovisor sim mine.toml --seed 7 --json
  chronovisor sim lapic-spikes --runs 8 --shard 0/2 > a.json
  chronovisor sim lapic-spikes --runs 8 --shard 1/2 > b.json
  chronovisor sim merge a.json b.json

Exit code 3: an invariant broke.";

fn shard(text: &str) -> Result<Shard, String> {
    let parts = text
        .split_once('/')
        .and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
    parts
        .and_then(|(index, of)| Shard::new(index, of))
        .ok_or_else(|| "two numbers I/N with I below N, as 0/4".to_owned())
}

/// Runs, lists, shows or merges.
///
/// # Errors
///
/// What stopped it: an unknown name, a wrong key, a file that cannot be read.
pub(crate) fn run(args: Args) -> anyhow::Result<Exit> {
    match (args.action, args.scenario) {
        (Some(Action::List), _) => list(),
        (Some(Action::Show { name }), _) => show(&name),
        (Some(Action::Merge(args)), _) => merge::run(&args),
        (None, Some(scenario)) => {
            let text = text_of(&scenario)?;
            let kind = Kind::of_text(&text).with_context(|| format!("in {scenario}"))?;
            kind.simulate(&text, &args.options)
                .with_context(|| format!("in {scenario}"))
        }
        (None, None) => anyhow::bail!("no scenario: `chronovisor sim list` names them"),
    }
}

fn list() -> anyhow::Result<Exit> {
    let mut table = crate::render::table::table(&["scenario", "what it shows"], 2);
    for builtin in BUILTIN {
        table.add_row([builtin.name, builtin.about]);
    }
    output::text(&format!("{table}\n"))?;
    Ok(Exit::Done)
}

fn show(name: &str) -> anyhow::Result<Exit> {
    let builtin = scenario::builtin(name).ok_or_else(|| unknown(name))?;
    output::text(builtin.toml)?;
    Ok(Exit::Done)
}

/// The TOML of a built-in scenario or of a file.
fn text_of(name: &str) -> anyhow::Result<String> {
    if let Some(builtin) = scenario::builtin(name) {
        return Ok(builtin.toml.to_owned());
    }
    let path = Path::new(name);
    if path.exists() {
        return fs::read_to_string(path).with_context(|| format!("cannot read {name}"));
    }
    Err(unknown(name))
}

fn unknown(name: &str) -> anyhow::Error {
    let hint = scenario::nearest_name(name)
        .map(|near| format!(" (did you mean {near}?)"))
        .unwrap_or_default();
    anyhow::anyhow!(
        "there is no scenario and no file called {name}{hint}; `chronovisor sim list` names the scenarios"
    )
}

/// Runs the scenario that `text` describes and prints what came of it.
fn simulate<S: Scenario + table::Render>(text: &str, options: &Options) -> anyhow::Result<Exit> {
    let mut scenario = S::from_toml(text)?;
    anyhow::ensure!(
        !options.measure || S::NAME == GuardScaling::NAME,
        "--measure is for {}: nothing else here can be measured on threads",
        GuardScaling::NAME
    );
    scenario.set(options.seed, options.runs.map(NonZeroU64::get));
    let shard = options.shard.unwrap_or(Shard::WHOLE);
    let begun = Instant::now();
    let outcome = match &options.trace {
        Some(path) => trace(&scenario, path, options.unit)?,
        None => {
            let threads = options
                .threads
                .or_else(|| thread::available_parallelism().ok())
                .unwrap_or(NonZeroUsize::MIN);
            let units = shard.units(scenario.count());
            let bar = Progress::start();
            runner::run(&scenario, shard, threads, &|done| {
                bar.at(S::NAME, share(done, units.end - units.start));
            })
        }
    };
    let speed = if options.no_speed {
        Speed::Untold
    } else {
        Speed::Seconds(begun.elapsed().as_secs_f64())
    };
    match outcome {
        Ok(outcome) => {
            let measured = Measured {
                tally: outcome.tally,
                events: outcome.events,
                speed,
            };
            let mut document = Document::new(&scenario, options.shard, measured);
            if options.measure {
                document.measured = Some(threads::compare(scenario.seed())?);
            }
            if options.json || options.shard.is_some() {
                output::json(&document)?;
            } else {
                output::text(&table::render::<S>(&document))?;
            }
            Ok(Exit::Done)
        }
        Err(RunError::Violation(violation)) => {
            broken(&violation, options.json)?;
            Ok(Exit::Fault)
        }
        Err(error) => Err(error.into()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a picture for the eye")]
fn share(done: u64, all: u64) -> f64 {
    done as f64 / all.max(1) as f64
}

/// Runs one unit and writes all of its events to `path`.
fn trace<S: Scenario>(
    scenario: &S,
    path: &Path,
    unit: u64,
) -> anyhow::Result<Result<runner::Outcome<S::Tally>, RunError>> {
    let count = scenario.count();
    anyhow::ensure!(
        unit < count,
        "there is no unit {unit}: this run has {count}, from 0"
    );
    let cannot = || format!("cannot write {}", path.display());
    let file = File::create(path).with_context(cannot)?;
    let mut watch = Watch::new(scenario.seed()).with_trace(Box::new(BufWriter::new(file)));
    let outcome = runner::run_one(scenario, unit, &mut watch);
    watch.finish_trace().with_context(cannot)?;
    Ok(outcome.map_err(RunError::from))
}

/// Says which invariant broke, and what led to it.
fn broken(violation: &Violation, json: bool) -> anyhow::Result<()> {
    if json {
        output::json(&document::Broken::new(violation))?;
    }
    anstream::eprintln!("chronovisor: an invariant broke: {violation}");
    anstream::eprintln!("the last events (time, what, who, figure):");
    for note in &violation.last_events {
        anstream::eprintln!("  {note}");
    }
    anstream::eprintln!(
        "run it again with --seed {} --trace FILE --unit {}",
        violation.seed,
        violation.unit
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use chronovisor_sim::scenario::clock_update::ClockUpdate;
    use chronovisor_sim::scenario::lapic_spikes::LapicSpikes;
    use chronovisor_sim::scenario::migration::Migration;
    use chronovisor_sim::scenario::smp_boot::SmpBoot;
    use schemars::{Schema, schema_for};

    use super::*;

    /// The schemas that are kept in the repository are those of this program. `CHRONOVISOR_WRITE=1` writes them anew.
    #[test]
    fn the_kept_schemas_are_this_programs() {
        let schemas: [(&str, Schema); 6] = [
            (LapicSpikes::NAME, schema_for!(Document<LapicSpikes>)),
            (Migration::NAME, schema_for!(Document<Migration>)),
            (ClockUpdate::NAME, schema_for!(Document<ClockUpdate>)),
            (SmpBoot::NAME, schema_for!(Document<SmpBoot>)),
            (GuardScaling::NAME, schema_for!(Document<GuardScaling>)),
            ("violation", schema_for!(document::Broken)),
        ];
        for (name, schema) in schemas {
            let path = format!(
                "{}/../../schemas/sim-{name}-1.json",
                env!("CARGO_MANIFEST_DIR")
            );
            let ours = serde_json::to_string_pretty(&schema).unwrap() + "\n";
            if std::env::var_os("CHRONOVISOR_WRITE").is_some() {
                fs::write(&path, &ours).unwrap();
            }
            assert_eq!(
                fs::read_to_string(&path).unwrap_or_default(),
                ours,
                "{path}"
            );
        }
    }
}
