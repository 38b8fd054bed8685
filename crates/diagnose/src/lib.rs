#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

pub mod catalogue;
pub mod code;
pub mod diagnosis;
pub mod evidence;
pub mod finding;
pub mod forensics;
pub mod intake;
pub mod report;
mod rules;

pub use code::{Code, Severity};
pub use diagnosis::{Diagnosis, Verdict, diagnose};
pub use evidence::Evidence;
pub use finding::{Figure, Finding, Observation};
