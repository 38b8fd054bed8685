//! Faults that the property test must find: each one is switched on in turn, in test builds only.

/// A fault, named after what it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    /// A late tick restarts the period from now.
    PhaseLost,
    /// COUNT 0 leaves the timer enabled.
    CountZeroKeepsEnabled,
    /// A timer that reports to source 0 stays enabled.
    SourceZeroAccepted,
    /// The lazy flag is not looked at.
    LazyIgnored,
    /// A page or controller that is enabled later gets no message.
    NoRetryWhenEnabled,
    /// Times are compared as plain numbers.
    PlainCompare,
    /// A restored timer forgets the message that waits.
    RestoreForgetsMessage,
    /// A wake-up shortly before the due time counts.
    FiresEarly,
    /// A one-shot stays enabled after it has fired.
    OneShotStaysEnabled,
    /// A write of CONFIG leaves the old grid running.
    ConfigKeepsGrid,
    /// Of several messages for one slot the first timer's goes first, not the oldest.
    FirstTimerFirst,
    /// A message that finds its slot taken is dropped.
    TakenSlotDropsMessage,
    /// A catch-up does not keep its signals apart.
    NoSpacing,
    /// The minimum period is not applied.
    NoMinimumPeriod,
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
