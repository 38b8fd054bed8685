//! Publishes the clocks and runs the timers of a virtual machine, for virtual-machine monitors on KVM-like and Hyper-V-like interfaces.
//!
//! Everything here is a pure function of its state and the readings that the caller passes in: no clock is read, nothing waits, nothing
//! is allocated after construction.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(test)]
extern crate self as chronovisor_host;
#[cfg(test)]
extern crate std;

pub mod apic;
pub mod cpuid_leaves;
pub mod events;
pub mod guest_memory;
pub mod kvmclock;
pub mod migration;
pub mod msr_surface;
pub mod partition_clock;
pub mod reenlightenment;
mod reference_tsc;
pub mod synic;
pub mod synthetic_timer;
pub mod vmclock;

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod proof;
#[cfg(all(test, not(loom)))]
#[path = "../tests/support/mod.rs"]
mod support;

/// The examples of the README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
