//! `chronovisor bench`, run as a program.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::process::{Command, Output};

use chronovisor_abi::quantity::TscDelta;
use chronovisor_guest::counter;
use chronovisor_probe::timed_loop::time;
use chronovisor_stats::median;
use serde_json::Value;

/// Every row that the table has, on one machine or another.
const CLOCKS: [&str; 17] = [
    "rdtsc",
    "lfence-rdtsc",
    "rdtscp",
    "pvclock-page",
    "reference-tsc-page",
    "reference-tsc-page-unordered",
    "vdso-monotonic",
    "syscall-monotonic",
    "std-instant",
    "chronovisor-clock",
    "chronovisor-clock-ordered",
    "pvclock-per-cpu",
    "getcpu-rdtsc",
    "pvclock-guarded",
    "pvclock-guarded-coarse",
    "trapped-rdtsc",
    "cpuid-exit",
];

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chronovisor"))
        .arg("bench")
        .args(arguments)
        .output()
        .expect("the program was built with this test")
}

fn document(arguments: &[&str]) -> Value {
    let output = bench(arguments);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("--json prints JSON")
}

#[test]
fn the_document_is_valid_by_the_kept_schema() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas/bench-1.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(kept).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let document = document(&["--json", "--seconds", "0.05", "--threads", "1,2"]);
    let errors: Vec<String> = validator
        .iter_errors(&document)
        .map(|error| error.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    // A schema that accepts anything would pass too.
    let mut broken = document;
    broken["rows"][0]["cycles"] = Value::from("many");
    assert!(!validator.is_valid(&broken));
    broken = serde_json::json!({ "schema": "chronovisor/check/1" });
    assert!(!validator.is_valid(&broken));
}

/// Each clock is measured with each number of threads, or named with the reason why not; published figures stand apart.
#[test]
fn each_clock_is_a_row_or_is_missing_for_a_reason() {
    let document = document(&["--json", "--seconds", "0.05", "--threads", "1,3"]);
    let rows = document["rows"].as_array().unwrap();
    let missing = document["unavailable"].as_array().unwrap();
    let name = |row: &Value| row["clock"].as_str().unwrap().to_owned();
    for threads in [1, 3] {
        let of_these = rows.iter().filter(|row| row["threads"] == threads);
        let told: BTreeSet<String> = of_these.chain(missing).map(name).collect();
        assert_eq!(told, CLOCKS.map(str::to_owned).into(), "{threads} threads");
    }
    for row in rows {
        let number = |field: &str| row[field].as_f64().unwrap_or(0.0);
        assert!(
            number("ns") > 0.0 && number("cycles") > 0.0 && number("batches") >= 1.0,
            "{row}"
        );
        let (ns, cycles) = (number("ns"), number("cycles"));
        let hz = document["counter"]["hz"].as_f64().unwrap();
        assert!(
            (cycles / ns * 1e9 / hz - 1.0).abs() < 1e-6,
            "{row} at {hz} Hz"
        );
        assert!(
            row["regressions"] == 0,
            "one thread saw its clock go back: {row}"
        );
    }
    for missing in missing {
        assert!(!missing["reason"].as_str().unwrap().is_empty());
    }
    assert_eq!(document["seed_rows"].as_array().unwrap().len(), 16);
}

/// What must hold on any machine, loaded or not: a system call costs more than the vDSO's user-space read of the counter, a trap more than a
/// system call; and the ratio is the one of the columns.
#[test]
fn costs_stand_in_their_order() {
    let document = document(&["--json", "--seconds", "0.3"]);
    let row = |clock: &str| {
        document["rows"]
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["clock"] == clock)
            .cloned()
    };
    let cycles = |clock: &str| row(clock).and_then(|row| row["cycles"].as_f64());
    assert!(cycles("rdtsc").unwrap() < cycles("syscall-monotonic").unwrap());
    if let Some(trap) = cycles("trapped-rdtsc") {
        assert!(trap > cycles("syscall-monotonic").unwrap());
    }
    if let Some(rdtscp) = cycles("rdtscp") {
        let ratio = row("rdtsc").unwrap()["ratio_to_rdtscp"].as_f64().unwrap();
        assert!((ratio - cycles("rdtsc").unwrap() / rdtscp).abs() < 1e-9);
    }
}

