#![no_main]
//! Whatever bytes a kernel's log holds.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| chronovisor_diagnose::intake::exercise::kernel_log(bytes));
