//! The host's clock calls, each by its cheapest batch: what other programs on the machine hardly move.

use std::hint::black_box;
use std::time::Instant;

use chronovisor_abi::msr::Msr;
use chronovisor_abi::pvclock::{Record, WallClockRecord};
use chronovisor_abi::quantity::{Hertz, Tsc, TscDelta};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_host::guest_memory::{GuestAddress, GuestMemory};
use chronovisor_host::migration::VmState;
use chronovisor_host::msr_surface::{Access, MsrSurface, Privileges};
use chronovisor_host::partition_clock::{Change, Config, PartitionClock, VcpuIndex};

const RECORDS: u64 = 0x1000_0000;
const PAGE: u64 = 0x3000;
const BATCHES: u32 = 1000;

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

/// A partition with this many records, and the reference page if there is none.
fn partition(records: u32) -> (MsrSurface, Memory) {
    let memory = Memory {
        records: (0..records).map(|_| Record::new()).collect(),
        page: ReferenceTscPage::new(),
    };
    let start = Tsc::from_ticks(0);
    let config = Config::for_vcpus(records.max(1));
    let mut clock =
        PartitionClock::start(config, hz(2_600_000_000), start).expect("a rate in range");
    for vcpu in 0..records {
        let register = RECORDS + 64 * u64::from(vcpu) + 1;
        clock.write_system_time_register(VcpuIndex(vcpu), register, &memory);
    }
    if records == 0 {
        clock.write_reference_tsc_register(PAGE | 1, &memory);
    }
    let surface = MsrSurface::new(clock, Privileges::EVERYTHING, hz(1_000_000_000));
    (surface, memory)
}

/// Prints the cheapest batch's ns a call.
fn cheapest(name: &str, calls: u32, mut call: impl FnMut()) {
    let mut least = f64::INFINITY;
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..calls {
            call();
        }
        least = least.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(calls));
    }
    println!("{name:<44} {least:>10.1} ns");
}

fn update(surface: &mut MsrSurface, memory: &Memory, change: Change, now: u64) {
    surface
        .clock_mut()
        .begin_update(black_box(change), memory)
        .expect("a rate in range")
        .publish(Tsc::from_ticks(now))
        .expect("a later reading");
}

fn main() {
    let (mut surface, memory) = partition(0);
    let mut now = 0;
    cheapest("counter MSR read", 1000, || {
        now += 2600;
        let tsc = Tsc::from_ticks(now);
        let msr = black_box(Msr::HV_TIME_REF_COUNT);
        let _ = black_box(surface.access(VcpuIndex(0), msr, Access::Read, tsc, &memory));
    });
    let rates = [hz(2_600_000_000), hz(2_100_000_000)];
    let moved = Change::Counter {
        rate: rates[0],
        ahead: TscDelta::from_ticks(1),
    };
    for (name, records, calls) in [
        ("one page", 0, 200),
        ("one record", 1, 200),
        ("10 000 records", 10_000, 1),
    ] {
        let (mut surface, memory) = partition(records);
        let mut now = 0;
        cheapest(&format!("{name}, the line starts anew"), calls, || {
            now += 2600;
            update(&mut surface, &memory, moved, now);
        });
        let (mut surface, memory) = partition(records);
        let (mut now, mut turn) = (0, 0);
        cheapest(&format!("{name}, another rate"), calls, || {
            now += 2600;
            turn ^= 1;
            update(&mut surface, &memory, Change::Frequency(rates[turn]), now);
        });
        if records > 0 {
            let (mut surface, memory) = partition(records);
            let mut now = 0;
            cheapest(&format!("{name}, re-based"), calls, || {
                now += 2600;
                update(&mut surface, &memory, Change::Rebase, now);
            });
        }
    }
    let (surface, _) = partition(1);
    let mut buffer = [0; VmState::MAX_BYTES];
    cheapest("save a VM's clocks into a buffer", 100, || {
        let _ = black_box(
            surface
                .save(Tsc::from_ticks(5))
                .encode(black_box(&mut buffer)),
        );
    });
}
