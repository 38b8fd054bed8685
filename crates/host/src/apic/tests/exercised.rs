//! How often each rule was met, so that a run that missed one fails.

use core::fmt;

macro_rules! rules {
    ($($name:ident: $text:literal,)*) => {
        /// A rule of the timer or of its back-ends.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Rule {
            $($name,)*
        }

        const RULES: &[(Rule, &str)] = &[$((Rule::$name, $text),)*];
    };
}

rules! {
    Steps: "steps",
    OneShotExpires: "one-shot expires once",
    PeriodicExpires: "periodic expires",
    ManyPeriods: "several periods in one call",
    DeadlineFires: "deadline fires and clears itself",
    DeadlinePast: "deadline in the past fires at once",
    DeadlineDisarmed: "deadline 0 disarms",
    DeadlineReplaced: "deadline replaced while armed",
    DeadlineIgnored: "deadline write in another mode is ignored",
    CountIgnored: "initial count in tsc-deadline mode is ignored",
    CountStops: "initial count 0 stops",
    CountRestarts: "initial count restarts a running count",
    OneShotToPeriodic: "one-shot to periodic while counting",
    PeriodicToOneShot: "periodic to one-shot while counting",
    ExpiredToPeriodic: "expired one-shot to periodic stays at 0",
    ToDeadline: "a count stopped by tsc-deadline mode",
    FromDeadline: "a deadline disarmed by another mode",
    ReservedMode: "reserved mode stops",
    DivideWhileCounting: "divider changed while counting",
    Masked: "expiry while masked is lost",
    IllegalVector: "vector below 16",
    DueBeforeWrite: "a write finds the timer due",
    PollCounting: "count polled while counting",
    PollExpired: "count polled after expiry, before the call",
    MinimumPeriod: "minimum period applied",
    Merged: "ticks merged",
    Skipped: "ticks skipped on the grid",
    Backlog: "backlog of a catch-up",
    BacklogCapped: "backlog at its cap",
    CatchUpWaits: "catch-up waits for its spacing",
    SavedCounting: "saved while counting",
    SavedDue: "saved when due, delivered once after",
    SavedArmed: "saved with an armed deadline",
    RatesChanged: "rates changed while counting",
    TscMovedCounting: "tsc moved while counting",
    TscMovedArmed: "tsc moved with an armed deadline",
    SoftwareDisabled: "software disabled while counting",
    PoweredOff: "switched off while counting",
    BehindReading: "a reading behind an earlier one",
    TscWraps: "the tsc wraps while counting",
    ToSoftware: "switch from preemption to software timer",
    ToPreemption: "switch from software to preemption timer",
    OutOfRange: "deadline out of the preemption timer's range",
    EarlyWake: "a wake-up before the deadline",
    OnTime: "a wake-up within the back-end's bound",
}

/// Counts, one a rule.
#[derive(Clone, Debug)]
pub(super) struct Exercised([u64; RULES.len()]);

impl Default for Exercised {
    fn default() -> Self {
        Self([0; RULES.len()])
    }
}

impl Exercised {
    pub(super) fn note(&mut self, rule: Rule) {
        self.note_if(rule, true);
    }

    pub(super) fn note_if(&mut self, rule: Rule, met: bool) {
        let index = RULES.iter().position(|(other, _)| *other == rule).unwrap();
        self.0[index] += u64::from(met);
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    pub(super) fn missing(&self) -> std::vec::Vec<&'static str> {
        let pairs = RULES.iter().zip(self.0);
        pairs
            .filter(|(_, count)| *count == 0)
            .map(|((_, text), _)| *text)
            .collect()
    }
}

impl fmt::Display for Exercised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((_, text), count) in RULES.iter().zip(self.0) {
            writeln!(f, "{count:>12}  {text}")?;
        }
        Ok(())
    }
}
