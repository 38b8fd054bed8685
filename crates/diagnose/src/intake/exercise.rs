//! Feeds bytes from anywhere to each way in: what the fuzz targets and the replay of their corpus call.
//!
//! Nothing here judges the outcome; a panic, a hang or a runaway allocation is the only failure.

use super::{Intake, files, log, reader};
use crate::evidence::{Evidence, Part};
use crate::report::timeline::timeline;
use crate::report::{Machine, wall_clock};
use std::io::Cursor;

/// Diagnoses, reports and redacts, as the program does.
fn judge(mut evidence: Evidence) {
    let diagnosis = crate::diagnose(&evidence);
    let _ = Machine::of(&evidence);
    let _ = wall_clock(&evidence, &diagnosis.findings);
    let _ = timeline(&evidence);
    evidence.redact();
    let _ = crate::diagnose(&evidence);
}

/// Bytes as a kernel's log.
pub fn kernel_log(bytes: &[u8]) {
    if let Ok(reading) = log::read(bytes) {
        judge(Evidence {
            kernel_log: Part::Seen(reading.log),
            complaints: reading.complaints,
            ..Evidence::default()
        });
    }
}

/// Bytes as whatever they turn out to be.
pub fn any(bytes: &[u8]) {
    match reader(Box::new(Cursor::new(bytes.to_vec())), "bytes") {
        Ok(Intake::One(evidence)) => judge(evidence),
        Ok(Intake::Many(bundles)) => {
            for bundle in bundles.flatten() {
                judge(bundle.evidence);
            }
        }
        Err(_) => {}
    }
}

/// Bytes as the files of a machine: a path on the first line of each, a line `----` between them.
pub fn folder(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let parts: Vec<(&str, &str)> = text
        .split("\n----\n")
        .filter_map(|part| part.split_once('\n'))
        .collect();
    if let Ok(evidence) = files(&parts) {
        judge(evidence);
    }
}
