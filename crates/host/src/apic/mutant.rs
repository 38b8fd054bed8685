//! Faults that the property test must find: each one is switched on in turn, in test builds only.

/// A fault, named after what it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    /// Each look at the count drops the fraction of a count.
    TruncatesWhenLooking,
    /// The deadline in TSC ticks is rounded down.
    DeadlineRoundedDown,
    /// A change of the divider keeps the bus ticks that have passed, so the count jumps.
    DividerKeepsBusTicks,
    /// A change of rates drops the fraction of a count.
    RateChangeDropsFraction,
    /// A period is one count too long.
    PeriodOneTooLong,
    /// An overdue tick restarts the period from now.
    PhaseLost,
    /// A register never written divides by 1.
    DivideResetIsOne,
    /// A change between one-shot and periodic stops the count.
    ModeChangeStops,
    /// A register takes its value before the count is brought up to date.
    WriteBeforeEvaluation,
    /// A masked expiry is kept and delivered later.
    MaskLatches,
    /// The deadline is compared as a signed distance.
    DeadlineComparedSigned,
    /// The deadline stays armed after it has fired.
    DeadlineStaysArmed,
    /// The deadline register takes values in other modes.
    DeadlineTakenInAnyMode,
    /// The initial count is taken in TSC-deadline mode.
    CountTakenInDeadlineMode,
    /// An expired one-shot starts again when it becomes periodic.
    ExpiredOneShotRestarts,
    /// A restored count starts from the initial count.
    RestoreStartsOver,
    /// A restored timer forgets an expiry that was not yet delivered.
    RestoreForgetsPending,
    /// The count reads 0 for the last tick of each period.
    CountReadsOneLess,
    /// A new mode keeps the count of the old one.
    DeadlineModeKeepsCount,
    /// The minimum period is not applied.
    NoMinimumPeriod,
    /// The backlog of a catch-up has no cap.
    NoBacklogCap,
    /// A catch-up does not keep its interrupts apart.
    NoSpacing,
    /// A skipped tick is delivered all the same.
    SkipDelivers,
    /// The counter's own move is taken for elapsed time.
    CounterMoveCountsAsTime,
    /// A disabled APIC does not mask its timer.
    SoftwareDisableKeepsMask,
    /// A back-end advances a deadline of its own.
    BackendOwnsDeadline,
    /// A preemption timer rounds down and the wake counts as expiry.
    EarlyWakeExpires,
}

#[cfg(not(test))]
#[inline(always)]
pub(super) const fn is(_mutant: Mutant) -> bool {
    false
}

#[cfg(test)]
pub(super) use switch::{is, with};

#[cfg(test)]
mod switch {
    use super::Mutant;
    use core::cell::Cell;

    std::thread_local! {
        static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Whether `mutant` is switched on in this thread.
    pub(in super::super) fn is(mutant: Mutant) -> bool {
        ACTIVE.get() == Some(mutant)
    }

    /// Runs `body` with `mutant` switched on.
    pub(in super::super) fn with<R>(mutant: Mutant, body: impl FnOnce() -> R) -> R {
        ACTIVE.set(Some(mutant));
        let result = body();
        ACTIVE.set(None);
        result
    }
}
