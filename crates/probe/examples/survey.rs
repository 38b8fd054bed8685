//! Prints the evidence of this machine as JSON.

use chronovisor_probe::survey::{Options, survey};

fn main() -> Result<(), serde_json::Error> {
    let evidence = survey(&Options::default());
    serde_json::to_writer_pretty(std::io::stdout(), &evidence)
}
