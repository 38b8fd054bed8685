//! Clocks over migrations and updates: what must never happen does not, and what must show does.

use std::num::NonZeroUsize;
use std::time::Instant;

use chronovisor_sim::clock_checks::Clock;
use chronovisor_sim::runner::{self, Shard};
use chronovisor_sim::scenario::clock_update::{self, ClockUpdate};
use chronovisor_sim::scenario::migration::{Migration, Policy, Row};
use chronovisor_sim::scenario::{self, Scenario};

fn run<S: Scenario>(runs: u64) -> Vec<S::Row> {
    let builtin = scenario::builtin(S::NAME).expect("built in");
    let mut scenario = S::from_toml(builtin.toml).expect("a scenario");
    scenario.set(None, Some(runs));
    let outcome = runner::run(&scenario, Shard::WHOLE, NonZeroUsize::MIN, &|_| ());
    scenario.rows(&outcome.expect("nothing breaks").tally)
}

/// 0 backward steps of every paravirtual clock; what the policy promises is kept to the encoding's granularity and the drift budget.
#[test]
fn every_paravirtual_clock_is_continuous_over_a_migration() {
    let rows = run::<Migration>(1500);
    assert_eq!(rows.len(), 12, "a row for each clock and policy");
    for row in &rows {
        if row.clock == Clock::RawTsc {
            continue;
        }
        assert_eq!(row.backward_steps, 0, "{row:?}");
        let step = match row.clock {
            Clock::Pvclock => 110,
            Clock::Vmclock => 10_000,
            _ => 400,
        };
        assert!(row.largest_step_ns <= step, "{row:?}");
        assert!(row.reads + row.unavailable == row.vms * 12, "{row:?}");
        // Its deadline timer too: each fired once, before or after, or was stranded with the counter.
        let timers = row.timers_before + row.timers_after + row.timers_stranded;
        assert_eq!(timers, row.vms, "{row:?}");
        assert!(row.timers_before > 0 && row.timers_after > 500, "{row:?}");
    }
}

/// The raw counter jumps where the destination cannot set it off; the same moves leave the scheduler's clock continuous.
#[test]
fn the_raw_counter_jumps_and_the_guest_is_told() {
    let rows = run::<Migration>(1500);
    let row = |clock, policy| {
        let is = |row: &&Row| row.clock == clock && row.policy == policy;
        rows.iter().find(is).expect("a row")
    };
    for policy in [Policy::Stop, Policy::Advance] {
        let raw = row(Clock::RawTsc, policy);
        assert!(
            raw.backward_steps > 0 && raw.largest_step_ns > 1_000_000_000,
            "{raw:?}"
        );
        assert_eq!(raw.told, raw.vms, "a marker or a flag at each move");
        assert_eq!(row(Clock::SchedClock, policy).backward_steps, 0);
    }
    // stop loses the downtime, advance does not; the time of day is right under both.
    let (stop, advance) = (
        row(Clock::Pvclock, Policy::Stop),
        row(Clock::Pvclock, Policy::Advance),
    );
    assert!(
        stop.loss_ns > 20e6 && stop.largest_loss_ns >= 20_000_000,
        "{stop:?}"
    );
    assert!(advance.loss_ns.abs() < 1e3, "{advance:?}");
    for policy in [Policy::Stop, Policy::Advance] {
        assert!(row(Clock::Vmclock, policy).loss_ns.abs() < 1e3);
    }
    // Some destinations have no invariant counter: the page is off there and the register serves.
    assert!(row(Clock::ReferenceTscPage, Policy::Stop).fallbacks > 0);
}

/// Ours: 1 ns at any update. A fresh snapshot: back by milliseconds after 40 h.
#[test]
fn no_update_moves_a_clock() {
    let rows = run::<ClockUpdate>(1);
    for row in &rows {
        match (row.policy, row.clock) {
            (clock_update::Policy::Ours, _) => {
                assert_eq!(row.backward_steps, 0, "{row:?}");
                assert!(row.largest_jump_ns.unwrap_or(0) <= 1, "{row:?}");
            }
            (clock_update::Policy::LinuxResnapshot, _) => {
                assert!(row.largest_jump_ns > Some(3_000), "{row:?}");
            }
            (clock_update::Policy::LinuxResnapshotOnce, _) => {
                assert!(row.largest_jump_ns > Some(8_000_000), "{row:?}");
            }
        }
    }
    let ours = rows
        .iter()
        .find(|row| row.clock == Clock::Pvclock)
        .expect("a row");
    assert!(
        ours.hot_plugs >= 10 && ours.rate_changes >= 100 && ours.rebases >= 10,
        "{ours:?}"
    );
}

/// Machines of the proof: `CHRONOVISOR_SEQUENCES`, or 2000. A million take some minutes in the profile `fast`:
/// `CHRONOVISOR_SEQUENCES=1000000 cargo test -p chronovisor-sim --profile fast --test clocks -- --show-output`.
fn machines() -> u64 {
    std::env::var("CHRONOVISOR_SEQUENCES").map_or(2000, |number| {
        number.parse().expect("CHRONOVISOR_SEQUENCES is a number")
    })
}

/// Many machines, each moved once under each policy, on all processors.
#[test]
fn many_migrations_without_a_backward_step() {
    let machines = machines();
    let builtin = scenario::builtin(Migration::NAME).expect("built in");
    let mut scenario = Migration::from_toml(builtin.toml).expect("a scenario");
    scenario.set(None, Some(machines));
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let begun = Instant::now();
    let outcome = runner::run(&scenario, Shard::WHOLE, threads, &|_| ()).expect("nothing breaks");
    let seconds = begun.elapsed().as_secs_f64();
    let rows = scenario.rows(&outcome.tally);
    for row in rows.iter().filter(|row| row.clock != Clock::RawTsc) {
        assert_eq!((row.backward_steps, row.vms), (0, machines), "{row:?}");
    }
    println!(
        "{machines} machines, 2 moves each, {} events: {seconds:.1} s on {threads} threads",
        outcome.events
    );
}
