//! The program `chronovisor`: what a person runs to see, measure and judge the clocks of a virtual machine.
//!
//! Each subcommand is a file in `command/`. All of them print data to stdout and talk to stderr, take `--json`, and end with an
//! [`exit::Exit`] code.

mod command;
mod exit;
mod output;
mod progress;
mod provenance;
mod render;

use std::process::ExitCode;

use clap::Parser;

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
    #[command(flatten)]
    check: command::check::Args,
}

const EXAMPLES: &str = "\
Examples:
  chronovisor                        check this machine's clocks
  dmesg | chronovisor check --from - diagnose a log from anywhere
  chronovisor bench --threads 1,2    what one read of each clock costs
  chronovisor lab clocks             the same inside a real guest on /dev/kvm
  chronovisor sim lapic-spikes       a 1 ms timer, ours and historical ones, in virtual time

Exit codes:
  0  done (no fault found, or inconclusive)   3  a fault was found
  1  failed                                   4  not possible here (says what is missing)
  2  usage";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(command) => command.run(),
        None => command::check::run(&cli.check),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(error) => exit::report(&error).into(),
    }
}
