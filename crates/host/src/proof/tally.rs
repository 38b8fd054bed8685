//! What a run exercised, and how it fails.

use std::string::String;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Step {
    Idle,
    Frequency,
    SameFrequency,
    Rebase,
    DroppedUpdate,
    StaleReading,
    CounterMoved,
    PageEnabled,
    PageMoved,
    PageDisabled,
    CounterMsr,
    HotPlug,
    RecordDisabled,
    GuestStopped,
    GuestAnswers,
    TimeOfDay,
    UnequalTsc,
    EqualTsc,
    MigrateStop,
    MigrateAdvance,
    MigratePerEncoding,
    SlowCounter,
}

/// Every step, as printed.
pub(super) const STEPS: [Step; 22] = [
    Step::Idle,
    Step::Frequency,
    Step::SameFrequency,
    Step::Rebase,
    Step::DroppedUpdate,
    Step::StaleReading,
    Step::CounterMoved,
    Step::PageEnabled,
    Step::PageMoved,
    Step::PageDisabled,
    Step::CounterMsr,
    Step::HotPlug,
    Step::RecordDisabled,
    Step::GuestStopped,
    Step::GuestAnswers,
    Step::TimeOfDay,
    Step::UnequalTsc,
    Step::EqualTsc,
    Step::MigrateStop,
    Step::MigrateAdvance,
    Step::MigratePerEncoding,
    Step::SlowCounter,
];

/// A rule of the partition clock, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Rule {
    /// 1: pvclock is the master's time within its granularity and the budget.
    PvclockNearMaster,
    /// 1: so is reference time.
    ReferenceNearMaster,
    /// 1: so is VMClock, and truth lies within its bounds.
    VmclockWithinBounds,
    /// 2: at an update's reading old and new agree within 1 ns.
    JoinWithinOneNanosecond,
    /// 2: with an unchanged multiplier the new line stays within 1 ns of the old one.
    LaterWithinOneNanosecond,
    /// 2: every page of an update is invalid before its reading.
    MarkedBeforeReading,
    /// 2: a dropped update leaves the old line, under a new sequence.
    DroppedRestores,
    /// 3: no reader goes back, over all vCPUs and all encodings of a clock.
    NeverBack,
    /// 3: with unequal counters by no more than the skew.
    BackWithinSkew,
    /// 4: the pvclock slope is within 0.47 ppb of the master's.
    SlopeWithinBound,
    /// 5: a page that need not change does not.
    UntouchedWithoutNeed,
    /// 5: a page that changes gets another sequence.
    SequenceChanges,
    /// 6: the counter MSR is strictly increasing.
    MsrStrict,
    /// 6: the counter to wait for is the first that will do.
    NotBeforeIsExact,
    /// Stable bit, reference page and VMClock fit the state of the counters.
    ValidityFitsState,
    /// The stop flag stays until the guest answers.
    StopFlagKept,
    /// A held clock shows nothing.
    HeldShowsNothing,
    /// A migration changes what its policy says, to the ns.
    PolicyKept,
    /// The counter at the destination is what the hardware will compute.
    OffsetExact,
}

/// Every rule, as printed.
pub(super) const RULES: [Rule; 19] = [
    Rule::PvclockNearMaster,
    Rule::ReferenceNearMaster,
    Rule::VmclockWithinBounds,
    Rule::JoinWithinOneNanosecond,
    Rule::LaterWithinOneNanosecond,
    Rule::MarkedBeforeReading,
    Rule::DroppedRestores,
    Rule::NeverBack,
    Rule::BackWithinSkew,
    Rule::SlopeWithinBound,
    Rule::UntouchedWithoutNeed,
    Rule::SequenceChanges,
    Rule::MsrStrict,
    Rule::NotBeforeIsExact,
    Rule::ValidityFitsState,
    Rule::StopFlagKept,
    Rule::HeldShowsNothing,
    Rule::PolicyKept,
    Rule::OffsetExact,
];

/// How often each step was taken and each rule checked.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) sequences: u64,
    pub(super) steps: [u64; STEPS.len()],
    pub(super) rules: [u64; RULES.len()],
    pub(super) waits: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.sequences += other.sequences;
        self.waits += other.waits;
        for (to, from) in self.steps.iter_mut().zip(other.steps) {
            *to += from;
        }
        for (to, from) in self.rules.iter_mut().zip(other.rules) {
            *to += from;
        }
    }
}

/// A rule was broken.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) rule: Rule,
    pub(super) seed: u64,
    pub(super) after: Step,
    pub(super) detail: String,
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "sequence {} breaks {:?} after {:?}: {}",
            self.seed, self.rule, self.after, self.detail
        )
    }
}
