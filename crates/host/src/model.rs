//! Publisher against readers, in every interleaving that the model checker tries: run with `RUSTFLAGS="--cfg loom"`.
//!
//! The counter is a relaxed atomic that each reading advances, so an update can start, and end, at any point of a read. A reader's time is
//! checked against the order of the counter: whoever read the counter earlier saw no later time.

use std::sync::Arc;
use std::vec::Vec;

use chronovisor_abi::pvclock::{Record, WallClockRecord};
use chronovisor_abi::quantity::{Hertz, Tsc};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_abi::seqlock::sync::{AtomicU64, Ordering};
use chronovisor_abi::vmclock;

use crate::guest_memory::{GuestAddress, GuestMemory};
use crate::partition_clock::{Change, Config, PartitionClock, VcpuIndex};
use crate::vmclock::{Disruption, Notification};

const PAGE: u64 = 0x1000;

struct Memory {
    records: [Record; 2],
    page: ReferenceTscPage,
    vmclock: vmclock::Page,
    counter: AtomicU64,
}

impl Memory {
    fn new() -> Self {
        Self {
            records: [Record::new(), Record::new()],
            page: ReferenceTscPage::new(),
            vmclock: vmclock::Page::new(),
            counter: AtomicU64::new(FIRST),
        }
    }

    fn tick(&self) -> Tsc {
        Tsc::from_ticks(self.counter.fetch_add(1, Ordering::Relaxed))
    }
}

impl GuestMemory for Memory {
    fn pvclock_record(&self, address: GuestAddress) -> Option<&Record> {
        self.records
            .get(usize::try_from(address.as_u64() / 64).ok()?)
    }

    fn wall_clock_record(&self, _: GuestAddress) -> Option<&WallClockRecord> {
        None
    }

    fn reference_tsc_page(&self, address: GuestAddress) -> Option<&ReferenceTscPage> {
        (address.as_u64() == PAGE).then_some(&self.page)
    }

    fn vmclock_page(&self) -> Option<&vmclock::Page> {
        Some(&self.vmclock)
    }
}

/// Where the counter starts.
const FIRST: u64 = 1 << 40;

/// What a reader saw: its counter, and the time.
#[derive(Clone, Copy, Debug)]
struct Seen {
    counter: u64,
    time: u64,
}

fn hz(hz: u64) -> Hertz {
    Hertz::from_hz(hz).expect("not zero")
}

/// A clock that falls from 1000 ns (10 units) a tick to 0.1 ns: an old line read too late is far ahead of the new one.
fn clock() -> PartitionClock {
    PartitionClock::start(
        Config::for_vcpus(2),
        hz(1_000_000),
        Tsc::from_ticks(FIRST - 1000),
    )
    .expect("a rate in range")
}

const CHANGE: Change = Change::Frequency(match Hertz::from_hz(10_000_000_000) {
    Some(rate) => rate,
    None => unreachable!(),
});

/// Whoever read the counter earlier saw no later time.
fn assert_in_order(mut seen: Vec<Seen>) {
    seen.sort_by_key(|seen| seen.counter);
    for pair in seen.windows(2) {
        assert!(pair[0].time <= pair[1].time, "time went back: {pair:?}");
    }
}

