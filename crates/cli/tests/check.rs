//! `chronovisor check`, run as a program.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/cases")
}

fn case(number: &str) -> PathBuf {
    std::fs::read_dir(cases())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(number))
        })
        .unwrap()
}

fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_chronovisor"))
        .args(arguments)
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program was built with this test");
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // The program may end before it has read everything.
    let feeder = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    output
}

fn check(arguments: &[&str], input: &[u8]) -> Output {
    let mut all = vec!["check"];
    all.extend(arguments);
    run(&all, input)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn validator() -> jsonschema::Validator {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas/check-1.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(kept).unwrap()).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

fn assert_valid(validator: &jsonschema::Validator, document: &Value) {
    let errors: Vec<String> = validator
        .iter_errors(document)
        .map(|error| format!("{error} at {}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn documents_of_every_case_and_of_this_machine_fit_the_schema() {
    let validator = validator();
    for entry in std::fs::read_dir(cases()).unwrap() {
        let folder = entry.unwrap().path();
        let output = check(&["--json", "--from", folder.to_str().unwrap()], b"");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_valid(&validator, &document);
        assert_eq!(document["schema"], "chronovisor/check/1");
        let code = if document["verdict"] == "fault" { 3 } else { 0 };
        assert_eq!(output.status.code(), Some(code), "{}", folder.display());
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    }
    let output = run(&["--json"], b"");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_valid(&validator, &document);
    assert_eq!(document["machine"]["origin"], "live");
    assert!(!document["clocks"].as_array().unwrap().is_empty());
    let mut broken = document;
    broken["verdict"] = "perhaps".into();
    assert!(!validator.is_valid(&broken));
}

#[test]
fn this_machine_is_checked_in_under_three_seconds() {
    let started = std::time::Instant::now();
    let output = run(&[], b"");
    assert!(started.elapsed().as_secs_f64() < 3.0);
    let report = text(&output.stdout);
    assert!(
        report.contains("clock source") && report.contains("verdict"),
        "{report}"
    );
    assert!(!report.contains('\u{1b}'));
    assert!(matches!(output.status.code(), Some(0 | 3)));
}

#[test]
fn a_log_on_standard_input_is_diagnosed_as_from_its_file() {
    let folder = case("03");
    let log = std::fs::read(folder.join("dmesg")).unwrap();
    let by_stdin = check(&["--from", "-"], &log);
    let by_file = check(&["--from", folder.join("dmesg").to_str().unwrap()], b"");
    assert_eq!(by_stdin.stdout, by_file.stdout);
    assert_eq!(by_stdin.status.code(), Some(3));
    let report = text(&by_stdin.stdout);
    for part in [
        "watchdog-wrapped",
        "3203.149 MHz",
        "tsc=nowatchdog",
        "5.500009 s",
    ] {
        assert!(report.contains(part), "{part} in {report}");
    }
    // Cause, arithmetic and remedy fit one screen.
    assert!(report.lines().count() <= 50, "{}", report.lines().count());
}

#[test]
fn evidence_that_was_saved_gives_the_same_diagnosis() {
    let saved = tempfile::NamedTempFile::new().unwrap();
    let path = saved.path().to_str().unwrap();
    for number in ["02", "05", "08", "09", "11"] {
        let folder = case(number);
        let folder = folder.to_str().unwrap();
        let first = check(&["--json", "--from", folder, "--save", path], b"");
        let again = check(&["--json", "--from", path], b"");
        let findings = |output: &Output| {
            serde_json::from_slice::<Value>(&output.stdout).unwrap()["findings"].clone()
        };
        assert_eq!(findings(&first), findings(&again), "{number}");
        check(&["--from", folder, "--save", path, "--redact"], b"");
        let redacted = check(&["--json", "--from", path], b"");
        assert_eq!(findings(&first), findings(&redacted), "{number}");
    }
}

#[test]
fn this_machine_s_evidence_can_be_saved_and_read_back() {
    let saved = tempfile::NamedTempFile::new().unwrap();
    let path = saved.path().to_str().unwrap();
    let live = run(&["--save", path, "--redact", "--json"], b"");
    let read = check(&["--from", path, "--json"], b"");
    let live: Value = serde_json::from_slice(&live.stdout).unwrap();
    let read: Value = serde_json::from_slice(&read.stdout).unwrap();
    assert_eq!(live["verdict"], read["verdict"]);
    assert_eq!(live["clocks"], read["clocks"]);
}

#[test]
fn a_redacted_bundle_holds_no_name_address_or_serial() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, content: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    write(
        "dmesg",
        "Jun  3 10:00:00 secrethost kernel: [    0.000000] Linux version 6.1.0-secretbuild (builder@secrethost) #1\n\
         Jun  3 10:00:00 secrethost kernel: [    0.000000] Command line: root=UUID=5eca37 ip=10.77.88.99 clocksource=tsc tsc=secret://10.77.88.99\n\
         Jun  3 10:00:00 secrethost kernel: [    0.000000] Hypervisor detected: SecretVisor\n\
         Jun  3 10:00:00 secrethost kernel: [    0.000000] DMI: Serial 5ER1A1\n\
         Jun  3 10:00:01 secrethost kernel: [    1.000000] tsc: Marking TSC unstable due to secret reasons\n",
    );
    write(
        "proc/cmdline",
        "root=UUID=5eca37 ip=10.77.88.99 hostname=secrethost tsc=reliable\n",
    );
    write(
        "proc/cpuinfo",
        "processor\t: 0\nserial\t: 5ER1A1\nmodel name\t: A CPU\n",
    );
    write(
        "proc/interrupts",
        "  CPU0\n 24: 5 PCI-MSI secrethost-nic\nLOC: 5 Local timer secrethost\n",
    );
    write(
        "cost.csv",
        "clock,ns_per_read,path\nmonotonic@10.77.88.99,20,vdso\n",
    );
    let output = check(
        &[
            "--from",
            folder.path().to_str().unwrap(),
            "--save",
            "-",
            "--redact",
        ],
        b"",
    );
    let bundle = text(&output.stdout);
    assert!(bundle.contains("chronovisor/bundle/1"), "{bundle}");
    for secret in ["secret", "Secret", "10.77", "5eca37", "5ER1A1"] {
        assert!(!bundle.contains(secret), "{secret} in {bundle}");
    }
    assert!(bundle.contains("clocksource=tsc"));
}

#[test]
fn a_fleet_gets_a_line_each_and_totals() {
    let mut stream = String::new();
    for number in ["02", "13", "03"] {
        let folder = case(number);
        let output = check(&["--from", folder.to_str().unwrap(), "--save", "-"], b"");
        stream.push_str(&text(&output.stdout));
        stream.push_str("{\"schema\":\"something/else\"}\n");
    }
    let output = check(&["--from", "-"], stream.as_bytes());
    assert_eq!(output.status.code(), Some(3));
    let report = text(&output.stdout);
    assert_eq!(report.lines().count(), 4, "{report}");
    assert!(report.contains("watchdog-wrapped"));
    assert!(
        report.contains("3 machines: 2 with a fault, 0 inconclusive, 1 without fault"),
        "{report}"
    );
    assert!(
        text(&output.stderr).contains("line 2"),
        "{}",
        text(&output.stderr)
    );
    let output = check(&["--from", "-", "--json"], stream.as_bytes());
    let validator = validator();
    let report = text(&output.stdout);
    assert_eq!(report.lines().count(), 3);
    for line in report.lines() {
        assert_valid(&validator, &serde_json::from_str(line).unwrap());
    }
}

#[test]
fn codes_are_listed_and_explained() {
    let list = text(&check(&["--list-codes"], b"").stdout);
    let explained = check(&["--explain", "watchdog-wrapped"], b"");
    assert!(list.contains("watchdog-wrapped") && list.contains("clock-unsynchronised"));
    let explained = text(&explained.stdout);
    for part in [
        "What it means",
        "How it is told",
        "What to do",
        "Sources",
        "implied_hz",
    ] {
        assert!(explained.contains(part), "{part}");
    }
    let wrong = check(&["--explain", "watchdog-wraped"], b"");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("watchdog-wrapped"));
}

#[test]
fn what_cannot_be_read_at_all_fails_with_one_line() {
    let junk: Vec<u8> = (0..100_000_u32)
        .map(|i| i.to_le_bytes()[0] ^ 0x5a)
        .collect();
    for input in [
        &b""[..],
        b"hello\nworld\n",
        &junk,
        b"{\"schema\":\"x\"}\n",
        b"\x1f\x8b\x08\x00",
    ] {
        let output = check(&["--from", "-"], input);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{:?}",
            &input[..input.len().min(20)]
        );
        assert!(output.stdout.is_empty());
        assert!(text(&output.stderr).starts_with("chronovisor: "));
    }
    let missing = check(&["--from", "/does/not/exist"], b"");
    assert_eq!(missing.status.code(), Some(1));
    let empty = tempfile::tempdir().unwrap();
    let output = check(&["--from", empty.path().to_str().unwrap()], b"");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(check(&["--nonsense"], b"").status.code(), Some(2));
}

#[test]
fn damage_in_a_folder_is_named_and_the_rest_is_diagnosed() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, content: &[u8]| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    write(
        "sys/devices/system/clocksource/clocksource0/current_clocksource",
        b"hpet\n",
    );
    write(
        "sys/devices/system/clocksource/clocksource0/available_clocksource",
        b"\xff\x00\xfe",
    );
    write(
        "samples.csv",
        b"tsc,monotonic_ns\n1,x\n99999999999999999999999999,2\n",
    );
    write("proc/stat", b"cpu  1 2 3 99999999999999999999999\n");
    write("dmesg", &[0; 5000]);
    let output = check(&["--from", folder.path().to_str().unwrap()], b"");
    assert_eq!(output.status.code(), Some(3));
    let report = text(&output.stdout);
    assert!(report.contains("slow-read-path"), "{report}");
    let complaints = text(&output.stderr);
    for part in ["samples.csv line 2", "samples.csv line 3"] {
        assert!(complaints.contains(part), "{part} in {complaints}");
    }
    for part in ["proc/stat: line 1", "dmesg: none of its"] {
        assert!(report.contains(part), "{part} in {report}");
    }
}
