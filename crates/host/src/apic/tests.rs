//! The timer against an exact model, over random histories; and the model against deliberate faults.

mod drive;
mod exercised;
mod fraction;
mod model;
mod mutants;
pub(crate) mod random;
mod world;

use exercised::Exercised;

/// Histories of a run: `CHRONOVISOR_SEQUENCES`, or 20 000. A million take half a minute in the profile `fast`.
fn sequences() -> u64 {
    std::env::var("CHRONOVISOR_SEQUENCES").map_or(20_000, |number| {
        number
            .parse()
            .expect("CHRONOVISOR_SEQUENCES is a number of histories")
    })
}

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

#[test]
fn random_histories_agree_with_exact_fractions() {
    let count = sequences();
    let exercised = run(count);
    std::println!("{count} sequences without a difference:\n{exercised}");
    let missing = exercised.missing();
    assert!(missing.is_empty(), "never exercised: {missing:?}");
}
