//! What a [`Clock`](super::Clock) stands on, and what has happened to it.

use std::vec::Vec;

use chronovisor_abi::quantity::{Hertz, Ppb};

use super::source::{Rejected, SourceKind, Unusable};

/// What has happened since the clock was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// The source's page changed and the new line was taken.
    pub updates: u64,
    /// The source became unusable and the operating system's clock took over.
    pub fall_backs: u64,
    /// The source became usable again.
    pub returns: u64,
    /// The line was compared with the operating system's clock.
    pub checks: u64,
    /// Such a comparison was more than 1000 ppm off.
    pub disagreements: u64,
    /// The counter was found elsewhere than it can have run to.
    pub counter_moves: u64,
    /// The host said that it had stopped the guest.
    pub guest_stops: u64,
    /// Sum of the source's steps forward that the clock followed, in ns.
    pub forward_ns: u64,
    /// Sum of the source's steps back that the clock did not follow, in ns: how far it is ahead of its source because of them.
    pub held_ns: u64,
}

/// A clock's own account of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The counter that was chosen.
    pub source: SourceKind,
    /// Why the operating system's clock is in use now, if it is.
    pub fallen_back: Option<Unusable>,
    /// The better sources that were passed over, each with its reason.
    pub rejected: Vec<Rejected>,
    /// The counter's rate as the source states it.
    pub rate: Option<Hertz>,
    /// How far that rate can be off the source's own time: zero where the source is a page, whose rate is exact by definition.
    pub rate_bound: Option<Ppb>,
    /// The clock's time less that of what it stands on now, modulo 2^64 ns: taken at the last switch, so that the clock went on without a step.
    pub offset_ns: u64,
    /// What has happened since the clock was made.
    pub events: Events,
}
