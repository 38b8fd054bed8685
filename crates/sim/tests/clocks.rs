//! Clocks over migrations and updates: what must never happen does not, and what must show does.

use std::num::NonZeroUsize;

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
        ours.hot_plugs >= 10 && ours.rate_changes >= 100 && ours.rebases >= 100,
        "{ours:?}"
    );
}
