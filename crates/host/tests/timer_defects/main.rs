//! Known defects of local APIC timers in the field, each as a test: the wrong behaviour must not be ours. The numbers are those of the
//! project's list of known defects.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod back_ends;
mod count;
mod deadline;
mod restore;
mod timer;
