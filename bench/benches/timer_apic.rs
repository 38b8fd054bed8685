//! The local APIC timer: a register write, a poll, an expiry, the next deadline. Two pairs of rates: a short ratio, and one with no short form.

use std::hint::black_box;

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode};
use chronovisor_abi::quantity::{Hertz, Nanos, Reading, Tsc, TscDelta};
use chronovisor_host::apic::{
    DeadlineMode, LocalTimer, LostTicks, MinimumPeriod, Place, PreemptionTimer, Rates, Settings,
    SoftwareTimer, TimerRegister, Wakeups,
};
use criterion::{Criterion, criterion_group, criterion_main};

const MODES: [(&str, TimerMode); 3] = [
    ("one-shot", TimerMode::ONE_SHOT),
    ("periodic", TimerMode::PERIODIC),
    ("deadline", TimerMode::TSC_DEADLINE),
];

fn rates() -> [(&'static str, Rates); 2] {
    let hz = |hz| Hertz::from_hz(hz).expect("not zero");
    let short = Rates::new(hz(1_000_000_000), hz(2_600_000_000)).expect("in range");
    let third = Hertz::from_ratio(400_000_000, 3).expect("not zero");
    let odd = Rates::new(third, hz(2_599_999_507)).expect("in range");
    [
        ("2600-MHz-1-GHz", short),
        ("2599.999507-MHz-133.3-MHz", odd),
    ]
}

/// A timer of 1 ms in `mode`, started at TSC 0.
fn timer(rates: Rates, mode: TimerMode) -> LocalTimer {
    let start = Tsc::from_ticks(0);
    let settings = Settings {
        rates,
        minimum_period: MinimumPeriod::KVM,
        lost_ticks: LostTicks::Merge,
        deadline_mode: DeadlineMode::Offered,
    };
    let mut timer = LocalTimer::new(settings, start);
    for (register, value) in [
        (TimerRegister::LvtTimer, LvtTimer::new(mode, 0xec).0.into()),
        (
            TimerRegister::DivideConfiguration,
            DivideConfiguration::BY_1.0.into(),
        ),
        (TimerRegister::InitialCount, rates.bus().rounded_hz() / 1000),
        (TimerRegister::TscDeadline, 2_600_000),
    ] {
        let _ = timer.write(register, value, start);
    }
    timer
}

const MILLISECOND: TscDelta = TscDelta::from_ticks(2_600_000);

fn write(c: &mut Criterion) {
    let mut group = c.benchmark_group("apic-write");
    for (name, rates) in rates() {
        for (mode_name, mode) in MODES {
            let (register, value) = if mode == TimerMode::TSC_DEADLINE {
                (TimerRegister::TscDeadline, u64::MAX >> 1)
            } else {
                (TimerRegister::InitialCount, rates.bus().rounded_hz() / 1000)
            };
            let mut timer = timer(rates, mode);
            let mut now = Tsc::from_ticks(0);
            group.bench_function(format!("{mode_name}/{name}"), |bench| {
                bench.iter(|| {
                    now = now.wrapping_add(TscDelta::from_ticks(1_234_567));
                    timer.write(black_box(register), black_box(value), black_box(now))
                });
            });
        }
        // One-shot to periodic and back while the count runs.
        let mut timer = timer(rates, TimerMode::ONE_SHOT);
        let mut now = Tsc::from_ticks(0);
        let mut mode = 0_u64;
        group.bench_function(format!("lvt/{name}"), |bench| {
            bench.iter(|| {
                now = now.wrapping_add(TscDelta::from_ticks(1_234_567));
                mode ^= 1 << 17;
                timer.write(
                    TimerRegister::LvtTimer,
                    black_box(mode | 0xec),
                    black_box(now),
                )
            });
        });
    }
    group.finish();
}

fn poll(c: &mut Criterion) {
    let mut group = c.benchmark_group("apic-poll");
    for (name, rates) in rates() {
        let timer = timer(rates, TimerMode::PERIODIC);
        let mut now = 0_u64;
        group.bench_function(name, |bench| {
            bench.iter(|| {
                now = (now + 997) % 2_500_000;
                black_box(&timer).read(TimerRegister::CurrentCount, Tsc::from_ticks(black_box(now)))
            });
        });
    }
    group.finish();
}

fn expiry(c: &mut Criterion) {
    let mut group = c.benchmark_group("apic-expiry");
    for (name, rates) in rates() {
        let mut periodic = timer(rates, TimerMode::PERIODIC);
        let mut now = Tsc::from_ticks(0);
        group.bench_function(format!("periodic/{name}"), |bench| {
            bench.iter(|| {
                now = now.wrapping_add(MILLISECOND);
                periodic.expire(black_box(now))
            });
        });
        let mut stalled = timer(rates, TimerMode::PERIODIC);
        let mut now = Tsc::from_ticks(0);
        group.bench_function(format!("periodic-stalled/{name}"), |bench| {
            bench.iter(|| {
                now = now.wrapping_add(TscDelta::from_ticks(123_456_789));
                stalled.expire(black_box(now))
            });
        });
        let running = timer(rates, TimerMode::PERIODIC);
        group.bench_function(format!("next-deadline/{name}"), |bench| {
            bench.iter(|| black_box(&running).next_deadline());
        });
        let mut wakeups = Wakeups::new(
            SoftwareTimer::new(rates.tsc()),
            PreemptionTimer::new(5).expect("below 32"),
        );
        let reading = Reading::new(Nanos::from_ns(400_000), Tsc::from_ticks(1_040_000));
        for (name_of, place) in [
            ("set-preemption", Place::Guest),
            ("set-software", Place::Host),
        ] {
            group.bench_function(format!("{name_of}/{name}"), |bench| {
                bench.iter(|| wakeups.set(black_box(&running), place, black_box(reading)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, write, poll, expiry);
criterion_main!(benches);