/// The promises of this project, as ratios of medians in one run: (clock, against, at most). They are those of optimised code, so the program is a
/// release build: `cargo build --release && CHRONOVISOR_BIN=$PWD/target/release/chronovisor cargo test -p chronovisor --test bench`.
///
/// Against an instruction, they are of our code over that instruction and the arithmetic of a clock: see [`with_arithmetic`].
const PROMISES: [(&str, &str, f64); 7] = [
    ("reference-tsc-page", "rdtscp", 1.10),
    ("reference-tsc-page-unordered", "rdtsc", 1.10),
    ("pvclock-page", "rdtscp", 1.25),
    ("pvclock-page", "vdso-monotonic", 1.0),
    ("chronovisor-clock", "rdtsc", 1.10),
    ("chronovisor-clock", "std-instant", 0.50),
    ("chronovisor-clock-ordered", "rdtscp", 1.13),
];

/// What a subtraction, a 64-bit multiplication and an addition behind a counter's instruction cost with it, by it: no clock that scales a
/// counter can cost less. Measured on an Intel Xeon (family 6 model 167): 1.02 of `rdtscp`, 1.03 of `rdtsc`.
fn with_arithmetic(read: impl Fn() -> u64 + Copy) -> f64 {
    const READS: u32 = 1000;
    let (base, multiplier, offset) = black_box((1_u64, 0x00FC_0FCD_B10E_9904_u64, 5_u64));
    let scaled = move || {
        let product = u128::from(read().wrapping_sub(base)) * u128::from(multiplier);
        // The upper half of a product of two words is a word.
        u64::try_from(product >> 64)
            .unwrap_or(0)
            .wrapping_add(offset)
    };
    let ticks = |took: TscDelta| u32::try_from(took.as_ticks()).map_or(f64::INFINITY, f64::from);
    let (bare, scaled): (Vec<_>, Vec<_>) = (0..300)
        .map(|_| (ticks(time(READS, read)), ticks(time(READS, scaled))))
        .unzip();
    let middle = |ticks: &[f64]| median(ticks).expect("300 batches, each a number");
    let ratio = middle(&scaled) / middle(&bare);
    assert!(
        (0.97..1.15).contains(&ratio),
        "three operations cost {ratio} of a counter: too busy a machine to tell"
    );
    ratio.max(1.0)
}

#[test]
fn the_promised_ratios_hold_in_three_runs() {
    let Some(program) = std::env::var_os("CHRONOVISOR_BIN") else {
        return eprintln!("skipped: CHRONOVISOR_BIN names no release build");
    };
    let arithmetic = BTreeMap::from([
        ("rdtsc", with_arithmetic(|| counter::rdtsc().as_ticks())),
        ("rdtscp", with_arithmetic(|| counter::rdtscp().0.as_ticks())),
    ]);
    println!("with the arithmetic of a clock: {arithmetic:.3?} of the instruction");
    for run in 1..=3 {
        let output = Command::new(&program)
            .args(["bench", "--json"])
            .output()
            .unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let cycles = |clock: &str| {
            let mut rows = document["rows"].as_array().unwrap().iter();
            rows.find(|row| row["clock"] == clock)
                .and_then(|row| row["cycles"].as_f64())
        };
        for (clock, against, most) in PROMISES {
            let (Some(ours), Some(theirs)) = (cycles(clock), cycles(against)) else {
                println!("run {run}: {clock} over {against}: not on this machine");
                continue;
            };
            let most = most * arithmetic.get(against).unwrap_or(&1.0);
            println!(
                "run {run}: {clock} over {against}: {:.3}, at most {most:.3}",
                ours / theirs
            );
            assert!(
                ours / theirs <= most,
                "{clock} {ours} cycles, {against} {theirs}"
            );
        }
    }
}

#[test]
fn wrong_usage_is_told_and_nothing_is_measured() {
    for arguments in [
        ["--threads", "0"],
        ["--threads", "many"],
        ["--seconds", "-1"],
        ["--seconds", "nan"],
    ] {
        let output = bench(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

#[test]
fn the_table_names_the_machine_and_every_clock() {
    let output = bench(&["--seconds", "0.05"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for clock in CLOCKS {
        assert!(text.contains(clock), "{clock} is missing in\n{text}");
    }
    assert!(text.contains("One read, 1 thread\n") && text.contains("Published by others"));
    assert!(output.stderr.is_empty(), "no bar where nobody looks");
}
