//! The timer against an exact model, over random histories; and the model against deliberate faults.

mod drive;
mod exercised;
mod fraction;
mod model;
mod mutants;
mod random;
mod world;

use exercised::Exercised;

/// Sequences of the quick run, which every `cargo test` makes.
const QUICK: u64 = 20_000;
/// Sequences of the full run.
const FULL: u64 = 1_000_000;

/// Runs `count` sequences on two threads, each from its own seed, and returns what they exercised.
fn run(count: u64) -> Exercised {
    let half = |first: u64| {
        move || {
            let mut exercised = Exercised::default();
            for seed in (first..count).step_by(2) {
                if let Err(difference) = drive::sequence(seed, &mut exercised) {
                    panic!("sequence {seed}: {difference}");
                }
            }
            exercised
        }
    };
    let other = std::thread::spawn(half(1));
    let mut exercised = half(0)();
    exercised.add(&other.join().expect("the other half found a difference"));
    exercised
}

fn prove(count: u64) {
    let exercised = run(count);
    std::println!("{count} sequences without a difference:\n{exercised}");
    let missing = exercised.missing();
    assert!(missing.is_empty(), "never exercised: {missing:?}");
}

#[test]
fn random_histories_agree_with_the_exact_model() {
    prove(QUICK);
}

#[test]
#[ignore = "under a minute with --profile fast"]
fn a_million_random_histories_agree_with_the_exact_model() {
    prove(FULL);
}
