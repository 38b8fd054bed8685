//! The field cases under `testdata/cases`: each has to be diagnosed as its `expect.json` says.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use chronovisor_diagnose::{Diagnosis, diagnose, intake};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/cases")
}

fn within(value: f64, expected: f64, tolerance: &Value) -> bool {
    let off = (value - expected).abs();
    match (tolerance["rel"].as_f64(), tolerance["abs"].as_f64()) {
        (Some(rel), _) => off <= rel * expected.abs(),
        (None, Some(abs)) => off <= abs,
        (None, None) => panic!("a tolerance without rel or abs"),
    }
}

/// Everything that is wrong with a diagnosis.
fn complaints(expect: &Value, diagnosis: &Diagnosis) -> Vec<String> {
    let mut wrong = Vec::new();
    let find = |code: &str| {
        diagnosis
            .findings
            .iter()
            .find(|finding| finding.code.name() == code)
    };
    for must in expect["must_find"].as_array().unwrap() {
        let code = must["code"].as_str().unwrap();
        let Some(finding) = find(code) else {
            wrong.push(format!("{code} not found"));
            continue;
        };
        for (name, expected) in must["figures"].as_object().unwrap() {
            let expected = expected.as_f64().unwrap();
            match finding.figures.get(name) {
                None => wrong.push(format!("{code}: no figure {name}")),
                Some(figure) => {
                    if !within(figure.value(), expected, &must["tolerance"][name]) {
                        wrong.push(format!("{code}: {name} is {figure}, not {expected}"));
                    }
                }
            }
        }
    }
    for not in expect["must_not_find"].as_array().unwrap() {
        if let Some(finding) = find(not.as_str().unwrap()) {
            wrong.push(format!("{} found: {}", finding.code, finding.summary));
        }
    }
    let verdict = expect["verdict"].as_str().unwrap();
    if diagnosis.verdict.to_string() != verdict {
        wrong.push(format!("verdict {} and not {verdict}", diagnosis.verdict));
    }
    wrong
}

#[test]
fn every_case_is_diagnosed_as_expected() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    let mut folders: Vec<PathBuf> = std::fs::read_dir(cases())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let expect = std::fs::read_to_string(folder.join("expect.json")).unwrap();
        let expect: Value = serde_json::from_str(&expect).unwrap();
        let evidence = intake::folder(&folder).unwrap();
        assert_eq!(evidence.complaints, Vec::<String>::new(), "{name}");
        let diagnosis = diagnose(&evidence);
        wrong.extend(
            complaints(&expect, &diagnosis)
                .into_iter()
                .map(|line| format!("{name}: {line}")),
        );
        seen += 1;
    }
    assert!(seen >= 15, "{seen} cases");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_wrong_diagnosis_would_be_noticed() {
    let folder = cases().join("03-pmtimer-wrap");
    let expect = std::fs::read_to_string(folder.join("expect.json")).unwrap();
    let mut expect: Value = serde_json::from_str(&expect).unwrap();
    let diagnosis = diagnose(&intake::folder(&folder).unwrap());
    assert!(complaints(&expect, &diagnosis).is_empty());
    expect["must_find"][1]["figures"]["wraps"] = 2.into();
    expect["must_not_find"] = serde_json::json!(["tsc-marked-unstable"]);
    expect["verdict"] = "no-fault".into();
    assert_eq!(complaints(&expect, &diagnosis).len(), 3);
}
