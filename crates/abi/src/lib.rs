//! What a hypervisor and its guest agree on about time: units, scaling rules, the sequence lock, memory layouts, registers.
//!
//! This crate holds no policy and reads no clock. `chronovisor-guest` reads what is described here, `chronovisor-host`
//! publishes it, and both link the same definitions, so the two halves cannot disagree.
//!
//! ```
//! use chronovisor_abi::quantity::{Hertz, Tsc, TscDelta};
//! use chronovisor_abi::scale::{PvclockScale, ReferenceScale};
//!
//! let rate = Hertz::from_hz(2_600_000_000).expect("not zero");
//! let pvclock = PvclockScale::nearest(rate)?;
//! let page = ReferenceScale::from_frequency(rate)?;
//! assert_eq!(pvclock.nanos(TscDelta::from_ticks(26_000_000_000)).as_ns(), 10_000_000_000);
//! assert_eq!(page.ticks(Tsc::from_ticks(26_000_000_000)), 99_999_999);
//! # Ok::<(), chronovisor_abi::scale::ScaleError>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, loom))]
extern crate std;

pub mod apic;
pub mod cpuid;
pub mod msr;
pub mod pvclock;
pub mod quantity;
pub mod reference_tsc;
pub mod scale;
pub mod seqlock;
pub mod synthetic_timer;
pub mod vmclock;
pub mod wide;

/// The examples of the README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
