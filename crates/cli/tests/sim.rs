//! `chronovisor sim`, run as a program.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const SCENARIOS: [&str; 5] = [
    "lapic-spikes",
    "migration",
    "clock-update",
    "smp-boot",
    "guard-scaling",
];

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chronovisor"))
        .arg("sim")
        .args(arguments)
        .output()
        .expect("the program was built with this test")
}

/// What a successful run printed.
fn printed(arguments: &[&str]) -> String {
    let output = sim(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).expect("text")
}

fn document(text: &str) -> Value {
    serde_json::from_str(text).expect("--json prints JSON")
}

/// A scenario's own text, made small, as a file in `folder`.
fn small(folder: &Path, name: &str) -> String {
    let mut text = printed(&["show", name]);
    for (from, to) in [
        ("ticks = 150_000", "ticks = 300"),
        (
            "at_tick = 75_000, for_ns = 30_000_000_000",
            "at_tick = 100, for_ns = 200_000_000",
        ),
        ("runs = 10_000", "runs = 40"),
        ("runs = 20", "runs = 2"),
        ("hours = 40", "hours = 1"),
        ("reads = 20_000", "reads = 100"),
    ] {
        text = text.replace(from, to);
    }
    let path = folder.join(format!("{name}.toml"));
    fs::write(&path, text).expect("the folder is ours");
    path.to_str().expect("the path is text").to_owned()
}

fn validator(name: &str) -> jsonschema::Validator {
    let path = format!(
        "{}/../../schemas/sim-{name}-1.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(path).expect("it is kept")).expect("it is JSON");
    jsonschema::validator_for(&schema).expect("it is a schema")
}

/// `show` prints a file that runs; it prints a table for people and a document by the kept schema; the same bytes each time and with any number of
/// threads; and shards, joined in any order, give the whole run's bytes.
#[test]
fn every_scenario_runs_repeats_and_merges() {
    let folder = tempfile::tempdir().unwrap();
    for name in SCENARIOS {
        let file = small(folder.path(), name);
        let whole = printed(&[&file, "--json", "--no-speed", "--threads", "1"]);
        assert_eq!(
            whole,
            printed(&[&file, "--json", "--no-speed", "--threads", "3"]),
            "{name}"
        );
        let valid = validator(name);
        let told = document(&whole);
        let errors: Vec<String> = valid.iter_errors(&told).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
        assert_eq!(told["schema"], format!("chronovisor/sim-{name}/1"));
        assert!(told["events"].as_u64() > Some(0), "{name}");
        assert!(!told["rows"].as_array().unwrap().is_empty(), "{name}");
        let mut broken = told;
        broken["rows"] = Value::from("many");
        assert!(
            !valid.is_valid(&broken),
            "a schema that accepts anything would pass too"
        );

        let mut shards = Vec::new();
        for index in [2, 0, 1] {
            let path = folder.path().join(format!("{name}-{index}.json"));
            let part = printed(&[&file, "--no-speed", "--shard", &format!("{index}/3")]);
            assert!(valid.is_valid(&document(&part)), "{name}");
            fs::write(&path, part).unwrap();
            shards.push(path.to_str().unwrap().to_owned());
        }
        let mut merge = vec!["merge", "--json", "--no-speed"];
        merge.extend(shards.iter().map(String::as_str));
        assert_eq!(whole, printed(&merge), "{name}: merged");
        let table = printed(&[&file, "--no-speed"]);
        assert_eq!(
            table,
            printed(&[&["merge", "--no-speed"][..], &merge[3..]].concat()),
            "{name}"
        );
        assert!(
            table.contains('│') && table.contains("seed 1,"),
            "{name}: {table}"
        );
    }
}

#[test]
fn a_document_tells_its_speed_unless_asked_not_to() {
    let folder = tempfile::tempdir().unwrap();
    let file = small(folder.path(), "migration");
    let told = document(&printed(&[&file, "--json"]));
    assert!(told["events_per_second"].as_f64() > Some(0.0));
    let told = document(&printed(&[&file, "--json", "--no-speed"]));
    assert!(told["events_per_second"].is_null() && told["seconds"].is_null());
}

#[test]
fn the_scenarios_are_listed() {
    let list = printed(&["list"]);
    for name in SCENARIOS {
        assert!(list.contains(name), "{list}");
    }
}

/// The rows have the fields that others read, under their names.
#[test]
fn rows_have_their_fields() {
    let folder = tempfile::tempdir().unwrap();
    let fields = |name: &str, fields: &[&str]| {
        let told = document(&printed(&[&small(folder.path(), name), "--json"]));
        for row in told["rows"].as_array().unwrap() {
            for field in fields {
                assert!(row.get(field).is_some(), "{name} has no {field}: {row}");
            }
        }
        told
    };
    let told = fields(
        "lapic-spikes",
        &[
            "policy",
            "load",
            "uptime_s",
            "ticks",
            "max_us",
            "mean_us",
            "deviation_us",
            "p50_us",
            "p99_us",
        ],
    );
    let policies: Vec<&str> = told["rows"].as_array().unwrap()[..8]
        .iter()
        .map(|row| row["policy"].as_str().unwrap())
        .collect();
    assert_eq!(
        policies,
        [
            "merge",
            "skip_on_grid",
            "catch_up",
            "linux_before_8003c9ae",
            "linux_8003c9ae",
            "seed_patch",
            "linux_2018_fix",
            "linux_2025_fix"
        ]
    );
    assert_eq!(told["seed_rows"].as_array().unwrap().len(), 4);
    let told = fields(
        "migration",
        &[
            "clock",
            "policy",
            "backward_steps",
            "largest_step_ns",
            "loss_ns",
        ],
    );
    for row in told["rows"].as_array().unwrap() {
        if row["clock"] != "raw-tsc" {
            assert_eq!(row["backward_steps"], 0, "{row}");
        }
    }
}

/// A broken invariant: exit code 3, the seed, the event's number and the last events, and the unit with which it can be run again.
#[test]
fn a_broken_invariant_ends_with_3_and_can_be_traced() {
    let folder = tempfile::tempdir().unwrap();
    let file = small(folder.path(), "lapic-spikes");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("[host]", "enforce = \"all\"\n[host]")).unwrap();
    let output = sim(&[&file, "--seed", "7", "--json"]);
    assert_eq!(output.status.code(), Some(3));
    let told = document(std::str::from_utf8(&output.stdout).unwrap());
    assert!(validator("violation").is_valid(&told));
    assert_eq!(
        (&told["rule"], &told["seed"]),
        (&Value::from("never-early"), &Value::from(7))
    );
    assert!(told["event"].as_u64() > Some(0));
    assert!(!told["last_events"].as_array().unwrap().is_empty());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("--seed 7 --trace FILE --unit"), "{stderr}");
    // The same violation, whoever finds it first.
    for threads in ["1", "2", "4"] {
        let again = sim(&[&file, "--seed", "7", "--json", "--threads", threads]);
        assert_eq!(again.stdout, output.stdout);
    }
    // The trace of that unit ends with the events that were shown.
    let trace = folder.path().join("trace");
    let unit = told["unit"].to_string();
    let traced = sim(&[
        &file,
        "--seed",
        "7",
        "--trace",
        trace.to_str().unwrap(),
        "--unit",
        &unit,
    ]);
    assert_eq!(traced.status.code(), Some(3));
    let lines = fs::read_to_string(&trace).unwrap();
    let last = told["last_events"].as_array().unwrap().last().unwrap();
    assert_eq!(lines.lines().last(), last.as_str());
    assert_eq!(
        lines.lines().count() - 1,
        usize::try_from(told["event"].as_u64().unwrap()).unwrap()
    );
}

