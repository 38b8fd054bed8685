//! The subcommands, a file each.

mod bench;
pub(crate) mod check;
mod lab;
mod sim;

use clap::Subcommand;

use crate::exit::Exit;

/// What the program can do.
#[derive(Subcommand)]
pub(crate) enum Command {
    Check(check::Args),
    Bench(bench::Args),
    Lab(lab::Args),
    Sim(sim::Args),
}

impl Command {
    /// Runs the command to its end.
    ///
    /// # Errors
    ///
    /// What stopped it; [`crate::exit::report`] turns that into words and an exit code.
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Check(args) => check::run(&args),
            Self::Bench(args) => bench::run(&args),
            Self::Lab(args) => lab::run(args),
            Self::Sim(args) => sim::run(args),
        }
    }
}
