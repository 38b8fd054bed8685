//! The guards of `guard-scaling` on real threads, beside what the cost model says for this machine.
//!
//! What the model needs is measured apart from what it is to predict: a read without a guard, a guard without contention, and the time that a line takes from one
//! CPU to the other and back.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use chronovisor_abi::quantity::{Nanos, TscDelta};
use chronovisor_abi::scale::PvclockScale;
use chronovisor_guest::counter::{Counter, Ordered};
use chronovisor_guest::guard::{CoarseGuard, GlobalGuard, Guard};
use chronovisor_probe::cpus;
use chronovisor_sim::contended_line::Costs;
use chronovisor_sim::runner::{self, Shard};
use chronovisor_sim::scenario::Scenario;
use chronovisor_sim::scenario::guard_scaling::{GuardKind, GuardScaling, Parameters, Series};
use chronovisor_stats::Histogram;
use schemars::JsonSchema;
use serde::Serialize;

/// The longest time of one measurement, and how many batches are enough.
const LONGEST: Duration = Duration::from_secs(1);
const ENOUGH: u64 = 200;
/// Reads of a batch that is timed, and of the steps in which a thread tells that it goes on.
const BATCH: u64 = STEPS * STEP;
const STEP: u64 = 128;
const STEPS: u64 = 16;
/// A batch counts if each other thread went on by about as many steps meanwhile: fewer, and it had lost its CPU; more, and this one had.
const OTHERS_STEPS: std::ops::RangeInclusive<u64> = STEPS / 2..=2 * STEPS;
/// How often two threads play ping-pong.
const PLAYS: usize = 100;

/// A measured row and what the model says.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Row {
    /// Threads, each on a CPU of its own.
    pub(super) cpus: u32,
    /// The guard.
    pub(super) guard: GuardKind,
    /// What a read costs here, in us; null if the threads hardly ever ran at once.
    pub(super) us_per_call: Option<f64>,
    /// What the model says with this machine's costs, in us.
    pub(super) modelled_us_per_call: f64,
}

/// The comparison.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Comparison {
    /// The costs measured here, that the model was given.
    pub(super) costs: Costs,
    /// The measured rows.
    pub(super) rows: Vec<Row>,
}

/// Measures each guard on 1, 2, 4 .. as many CPUs as this program may use (64 at most), and asks the model.
pub(super) fn compare(seed: u64) -> anyhow::Result<Comparison> {
    let allowed = cpus::allowed()?;
    let most = allowed.len().min(64);
    let alone = |guard| nanos_a_read(guard, &allowed[..1]).unwrap_or(0.0);
    let (none, coarse, global) = (
        alone(GuardKind::None),
        alone(GuardKind::Coarse),
        alone(GuardKind::Global),
    );
    let hit = (coarse - none).max(0.0);
    let atomic = (global - none - hit).max(0.0);
    let costs = Costs {
        hit_ns: whole(hit),
        atomic_ns: whole(atomic),
        near_ns: whole(transfer(&allowed, hit, atomic)),
        // All CPUs are taken for one socket, and the line to hand out copies as fast as it can be read.
        far_ns: whole(transfer(&allowed, hit, atomic)),
        busy_ns: whole(hit),
        cpus_per_socket: 64,
    };
    let mut rows = Vec::new();
    let mut cpus = 1;
    while cpus <= most {
        for guard in [GuardKind::None, GuardKind::Global, GuardKind::Coarse] {
            let count = u32::try_from(cpus)?;
            rows.push(Row {
                cpus: count,
                guard,
                us_per_call: nanos_a_read(guard, &allowed[..cpus]).map(|ns| ns / 1e3),
                modelled_us_per_call: modelled(seed, count, guard, none, costs)?,
            });
        }
        cpus *= 2;
    }
    Ok(Comparison { costs, rows })
}

fn modelled(
    seed: u64,
    cpus: u32,
    guard: GuardKind,
    local: f64,
    costs: Costs,
) -> anyhow::Result<f64> {
    let parameters = Parameters {
        scenario: GuardScaling::NAME.to_owned(),
        seed,
        runs: 1,
        reads: 20_000,
        guards: vec![guard],
        skew_ns: 0,
        costs,
        series: vec![Series {
            name: "measured".to_owned(),
            cpus: vec![cpus],
            local_ns: whole(local).max(1),
            jitter_ns: 0,
            costs: None,
        }],
    };
    let scenario = GuardScaling::new(parameters)?;
    let outcome = runner::run(&scenario, Shard::WHOLE, NonZeroUsize::MIN, &|_| ())?;
    let rows = scenario.rows(&outcome.tally);
    Ok(rows.first().map_or(0.0, |row| row.us_per_call))
}

/// The cost of one read under `guard` with a thread on each of `cpus`, in ns. Of a thread alone the fastest batch counts, as a neighbour can only make it slower; of
/// several the median of the batches in which all of them ran.
fn nanos_a_read(guard: GuardKind, cpus: &[usize]) -> Option<f64> {
    let batches = match guard {
        GuardKind::None => read_on(cpus, &Unguarded),
        GuardKind::Global => read_on(cpus, &GlobalGuard::new()),
        GuardKind::Coarse => read_on(cpus, &CoarseGuard::with_quantum_of_2_to_the::<10>()),
    };
    let batch = if cpus.len() == 1 {
        batches.min()
    } else {
        batches.median()
    };
    batch.map(|ns| nanos(Duration::from_nanos(ns), BATCH))
}

