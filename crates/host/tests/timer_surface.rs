//! Synthetic timers behind the MSR surface, on a partition clock: what the guest programs, what its own reference counter says when it is told.
#![allow(clippy::unwrap_used, reason = "a test may")]

use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Hertz, Tsc, TscDelta};
use chronovisor_abi::synthetic_timer::Config as TimerConfig;
use chronovisor_host::guest_memory::NoMemory;
use chronovisor_host::msr_surface::{Access, Answer, Effect, MsrSurface, Privileges};
use chronovisor_host::partition_clock::{Config, PartitionClock, VcpuIndex};
use chronovisor_host::synthetic_timer::Presence;
use proptest::prelude::*;

const VCPU: VcpuIndex = VcpuIndex(0);
const VECTOR: u8 = 0xed;

fn surface(rate: Hertz, start: Tsc) -> MsrSurface {
    let clock = PartitionClock::start(Config::for_vcpus(1), rate, start).unwrap();
    MsrSurface::new(clock, Privileges::EVERYTHING, rate)
}

/// The guest's access at `now` or, where the counter must be read again, as soon as it may.
fn access(surface: &mut MsrSurface, msr: Msr, access: Access, mut now: Tsc) -> (Answer, Tsc) {
    loop {
        match surface.access(VCPU, msr, access, now, &NoMemory) {
            Answer::NotBefore(tsc) => now = tsc,
            answer => return (answer, now),
        }
    }
}

fn reference_counter(surface: &mut MsrSurface, now: Tsc) -> u64 {
    match access(surface, Msr::HV_TIME_REF_COUNT, Access::Read, now).0 {
        Answer::Value(time) => time,
        other => panic!("{other:?}"),
    }
}

fn interrupts(surface: &mut MsrSurface, now: Tsc) -> usize {
    let effects = surface.expire_timers(VCPU, now, &NoMemory).unwrap();
    effects.interrupts().count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Each tick comes at the first TSC at which the guest's reference counter has reached its time: not one tick of the TSC before.
    #[test]
    fn ticks_come_with_the_guests_reference_time(
        hz in 20_000_000_u64..5_000_000_000, start: u64, period in 2_000_u64..10_000_000, wait in 0_u64..1 << 40,
    ) {
        let start = Tsc::from_ticks(start >> 2);
        let mut surface = surface(Hertz::from_hz(hz).unwrap(), start);
        let now = start.wrapping_add(TscDelta::from_ticks(wait));
        let config = TimerConfig::for_vector(VECTOR).with(TimerConfig::PERIODIC | TimerConfig::AUTO_ENABLE).0;
        let _ = access(&mut surface, Msr::HV_STIMER0_CONFIG, Access::Write(config), now);
        let (answer, now) = access(&mut surface, Msr::HV_STIMER0_COUNT, Access::Write(period), now);
        prop_assert!(matches!(answer, Answer::Written(Effect::Timers(effects)) if effects.interrupts().count() == 0));
        let enabled = reference_counter(&mut surface, now);
        for tick in 1..=20 {
            let due = surface.next_timer(VCPU, Presence::Present).unwrap();
            prop_assert_eq!(interrupts(&mut surface, due.wrapping_sub(TscDelta::from_ticks(1))), 0);
            prop_assert_eq!(interrupts(&mut surface, due), 1);
            // The counter read after the interrupt may be one unit on, as its reads never repeat.
            let told = reference_counter(&mut surface, due);
            prop_assert!(told >= enabled - 1 + tick * period, "tick {tick} at {told}, enabled at {enabled}");
            prop_assert!(told <= enabled + 2 + tick * period, "tick {tick} at {told}, enabled at {enabled}");
        }
    }
}

#[test]
fn a_one_shot_as_linux_programs_it() {
    let start = Tsc::from_ticks(1 << 40);
    let mut surface = surface(Hertz::from_hz(2_600_000_000).unwrap(), start);
    let config = 0x1ed9;
    let _ = access(
        &mut surface,
        Msr::HV_STIMER0_CONFIG,
        Access::Write(config),
        start,
    );
    let now = start.wrapping_add(TscDelta::from_ticks(26_000_000));
    let time = reference_counter(&mut surface, now);
    let _ = access(
        &mut surface,
        Msr::HV_STIMER0_COUNT,
        Access::Write(time + 10_000),
        now,
    );
    let due = surface.next_timer(VCPU, Presence::Present).unwrap();
    // 1 ms later, to the 100 ns of the unit (260 ticks).
    let wait = due.wrapping_delta(now).as_ticks();
    assert!(
        (2_600_000 - 260..=2_600_000 + 260).contains(&wait),
        "{wait}"
    );
    assert_eq!(interrupts(&mut surface, due), 1);
    assert_eq!(surface.next_timer(VCPU, Presence::Present), None);
    // Shutdown, as Linux does it.
    for msr in [Msr::HV_STIMER0_COUNT, Msr::HV_STIMER0_CONFIG] {
        let (answer, _) = access(&mut surface, msr, Access::Write(0), due);
        assert!(matches!(answer, Answer::Written(Effect::Timers(_))));
    }
}
