//! `chronovisor lab` on stock KVM: an emulated machine with SVM, booted by `scripts/nested`. Takes a minute, and a static build of
//! the program the first time, so it runs only when named (`test = false` in Cargo.toml): `cargo test -p chronovisor --test lab_nested`.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::process::{Command, Output};

use serde_json::Value;

/// `lab all` in the emulated machine. The emulator itself stops or dies now and then under load (see docs/lab.md), which the script tells apart from
/// the command's own end: then it is started again, five times in all. A run takes some 10 s.
fn lab_on_stock_kvm() -> Option<Output> {
    const MACHINE_STOPPED: i32 = 124;
    const MACHINE_DIED: i32 = 125;
    let mut tries = 1;
    loop {
        let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/nested"))
            .args(["--timeout", "100"])
            .args(["chronovisor", "lab", "all", "--quick", "--json"])
            .output()
            .expect("the script is part of the repository");
        match output.status.code() {
            Some(MACHINE_STOPPED | MACHINE_DIED) => {
                println!("try {tries}: {}", String::from_utf8_lossy(&output.stderr));
                if tries == 5 {
                    return None;
                }
                tries += 1;
            }
            _ => return Some(output),
        }
    }
}

/// Everything runs there, in both rings; the raw counter really jumps, and no clock of ours goes back.
#[test]
fn every_experiment_runs_on_stock_kvm() {
    const NOT_POSSIBLE: i32 = 4;
    let Some(output) = lab_on_stock_kvm() else {
        println!(
            "skipped: the emulator stopped in five tries, before the lab's own watchdogs said anything"
        );
        return;
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    // The script's own word, not that of a program which finds no KVM inside.
    if output.status.code() == Some(NOT_POSSIBLE) && stderr.contains("nested: ") {
        println!("skipped: {}", stderr.trim());
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("--json prints JSON");
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas/lab-all-1.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(kept).unwrap()).unwrap();
    assert!(
        jsonschema::validator_for(&schema)
            .unwrap()
            .is_valid(&document),
        "{document:#}"
    );
    assert_eq!(document["place"]["backend"], "kvm_amd");

    // What the software-only KVM cannot run, this one does.
    let rows = document["clocks"]["rows"].as_array().unwrap();
    for (clock, ring) in [
        ("rdtscp", 0),
        ("trapped-rdtsc", 3),
        ("hypercall-clock-pairing", 0),
        ("pvclock-page", 0),
    ] {
        let row = rows
            .iter()
            .find(|row| row["clock"] == clock && row["ring"] == ring);
        assert!(
            row.is_some_and(|row| row["cycles"].is_number()),
            "{clock} in ring {ring}: {row:?}"
        );
    }
    let moves = document["migrate"]["rows"].as_array().unwrap();
    let steps = |clock: &str| -> u64 {
        moves
            .iter()
            .filter(|row| row["clock"] == clock)
            .map(|row| row["steps_back"].as_u64().unwrap())
            .sum()
    };
    assert!(steps("raw tsc") > 0, "the counter was not moved");
    for clock in [
        "reference-tsc-page",
        "reference-counter-msr",
        "pvclock-page-ours",
        "sched-clock-page",
    ] {
        assert_eq!(steps(clock), 0, "{clock}");
    }
}
