//! Series of clock readings, made from functions of the time outside.

use super::of;
use chronovisor_diagnose::Diagnosis;

pub(super) const SECOND: i128 = 1_000_000_000;
pub(super) const EPOCH: i128 = 1_785_400_000 * SECOND;

/// A series: named columns, each a function of the row's time outside, in ns since the first row.
pub(super) fn series(
    rows: i128,
    step_ns: i128,
    columns: &[(&str, &dyn Fn(i128) -> i128)],
) -> String {
    let mut text = columns
        .iter()
        .map(|(name, _)| *name)
        .collect::<Vec<_>>()
        .join(",");
    for row in 0..rows {
        text.push('\n');
        let t = row * step_ns;
        let cells: Vec<String> = columns.iter().map(|(_, at)| at(t).to_string()).collect();
        text.push_str(&cells.join(","));
    }
    text.push('\n');
    text
}

pub(super) fn sampled(samples: &str) -> Diagnosis {
    of(&[("samples.csv", samples)])
}

pub(super) fn with_tsc(samples: &str, log: &str) -> Diagnosis {
    of(&[("samples.csv", samples), ("dmesg", log)])
}

/// The rate `ppm` off.
pub(super) fn at(ppm: i128) -> impl Fn(i128) -> i128 {
    move |t| t + t * ppm / 1_000_000
}
