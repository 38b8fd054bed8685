//! `chronovisor lab`, run as a program on this machine's /dev/kvm.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::process::{Command, Output};

use serde_json::Value;

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chronovisor"))
        .arg("lab")
        .args(arguments)
        .output()
        .expect("the program was built with this test")
}

/// What the program printed; `None` after a word about it if there is no KVM here.
fn document(arguments: &[&str]) -> Option<Value> {
    const NOT_POSSIBLE: i32 = 4;
    let output = lab(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(NOT_POSSIBLE) {
        assert!(
            std::env::var_os("CHRONOVISOR_REQUIRE_KVM").is_none_or(|value| value != "1"),
            "CHRONOVISOR_REQUIRE_KVM=1, but {stderr}"
        );
        println!("skipped: no /dev/kvm ({})", stderr.trim());
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    Some(serde_json::from_slice(&output.stdout).expect("--json prints JSON"))
}

fn is_valid(name: &str, document: &Value) {
    let path = format!(
        "{}/../../schemas/lab-{name}-1.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(document)
        .map(|error| error.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    // A schema that accepts anything would pass too.
    let mut broken = document.clone();
    broken["rows"] = Value::from("many");
    assert!(!validator.is_valid(&broken));
    assert_eq!(document["schema"], format!("chronovisor/lab-{name}/1"));
}

#[test]
fn every_experiment_prints_a_valid_document() {
    for (name, arguments) in [
        ("clocks", &["--vcpus", "1"][..]),
        ("smp", &["--vcpus", "2"]),
        ("timers", &["--ticks", "20", "--vcpus", "1,2"]),
        ("migrate", &["--count", "2", "--policy", "stop"]),
    ] {
        let Some(document) = document(&[&[name][..], arguments, &["--json"]].concat()) else {
            return;
        };
        is_valid(name, &document);
        let backend = document["provenance"]["backend"].as_str().unwrap();
        assert!(backend.starts_with("lab on kvm"), "{backend}");
    }
}

/// One table of all systems, and the rows of another run beside it.
#[test]
fn all_prints_every_system_and_takes_rows_from_elsewhere() {
    let Some(document) = document(&["all", "--quick", "--json"]) else {
        return;
    };
    is_valid("all", &document);
    let systems = |document: &Value| -> Vec<String> {
        let mut systems: Vec<_> = document["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["system"].as_str().unwrap().to_owned())
            .collect();
        systems.dedup();
        systems
    };
    let expected: Vec<_> = (1..=9).map(|number| format!("S{number}")).collect();
    assert_eq!(systems(&document), expected);
    for row in document["rows"].as_array().unwrap() {
        assert!(
            row["value"].is_number() != row["why_not"].is_string(),
            "{row}"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.json");
    let mut other = document;
    for row in other["rows"].as_array_mut().unwrap() {
        row["backend"] = Value::from("elsewhere");
    }
    std::fs::write(&path, other.to_string()).unwrap();
    let output = lab(&["all", "--quick", "--also", path.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("elsewhere") && text.contains("none of ours stepped back"),
        "{text}"
    );
}

#[test]
fn wrong_arguments_are_refused() {
    for arguments in [
        &["clocks", "--vcpus", "x"][..],
        &["timers", "--ticks", "0"],
        &["migrate", "--vcpus", "17"],
        &["nothing"],
    ] {
        assert_eq!(lab(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let other = lab(&["all", "--also", "/nowhere/at-all.json"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stderr).contains("/nowhere/at-all.json"));
}

/// More vCPUs than the image has room for, and none: said in words.
#[test]
fn too_many_vcpus_are_refused_in_words() {
    if document(&["smp", "--vcpus", "2", "--json"]).is_none() {
        return;
    }
    for vcpus in ["17", "0"] {
        let output = lab(&["clocks", "--vcpus", vcpus]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("at most 16"),
            "{output:?}"
        );
    }
}
