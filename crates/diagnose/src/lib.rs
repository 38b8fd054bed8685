#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

pub mod evidence;
pub mod forensics;
pub mod intake;

pub use evidence::Evidence;