fn model(
    preemption_bound: Option<usize>,
    readers: usize,
    looks: usize,
    setup: fn(&mut PartitionClock, &Memory),
    change: Change,
    look: fn(&Memory, usize) -> Option<Seen>,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemption_bound;
    builder.check(move || {
        let memory = Arc::new(Memory::new());
        let mut clock = clock();
        setup(&mut clock, &memory);
        let readers: Vec<_> = (0..readers)
            .map(|reader| {
                let memory = Arc::clone(&memory);
                loom::thread::spawn(move || {
                    (0..looks)
                        .filter_map(|_| look(&memory, reader))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let open = clock
            .begin_update(change, &*memory)
            .expect("a rate in range");
        let now = memory.tick();
        open.publish(now).expect("a later reading");
        let mut seen: Vec<_> = readers
            .into_iter()
            .flat_map(|reader| reader.join().expect("a reader"))
            .collect();
        seen.extend(look(&memory, 0));
        assert_in_order(seen);
    });
}

fn with_records(clock: &mut PartitionClock, memory: &Memory) {
    for vcpu in 0..2 {
        clock.write_system_time_register(VcpuIndex(vcpu), u64::from(vcpu) * 64 + 1, memory);
    }
}

fn look_at_record(memory: &Memory, vcpu: usize) -> Option<Seen> {
    let (contents, tsc, _) = memory.records[vcpu].try_read(|| memory.tick()).ok()?;
    Some(Seen {
        counter: tsc.as_ticks(),
        time: contents.time_at(tsc).expect("never torn").as_ns(),
    })
}

#[test]
fn one_reader_of_a_record() {
    model(
        Some(3),
        1,
        2,
        |clock, memory| {
            clock.write_system_time_register(VcpuIndex(0), 1, memory);
        },
        CHANGE,
        look_at_record,
    );
}

/// Each reader has a record of its own: the marks of both precede the counter reading.
#[test]
fn two_readers_of_two_records() {
    model(Some(2), 2, 1, with_records, CHANGE, look_at_record);
}

/// The page becomes valid with the change, since the old rate is too slow for it; before that the reader has the MSR.
#[test]
fn one_reader_of_the_reference_page() {
    fn look(memory: &Memory, _: usize) -> Option<Seen> {
        let (line, tsc, _) = memory.page.try_read(|| memory.tick()).ok()?;
        Some(Seen {
            counter: tsc.as_ticks(),
            time: line.time_at(tsc).as_100ns(),
        })
    }
    model(
        Some(3),
        1,
        2,
        |clock, memory| {
            // From 90 ns a tick to 0.1 ns: both lines have a page.
            clock
                .begin_update(Change::Frequency(hz(11_000_000)), memory)
                .expect("a rate in range")
                .publish(memory.tick())
                .expect("a later reading");
            clock.write_reference_tsc_register(PAGE | 1, memory);
        },
        CHANGE,
        look,
    );
}

/// A marker and its sequence: whoever sees the new sequence sees the new marker.
#[test]
fn one_reader_of_the_vmclock_page() {
    fn look(memory: &Memory, _: usize) -> Option<Seen> {
        let (contents, tsc, _) = memory.vmclock.try_read(|| memory.tick()).ok()?;
        assert_eq!(
            contents.disruption_marker, contents.vm_generation_counter,
            "torn read"
        );
        Some(Seen {
            counter: tsc.as_ticks(),
            time: contents.disruption_marker,
        })
    }
    model(
        Some(2),
        1,
        1,
        |clock, memory| {
            clock.offer_vmclock(Notification::Absent, memory);
        },
        Change::Disrupted(Disruption::Copied),
        look,
    );
}

/// A dropped update at any point of a read: the old line stands.
#[test]
fn a_dropped_update_is_no_change() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let memory = Arc::new(Memory::new());
        let mut clock = clock();
        clock.write_system_time_register(VcpuIndex(0), 1, &*memory);
        let reader = {
            let memory = Arc::clone(&memory);
            loom::thread::spawn(move || look_at_record(&memory, 0))
        };
        drop(
            clock
                .begin_update(CHANGE, &*memory)
                .expect("a rate in range"),
        );
        let mut seen: Vec<_> = reader.join().expect("a reader").into_iter().collect();
        seen.extend(look_at_record(&memory, 0));
        for seen in &seen {
            assert_eq!(
                seen.time,
                (seen.counter - FIRST + 1000) * 1000,
                "the old line"
            );
        }
    });
}

/// The model can fail: an update that reads its counter before the marks are visible lets an old line be read too late.
#[test]
#[should_panic(expected = "time went back")]
fn the_model_sees_a_reading_that_was_taken_too_early() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let memory = Arc::new(Memory::new());
        let mut clock = clock();
        clock.write_system_time_register(VcpuIndex(0), 1, &*memory);
        let reader = {
            let memory = Arc::clone(&memory);
            loom::thread::spawn(move || look_at_record(&memory, 0))
        };
        let too_early = memory.tick();
        let open = clock
            .begin_update(CHANGE, &*memory)
            .expect("a rate in range");
        open.publish(too_early).expect("a later reading");
        let mut seen: Vec<_> = reader.join().expect("a reader").into_iter().collect();
        seen.extend(look_at_record(&memory, 0));
        assert_in_order(seen);
    });
}
