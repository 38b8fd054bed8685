//! The conformance image on VMMs that offer less than ours, or not what they announce: it says so and goes on.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod kvm;

use chronovisor_abi::cpuid::hyperv;
use chronovisor_host::msr_surface::Privileges;
use chronovisor_lab::experiment::conformance::{Outcome, Served, run_with};

const WITHOUT_COUNTER: Privileges = Privileges {
    hyperv_eax: Privileges::EVERYTHING.hyperv_eax & !hyperv::ACCESS_REFERENCE_COUNTER,
    ..Privileges::EVERYTHING
};
const WITHOUT_PAGE: Privileges = Privileges {
    hyperv_eax: Privileges::EVERYTHING.hyperv_eax & !hyperv::ACCESS_REFERENCE_TSC,
    ..Privileges::EVERYTHING
};

/// The lines that are no notes, without the checks' texts: `ok`, `not ok` or `skip`, by number.
fn verdicts(outcome: &Outcome) -> Vec<&'static str> {
    let tap = &outcome.tap;
    assert!(tap.contains("\n1..15\n"), "no plan: {tap}");
    let lines = tap.lines().filter(|line| line.contains("ok "));
    lines
        .map(|line| match line {
            _ if line.contains("# SKIP") => "skip",
            _ if line.starts_with("not ") => "not ok",
            _ => "ok",
        })
        .collect()
}

/// Numbers from 1, as TAP counts.
fn numbers(found: &[&str], verdict: &str) -> Vec<usize> {
    (1..)
        .zip(found)
        .filter(|(_, one)| **one == verdict)
        .map(|(number, _)| number)
        .collect()
}

#[test]
fn a_page_without_the_counter_is_checked_without_it() {
    let Some(backend) = kvm::open() else { return };
    let outcome = run_with(&backend, Served::as_announced(WITHOUT_COUNTER)).unwrap();
    let found = verdicts(&outcome);
    assert!(outcome.holds, "{}", outcome.tap);
    // The three checks of the counter, and the page's bracket around it.
    assert_eq!(numbers(&found, "skip"), [2, 3, 4, 7], "{}", outcome.tap);
    assert_eq!(numbers(&found, "ok").len(), 11, "{}", outcome.tap);
}

#[test]
fn a_counter_that_is_announced_and_refused_is_a_failure_and_no_end() {
    let Some(backend) = kvm::open() else { return };
    let served = Served {
        announced: Privileges::EVERYTHING,
        granted: WITHOUT_COUNTER,
    };
    let outcome = run_with(&backend, served).unwrap();
    let found = verdicts(&outcome);
    assert!(!outcome.holds, "{}", outcome.tap);
    assert_eq!(numbers(&found, "not ok"), [2, 3], "{}", outcome.tap);
    assert_eq!(numbers(&found, "skip"), [7], "{}", outcome.tap);
}

#[test]
fn a_page_that_is_announced_and_refused_is_a_failure_and_no_end() {
    let Some(backend) = kvm::open() else { return };
    let served = Served {
        announced: Privileges::EVERYTHING,
        granted: WITHOUT_PAGE,
    };
    let outcome = run_with(&backend, served).unwrap();
    let found = verdicts(&outcome);
    assert!(!outcome.holds, "{}", outcome.tap);
    assert_eq!(numbers(&found, "not ok"), [5, 6], "{}", outcome.tap);
    assert_eq!(numbers(&found, "skip"), [7, 8, 9, 15], "{}", outcome.tap);
}
