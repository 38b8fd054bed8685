//! The mutation test of the simulator: every historical defect, switched on, breaks an invariant or is plain in its row; ours do neither.

use std::num::NonZeroUsize;

use chronovisor_sim::runner::{self, RunError, Shard};
use chronovisor_sim::scenario::lapic_spikes::{LapicSpikes, Policy, Row};
use chronovisor_sim::scenario::{Scenario, ScenarioError};

const OURS: [&str; 3] = ["merge", "skip_on_grid", "catch_up"];

/// A timer of 1 ms under delays that do not vary, so that whatever differs is the timer's doing. The host's clock is 7 ppm fast.
fn scenario(policy: &str, mode: &str, load: &str, uptimes: &str, enforce: &str) -> String {
    format!(
        r#"
scenario = "lapic-spikes"
seed = 1
runs = 1
ticks = 3000
period_ns = 1_000_000
policies = ["{policy}"]
enforce = "{enforce}"
host = {{ tsc_hz = 2_600_000_000, crystal_ppb = 0, slew_ppb = 7_000 }}
series = [{{ mode = "{mode}", loads = ["{load}"], uptimes_s = [{uptimes}] }}]

[[loads]]
name = "idle"
work = {{ fixed = {{ ns = 20_000 }} }}
wake_latency = {{ fixed = {{ ns = 0 }} }}

# Halts for a tick, runs for 400 ms, and so on.
[[loads]]
name = "bursts"
work = {{ fixed = {{ ns = 20_000 }} }}
burst = {{ fixed = {{ ns = 400_000_000 }} }}
wake_latency = {{ fixed = {{ ns = 0 }} }}

# Stopped once for 5 s, while it runs.
[[loads]]
name = "pause"
work = {{ fixed = {{ ns = 20_000 }} }}
burst = {{ fixed = {{ ns = 60_000_000_000 }} }}
wake_latency = {{ fixed = {{ ns = 0 }} }}
pause_ns = 5_000_350_000
"#
    )
}

fn run(text: &str) -> Result<Vec<Row>, RunError> {
    let scenario = LapicSpikes::from_toml(text).unwrap_or_else(|error: ScenarioError| {
        panic!("{error}\n{text}");
    });
    let outcome = runner::run(&scenario, Shard::WHOLE, NonZeroUsize::MIN, &|_| ())?;
    Ok(scenario.rows(&outcome.tally))
}

fn rows(policy: &str, mode: &str, load: &str, uptimes: &str) -> Vec<Row> {
    run(&scenario(policy, mode, load, uptimes, "ours")).expect("faults are counted, not enforced")
}

