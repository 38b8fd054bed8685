//! A partition with every page enabled, for tests.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Hertz, Nanos, RefTime, Tsc, TscDelta};
use chronovisor_abi::vmclock::{ClockStatus, LeapIndicator, WallTime};
use chronovisor_host::migration::{Destination, HostPair, Ratio, ScalingHardware, Source, VmState};
use chronovisor_host::msr_surface::{Access, Answer, MsrSurface, Privileges};
use chronovisor_host::partition_clock::{
    Change, Config, Counter, PartitionClock, TimeOfDay, VcpuIndex,
};
use chronovisor_host::vmclock::{Disruption, Notification};

use super::{Memory, PAGE};

pub const GHZ_2_6: u64 = 2_600_000_000;

pub fn hz(hz: u64) -> Hertz {
    Hertz::from_hz(hz).expect("not zero")
}

pub fn ticks(ticks: u64) -> Tsc {
    Tsc::from_ticks(ticks)
}

pub const fn vcpu(at: u32) -> VcpuIndex {
    VcpuIndex(at)
}

/// A surface whose clock started at `now`, with every record, the page and VMClock enabled.
pub fn enabled(vcpus: u32, rate: Hertz, now: u64) -> (MsrSurface, Memory) {
    let memory = Memory::new(vcpus as usize);
    let clock =
        PartitionClock::start(Config::for_vcpus(vcpus), rate, ticks(now)).expect("a rate in range");
    let mut surface = MsrSurface::new(clock, Privileges::EVERYTHING, hz(1_000_000_000));
    for at in 0..vcpus {
        write(
            &mut surface,
            at,
            Msr::KVM_SYSTEM_TIME,
            Memory::record_register(at),
            &memory,
        );
    }
    write(&mut surface, 0, Msr::HV_REFERENCE_TSC, PAGE | 1, &memory);
    surface
        .clock_mut()
        .offer_vmclock(Notification::Absent, &memory);
    (surface, memory)
}

pub fn write(surface: &mut MsrSurface, at: u32, msr: Msr, value: u64, memory: &Memory) {
    let now = surface.clock().last_update();
    let answer = surface.access(vcpu(at), msr, Access::Write(value), now, memory);
    assert!(matches!(answer, Answer::Written(_)), "{msr}: {answer:?}");
}

pub fn read(surface: &mut MsrSurface, at: u32, msr: Msr, now: u64, memory: &Memory) -> Answer {
    surface.access(vcpu(at), msr, Access::Read, ticks(now), memory)
}

/// The counter MSR, waiting as long as it asks to.
pub fn counter(surface: &mut MsrSurface, at: u32, now: &mut u64, memory: &Memory) -> u64 {
    match read(surface, at, Msr::HV_TIME_REF_COUNT, *now, memory) {
        Answer::Value(value) => value,
        Answer::NotBefore(until) => {
            *now = until.as_ticks();
            match read(surface, at, Msr::HV_TIME_REF_COUNT, *now, memory) {
                Answer::Value(value) => value,
                other => panic!("{other:?} after the wait"),
            }
        }
        other => panic!("{other:?}"),
    }
}

/// What vCPU `at` reads from its own record at `now`.
pub fn pvclock(memory: &Memory, at: usize, now: u64) -> u64 {
    let (contents, now) = memory.records[at]
        .read(1, || ticks(now))
        .expect("a valid record");
    contents.time_at(now).expect("a possible scale").as_ns()
}

/// What a guest reads from the reference page at `now`, or `None` while it is invalid.
pub fn page(memory: &Memory, now: u64) -> Option<u64> {
    let (line, now) = memory.page.read(1, || ticks(now)).ok()?;
    Some(line.time_at(now).as_100ns())
}

pub fn update(surface: &mut MsrSurface, change: Change, now: u64, memory: &Memory) {
    let open = surface
        .clock_mut()
        .begin_update(change, memory)
        .expect("a rate in range");
    open.publish(ticks(now))
        .expect("a reading after the last update");
}

pub fn ns(ns: u64) -> Nanos {
    Nanos::from_ns(ns)
}

pub fn time_of_day(now: u64, sec: u64) -> TimeOfDay {
    TimeOfDay {
        tsc: ticks(now),
        tai: WallTime { sec, frac_sec: 0 },
        tai_offset_sec: Some(37),
        leap: LeapIndicator::NONE,
        status: ClockStatus::SYNCHRONIZED,
        estimated_error: Some(ns(100)),
        maximum_error: Some(ns(1000)),
        rate_estimated_error: None,
        rate_maximum_error: None,
    }
}

/// The source's instant for a guest that is not scaled: the host's counter is the guest's.
pub fn source(guest_tsc: u64, tai_ns: u64) -> Source {
    Source {
        pair: HostPair {
            host_tsc: ticks(guest_tsc),
            tai: ns(tai_ns),
            error: Nanos::ZERO,
        },
        scaling: Ratio::ONE,
        offset: TscDelta::ZERO,
    }
}

pub fn destination(
    host_tsc: u64,
    tai_ns: u64,
    host_rate: Hertz,
    scaling: ScalingHardware,
) -> Destination {
    Destination {
        pair: HostPair {
            host_tsc: ticks(host_tsc),
            tai: ns(tai_ns),
            error: Nanos::ZERO,
        },
        host_rate,
        scaling,
        counter: Counter::Invariant,
        arrival: Disruption::Moved,
    }
}

/// A surface restored from `state` and the vCPUs of `from`, held.
pub fn restored(from: &MsrSurface, state: &VmState, memory: &Memory) -> MsrSurface {
    let vcpus = from.clock().vcpus();
    let mut surface = MsrSurface::restore(
        Config::for_vcpus(vcpus),
        Privileges::EVERYTHING,
        hz(1_000_000_000),
        state,
    )
    .expect("a state that was saved");
    for at in 0..vcpus {
        let (clock, timers) = from.save_vcpu(vcpu(at), memory).expect("a vcpu");
        surface
            .restore_vcpu(vcpu(at), &clock, &timers)
            .expect("what was saved");
    }
    surface.clock_mut().hold(memory);
    surface
}

pub fn ref_time(units: u64) -> RefTime {
    RefTime::from_100ns(units)
}