/// No guard, behind the same call.
struct Unguarded;

impl Guard for Unguarded {
    fn admit(&self, time: Nanos) -> Nanos {
        time
    }

    fn reset(&self) {}
}

/// A number on a cache line of its own.
#[repr(align(128))]
struct Padded(AtomicU64);

/// How long batches of reads took, in ns.
fn read_on<G: Guard + Sync>(cpus: &[usize], guard: &G) -> Histogram {
    let (start, over) = (Barrier::new(cpus.len()), AtomicBool::new(false));
    let counter = Ordered::detect();
    // Any fixed multiplier will do: what matters is that the values are those of a clock.
    let scale = PvclockScale::from_raw(0xC4EC_4EC5, -1);
    let steps: Vec<Padded> = cpus.iter().map(|_| Padded(AtomicU64::new(0))).collect();
    let others_went_on = |me: usize, before: &[u64]| {
        steps
            .iter()
            .zip(before)
            .enumerate()
            .all(|(at, (now, before))| {
                at == me || OTHERS_STEPS.contains(&(now.0.load(Ordering::Relaxed) - before))
            })
    };
    let reader = |me: usize| {
        // A thread that cannot be pinned measures as well, if the scheduler leaves it alone.
        let _ = cpus::pin_to(cpus[me]);
        let mut batches = Histogram::preallocated(1_000_000_000);
        start.wait();
        let begun = Instant::now();
        while !over.load(Ordering::Relaxed) {
            let before: Vec<u64> = steps
                .iter()
                .map(|step| step.0.load(Ordering::Relaxed))
                .collect();
            let batch = Instant::now();
            for _ in 0..STEPS {
                for _ in 0..STEP {
                    let ticks = TscDelta::from_ticks(counter.read().as_ticks());
                    let time = scale.map_or(Nanos::ZERO, |scale| scale.nanos(ticks));
                    black_box(guard.admit(time));
                }
                steps[me].0.fetch_add(1, Ordering::Relaxed);
            }
            let took = batch.elapsed();
            if others_went_on(me, &before) {
                batches.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
            if batches.count() >= ENOUGH || begun.elapsed() >= LONGEST {
                over.store(true, Ordering::Relaxed);
            }
        }
        batches
    };
    let mut all = Histogram::new();
    thread::scope(|scope| {
        let reader = &reader;
        let threads: Vec<_> = (0..cpus.len())
            .map(|me| scope.spawn(move || reader(me)))
            .collect();
        for batches in threads.into_iter().filter_map(|thread| thread.join().ok()) {
            // A few hundred values are not too many for a histogram.
            let _ = all.merge(&batches);
        }
    });
    all
}

/// The time that a line takes to another CPU, in ns. Two threads count a number up in turn; each turn is a load that misses, a transfer for the write, and
/// the write.
fn transfer(cpus: &[usize], hit: f64, atomic: f64) -> f64 {
    let Some(&[first, second]) = cpus
        .get(..2)
        .and_then(|pair| <&[usize; 2]>::try_from(pair).ok())
    else {
        return 0.0;
    };
    // Short and often: the fastest is one in which both threads ran all the time.
    let turn = (0..PLAYS)
        .map(|_| ping_pong(first, second))
        .fold(f64::MAX, f64::min);
    ((turn - hit - atomic) / 2.0).max(0.0)
}

fn ping_pong(first: usize, second: usize) -> f64 {
    const TURNS: u64 = 2_000;
    #[repr(align(64))]
    struct Line(AtomicU64);
    let (line, start) = (Arc::new(Line(AtomicU64::new(0))), Barrier::new(2));
    let player = |cpu: usize, parity: u64| {
        let _ = cpus::pin_to(cpu);
        start.wait();
        let begun = Instant::now();
        loop {
            let turn = line.0.load(Ordering::Acquire);
            if turn >= TURNS {
                break;
            }
            if turn % 2 == parity {
                line.0.fetch_max(turn + 1, Ordering::AcqRel);
            }
        }
        nanos(begun.elapsed(), TURNS)
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| player(second, 1));
        let ours = thread::Builder::new()
            .spawn_scoped(scope, || player(first, 0))
            .ok()
            .and_then(|thread| thread.join().ok());
        let theirs = other.join().ok();
        ours.or(theirs).unwrap_or(0.0)
    })
}

#[expect(clippy::cast_precision_loss, reason = "a count of reads, for a mean")]
fn nanos(span: Duration, count: u64) -> f64 {
    span.as_secs_f64() * 1e9 / count.max(1) as f64
}

/// ns in whole ns, to nearest.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "held between 0 and a million"
)]
fn whole(ns: f64) -> u64 {
    ns.round().clamp(0.0, 1e6) as u64
}
