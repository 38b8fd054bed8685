//! The scenario's results.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock_checks::{Clock, ClockSeen, Shown};
use crate::runner::{Merge, MergeError};

/// How a clock is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// By the partition clock: each line goes on from its own value.
    Ours,
    /// By a fresh snapshot of the host's raw clock, over the same updates.
    LinuxResnapshot,
    /// The same, with a single update at the end.
    LinuxResnapshotOnce,
}

impl Policy {
    /// The name, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::LinuxResnapshot => "linux_resnapshot",
            Self::LinuxResnapshotOnce => "linux_resnapshot_once",
        }
    }
}

/// The steps of a historical clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Steps {
    updates: u64,
    back: u64,
    largest_ns: u64,
}

impl Steps {
    pub(super) fn add(&mut self, step_ns: i64) {
        self.updates += 1;
        self.back += u64::from(step_ns < 0);
        self.largest_ns = self.largest_ns.max(step_ns.unsigned_abs());
    }

    fn merge(&mut self, other: &Self) {
        self.updates += other.updates;
        self.back += other.back;
        self.largest_ns = self.largest_ns.max(other.largest_ns);
    }
}

/// What one machine saw.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineSeen {
    pub(super) clocks: [ClockSeen; 6],
    pub(super) updates: u64,
    pub(super) hot_plugs: u64,
    pub(super) rate_changes: u64,
    pub(super) rebases: u64,
    /// The largest jump at an update: pvclock, and the reference clock.
    pvclock_jump_ns: u64,
    reference_jump_ns: u64,
    pub(super) often: Steps,
    pub(super) once: Steps,
}

impl MachineSeen {
    pub(super) fn jump(&mut self, before: &Shown, after: &Shown) {
        let (pvclock, reference) = before.distance_ns(after);
        self.pvclock_jump_ns = self.pvclock_jump_ns.max(pvclock);
        self.reference_jump_ns = self.reference_jump_ns.max(reference);
    }
}

/// The sum of all machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tally {
    vms: u64,
    updates: u64,
    hot_plugs: u64,
    rate_changes: u64,
    rebases: u64,
    clocks: [RowTally; 6],
    often: Steps,
    once: Steps,
}

/// The sum of one of our clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RowTally {
    reads: u64,
    backward_steps: u64,
    largest_jump_ns: u64,
    largest_error_ns: u64,
}

impl Tally {
    pub(super) fn add(&mut self, seen: &MachineSeen) {
        self.vms += 1;
        self.updates += seen.updates;
        self.hot_plugs += seen.hot_plugs;
        self.rate_changes += seen.rate_changes;
        self.rebases += seen.rebases;
        for (clock, (row, seen_of)) in Clock::ALL
            .iter()
            .zip(self.clocks.iter_mut().zip(&seen.clocks))
        {
            let jump = match clock {
                Clock::Pvclock => seen.pvclock_jump_ns,
                Clock::ReferenceTscPage | Clock::ReferenceCounterMsr | Clock::SchedClock => {
                    seen.reference_jump_ns
                }
                Clock::RawTsc | Clock::Vmclock => 0,
            };
            row.reads += seen_of.reads;
            row.backward_steps += seen_of.backward_steps;
            row.largest_jump_ns = row.largest_jump_ns.max(jump);
            row.largest_error_ns = row.largest_error_ns.max(seen_of.error_ns);
        }
        self.often.merge(&seen.often);
        self.once.merge(&seen.once);
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let ours = Clock::ALL.iter().zip(&self.clocks);
        // The raw counter has no updates.
        let ours = ours.filter(|(clock, _)| **clock != Clock::RawTsc);
        let ours = ours.map(|(clock, tally)| Row {
            clock: *clock,
            policy: Policy::Ours,
            vms: self.vms,
            updates: self.updates + self.hot_plugs,
            hot_plugs: self.hot_plugs,
            rate_changes: self.rate_changes,
            rebases: self.rebases,
            reads: tally.reads,
            backward_steps: tally.backward_steps,
            largest_jump_ns: (*clock != Clock::Vmclock).then_some(tally.largest_jump_ns),
            largest_error_ns: Some(tally.largest_error_ns),
        });
        let historical = [
            (Policy::LinuxResnapshot, &self.often),
            (Policy::LinuxResnapshotOnce, &self.once),
        ];
        let historical = historical.map(|(policy, steps)| Row {
            clock: Clock::Pvclock,
            policy,
            vms: self.vms,
            updates: steps.updates,
            hot_plugs: steps.updates,
            rate_changes: 0,
            rebases: 0,
            reads: 0,
            backward_steps: steps.back,
            largest_jump_ns: Some(steps.largest_ns),
            largest_error_ns: None,
        });
        ours.chain(historical).collect()
    }
}

impl Merge for Tally {
    fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        self.vms += other.vms;
        self.updates += other.updates;
        self.hot_plugs += other.hot_plugs;
        self.rate_changes += other.rate_changes;
        self.rebases += other.rebases;
        for (row, other) in self.clocks.iter_mut().zip(&other.clocks) {
            row.reads += other.reads;
            row.backward_steps += other.backward_steps;
            row.largest_jump_ns = row.largest_jump_ns.max(other.largest_jump_ns);
            row.largest_error_ns = row.largest_error_ns.max(other.largest_error_ns);
        }
        self.often.merge(&other.often);
        self.once.merge(&other.once);
        Ok(())
    }
}

/// A row of the table: a clock over all updates of all machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The clock.
    pub clock: Clock,
    /// How it is updated.
    pub policy: Policy,
    /// Machines.
    pub vms: u64,
    /// Updates, all together.
    pub updates: u64,
    /// Hot-plugged vCPUs among them.
    pub hot_plugs: u64,
    /// Changes of the counter's rate among them.
    pub rate_changes: u64,
    /// Re-bases among them.
    pub rebases: u64,
    /// Readings.
    pub reads: u64,
    /// Readings smaller than an earlier one; for the historical clock, updates that stepped back.
    pub backward_steps: u64,
    /// The largest distance between old and new line at the counter value of an update, in ns; null for VMClock, which follows TAI.
    pub largest_jump_ns: Option<u64>,
    /// The largest distance of any reading from exact time (VMClock: from TAI), in ns.
    pub largest_error_ns: Option<u64>,
}

/// A published figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeedRow {
    /// The clock.
    pub clock: Clock,
    /// How it was updated.
    pub policy: Policy,
    /// The jump measured, in ns.
    pub largest_jump_ns: u64,
    /// After how long, in h.
    pub hours: u64,
}

impl SeedRow {
    pub(super) fn published() -> Vec<Self> {
        vec![Self {
            clock: Clock::Pvclock,
            policy: Policy::LinuxResnapshotOnce,
            largest_jump_ns: 4_502_145,
            hours: 40,
        }]
    }
}
