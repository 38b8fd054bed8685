//! What the host's half of the clocks costs: a counter MSR read, an update of one page and of many, a saved state.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use std::hint::black_box;

use chronovisor_abi::msr::Msr;
use chronovisor_abi::pvclock::{Record, WallClockRecord};
use chronovisor_abi::quantity::{Hertz, Nanos, Tsc, TscDelta};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_host::guest_memory::{GuestAddress, GuestMemory};
use chronovisor_host::migration::{
    Destination, HostPair, Policy, Ratio, ScalingHardware, Source, VmState, adjust,
};
use chronovisor_host::msr_surface::{Access, MsrSurface, Privileges};
use chronovisor_host::partition_clock::{Change, Config, Counter, PartitionClock, VcpuIndex};
use chronovisor_host::vmclock::Disruption;

const RECORDS: u64 = 0x1000_0000;
const PAGE: u64 = 0x3000;

struct Memory {
    records: Vec<Record>,
    page: ReferenceTscPage,
}

impl GuestMemory for Memory {
    fn pvclock_record(&self, address: GuestAddress) -> Option<&Record> {
        let offset = address.as_u64().checked_sub(RECORDS)?;
        self.records.get(usize::try_from(offset / 64).ok()?)
    }

    fn wall_clock_record(&self, _: GuestAddress) -> Option<&WallClockRecord> {
        None
    }

    fn reference_tsc_page(&self, address: GuestAddress) -> Option<&ReferenceTscPage> {
        (address.as_u64() == PAGE).then_some(&self.page)
    }
}

fn hz(hz: u64) -> Hertz {
    Hertz::from_hz(hz).expect("not zero")
}

fn ticks(ticks: u64) -> Tsc {
    Tsc::from_ticks(ticks)
}

/// A partition with this many records, and the reference page if there is none.
fn partition(records: u32) -> (MsrSurface, Memory) {
    let memory = Memory {
        records: (0..records).map(|_| Record::new()).collect(),
        page: ReferenceTscPage::new(),
    };
    let config = Config::for_vcpus(records.max(1));
    let mut clock =
        PartitionClock::start(config, hz(2_600_000_000), ticks(0)).expect("a rate in range");
    for vcpu in 0..records {
        let register = RECORDS + 64 * u64::from(vcpu) + 1;
        clock.write_system_time_register(VcpuIndex(vcpu), register, &memory);
    }
    if records == 0 {
        clock.write_reference_tsc_register(PAGE | 1, &memory);
    }
    (
        MsrSurface::new(clock, Privileges::EVERYTHING, hz(1_000_000_000)),
        memory,
    )
}

fn counter_msr(c: &mut Criterion) {
    let (mut surface, memory) = partition(0);
    let mut now = 0;
    c.bench_function("counter MSR read", |b| {
        b.iter(|| {
            now += 2600;
            surface.access(
                VcpuIndex(0),
                black_box(Msr::HV_TIME_REF_COUNT),
                Access::Read,
                ticks(now),
                &memory,
            )
        });
    });
}

fn update(surface: &mut MsrSurface, memory: &Memory, change: Change, now: u64) {
    surface
        .clock_mut()
        .begin_update(black_box(change), memory)
        .expect("a rate in range")
        .publish(ticks(now))
        .expect("a later reading");
}

fn updates(c: &mut Criterion) {
    let mut group = c.benchmark_group("update");
    let rates = [hz(2_600_000_000), hz(2_100_000_000)];
    // A counter that moves by a tick each time: the line starts anew, at the same rate.
    let moved = Change::Counter {
        rate: rates[0],
        ahead: TscDelta::from_ticks(1),
    };
    for (name, records) in [
        ("one page", 0),
        ("one record", 1),
        ("10 000 records", 10_000),
    ] {
        let (mut surface, memory) = partition(records);
        let mut now = 0;
        group.bench_function(format!("{name}, the line starts anew"), |b| {
            b.iter(|| {
                now += 2600;
                update(&mut surface, &memory, moved, now);
            });
        });
        let (mut surface, memory) = partition(records);
        let (mut now, mut turn) = (0, 0);
        group.bench_function(format!("{name}, another rate"), |b| {
            b.iter(|| {
                now += 2600;
                turn ^= 1;
                update(&mut surface, &memory, Change::Frequency(rates[turn]), now);
            });
        });
    }
    let (mut surface, memory) = partition(10_000);
    group.bench_function("10 000 records, the stop flag", |b| {
        b.iter(|| update(&mut surface, &memory, Change::GuestStopped, 0));
    });
    group.finish();
}

fn migration(c: &mut Criterion) {
    let (surface, _) = partition(1);
    let mut buffer = [0; VmState::MAX_BYTES];
    c.bench_function("save a VM's clocks into a buffer", |b| {
        b.iter(|| surface.save(ticks(5)).encode(black_box(&mut buffer)));
    });
    let state = surface.save(ticks(5));
    let pair = |host_tsc, tai| HostPair {
        host_tsc: ticks(host_tsc),
        tai: Nanos::from_ns(tai),
        error: Nanos::ZERO,
    };
    let source = Source {
        pair: pair(5, 0),
        scaling: Ratio::ONE,
        offset: TscDelta::ZERO,
    };
    let destination = Destination {
        pair: pair(77, 1_000_000_000),
        host_rate: hz(3_000_000_000),
        scaling: ScalingHardware::Bits48,
        counter: Counter::Invariant,
        arrival: Disruption::Moved,
    };
    c.bench_function("adjust a VM's clocks to another host", |b| {
        b.iter_batched(
            || state,
            |state| adjust(black_box(&state), &source, &destination, Policy::Stop),
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, counter_msr, updates, migration);
criterion_main!(benches);
