//! The subcommands, a file each.

mod lab;

use clap::Subcommand;

use crate::exit::Exit;

/// What the program can do.
#[derive(Subcommand)]
pub(crate) enum Command {
    Lab(lab::Args),
}

impl Command {
    /// Runs the command to its end.
    ///
    /// # Errors
    ///
    /// What stopped it; [`crate::exit::report`] turns that into words and an exit code.
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Lab(args) => lab::run(args),
        }
    }
}