/// What is wrong is said with the place and what was meant; nothing is run.
#[test]
fn wrong_input_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], words: &[&str]| {
        let output = sim(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            matches!(output.status.code(), Some(1 | 2)),
            "{arguments:?}: {stderr}"
        );
        assert!(output.stdout.is_empty(), "{arguments:?}");
        for word in words {
            assert!(stderr.contains(word), "{arguments:?}: {stderr}");
        }
    };
    refused(&["migratoin"], &["did you mean migration?"]);
    refused(&["show", "smpboot"], &["did you mean smp-boot?"]);
    let file = small(folder.path(), "migration");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("vcpus = 4", "vcpu = 4")).unwrap();
    refused(
        &[&file],
        &["migration.toml", "line 6", "did you mean `vcpus`?"],
    );
    fs::write(&file, text.replace("\"migration\"", "\"migratio\"")).unwrap();
    refused(&[&file], &["did you mean `migration`?"]);
    fs::write(&file, [0xff, 0xfe, 0]).unwrap();
    refused(&[&file], &["migration.toml"]);
    fs::write(&file, text).unwrap();
    refused(&[&file, "--shard", "3/3"], &["I/N"]);
    refused(&[&file, "--runs", "0"], &["--runs"]);
    refused(
        &[&file, "--trace", "/nonexistent/trace"],
        &["/nonexistent/trace"],
    );
    refused(
        &[&file, "--trace", "t", "--unit", "99999"],
        &["there is no unit 99999"],
    );
    // Shards: one twice, one missing, one of another run, a whole run, and what is no document at all.
    let save = |name: &str, arguments: &[&str]| {
        let path = folder.path().join(name);
        fs::write(&path, printed(&[&[&file[..]], arguments].concat())).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let first = save("first", &["--shard", "0/2"]);
    let second = save("second", &["--shard", "1/2"]);
    let other = save("other", &["--shard", "1/2", "--seed", "9"]);
    let whole = save("whole", &["--json"]);
    refused(&["merge", &first, &first], &["once more"]);
    refused(&["merge", &first], &["missing: 1"]);
    refused(&["merge", &first, &other], &["another run"]);
    refused(&["merge", &whole], &["whole run"]);
    refused(&["merge", &file], &["migration.toml"]);
    let damaged = fs::read_to_string(&second)
        .unwrap()
        .replace("\"policies\": [", "\"policies\": [[],");
    fs::write(&second, damaged).unwrap();
    refused(&["merge", &first, &second], &["second"]);
}
