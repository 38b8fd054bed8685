//! `chronovisor lab`: clocks and timers measured inside a real guest on this machine's KVM.

mod all;
mod clocks;
mod conformance;
mod migrate;
mod smp;
mod timers;

use chronovisor_lab::LabError;
use chronovisor_lab::backend::Backend;
use chronovisor_lab::experiment::Place;
use clap::Subcommand;

use crate::exit::{Exit, NotPossibleHere};
use crate::provenance::Provenance;

/// Runs a bare-metal guest on /dev/kvm and measures each clock and timer inside it.
///
/// The guest's clocks are served by this project's own host crate and read with its guest crate. Everything ends by itself:
/// a guest that hangs is stopped and its registers are shown.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

const EXAMPLES: &str = "\
Examples:
  chronovisor lab clocks                       cost of one read of each clock, and whether the clocks agree
  chronovisor lab clocks --vcpus 1,4 --json
  chronovisor lab smp --vcpus 16 --numa 4      bring-up of 16 vCPUs in 4 nodes, by calibration method
  chronovisor lab timers --stress              1 ms ticks of each timer, idle host and busy host
  chronovisor lab migrate --count 1000         moves a reading guest 1000 times under each policy
  chronovisor lab all                          everything, in one table
  scripts/nested chronovisor lab clocks        the same on stock KVM in an emulator

Needs /dev/kvm; without it the exit code is 4.";

#[derive(Subcommand)]
enum Experiment {
    All(all::Args),
    Clocks(clocks::Args),
    Conformance(conformance::Args),
    Smp(smp::Args),
    Migrate(migrate::Args),
    Timers(timers::Args),
}

/// Runs the experiment.
///
/// # Errors
///
/// What stopped it; a missing /dev/kvm as [`NotPossibleHere`].
pub(crate) fn run(args: Args) -> anyhow::Result<Exit> {
    match args.experiment {
        Experiment::All(args) => all::run(&args),
        Experiment::Clocks(args) => clocks::run(&args),
        Experiment::Conformance(args) => conformance::run(&args),
        Experiment::Smp(args) => smp::run(&args),
        Experiment::Migrate(args) => migrate::run(&args),
        Experiment::Timers(args) => timers::run(&args),
    }
}

fn open() -> anyhow::Result<Backend> {
    Backend::open().map_err(not_possible)
}

fn not_possible(error: LabError) -> anyhow::Error {
    if error.is_not_possible_here() {
        NotPossibleHere {
            what: "the lab".to_owned(),
            missing: error.to_string(),
        }
        .into()
    } else {
        error.into()
    }
}

fn provenance(backend: &Backend) -> Provenance {
    Provenance::here(&format!("lab on {}", Place::of(backend).long()))
}

#[cfg(test)]
mod tests {
    use schemars::Schema;

    use super::*;

    /// The schemas that are kept in the repository are those of this program. `CHRONOVISOR_WRITE=1` writes them anew.
    #[test]
    fn the_kept_schemas_are_this_programs() {
        let schemas: [(&str, Schema); 5] = [
            ("all", schemars::schema_for!(all::Document)),
            ("clocks", schemars::schema_for!(clocks::Document)),
            ("smp", schemars::schema_for!(smp::Document)),
            ("timers", schemars::schema_for!(timers::Document)),
            ("migrate", schemars::schema_for!(migrate::Document)),
        ];
        for (name, schema) in schemas {
            let path = format!(
                "{}/../../schemas/lab-{name}-1.json",
                env!("CARGO_MANIFEST_DIR")
            );
            let ours = serde_json::to_string_pretty(&schema).unwrap() + "\n";
            if std::env::var_os("CHRONOVISOR_WRITE").is_some() {
                std::fs::write(&path, &ours).unwrap();
            }
            assert_eq!(
                std::fs::read_to_string(&path).unwrap_or_default(),
                ours,
                "{path}"
            );
        }
    }
}
