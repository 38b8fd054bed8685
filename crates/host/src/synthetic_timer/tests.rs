//! The timers against an exact model, over random histories; and the model against deliberate faults.

mod drive;
mod model;
mod mutants;
mod rules;

use rules::Rules;

/// Histories of a run: `CHRONOVISOR_SEQUENCES`, or 20 000. A million take under a minute in the profile `fast`.
fn sequences() -> u64 {
    std::env::var("CHRONOVISOR_SEQUENCES").map_or(20_000, |number| {
        number
            .parse()
            .expect("CHRONOVISOR_SEQUENCES is a number of histories")
    })
}

/// Runs the histories of these seeds and returns the rules that they met.
fn run(seeds: impl Iterator<Item = u64>) -> Rules {
    let mut rules = Rules::default();
    for seed in seeds {
        if let Err(difference) = drive::sequence(seed, &mut rules) {
            panic!("sequence {seed}: {difference}");
        }
    }
    rules
}

#[test]
fn random_histories_agree_with_unwrapped_time() {
    let count = sequences();
    let other = std::thread::spawn(move || run((1..count).step_by(2)));
    let mut rules = run((0..count).step_by(2));
    rules.add(&other.join().expect("the other half found a difference"));
    std::println!("{count} sequences without a difference:\n{rules}");
    let missing = rules.missing();
    assert!(missing.is_empty(), "never exercised: {missing:?}");
}
