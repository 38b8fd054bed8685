//! The lab and its image on stock KVM: an emulated machine with SVM, booted by `scripts/nested`. Takes a minute, with a static build
//! of the program the first time, so it runs only when named (`test = false` in Cargo.toml): `cargo test -p chronovisor --test lab_nested`.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::process::{Command, Output};

use serde_json::Value;

/// What `scripts/nested` says to `arguments`, or why it is skipped where the emulator or the kernel cannot be had.
fn on_stock_kvm(arguments: &[&str]) -> Result<Output, String> {
    const NOT_POSSIBLE: i32 = 126;
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/nested"))
        .args(["--timeout", "120"])
        .args(arguments)
        .output()
        .expect("the script is part of the repository");
    if output.status.code() == Some(NOT_POSSIBLE) {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Ok(output)
}

/// Everything runs there, in both rings; the raw counter really jumps, and no clock of ours goes back.
#[test]
fn every_experiment_runs_on_stock_kvm() {
    let output = match on_stock_kvm(&["chronovisor", "lab", "all", "--quick", "--json"]) {
        Ok(output) => output,
        Err(why) => return println!("skipped: {why}"),
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
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

/// The conformance image boots by PVH on QEMU, a VMM that is not ours, and finds KVM's own Hyper-V and pvclock clocks in order.
#[test]
fn the_conformance_image_passes_on_qemu() {
    const EVERY_CHECK_HELD: i32 = 33;
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("clocks.elf");
    std::fs::write(&image, chronovisor_lab::image::ELF).unwrap();
    #[rustfmt::skip]
    let outcome = on_stock_kvm(&[
        "--with", image.to_str().unwrap(), "qemu-system-x86_64", "-accel", "kvm",
        "-cpu", "host,hv-relaxed,hv-time,hv-vpindex,hv-frequencies", "-m", "256", "-nodefaults", "-display", "none", "-no-reboot",
        "-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-kernel", "/clocks.elf",
    ]);
    let output = match outcome {
        Ok(output) => output,
        Err(why) => return println!("skipped: {why}"),
    };
    let tap = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(EVERY_CHECK_HELD),
        "{tap}{stderr}"
    );
    for clock in [
        "page <= counter <= page",
        "Hyper-V's and KVM's channels give one rate",
    ] {
        let line = tap.lines().find(|line| line.ends_with(clock));
        assert!(
            line.is_some_and(|line| line.starts_with("ok ")),
            "{clock}: {tap}"
        );
    }
}
