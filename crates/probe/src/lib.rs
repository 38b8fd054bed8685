//! Evidence about the clocks of this Linux machine, gathered in a second and without root.
//!
//! [`survey::survey`] is the entry. Each other module yields a part of the [`Evidence`](chronovisor_diagnose::evidence::Evidence) that
//! `chronovisor-diagnose` judges. A part that cannot be read says why; nothing here fails as a whole.

pub mod bracket;
pub mod clock_pages;
pub mod cpus;
pub mod frequencies;
pub mod identity;
pub mod kernel_log;
pub mod msr;
pub mod proc_captures;
pub mod rate;
pub mod read_cost;
pub mod reference;
pub mod resolution;
pub mod survey;
pub mod text_file;
pub mod timed_loop;
pub mod trapped_counter;
pub mod vmclock;
pub mod warp;

/// The README's examples, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
