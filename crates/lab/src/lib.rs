//! A micro-VM on /dev/kvm that measures each clock and timer inside a real guest.
//!
//! The guest is bare metal ([`image`]), the VMM is [`machine`]; the clocks come from `chronovisor-host` and are read with
//! `chronovisor-guest`.

pub mod alarm;
pub mod backend;
pub mod clocks;
pub mod contract;
mod error;
pub mod experiment;
pub mod image;
pub mod machine;
pub mod pages;
pub mod report;

pub mod user_apic;

pub use error::LabError;

/// The README's example, compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
