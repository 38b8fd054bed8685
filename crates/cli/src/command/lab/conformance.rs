//! `chronovisor lab conformance`.

use std::path::PathBuf;

use anyhow::Context;
use chronovisor_lab::experiment::conformance;
use chronovisor_lab::image;

use crate::exit::Exit;
use crate::output;

/// Checks that any VMM can run on its own clocks; here on this project's, or as an image to boot elsewhere
///
/// The checks speak TAP (Test Anything Protocol) on the first serial port. The image boots by PVH and looks only at clocks that CPUID
/// announces.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Write the guest image to FILE and run nothing
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  chronovisor lab conformance
  chronovisor lab conformance --image clocks.elf
  qemu-system-x86_64 -accel kvm -cpu host,hv-relaxed,hv-time,hv-vpindex,hv-frequencies -m 256 -nodefaults -display none \\
      -no-reboot -serial stdio -device isa-debug-exit,iobase=0xf4,iosize=4 -kernel clocks.elf

QEMU then ends with exit code 33 if every check held, and 41 if one failed.";

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    if let Some(path) = &args.image {
        std::fs::write(path, image::ELF)
            .with_context(|| format!("cannot write {}", path.display()))?;
        return Ok(Exit::Done);
    }
    let outcome = conformance::run(&super::open()?).map_err(super::not_possible)?;
    output::text(&outcome.tap)?;
    Ok(if outcome.holds {
        Exit::Done
    } else {
        Exit::Fault
    })
}
