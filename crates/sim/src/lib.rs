//! See the crate's README.

#![forbid(unsafe_code)]

pub mod clock_checks;
pub mod clock_guest;
pub mod contended_line;
pub mod guest_machine;
pub mod historical_clock;
pub mod historical_lapic;
pub mod host_lapic;
pub mod host_machine;
pub mod lapic_timer;
pub mod line;
pub mod noise;
pub mod oracle;
pub mod queue;
pub mod runner;
pub mod scenario;
pub mod timeline;
pub mod watch;
pub mod world;
pub mod world_time;

/// The examples of the project's README, run as tests: this crate links both halves.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ProjectReadme;
