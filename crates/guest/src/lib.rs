//! Reads the clocks of a virtual machine from inside it.
//!
//! Everything but `linux` (feature `std`, on by default) is `no_std` and needs no allocator and no SSE: kernels and unikernels use it with
//! `default-features = false`.
//!
//! | module | answers |
//! | --- | --- |
//! | [`counter`] | what is the counter now, in which order, on which CPU |
//! | [`pvclock`], [`reference_tsc`] | what does the hypervisor's page say the time is |
//! | [`vmclock`] | what time of day is it, how far can that be off, was this machine moved or copied |
//! | [`guard`] | how does it stay monotonic where CPUs disagree |
//! | [`sched_clock`] | how does a scheduler's clock go on over suspend, hibernation and migration |
//! | [`frequency`] | how fast is the counter, by which channel, to which error |
//! | [`delay_loop`] | how long is a busy wait, without calibrating |
//! | [`select`] | which clock source should be used here, and why |
//! | `linux` | where are the kernel's own pages; and [`Clock`](linux::Clock), the fastest clock that stays right here |
//!
//! ```
//! use chronovisor_guest::linux::Clock;
//!
//! let clock = Clock::new();
//! let start = clock.now();
//! println!("{} later, by the {}", clock.elapsed_since(start), clock.report().source);
//! ```

#![cfg_attr(not(feature = "std"), no_std)]
#![cfg(any(target_arch = "x86", target_arch = "x86_64"))]

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
pub mod select;
pub mod vmclock;

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
