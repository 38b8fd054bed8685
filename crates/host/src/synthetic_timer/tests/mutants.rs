//! The property test's own test: with any of these faults in the timers it must find a difference.

use std::vec::Vec;

use super::super::mutant::{Mutant, with};
use super::drive;
use super::rules::Rules;

/// Every fault.
const MUTANTS: &[Mutant] = &[
    Mutant::PhaseLost,
    Mutant::CountZeroKeepsEnabled,
    Mutant::SourceZeroAccepted,
    Mutant::LazyIgnored,
    Mutant::NoRetryWhenEnabled,
    Mutant::PlainCompare,
    Mutant::RestoreForgetsMessage,
    Mutant::FiresEarly,
    Mutant::OneShotStaysEnabled,
    Mutant::ConfigKeepsGrid,
    Mutant::FirstTimerFirst,
    Mutant::TakenSlotDropsMessage,
    Mutant::NoSpacing,
    Mutant::NoMinimumPeriod,
];

/// Histories tried for each fault.
const TRIES: u64 = 3000;

#[test]
fn each_mutant_is_found() {
    let found: Vec<_> = MUTANTS
        .iter()
        .map(|mutant| (*mutant, (0..TRIES).find(|seed| differs(*mutant, *seed))))
        .collect();
    for (mutant, seed) in &found {
        std::println!("{mutant:?}: {seed:?}");
    }
    let survivors: Vec<_> = found.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(survivors.is_empty(), "not found: {survivors:?}");
}

fn differs(mutant: Mutant, seed: u64) -> bool {
    with(mutant, || {
        drive::sequence(seed, &mut Rules::default()).is_err()
    })
}
