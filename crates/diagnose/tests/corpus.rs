//! The corpus of the fuzz targets, replayed and mutated a little.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

use chronovisor_diagnose::intake::exercise;
use proptest::prelude::*;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut inputs: Vec<(PathBuf, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(&path).unwrap()))
        .collect();
    inputs.sort();
    assert!(inputs.len() >= 3, "{target}: {} inputs", inputs.len());
    inputs
}

fn target(name: &str) -> fn(&[u8]) {
    match name {
        "kernel_log" => exercise::kernel_log,
        "bundle" => exercise::any,
        _ => exercise::folder,
    }
}

#[test]
fn every_input_of_the_corpus_is_survived() {
    for name in ["kernel_log", "bundle", "folder"] {
        for (path, bytes) in corpus(name) {
            println!("{}", path.display());
            target(name)(&bytes);
            // Cut off anywhere.
            for end in (0..bytes.len()).step_by(bytes.len() / 16 + 1) {
                target(name)(&bytes[..end]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn mutated_inputs_are_survived(
        name in prop::sample::select(vec!["kernel_log", "bundle", "folder"]),
        which: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..4), 1..12),
    ) {
        let inputs = corpus(name);
        let mut bytes = inputs[which.index(inputs.len())].1.clone();
        for (at, byte, what) in changes {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => bytes.truncate(at),
                // A digit more makes a number larger than any.
                _ => {
                    let digits = vec![b'9'; usize::from(byte % 24)];
                    bytes.splice(at..at, digits);
                }
            }
        }
        target(name)(&bytes);
    }
}
