//! The scenario's results.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Policy;
use super::alarm::Fate;
use crate::clock_checks::{Clock, ClockSeen};
use crate::runner::{Merge, MergeError};

/// What one machine saw.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineSeen {
    pub(super) fate: Fate,
    pub(super) clocks: [ClockSeen; 6],
    /// The guest was told of the move.
    pub(super) told: u64,
    pub(super) fallbacks: u64,
    pub(super) rebases: u64,
}

/// The sum of all units: for each policy the clocks in the order of [`Clock::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tally {
    policies: Vec<[RowTally; 6]>,
}

/// The sum of a row's machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RowTally {
    vms: u64,
    reads: u64,
    unavailable: u64,
    backward_steps: u64,
    error_ns: u64,
    steps: u64,
    largest_step_ns: u64,
    /// In two parts, as JSON has no 128 bits: multiples of 10^15 ns and the rest.
    loss_peta_ns: i64,
    loss_rest_ns: i64,
    largest_loss_ns: u64,
    largest_gain_ns: u64,
    told: u64,
    fallbacks: u64,
    rebases: u64,
    timers_before: u64,
    timers_after: u64,
    timers_stranded: u64,
}

const PETA: i128 = 1_000_000_000_000_000;

impl RowTally {
    fn add(&mut self, clock: Clock, seen: &ClockSeen, machine: &MachineSeen) {
        let magnitude = |ns: i128| u64::try_from(ns.unsigned_abs()).unwrap_or(u64::MAX);
        self.vms += 1;
        self.reads += seen.reads;
        self.unavailable += seen.unavailable;
        self.backward_steps += seen.backward_steps;
        self.error_ns = self.error_ns.max(seen.error_ns);
        if let Some(step) = seen.step_ns {
            self.largest_step_ns = self.largest_step_ns.max(magnitude(step));
        }
        if let Some(loss) = seen.loss_ns {
            self.steps += 1;
            self.add_loss(loss);
            if loss >= 0 {
                self.largest_loss_ns = self.largest_loss_ns.max(magnitude(loss));
            } else {
                self.largest_gain_ns = self.largest_gain_ns.max(magnitude(loss));
            }
        }
        self.told += machine.told;
        self.rebases += machine.rebases;
        match machine.fate {
            Fate::FiredBefore => self.timers_before += 1,
            Fate::FiredAfter => self.timers_after += 1,
            Fate::Stranded => self.timers_stranded += 1,
            Fate::Armed => {}
        }
        if matches!(clock, Clock::ReferenceTscPage | Clock::SchedClock) {
            self.fallbacks += machine.fallbacks;
        }
    }

    /// The sum is a function of its terms alone: the rest is kept below 10^15 in size, with the sign of nothing but the sum.
    fn add_loss(&mut self, loss: i128) {
        let sum = self.loss() + loss;
        self.loss_peta_ns = i64::try_from(sum.div_euclid(PETA)).unwrap_or(i64::MAX);
        self.loss_rest_ns = i64::try_from(sum.rem_euclid(PETA)).unwrap_or(0);
    }

    fn loss(&self) -> i128 {
        i128::from(self.loss_peta_ns) * PETA + i128::from(self.loss_rest_ns)
    }

    fn merge(&mut self, other: &Self) {
        self.vms += other.vms;
        self.reads += other.reads;
        self.unavailable += other.unavailable;
        self.backward_steps += other.backward_steps;
        self.error_ns = self.error_ns.max(other.error_ns);
        self.steps += other.steps;
        self.largest_step_ns = self.largest_step_ns.max(other.largest_step_ns);
        self.add_loss(other.loss());
        self.largest_loss_ns = self.largest_loss_ns.max(other.largest_loss_ns);
        self.largest_gain_ns = self.largest_gain_ns.max(other.largest_gain_ns);
        self.told += other.told;
        self.rebases += other.rebases;
        self.timers_before += other.timers_before;
        self.timers_after += other.timers_after;
        self.timers_stranded += other.timers_stranded;
        self.fallbacks += other.fallbacks;
    }
}

impl Tally {
    pub(super) fn new(policies: usize) -> Self {
        Self {
            policies: vec![[RowTally::default(); 6]; policies],
        }
    }

