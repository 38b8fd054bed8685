//! `chronovisor sim merge`: the shards of a run, joined.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::Context;
use chronovisor_sim::runner::Merge;
use chronovisor_sim::scenario::Scenario;
use serde::Deserialize;

use super::document::{Document, Measured, ShardDocument, Speed, name_of};
use super::kind::Kind;
use super::table::{self, Render};
use crate::exit::Exit;
use crate::output;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The documents that `sim NAME --shard I/N` printed, in any order
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print one JSON document instead of tables
    #[arg(long)]
    json: bool,
    /// Leave out the speed, the only figure that is not a function of the seed
    #[arg(long)]
    no_speed: bool,
}

/// A shard's document.
#[derive(Deserialize)]
pub(super) struct Part {
    schema: String,
    shard: Option<ShardDocument>,
    events: u64,
    seconds: Option<f64>,
    parameters: serde_json::Value,
    tally: Option<serde_json::Value>,
    #[serde(skip)]
    path: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    let mut parts = Vec::new();
    for path in &args.files {
        parts.push(read(path).with_context(|| format!("in {}", path.display()))?);
    }
    let first = &parts[0];
    let kind = name_of(&first.schema)
        .and_then(Kind::of_name)
        .with_context(|| {
            let path = first.path.display();
            format!(
                "{path} is no document of `sim`: its schema is {}",
                first.schema
            )
        })?;
    complete(&parts)?;
    kind.merge(parts, args)
}

fn read(path: &Path) -> anyhow::Result<Part> {
    let file = BufReader::new(File::open(path)?);
    let part: Part = serde_json::from_reader(file)?;
    Ok(Part {
        path: path.to_owned(),
        ..part
    })
}

/// Every shard once, all of one run.
fn complete(parts: &[Part]) -> anyhow::Result<()> {
    let first = &parts[0];
    let mut seen = Vec::new();
    for part in parts {
        let path = part.path.display();
        let shard = part
            .shard
            .with_context(|| format!("{path} is a whole run, not a shard"))?;
        anyhow::ensure!(
            part.schema == first.schema && part.parameters == first.parameters,
            "{path} is of another run than {}: scenario, seed, runs and parameters must be equal",
            first.path.display()
        );
        let of = first.shard.map_or(0, |shard| shard.of);
        anyhow::ensure!(
            shard.of == of && shard.index < of,
            "{path} is shard {}/{}, not one of {of}",
            shard.index,
            shard.of
        );
        anyhow::ensure!(
            !seen.contains(&shard.index),
            "{path} is shard {} once more",
            shard.index
        );
        seen.push(shard.index);
    }
    let of = first.shard.map_or(0, |shard| shard.of);
    let missing: Vec<String> = (0..of)
        .filter(|index| !seen.contains(index))
        .take(5)
        .map(|index| index.to_string())
        .collect();
    anyhow::ensure!(
        missing.is_empty(),
        "of {of} shards {} are here; missing: {}",
        seen.len(),
        missing.join(", ")
    );
    Ok(())
}

pub(super) fn merge<S: Scenario + Render>(parts: Vec<Part>, args: &Args) -> anyhow::Result<Exit> {
    let parameters = serde_json::from_value(parts[0].parameters.clone())?;
    let scenario = S::new(parameters)?;
    let (mut tally, mut events, mut seconds) = (scenario.nothing(), 0_u64, Some(0.0));
    for part in parts {
        let cannot = || format!("in {}", part.path.display());
        let value = part.tally.context("it has no tally").with_context(cannot)?;
        let other: S::Tally = serde_json::from_value(value).with_context(cannot)?;
        tally.merge(&other).with_context(cannot)?;
        events = events.saturating_add(part.events);
        seconds = seconds.zip(part.seconds).map(|(a, b)| a + b);
    }
    let speed = match seconds {
        Some(seconds) if !args.no_speed => Speed::Seconds(seconds),
        _ => Speed::Untold,
    };
    let measured = Measured {
        tally,
        events,
        speed,
    };
    let document = Document::new(&scenario, None, measured);
    if args.json {
        output::json(&document)?;
    } else {
        output::text(&table::render::<S>(&document))?;
    }
    Ok(Exit::Done)
}
