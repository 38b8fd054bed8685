#![no_std]
#![forbid(unsafe_code)]
//! x
extern crate alloc;

/// The local APIC timer.
pub mod apic;
