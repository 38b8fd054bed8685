//! Evidence about the clocks of this Linux machine, gathered in a second and without root.
//!
//! Each module yields a part of the [`Evidence`](chronovisor_diagnose::evidence::Evidence) that `chronovisor-diagnose` judges. A part that cannot be
//! read says why; nothing here fails as a whole.

pub mod bracket;
pub mod cpus;
pub mod identity;
pub mod kernel_log;
pub mod os_clock;
pub mod rate;
pub mod reference;
pub mod resolution;
pub mod text_file;
pub mod timed_loop;
pub mod warp;
