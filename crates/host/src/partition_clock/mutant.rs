//! Faults that the proof must find: each one is switched on in turn, in test builds only.

/// A fault, named after what it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A pvclock line starts at the master's value instead of the old line's.
    PvclockJumpsToMaster,
    /// A pvclock line starts at the old line's value less the fraction of a ns, every time.
    PvclockLosesFractions,
    /// A pvclock timestamp is the update's reading itself, off the old line's grid.
    TimestampOffGrid,
    /// A pvclock timestamp is rounded up, into a reader's future.
    TimestampInFuture,
    /// A pvclock line far from the master takes the multiplier that runs away from it.
    RunsAwayFromMaster,
    /// A re-base is said to be due twice as late as it is.
    RebaseTwiceAsLate,
    /// The rate is cut to kHz.
    RateInKhz,
    /// The multiplier loses its lowest bits.
    MultiplierCoarse,
    /// A reference line starts at the master's value instead of the old line's.
    ReferenceJumpsToMaster,
    /// A reference line is never bent.
    ReferenceNeverBent,
    /// The counter MSR shows the master where the page shows its own formula.
    MsrHasItsOwnFormula,
    /// The counter MSR gives the last value plus one instead of asking to wait.
    MsrRunsAhead,
    /// The counter MSR repeats a value.
    MsrRepeats,
    /// Only the first vCPU's record is marked at an update.
    OneRecordMarked,
    /// The reference page is not marked at an update.
    PageNotMarked,
    /// A new record starts from the master instead of the partition's line.
    HotPlugHasItsOwnLine,
    /// A dropped update leaves its pages invalid.
    DroppedUpdateStaysOpen,
    /// Every update writes every page.
    EverythingIsWritten,
    /// The page comes back under its old sequence.
    SequenceRepeats,
    /// A restored page counts its sequence from 0.
    SequenceRestarts,
    /// Unequal vCPUs keep the stable flag.
    StableThoughUnequal,
    /// Unequal vCPUs keep the reference page.
    PageThoughUnequal,
    /// A doubtful counter's record has its timestamp at the update's reading.
    NoLead,
    /// An update forgets that the guest has not answered the stop flag.
    StopFlagForgotten,
    /// A restored clock's pages stay as they were.
    HeldPagesStayValid,
    /// The VMClock line follows a time of day that went back.
    VmclockGoesBack,
    /// A VMClock line ahead of its target does not count that as error.
    VmclockHidesItsError,
    /// TAI stands while the partition does.
    TaiStops,
    /// An advancing counter advances at the new rate.
    AdvanceAtNewRate,
    /// The offset leaves out the scaling ratio.
    OffsetWithoutRatio,
    /// Reference time advances whatever the policy.
    ReferenceAlwaysAdvances,
}

#[cfg(not(all(test, not(loom))))]
#[inline(always)]
pub(crate) const fn is(_mutant: Mutant) -> bool {
    false
}

#[cfg(all(test, not(loom)))]
pub(crate) use switch::{is, with};

#[cfg(all(test, not(loom)))]
mod switch {
    use super::Mutant;
    use core::cell::Cell;

    std::thread_local! {
        static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Whether `mutant` is switched on in this thread.
    pub(crate) fn is(mutant: Mutant) -> bool {
        ACTIVE.get() == Some(mutant)
    }

    /// Runs `body` with `mutant` switched on. A body that panics leaves it on: the test has failed then anyway.
    pub(crate) fn with<R>(mutant: Mutant, body: impl FnOnce() -> R) -> R {
        ACTIVE.set(Some(mutant));
        let result = body();
        ACTIVE.set(None);
        result
    }
}
