//! What disciplines the wall clock, and what it can be compared with: the kernel's own state, PTP devices, time daemons.

pub mod adjtimex;
pub mod daemon;
pub mod ptp;

use chronovisor_diagnose::evidence::{Part, TimeReference};

/// Everything that can judge the wall clock here.
#[must_use]
pub fn reference() -> Part<TimeReference> {
    let (daemons, daemons_not_readable) = match daemon::running("/proc") {
        Ok(names) => (names, None),
        Err(error) => (Vec::new(), Some(format!("/proc: {error}"))),
    };
    Part::Seen(TimeReference {
        adjtimex: adjtimex::read().ok(),
        ptp: ptp::devices(),
        daemons,
        daemons_not_readable,
    })
}
