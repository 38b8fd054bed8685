//! The proof of the partition clock's rules: random sequences of everything that can happen to it, on four vCPUs, against an exact oracle.
//!
//! Between all steps, and inside every update, every clock and every vCPU's own record is read. A read inside an update is one that began
//! before it, with the counter at the very reading of the update: the latest that such a reader can have. The reader's formulas and the oracle are
//! written here a second time, in plain 128-bit arithmetic.
//!
//! The number of sequences is `CHRONOVISOR_SEQUENCES`, or 20 000; a million take about half a minute in the profile `fast`:
//!
//! ```text
//! CHRONOVISOR_SEQUENCES=1000000 cargo test --profile fast -p chronovisor-host --lib proof -- --nocapture
//! ```

mod migrate;
mod oracle;
mod readers;
mod steps;
mod tally;
mod updates;
mod world;

use std::println;
use std::vec::Vec;

use crate::partition_clock::mutant::{self, Mutant};
use tally::{Failure, RULES, STEPS, Tally};
use world::World;

/// Steps of one sequence.
const STEPS_EACH: u64 = 20;

/// Runs the sequences with these seeds, until one fails.
fn run(seeds: impl Iterator<Item = u64>) -> Result<Tally, Failure> {
    let memory = crate::support::Memory::new(4);
    let mut tally = Tally::default();
    for seed in seeds {
        World::new(seed, &memory).play(STEPS_EACH, &mut tally)?;
        tally.sequences += 1;
    }
    Ok(tally)
}

fn sequences() -> u64 {
    std::env::var("CHRONOVISOR_SEQUENCES")
        .ok()
        .and_then(|number| number.parse().ok())
        .unwrap_or(20_000)
}

#[test]
fn no_rule_is_broken() {
    let total = sequences();
    let threads =
        std::thread::available_parallelism().map_or(1, |n| u64::try_from(n.get()).unwrap_or(1));
    let started = std::time::Instant::now();
    let results: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|first| {
                scope.spawn(move || run((first..total).step_by(usize::try_from(threads).unwrap())))
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    });
    let mut tally = Tally::default();
    for result in results {
        match result {
            Ok(part) => tally.add(&part),
            Err(failure) => panic!("{failure}"),
        }
    }
    println!(
        "{} sequences of {STEPS_EACH} steps in {:.1} s, {} waits for the counter",
        tally.sequences,
        started.elapsed().as_secs_f64(),
        tally.waits
    );
    for step in STEPS {
        println!(
            "  step {:<24} {:>12}",
            std::format!("{step:?}"),
            tally.steps[step as usize]
        );
    }
    for rule in RULES {
        println!(
            "  rule {:<24} {:>12} checks",
            std::format!("{rule:?}"),
            tally.rules[rule as usize]
        );
    }
    assert!(tally.waits > 0, "no read of the counter MSR had to wait");
    for step in STEPS {
        assert!(tally.steps[step as usize] > 0, "{step:?} was never taken");
    }
    for rule in RULES {
        assert!(tally.rules[rule as usize] > 0, "{rule:?} was never checked");
    }
}

/// Every fault is found, by one of the rules that it breaks.
#[test]
fn every_mutant_is_found() {
    use tally::Rule::{
        BackWithinSkew, DroppedRestores, HeldShowsNothing, JoinWithinOneNanosecond,
        LaterWithinOneNanosecond, MarkedBeforeReading, MsrStrict, NeverBack, NotBeforeIsExact,
        OffsetExact, PolicyKept, PvclockNearMaster, ReferenceNearMaster, SequenceChanges,
        SlopeWithinBound, StopFlagKept, UntouchedWithoutNeed, ValidityFitsState,
        VmclockWithinBounds,
    };
    let mut missed = Vec::new();
    for (mutant, rules) in [
        (
            Mutant::PvclockJumpsToMaster,
            &[JoinWithinOneNanosecond, NeverBack][..],
        ),
        (Mutant::PvclockLosesFractions, &[PvclockNearMaster]),
        (Mutant::TimestampOffGrid, &[LaterWithinOneNanosecond]),
        (
            Mutant::TimestampInFuture,
            &[JoinWithinOneNanosecond, PvclockNearMaster],
        ),
        (Mutant::RunsAwayFromMaster, &[PvclockNearMaster]),
        (Mutant::RebaseTwiceAsLate, &[PvclockNearMaster]),
        (Mutant::RateInKhz, &[SlopeWithinBound]),
        (Mutant::MultiplierCoarse, &[SlopeWithinBound]),
        (
            Mutant::ReferenceJumpsToMaster,
            &[JoinWithinOneNanosecond, NeverBack],
        ),
        (Mutant::ReferenceNeverBent, &[ReferenceNearMaster]),
        (
            Mutant::MsrHasItsOwnFormula,
            &[NeverBack, NotBeforeIsExact, MsrStrict],
        ),
        (Mutant::MsrRunsAhead, &[NeverBack, ReferenceNearMaster]),
        (Mutant::MsrRepeats, &[MsrStrict]),
        (Mutant::OneRecordMarked, &[MarkedBeforeReading]),
        (Mutant::PageNotMarked, &[MarkedBeforeReading]),
        (
            Mutant::HotPlugHasItsOwnLine,
            &[NeverBack, PvclockNearMaster, JoinWithinOneNanosecond],
        ),
        (Mutant::DroppedUpdateStaysOpen, &[DroppedRestores]),
        (Mutant::EverythingIsWritten, &[UntouchedWithoutNeed]),
        (Mutant::SequenceRepeats, &[SequenceChanges, DroppedRestores]),
        (Mutant::SequenceRestarts, &[SequenceChanges]),
        (Mutant::StableThoughUnequal, &[ValidityFitsState]),
        (Mutant::PageThoughUnequal, &[ValidityFitsState]),
        (Mutant::NoLead, &[BackWithinSkew, PvclockNearMaster]),
        (Mutant::StopFlagForgotten, &[StopFlagKept]),
        (Mutant::HeldPagesStayValid, &[HeldShowsNothing]),
        (Mutant::VmclockGoesBack, &[NeverBack]),
        (Mutant::VmclockHidesItsError, &[VmclockWithinBounds]),
        (Mutant::TaiStops, &[VmclockWithinBounds]),
        (Mutant::AdvanceAtNewRate, &[PolicyKept]),
        (Mutant::OffsetWithoutRatio, &[OffsetExact]),
        (
            Mutant::ReferenceAlwaysAdvances,
            &[PolicyKept, ReferenceNearMaster],
        ),
    ] {
        match mutant::with(mutant, || run(0..20_000)) {
            Ok(_) => missed.push(std::format!("{mutant:?} was not found")),
            Err(failure) if !rules.contains(&failure.rule) => missed.push(std::format!(
                "{mutant:?} was found by none of {rules:?}: {failure}"
            )),
            Err(failure) => println!(
                "  {mutant:?}: sequence {} breaks {:?}",
                failure.seed, failure.rule
            ),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
