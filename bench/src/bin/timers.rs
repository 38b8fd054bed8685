//! What the timers cost when nothing else runs: the cheapest of many short batches, which other programs on the machine do not move.
//!
//!     cargo run --release --bin timers

use std::hint::black_box;
use std::time::Instant;

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode};
use chronovisor_abi::msr::Msr;
use chronovisor_abi::pvclock::{Record, WallClockRecord};
use chronovisor_abi::quantity::{Hertz, Nanos, Reading, RefTime, Tsc, TscDelta};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_abi::synthetic_timer::{Config, MessagePage};
use chronovisor_host::apic::{
    DeadlineMode, LocalTimer, LostTicks, MinimumPeriod, Place, PreemptionTimer, Rates, Settings,
    SoftwareTimer, TimerRegister, Wakeups,
};
use chronovisor_host::guest_memory::{GuestAddress, GuestMemory};
use chronovisor_host::synthetic_timer::{self as synthetic, Presence, VcpuTimers};

const BATCHES: u32 = 500;
const CALLS: u32 = 2_000;

/// Prints the time of one call of `body`, in ns, in the cheapest batch.
fn cheapest(what: &str, mut body: impl FnMut()) {
    let batch = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            body();
        }
        start.elapsed()
    };
    let best = (0..BATCHES).map(batch).min().unwrap_or_default();
    println!(
        "{what:<34} {:5.1} ns",
        best.as_nanos() as f64 / f64::from(CALLS)
    );
}

fn rates() -> Rates {
    let bus = Hertz::from_ratio(400_000_000, 3).expect("not zero");
    Rates::new(bus, Hertz::from_hz(2_599_999_507).expect("not zero")).expect("in range")
}

/// A timer of 1 ms in `mode`, started at TSC 0.
fn apic(mode: TimerMode) -> LocalTimer {
    let start = Tsc::from_ticks(0);
    let settings = Settings {
        rates: rates(),
        minimum_period: MinimumPeriod::KVM,
        lost_ticks: LostTicks::Merge,
        deadline_mode: DeadlineMode::Offered,
    };
    let mut timer = LocalTimer::new(settings, start);
    for (register, value) in [
        (TimerRegister::LvtTimer, LvtTimer::new(mode, 0xec).0),
        (
            TimerRegister::DivideConfiguration,
            DivideConfiguration::BY_1.0,
        ),
        (TimerRegister::InitialCount, 133_333),
        (TimerRegister::TscDeadline, 2_600_000),
    ] {
        let _ = timer.write(register, value.into(), start);
    }
    timer
}

fn apic_writes() {
    for (what, mode, register, value) in [
        (
            "apic: write count, one-shot",
            TimerMode::ONE_SHOT,
            TimerRegister::InitialCount,
            133_333,
        ),
        (
            "apic: write count, periodic",
            TimerMode::PERIODIC,
            TimerRegister::InitialCount,
            133_333,
        ),
        (
            "apic: write deadline",
            TimerMode::TSC_DEADLINE,
            TimerRegister::TscDeadline,
            u64::MAX >> 1,
        ),
        (
            "apic: write divider",
            TimerMode::PERIODIC,
            TimerRegister::DivideConfiguration,
            3,
        ),
    ] {
        let (mut timer, mut now) = (apic(mode), Tsc::from_ticks(0));
        cheapest(what, || {
            now = now.wrapping_add(TscDelta::from_ticks(1_234_567));
            let _ = black_box(timer.write(black_box(register), black_box(value), black_box(now)));
        });
    }
}

