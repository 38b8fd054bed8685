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
        text.contains("elsewhere")
            && text.contains(
                "none of ours stepped back, and at each move ours did what the policy says"
            ),
        "{text}"
    );
}

#[test]
fn wrong_arguments_are_refused() {
    for arguments in [
        &["clocks", "--vcpus", "x"][..],
        &["timers", "--ticks", "0"],
        &["smp", "--hz", "99"],
        &["smp", "--numa", "0"],
        &["migrate", "--pause", "3001"],
        &["nothing"],
    ] {
        assert_eq!(lab(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let other = lab(&["all", "--also", "/nowhere/at-all.json"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stderr).contains("/nowhere/at-all.json"));
}

/// More vCPUs than the image has room for, and none: refused before anything runs, with the range in words.
#[test]
fn vcpus_out_of_range_are_refused_by_every_experiment() {
    for experiment in ["all", "clocks", "migrate", "smp", "timers"] {
        for vcpus in ["17", "0"] {
            let output = lab(&[experiment, "--vcpus", vcpus]);
            assert_eq!(output.status.code(), Some(2), "{experiment}: {output:?}");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.contains("1..=16"), "{experiment}: {stderr}");
        }
    }
}

/// With one vCPU there is nothing beside it: each line of S5 stands once. With more than this machine has CPUs, no figure claims that
/// they read at once.
#[test]
fn the_table_has_no_line_twice_and_no_figure_that_is_not_at_once() {
    let run = |vcpus: u32| document(&["all", "--quick", "--json", "--vcpus", &vcpus.to_string()]);
    let Some(one) = run(1) else { return };
    let mut lines: Vec<_> = one["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["system"].to_string(), row["what"].to_string()))
        .collect();
    let all = lines.len();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), all);
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let Some(more) = u32::try_from(cpus + 1).ok().filter(|more| *more <= 16) else {
        return;
    };
    let document = run(more).expect("there was a KVM just now");
    let at_once: Vec<_> = document["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["system"] == "S5")
        .collect();
    assert_eq!(at_once.len(), 8, "{at_once:?}");
    for row in at_once {
        let is_more = !row["what"].as_str().unwrap().ends_with(" 1 vCPU at once");
        assert_eq!(row["why_not"].is_string(), is_more, "{row}");
        assert_eq!(row["value"].is_number(), !is_more, "{row}");
    }
}
