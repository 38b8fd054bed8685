//! Unsafe, since a global allocator is: it counts allocations, to show that the clock makes none after construction.
#![allow(unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use chronovisor_abi::msr::Msr;
use chronovisor_host::migration::{Policy, ScalingHardware, VcpuState, VmState, adjust};
use chronovisor_host::msr_surface::Access;
use chronovisor_host::partition_clock::Change;
use support::partition::{
    GHZ_2_6, destination, enabled, hz, source, ticks, time_of_day, update, vcpu,
};

struct Counting;

std::thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to `System` unchanged, whose contract the caller already keeps; counting touches a thread-local
// cell that is initialised at compile time and has no destructor, so it neither allocates nor is it ever gone.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's layout, as it demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from `System` with this layout, since `alloc` above passes both on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(body: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    body();
    ALLOCATIONS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn ten_thousand_records_are_published_without_an_allocation() {
    let (mut surface, memory) = enabled(10_000, hz(GHZ_2_6), 0);
    let made = allocations(|| {
        update(
            &mut surface,
            Change::Frequency(hz(2_100_000_000)),
            1000,
            &memory,
        );
        update(
            &mut surface,
            Change::TimeOfDay(time_of_day(1000, 1_800_000_000)),
            2000,
            &memory,
        );
        update(&mut surface, Change::GuestStopped, 3000, &memory);
        while let Some(due) = surface
            .clock()
            .next_rebase()
            .filter(|due| due.is_before(ticks(1 << 42)))
        {
            update(&mut surface, Change::Rebase, due.as_ticks(), &memory);
        }
    });
    assert_eq!(made, 0);
    assert_eq!(memory.records[9999].version(), memory.records[0].version());
}

#[test]
fn no_access_allocates() {
    let (mut surface, memory) = enabled(2, hz(GHZ_2_6), 0);
    let made = allocations(|| {
        for number in (0x4000_0000..=0x4000_0118)
            .chain(0x4b56_4d00..=0x4b56_4d05)
            .chain(0x10..=0x12)
        {
            for value in [0, 1, 0x3001, u64::MAX] {
                let _ = surface.access(
                    vcpu(1),
                    Msr(number),
                    Access::Write(value),
                    ticks(5000),
                    &memory,
                );
                let _ = surface.access(vcpu(0), Msr(number), Access::Read, ticks(6000), &memory);
            }
        }
    });
    assert_eq!(made, 0);
}

#[test]
fn saving_and_adjusting_write_into_the_callers_buffer() {
    let (surface, memory) = enabled(2, hz(GHZ_2_6), 0);
    let mut buffer = [0; VmState::MAX_BYTES];
    let mut vcpu_buffer = [0; VcpuState::MAX_BYTES];
    let made = allocations(|| {
        let state = surface.save(ticks(1000));
        let bytes = state.encode(&mut buffer).unwrap();
        let state = VmState::decode(&buffer[..bytes]).unwrap();
        let there = destination(0, 1_000_000, hz(3_000_000_000), ScalingHardware::Bits48);
        let _ = adjust(&state, &source(1000, 0), &there, Policy::Advance).unwrap();
        let (clock, _) = surface.save_vcpu(vcpu(1), &memory).unwrap();
        let bytes = clock.encode(&mut vcpu_buffer).unwrap();
        assert_eq!(VcpuState::decode(&vcpu_buffer[..bytes]), Ok(clock));
    });
    assert_eq!(made, 0);
}
