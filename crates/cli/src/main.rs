//! The program `chronovisor`: what a person runs to see, measure and judge the clocks of a virtual machine.
//!
//! Each subcommand is a file in `command/`. All of them print data to stdout and talk to stderr, take `--json`, and end with an
//! [`exit::Exit`] code.

mod command;
mod exit;
mod output;
mod provenance;

use std::process::ExitCode;

use clap::Parser;

use exit::Exit;

/// The clock of a virtual machine, end to end.
///
/// Without a subcommand: `check`, the clocks of this machine, whether they are right, fast and steady, and if not, why.
#[derive(Parser)]
#[command(
    name = "chronovisor",
    version,
    about,
    long_about,
    args_conflicts_with_subcommands = true,
    after_help = EXAMPLES
)]
struct Cli {
    #[command(subcommand)]
    command: Option<command::Command>,
}

const EXAMPLES: &str = "\
Examples:
  chronovisor                        check this machine's clocks
  chronovisor lab clocks             measure each clock inside a real guest on /dev/kvm

Exit codes:
  0  done (no fault found, or inconclusive)   3  a fault was found
  1  failed                                   4  not possible here (says what is missing)
  2  usage";

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command.map_or(Ok(Exit::Done), command::Command::run) {
        Ok(exit) => exit.into(),
        Err(error) => exit::report(&error).into(),
    }
}
