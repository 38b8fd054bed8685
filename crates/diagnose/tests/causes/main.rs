//! Inputs made from the formulas, for every cause: several that have to be found with their figures, and near misses that have
//! to stay silent.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod clocksources;
mod hypervisor;
mod kernel_log;
mod properties;
mod rates;
mod readings;
mod series;
mod sparse;
mod verdict;
mod wall_clock;
mod watchdog;

use chronovisor_diagnose::{Code, Diagnosis, Verdict, diagnose, intake};

/// A number as a float, to compare figures with.
fn real(value: impl Into<i128>) -> f64 {
    chronovisor_diagnose::forensics::real(value.into())
}

/// The diagnosis of files in memory.
fn of(files: &[(&str, &str)]) -> Diagnosis {
    diagnose(&intake::files(files).unwrap())
}

/// The diagnosis of a log.
fn of_log(log: &str) -> Diagnosis {
    of(&[("dmesg", log)])
}

/// The figure of a finding that has to be there.
fn figure(diagnosis: &Diagnosis, code: Code, name: &str) -> f64 {
    let found = diagnosis
        .findings
        .iter()
        .find(|finding| finding.code == code)
        .unwrap_or_else(|| panic!("{code} not in {:?}", codes(diagnosis)));
    found
        .figures
        .get(name)
        .unwrap_or_else(|| panic!("{code} has no {name}: {:?}", found.figures))
        .value()
}

fn codes(diagnosis: &Diagnosis) -> Vec<&'static str> {
    diagnosis
        .findings
        .iter()
        .map(|finding| finding.code.name())
        .collect()
}

fn has(diagnosis: &Diagnosis, code: Code) -> bool {
    diagnosis
        .findings
        .iter()
        .any(|finding| finding.code == code)
}

#[track_caller]
fn close(value: f64, expected: f64, rel: f64) {
    assert!(
        (value - expected).abs() <= rel * expected.abs().max(1e-12),
        "{value} and not {expected}"
    );
}

#[track_caller]
fn finds(diagnosis: &Diagnosis, code: Code) {
    assert!(has(diagnosis, code), "{code} not in {:?}", codes(diagnosis));
}

#[track_caller]
fn silent(diagnosis: &Diagnosis, code: Code) {
    let found = diagnosis
        .findings
        .iter()
        .find(|finding| finding.code == code);
    assert!(found.is_none(), "{found:?}");
}

#[track_caller]
fn healthy(diagnosis: &Diagnosis) {
    assert!(diagnosis.findings.is_empty(), "{:?}", diagnosis.findings);
    assert_eq!(diagnosis.verdict, Verdict::NoFault);
}
