//! Hyper-V synthetic timers: a register write, a read, an expiry in direct mode and by message.

use std::hint::black_box;

use chronovisor_abi::msr::Msr;
use chronovisor_abi::pvclock::{Record, WallClockRecord};
use chronovisor_abi::quantity::RefTime;
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_abi::synthetic_timer::{Config, MessagePage};
use chronovisor_host::guest_memory::{GuestAddress, GuestMemory};
use chronovisor_host::synthetic_timer::{Presence, Settings, VcpuTimers};
use criterion::{Criterion, criterion_group, criterion_main};

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

const MILLISECOND: RefTime = RefTime::from_100ns(10_000);

fn timers(config: Config, memory: &Memory) -> VcpuTimers {
    let mut timers = VcpuTimers::new(Settings::DEFAULT);
    for (msr, value) in [
        (Msr::HV_SCONTROL, 1),
        (Msr::HV_SIMP, 0x7001),
        (Msr(Msr::HV_SINT0.0 + 2), 0x60),
        (Msr::HV_STIMER0_CONFIG, config.with(Config::AUTO_ENABLE).0),
        (Msr::HV_STIMER0_COUNT, MILLISECOND.as_100ns()),
    ] {
        let _ = timers
            .write(msr, value, RefTime::ZERO, memory)
            .expect("possible values");
    }
    timers
}

fn synthetic(c: &mut Criterion) {
    let memory = Memory(MessagePage::new());
    let mut group = c.benchmark_group("stimer");

    let mut timer = timers(Config::for_vector(0xed), &memory);
    let mut now = RefTime::ZERO;
    group.bench_function("write-count", |bench| {
        bench.iter(|| {
            now = now.saturating_add(RefTime::from_100ns(77));
            let due = now.as_100ns() + 10_000;
            timer.write(
                Msr::HV_STIMER0_COUNT,
                black_box(due),
                black_box(now),
                &memory,
            )
        });
    });
    group.bench_function("read-config", |bench| {
        bench.iter(|| black_box(&timer).read(Msr::HV_STIMER0_CONFIG, black_box(RefTime::ZERO)));
    });

    let mut direct = timers(Config::for_vector(0xed).with(Config::PERIODIC), &memory);
    let mut now = RefTime::ZERO;
    group.bench_function("expiry-direct", |bench| {
        bench.iter(|| {
            now = now.saturating_add(MILLISECOND);
            direct.expire(black_box(now), &memory)
        });
    });
    group.bench_function("next-due", |bench| {
        bench.iter(|| black_box(&direct).next_due(Presence::Present));
    });

    let mut message = timers(Config::for_source(2).with(Config::PERIODIC), &memory);
    let mut now = RefTime::ZERO;
    group.bench_function("expiry-message", |bench| {
        bench.iter(|| {
            now = now.saturating_add(MILLISECOND);
            let effects = message.expire(black_box(now), &memory);
            (effects, memory.0.slot(2).take())
        });
    });
    group.finish();
}

criterion_group!(benches, synthetic);
criterion_main!(benches);
