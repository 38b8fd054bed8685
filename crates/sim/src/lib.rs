//! See the crate's README.

#![forbid(unsafe_code)]

pub mod host_machine;
pub mod line;
pub mod noise;
pub mod queue;
pub mod watch;
pub mod world;
pub mod world_time;