/// The rule that breaks when the policy's faults are not allowed.
fn broken_rule(policy: &str, mode: &str, load: &str) -> Option<&'static str> {
    match run(&scenario(policy, mode, load, "0", "all")) {
        Ok(_) => None,
        Err(RunError::Violation(violation)) => {
            assert!(violation.event > 0 && !violation.last_events.is_empty());
            Some(violation.rule)
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn ours_break_no_invariant_and_show_no_defect() {
    for policy in OURS {
        for mode in ["periodic", "one-shot"] {
            for load in ["idle", "bursts", "pause"] {
                assert_eq!(
                    broken_rule(policy, mode, load),
                    None,
                    "{policy} {mode} {load}"
                );
                let row = &rows(policy, mode, load, "0")[0];
                assert_eq!((row.early_ticks, row.lost_timers), (0, 0), "{row:?}");
                assert_eq!(row.periods_missing, 0, "{row:?}");
                assert_eq!(row.longest_burst, 1, "{row:?}");
            }
        }
    }
}

/// No uptime changes anything for ours: the same interval to the ns at boot and after 30 days.
#[test]
fn ours_do_not_grow_with_uptime() {
    for policy in OURS {
        for load in ["idle", "bursts"] {
            let rows = rows(policy, "periodic", load, "0, 14_400, 43_200, 2_592_000");
            for row in &rows[1..] {
                assert!(
                    (row.max_us - rows[0].max_us).abs() < 0.02,
                    "{load}: {} us at boot, {} us after {} s",
                    rows[0].max_us,
                    row.max_us,
                    row.uptime_s
                );
            }
        }
    }
}

/// Two deadlines: the spike is the drift, 7 ppm of the uptime, as long as the guest runs that long without a halt.
#[test]
fn d41_the_spike_of_two_deadlines_grows_with_uptime_and_is_the_drift() {
    let rows = rows(
        "linux_8003c9ae",
        "periodic",
        "bursts",
        "14_400, 28_800, 43_200",
    );
    let mut last = 0.0;
    for row in rows {
        let uptime_us = 1e6 * f64::from(u32::try_from(row.uptime_s).expect("12 h"));
        let drift = uptime_us * 7.0 / 1e6;
        assert!(
            (row.drift_us / drift - 1.0).abs() < 0.01,
            "{row:?}: {drift} us"
        );
        // A tick is taken up to one period before the drift is used up, and one after it.
        assert!((row.max_us - row.drift_us).abs() < 2_100.0, "{row:?}");
        assert!(row.max_us > last + 50_000.0, "{row:?} after {last}");
        last = row.max_us;
    }
    assert_eq!(
        broken_rule("linux_8003c9ae", "periodic", "idle"),
        Some("never-early")
    );
}

/// Ticks by the host's clock: early against the guest's counter, 7 ppm too many.
#[test]
fn ticks_by_the_hosts_clock_are_early() {
    let early = broken_rule("linux_before_8003c9ae", "periodic", "idle");
    assert_eq!(early, Some("never-early"));
    let row = &rows("linux_before_8003c9ae", "periodic", "idle", "43_200")[0];
    // 12 h at 7 ppm: 302.4 ms
    assert!((row.earliest_us - 302_400.0).abs() < 1_100.0, "{row:?}");
}

/// The posted patch: a one-shot timer that halts after 20 us expires there and then.
#[test]
fn d42_the_posted_patch_fires_one_shots_at_the_halt() {
    let row = &rows("seed_patch", "one-shot", "idle", "0")[0];
    assert!(row.mean_us < 50.0 && row.software_wakes == 0, "{row:?}");
    assert_eq!(
        broken_rule("seed_patch", "one-shot", "idle"),
        Some("never-early")
    );
    // Periodic: a full period from each halt, and the counter's deadline falls behind by the work of each tick.
    let row = &rows("seed_patch", "periodic", "idle", "0")[0];
    assert!(row.deviation_us > 100.0, "{row:?}");
    let ours = &rows("merge", "periodic", "idle", "0")[0];
    assert!(ours.deviation_us < 0.01, "{ours:?}");
}

/// The 2018 repair: a stop of 5 s is 5000 callbacks in a row, and the preemption timer is never used again.
#[test]
fn d44_a_stop_is_a_storm_after_the_repair_of_2018() {
    let row = &rows("linux_2018_fix", "periodic", "pause", "0")[0];
    assert_eq!(row.longest_burst, 5000, "{row:?}");
    assert!(row.software_wakes > 1400, "{row:?}");
    let ours = &rows("merge", "periodic", "pause", "0")[0];
    // The first tick finds the vCPU halted: the software timer's clock is fast, so it wakes 7 ns early and once more.
    let few = ours.longest_burst == 1 && ours.software_wakes <= 2;
    assert!(few, "{ours:?}");
}

/// The 2025 repair: the periods of the stop are not accounted for, and the phase is that of the end of the stop.
#[test]
fn d45_a_stop_loses_the_phase_after_the_repair_of_2025() {
    let row = &rows("linux_2025_fix", "periodic", "pause", "0")[0];
    assert!((4990..=5001).contains(&row.periods_missing), "{row:?}");
    assert_eq!(
        rows("merge", "periodic", "pause", "0")[0].periods_missing,
        0
    );
}

/// Every historical model is caught: by a broken invariant, or by the row that the tests above look at.
#[test]
fn each_historical_model_is_caught() {
    for policy in [
        "linux_before_8003c9ae",
        "linux_8003c9ae",
        "seed_patch",
        "linux_2018_fix",
        "linux_2025_fix",
    ] {
        let caught = [
            ("periodic", "idle"),
            ("one-shot", "idle"),
            ("periodic", "bursts"),
        ]
        .into_iter()
        .filter_map(|(mode, load)| broken_rule(policy, mode, load))
        .count();
        assert!(caught > 0, "{policy} broke nothing");
    }
    assert_eq!(Policy::Linux8003c9ae.name(), "linux_8003c9ae");
}

/// The built-in scenario, 88 rows, with every invariant on; how fast it is. A row has 1000 ticks, or `CHRONOVISOR_SEQUENCES`, at most the
/// scenario's own 150 000.
#[test]
fn the_built_in_scenario_breaks_no_invariant() {
    let ticks = std::env::var("CHRONOVISOR_SEQUENCES").map_or(1000, |number| {
        number
            .parse()
            .map(|number: u64| number.min(150_000))
            .expect("CHRONOVISOR_SEQUENCES is a number")
    });
    let builtin = chronovisor_sim::scenario::builtin(LapicSpikes::NAME).expect("built in");
    let toml = builtin
        .toml
        .replace("ticks = 150_000", &format!("ticks = {ticks}"));
    let scenario = LapicSpikes::from_toml(&toml).expect("a scenario");
    for threads in [1, 2] {
        let threads = NonZeroUsize::new(threads).expect("not zero");
        let begun = std::time::Instant::now();
        let outcome =
            runner::run(&scenario, Shard::WHOLE, threads, &|_| ()).expect("nothing breaks");
        let seconds = begun.elapsed().as_secs_f64();
        let rows = scenario.rows(&outcome.tally);
        assert_eq!(rows.len(), 88);
        assert!(rows.iter().all(|row| row.ticks == ticks), "{rows:?}");
        // A count of events fits 53 bits.
        let millions = f64::from(u32::try_from(outcome.events / 1000).expect("below 2^32")) / 1e3;
        println!(
            "{} events in {seconds:.2} s on {threads} threads: {:.1} million/s",
            outcome.events,
            millions / seconds
        );
    }
}
