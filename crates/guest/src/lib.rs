//! Reads the clocks of a virtual machine from inside it.
//!
//! Everything but [`linux`] is `no_std` and needs no allocator: kernels and unikernels use it with `default-features = false`.

#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(any(test, loom))]
extern crate std;

pub mod clock;
pub mod counter;
pub mod cpuid;
pub mod pvclock;
pub mod reference_tsc;

#[cfg(all(feature = "std", target_os = "linux", not(loom)))]
pub mod linux;