fn apic_reads_and_expiries() {
    let timer = apic(TimerMode::PERIODIC);
    let mut now = 0;
    cheapest("apic: poll the count", || {
        now = (now + 997) % 2_500_000;
        let now = Tsc::from_ticks(black_box(now));
        black_box(black_box(&timer).read(TimerRegister::CurrentCount, now));
    });
    for (what, step) in [
        ("apic: expiry", 2_600_000),
        ("apic: expiry after 47 periods", 123_456_789),
    ] {
        let (mut timer, mut now) = (apic(TimerMode::PERIODIC), Tsc::from_ticks(0));
        cheapest(what, || {
            now = now.wrapping_add(TscDelta::from_ticks(step));
            let _ = black_box(timer.expire(black_box(now)));
        });
    }
    cheapest("apic: next deadline", || {
        black_box(black_box(&timer).next_deadline());
    });
    let preemption = PreemptionTimer::new(5).expect("below 32");
    let mut wakeups = Wakeups::new(SoftwareTimer::new(rates().tsc()), preemption);
    let now = Reading::new(Nanos::from_ns(400_000), Tsc::from_ticks(1_040_000));
    for (what, place) in [
        ("apic: set preemption timer", Place::Guest),
        ("apic: set software timer", Place::Host),
    ] {
        cheapest(what, || {
            black_box(wakeups.set(black_box(&timer), place, black_box(now)));
        });
    }
}

/// Guest memory that is one message page.
struct Memory(MessagePage);

impl GuestMemory for Memory {
    fn pvclock_record(&self, _address: GuestAddress) -> Option<&Record> {
        None
    }

    fn wall_clock_record(&self, _address: GuestAddress) -> Option<&WallClockRecord> {
        None
    }

    fn reference_tsc_page(&self, _address: GuestAddress) -> Option<&ReferenceTscPage> {
        None
    }

    fn message_page(&self, _address: GuestAddress) -> Option<&MessagePage> {
        Some(&self.0)
    }
}

/// The synthetic source of the timers that tell by message.
const SOURCE: u8 = 2;

fn synthetic(config: Config, memory: &Memory) -> VcpuTimers {
    let mut timers = VcpuTimers::new(synthetic::Settings::DEFAULT);
    for (msr, value) in [
        (Msr::HV_SCONTROL, 1),
        (Msr::HV_SIMP, 0x7001),
        (Msr(Msr::HV_SINT0.0 + u32::from(SOURCE)), 0x60),
        (Msr::HV_STIMER0_CONFIG, config.with(Config::AUTO_ENABLE).0),
        (Msr::HV_STIMER0_COUNT, 10_000),
    ] {
        let _ = timers
            .write(msr, value, RefTime::ZERO, memory)
            .expect("possible values");
    }
    timers
}

fn synthetic_timers() {
    let memory = Memory(MessagePage::new());
    for (what, config) in [
        ("synthetic: write count, direct", Config::for_vector(0xed)),
        (
            "synthetic: write count, message",
            Config::for_source(SOURCE),
        ),
    ] {
        let (mut timers, mut now) = (synthetic(config, &memory), RefTime::ZERO);
        cheapest(what, || {
            now = now.saturating_add(RefTime::from_100ns(77));
            let due = black_box(now.as_100ns() + 10_000);
            let _ = black_box(timers.write(Msr::HV_STIMER0_COUNT, due, black_box(now), &memory));
        });
    }
    for (what, config) in [
        ("synthetic: expiry, direct", Config::for_vector(0xed)),
        ("synthetic: expiry, message", Config::for_source(SOURCE)),
    ] {
        let config = config.with(Config::PERIODIC);
        let (mut timers, mut now) = (synthetic(config, &memory), RefTime::ZERO);
        cheapest(what, || {
            now = now.saturating_add(RefTime::from_100ns(10_000));
            let _ = black_box(timers.expire(black_box(now), &memory));
            black_box(memory.0.slot(SOURCE).take());
        });
    }
    let timers = synthetic(Config::for_vector(0xed), &memory);
    cheapest("synthetic: next due", || {
        black_box(black_box(&timers).next_due(Presence::Present));
    });
}

fn main() {
    apic_writes();
    apic_reads_and_expiries();
    synthetic_timers();
}
