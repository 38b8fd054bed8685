//! What a Linux guest can do without its kernel's help: read the clock pages that the kernel maps into every process.
//!
//! - [`pages`] finds them, on old and new kernels, and learns which are present without a signal handler.
//! - [`time_data`] reads the kernel's own counter, multiplier and mode from the time page.
//! - [`vmclock`] maps the page of a `/dev/vmclockN`.
//! - [`clock`] has [`Clock`], the fastest clock that stays right in this virtual machine.
//! - [`getcpu`] is a counter with CPU number for processors without `rdtscp`.
//! - [`os_clock`] are the operating system's clocks, by vDSO and by system call.

pub mod clock;
pub mod getcpu;
pub mod maps;
pub mod os_clock;
pub mod pages;
pub mod presence;
pub mod time_data;
pub mod vmclock;

pub use clock::Clock;
