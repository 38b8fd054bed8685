//! One seed, one result: on any number of threads, in any shards, over JSON and back; and another seed, another result.

use std::num::NonZeroUsize;

use chronovisor_sim::runner::{self, Merge, Shard};
use chronovisor_sim::scenario::clock_update::ClockUpdate;
use chronovisor_sim::scenario::guard_scaling::GuardScaling;
use chronovisor_sim::scenario::lapic_spikes::LapicSpikes;
use chronovisor_sim::scenario::migration::Migration;
use chronovisor_sim::scenario::smp_boot::SmpBoot;
use chronovisor_sim::scenario::{self, BUILTIN, Scenario};

/// A built-in scenario with some of its lines replaced, so that it is small.
fn small<S: Scenario>(replacements: &[(&str, &str)]) -> S {
    let mut text = scenario::builtin(S::NAME)
        .expect("it is built in")
        .toml
        .to_owned();
    for (from, to) in replacements {
        assert!(text.contains(from), "{}: no {from}", S::NAME);
        text = text.replace(from, to);
    }
    S::from_toml(&text).expect("the replaced text is a scenario")
}

/// The rows and the number of events, as JSON: the very bytes that a user compares.
fn whole<S: Scenario>(scenario: &S, threads: usize) -> String {
    let threads = NonZeroUsize::new(threads).expect("not zero");
    let outcome = runner::run(scenario, Shard::WHOLE, threads, &|_| ()).expect("nothing breaks");
    let rows = serde_json::to_string(&scenario.rows(&outcome.tally)).expect("rows are JSON");
    format!("{} {rows}", outcome.events)
}

fn in_shards<S: Scenario>(scenario: &S, of: u64) -> String {
    let one = NonZeroUsize::MIN;
    let (mut sum, mut events) = (scenario.nothing(), 0);
    // In reverse, and over JSON, as `sim merge` may get them.
    for index in (0..of).rev() {
        let shard = Shard::new(index, of).expect("below");
        let part = runner::run(scenario, shard, one, &|_| ()).expect("nothing breaks");
        let saved = serde_json::to_string(&part.tally).expect("a tally is JSON");
        let read: S::Tally = serde_json::from_str(&saved).expect("and comes back");
        sum.merge(&read).expect("parts of one run");
        events += part.events;
    }
    let rows = serde_json::to_string(&scenario.rows(&sum)).expect("rows are JSON");
    format!("{events} {rows}")
}

fn one_seed_one_result<S: Scenario>(replacements: &[(&str, &str)]) {
    let mut scenario = small::<S>(replacements);
    let once = whole(&scenario, 1);
    assert_eq!(once, whole(&scenario, 1), "{}: again", S::NAME);
    assert_eq!(once, whole(&scenario, 3), "{}: three threads", S::NAME);
    assert_eq!(once, in_shards(&scenario, 4), "{}: four shards", S::NAME);
    scenario.set(Some(2), None);
    assert_ne!(once, whole(&scenario, 1), "{}: another seed", S::NAME);
}

#[test]
fn lapic_spikes() {
    one_seed_one_result::<LapicSpikes>(&[
        ("ticks = 150_000", "ticks = 400"),
        (
            "at_tick = 75_000, for_ns = 30_000_000_000",
            "at_tick = 200, for_ns = 300_000_000",
        ),
    ]);
}

#[test]
fn migration() {
    one_seed_one_result::<Migration>(&[("runs = 10_000", "runs = 60")]);
}

#[test]
fn clock_update() {
    one_seed_one_result::<ClockUpdate>(&[("runs = 20", "runs = 5"), ("hours = 40", "hours = 1")]);
}

#[test]
fn smp_boot() {
    one_seed_one_result::<SmpBoot>(&[("runs = 20", "runs = 2")]);
}

#[test]
fn guard_scaling() {
    one_seed_one_result::<GuardScaling>(&[("reads = 20_000", "reads = 100")]);
}

/// Each built-in text names itself as its kind, so that `show NAME` gives a file that runs.
#[test]
fn each_built_in_text_is_of_its_own_kind() {
    for builtin in BUILTIN {
        assert_eq!(scenario::kind_of(builtin.toml).as_deref(), Ok(builtin.name));
    }
    assert_eq!(BUILTIN.len(), 5);
}

/// A key that is wrong deep inside a table still names its line and the key that was meant.
#[test]
fn a_wrong_key_in_a_table_names_its_line() {
    let builtin = scenario::builtin("lapic-spikes").expect("built in");
    let text = builtin
        .toml
        .replace("slew_ppb = 7_000\n", "slew_bbp = 7_000\n");
    let line = text
        .lines()
        .position(|line| line.starts_with("slew_bbp"))
        .expect("replaced")
        + 1;
    let error = LapicSpikes::from_toml(&text).expect_err("a wrong key");
    let message = error.to_string();
    assert!(message.starts_with(&format!("line {line}: ")), "{message}");
    assert!(message.ends_with("(did you mean `slew_ppb`?)"), "{message}");
    let text = builtin
        .toml
        .replace("mean_ns = 1_000_000_000", "meen_ns = 1");
    let message = LapicSpikes::from_toml(&text)
        .expect_err("a wrong key")
        .to_string();
    assert!(message.contains("did you mean `mean_ns`?"), "{message}");
    let text = builtin.toml.replace("\"merge\"", "\"marge\"");
    let message = LapicSpikes::from_toml(&text)
        .expect_err("a wrong policy")
        .to_string();
    assert!(message.contains("did you mean `merge`?"), "{message}");
}

/// Impossible parameters are refused by name, before anything runs.
#[test]
fn impossible_parameters_are_refused() {
    let refused = |name: &str, from: &str, to: &str| {
        let text = scenario::builtin(name).expect("built in").toml;
        assert!(text.contains(from), "{name}: no {from}");
        let text = text.replace(from, to);
        let error = match name {
            "lapic-spikes" => LapicSpikes::from_toml(&text).map(|_| ()),
            "migration" => Migration::from_toml(&text).map(|_| ()),
            "clock-update" => ClockUpdate::from_toml(&text).map(|_| ()),
            "smp-boot" => SmpBoot::from_toml(&text).map(|_| ()),
            _ => GuardScaling::from_toml(&text).map(|_| ()),
        };
        error.expect_err("impossible").to_string()
    };
    for (name, from, to, key) in [
        (
            "lapic-spikes",
            "period_ns = 1_000_000",
            "period_ns = 1",
            "period_ns",
        ),
        (
            "lapic-spikes",
            "tsc_hz = 2_600_000_000",
            "tsc_hz = 0",
            "host",
        ),
        (
            "lapic-spikes",
            "[\"idle\", \"stress\"]",
            "[\"busy\"]",
            "series.loads",
        ),
        ("migration", "vcpus = 4", "vcpus = 0", "vcpus"),
        (
            "migration",
            "tsc_hz = 2_600_000_000",
            "tsc_hz = 10",
            "hosts.tsc_hz",
        ),
        ("clock-update", "hours = 40", "hours = 0", "hours"),
        ("smp-boot", "vcpus = 16", "vcpus = 1", "machines.vcpus"),
        ("guard-scaling", "cpus = [16]", "cpus = [65]", "series.cpus"),
    ] {
        let message = refused(name, from, to);
        assert!(
            message.starts_with(&format!("{key}: ")),
            "{name}: {message}"
        );
    }
}
