#![no_main]
//! Whatever text stands in the files of an evidence tree.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| chronovisor_diagnose::intake::exercise::folder(bytes));