    pub(super) fn add(&mut self, policy: usize, seen: &MachineSeen) {
        for clock in Clock::ALL {
            let row = &mut self.policies[policy][clock.index()];
            row.add(clock, &seen.clocks[clock.index()], seen);
        }
    }

    pub(super) fn rows(&self, policies: &[Policy]) -> Vec<Row> {
        let mut rows = Vec::new();
        for (policy, tallies) in policies.iter().zip(&self.policies) {
            for clock in Clock::ALL {
                rows.push(Row::of(clock, *policy, &tallies[clock.index()]));
            }
        }
        rows
    }
}

impl Merge for Tally {
    fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        if self.policies.len() != other.policies.len() {
            let (a, b) = (self.policies.len(), other.policies.len());
            return Err(MergeError(format!("one has {a} policies, another {b}")));
        }
        for (rows, others) in self.policies.iter_mut().zip(&other.policies) {
            for (row, other) in rows.iter_mut().zip(others) {
                row.merge(other);
            }
        }
        Ok(())
    }
}

/// A row of the table: a clock under a policy, over all machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The clock.
    pub clock: Clock,
    /// The policy.
    pub policy: Policy,
    /// Machines.
    pub vms: u64,
    /// Readings.
    pub reads: u64,
    /// Readings that the clock refused, saying that it is not usable now.
    pub unavailable: u64,
    /// Readings smaller than an earlier one, on whichever vCPU.
    pub backward_steps: u64,
    /// Over the move: the largest distance between what the clock gained and what the policy promises, in ns.
    pub largest_step_ns: u64,
    /// Over the move: true time less what the clock gained, in ns; the mean over all machines. Positive is lost.
    pub loss_ns: f64,
    /// The largest loss of a machine, in ns.
    pub largest_loss_ns: u64,
    /// The largest gain of a machine, in ns.
    pub largest_gain_ns: u64,
    /// The largest distance of any reading from exact time, in ns (VMClock: from TAI); null for the raw counter, which promises nothing.
    pub largest_error_ns: Option<u64>,
    /// Machines that were told of the move: by VMClock's marker, or by pvclock's flag that the guest was stopped.
    pub told: u64,
    /// Readings of the reference clock that fell back to the register.
    pub fallbacks: u64,
    /// Re-bases of the partition's clock before the move.
    pub rebases: u64,
    /// Machines whose TSC-deadline timer fired before the move.
    pub timers_before: u64,
    /// And after it, never early, never twice.
    pub timers_after: u64,
    /// And those whose destination moved the counter under an armed deadline.
    pub timers_stranded: u64,
}

impl Row {
    #[expect(clippy::cast_precision_loss, reason = "a mean, for print")]
    fn of(clock: Clock, policy: Policy, tally: &RowTally) -> Self {
        let steps = i128::from(tally.steps.max(1));
        let (whole, rest) = (tally.loss() / steps, tally.loss() % steps);
        Self {
            clock,
            policy,
            vms: tally.vms,
            reads: tally.reads,
            unavailable: tally.unavailable,
            backward_steps: tally.backward_steps,
            largest_step_ns: tally.largest_step_ns,
            loss_ns: whole as f64 + rest as f64 / steps as f64,
            largest_loss_ns: tally.largest_loss_ns,
            largest_gain_ns: tally.largest_gain_ns,
            largest_error_ns: (clock != Clock::RawTsc).then_some(tally.error_ns),
            told: tally.told,
            fallbacks: tally.fallbacks,
            rebases: tally.rebases,
            timers_before: tally.timers_before,
            timers_after: tally.timers_after,
            timers_stranded: tally.timers_stranded,
        }
    }
}

/// A published figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeedRow {
    /// The clock.
    pub clock: Clock,
    /// What was said of it.
    pub said: String,
}

impl SeedRow {
    /// What the 2019 patch says; it measured no migration.
    pub(super) fn published() -> Vec<Self> {
        vec![
            Self {
                clock: Clock::RawTsc,
                said: "may jump when the machine is moved".to_owned(),
            },
            Self {
                clock: Clock::SchedClock,
                said:
                    "starts at 0 and never jumps; the register serves while the page is not valid"
                        .to_owned(),
            },
        ]
    }
}
