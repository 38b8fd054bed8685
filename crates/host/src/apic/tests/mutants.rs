//! The property test's own test: with any of these faults in the timer it must find a difference.

use super::super::mutant::{Mutant, with};
use super::drive;
use super::exercised::Exercised;

/// Every fault.
const MUTANTS: &[Mutant] = &[
    Mutant::TruncatesWhenLooking,
    Mutant::DeadlineRoundedDown,
    Mutant::DividerKeepsBusTicks,
    Mutant::RateChangeDropsFraction,
    Mutant::PeriodOneTooLong,
    Mutant::PhaseLost,
    Mutant::DivideResetIsOne,
    Mutant::ModeChangeStops,
    Mutant::WriteBeforeEvaluation,
    Mutant::MaskLatches,
    Mutant::DeadlineComparedSigned,
    Mutant::DeadlineStaysArmed,
    Mutant::DeadlineTakenInAnyMode,
    Mutant::CountTakenInDeadlineMode,
    Mutant::ExpiredOneShotRestarts,
    Mutant::RestoreStartsOver,
    Mutant::RestoreForgetsPending,
    Mutant::CountReadsOneLess,
    Mutant::DeadlineModeKeepsCount,
    Mutant::NoMinimumPeriod,
    Mutant::NoBacklogCap,
    Mutant::NoSpacing,
    Mutant::SkipDelivers,
    Mutant::CounterMoveCountsAsTime,
    Mutant::SoftwareDisableKeepsMask,
    Mutant::BackendOwnsDeadline,
    Mutant::EarlyWakeExpires,
];

/// Histories tried for each fault.
const TRIES: u64 = 3000;

#[test]
fn each_mutant_is_found() {
    let found: std::vec::Vec<_> = MUTANTS
        .iter()
        .map(|mutant| (*mutant, (0..TRIES).find(|seed| differs(*mutant, *seed))))
        .collect();
    for (mutant, seed) in &found {
        std::println!("{mutant:?}: {seed:?}");
    }
    let survivors: std::vec::Vec<_> = found.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(survivors.is_empty(), "not found: {survivors:?}");
}

fn differs(mutant: Mutant, seed: u64) -> bool {
    with(mutant, || {
        drive::sequence(seed, &mut Exercised::default()).is_err()
    })
}
