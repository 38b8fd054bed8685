//! Hyper-V synthetic timers: their rules, known defects of the field, and random histories.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod defects;
mod histories;
mod rules;
mod vp;
