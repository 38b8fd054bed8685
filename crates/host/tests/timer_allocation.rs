//! Unsafe, since a global allocator is: it counts allocations, to show that the timers make none.
#![allow(clippy::unwrap_used, reason = "a test may")]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use chronovisor_abi::apic::{LvtTimer, TimerMode};
use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Hertz, Nanos, Reading, RefTime, Tsc};
use chronovisor_abi::synthetic_timer::Config;
use chronovisor_host::apic::{
    CatchUp, DeadlineMode, LocalTimer, LostTicks, MinimumPeriod, Place, PreemptionTimer, Rates,
    Settings, SoftwareTimer, TimerRegister, Wakeups,
};
use chronovisor_host::guest_memory::NoMemory;
use chronovisor_host::synthetic_timer::{self, Presence, VcpuTimers};

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
    let made = allocations(|| drop(std::hint::black_box(Box::new(1))));
    assert_eq!(made, 1);
}

#[test]
fn the_apic_timer_does_not_allocate() {
    let (bus, tsc) = (
        Hertz::from_hz(1_000_000_000).unwrap(),
        Hertz::from_hz(2_599_999_507).unwrap(),
    );
    let settings = Settings {
        rates: Rates::new(bus, tsc).unwrap(),
        minimum_period: MinimumPeriod::KVM,
        lost_ticks: LostTicks::CatchUp(CatchUp::DEFAULT),
        deadline_mode: DeadlineMode::Offered,
    };
    let made = allocations(|| {
        let mut timer = LocalTimer::new(settings, Tsc::from_ticks(0));
        let mut wakeups = Wakeups::new(SoftwareTimer::new(tsc), PreemptionTimer::new(5).unwrap());
        for step in 0..1000_u64 {
            let now = Tsc::from_ticks(step * 1_000_003);
            let mode = [
                TimerMode::ONE_SHOT,
                TimerMode::PERIODIC,
                TimerMode::TSC_DEADLINE,
            ][usize::try_from(step % 3).unwrap()];
            let _ = timer.write(
                TimerRegister::LvtTimer,
                LvtTimer::new(mode, 0x40).0.into(),
                now,
            );
            let _ = timer.write(TimerRegister::InitialCount, 1000 + step, now);
            let _ = timer.write(TimerRegister::TscDeadline, step * 1_000_100, now);
            let _ = timer.read(TimerRegister::CurrentCount, now);
            let _ = wakeups.set(
                &timer,
                Place::Guest,
                Reading::new(Nanos::from_ns(step), now),
            );
            let _ = timer.expire(now);
            timer = LocalTimer::restore(settings, &timer.save(now), now).unwrap();
        }
    });
    assert_eq!(made, 0);
}

#[test]
fn the_synthetic_timers_do_not_allocate() {
    let made = allocations(|| {
        let mut timers = VcpuTimers::new(synthetic_timer::Settings::DEFAULT);
        for step in 0..1000_u64 {
            let now = RefTime::from_100ns(step * 10_007);
            let config = Config::for_vector(0x50)
                .with(Config::ENABLED | Config::PERIODIC)
                .0;
            let _ = timers.write(Msr::HV_STIMER0_CONFIG, config, now, &NoMemory);
            let _ = timers.write(Msr::HV_STIMER0_COUNT, 5000 + step, now, &NoMemory);
            let effects = timers.expire(now, &NoMemory);
            let _ = (
                effects.interrupts().count(),
                timers.next_due(Presence::Present),
            );
            timers =
                VcpuTimers::restore(synthetic_timer::Settings::DEFAULT, &timers.save()).unwrap();
        }
    });
    assert_eq!(made, 0);
}
