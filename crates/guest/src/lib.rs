//! Reads the clocks of a virtual machine from inside it.
//!
//! Everything but [`linux`] is `no_std` and needs no allocator: kernels and unikernels use it with `default-features = false`.

#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(any(test, loom))]
extern crate std;

pub mod clock;
pub mod counter;
pub mod cpuid;
pub mod delay_loop;
pub mod frequency;
pub mod guard;
pub mod pvclock;
pub mod reference_tsc;
pub mod sched_clock;

#[cfg(all(feature = "std", target_os = "linux", not(loom)))]
pub mod linux;

/// The model of the process's copy of a page; the rest of `linux` needs a kernel.
#[cfg(all(test, loom))]
#[path = "linux/clock"]
mod clock_model {
    #[allow(dead_code)]
    mod line;
    mod model;
    #[allow(dead_code)]
    mod published;
}
