#![no_main]
//! Whatever bytes come as a bundle, a stream of bundles, an archive, or compressed.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| chronovisor_diagnose::intake::exercise::any(bytes));
