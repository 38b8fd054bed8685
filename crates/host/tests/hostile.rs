//! A guest may do anything to its registers and pages, and a file may hold anything: nothing panics, hangs or grows.

mod support;

use chronovisor_abi::msr::Msr;
use chronovisor_abi::pvclock::{Contents, Flags};
use chronovisor_abi::quantity::{Nanos, Tsc};
use chronovisor_host::events::{Events, Page};
use chronovisor_host::guest_memory::GuestAddress;
use chronovisor_host::migration::{
    DecodeError, Policy, ScalingHardware, VcpuState, VmState, adjust,
};
use chronovisor_host::msr_surface::{Access, Answer, MsrSurface, Privileges};
use chronovisor_host::partition_clock::{Change, Config, PartitionClock, VcpuIndex};
use chronovisor_host::synthetic_timer::VcpuTimersState;
use proptest::prelude::*;
use support::partition::{
    GHZ_2_6, destination, enabled, hz, source, ticks, time_of_day, update, vcpu,
};
use support::{Memory, PAGE, RECORDS, WALL};

fn any_msr() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => 0x4000_0000_u32..0x4000_0120,
        2 => 0x4b56_4d00_u32..0x4b56_4d06,
        1 => 0x10_u32..0x13,
        1 => any::<u32>(),
    ]
}

fn any_value() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0_u32..64).prop_map(|bit| 1 << bit),
        Just(PAGE | 1),
        Just(RECORDS | 1),
        Just(WALL),
        Just(0),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any access by any vCPU at any counter value, with the guest scribbling over its pages, between updates of every kind.
    #[test]
    fn any_access_is_answered(
        accesses in prop::collection::vec((0_u32..4, any_msr(), any::<bool>(), any_value(), any::<u64>(), any::<[u64; 4]>()), 1..40),
        eax: u32,
        kvm: u32,
        everything: bool,
    ) {
        let memory = Memory::new(2);
        let clock = PartitionClock::start(Config::for_vcpus(2), hz(GHZ_2_6), ticks(1 << 40)).unwrap();
        let privileges = if everything { Privileges::EVERYTHING } else { Privileges { hyperv_eax: eax, hyperv_edx: eax, kvm_eax: kvm } };
        let mut surface = MsrSurface::new(clock, privileges, hz(1_000_000_000));
        let mut now = 1 << 40;
        for (at, number, read, value, tsc, junk) in accesses {
            let access = if read { Access::Read } else { Access::Write(value) };
            let answer = surface.access(vcpu(at), Msr(number), access, ticks(tsc), &memory);
            if at > 1 {
                prop_assert!(matches!(answer, Answer::Fault | Answer::NotOurs));
            }
            let [a, b, c, d] = junk;
            memory.records[0].store(&Contents {
                tsc_timestamp: Tsc::from_ticks(a),
                system_time: Nanos::from_ns(b),
                mul: u32::try_from(c >> 32).unwrap(),
                shift: i8::from_le_bytes([d.to_le_bytes()[0]]),
                flags: Flags::from_bits(d.to_le_bytes()[1]),
            });
            memory.records[0].mark(u32::try_from(d >> 32).unwrap());
            memory.page.mark();
            now += value >> 34;
            let change = match d % 6 {
                0 => Change::Frequency(hz(1_000_000 + (c >> 34))),
                1 => Change::Rebase,
                2 => Change::GuestStopped,
                3 => Change::TimeOfDay(time_of_day(now, a)),
                _ => continue,
            };
            if let Ok(open) = surface.clock_mut().begin_update(change, &memory) {
                let _ = open.publish(ticks(now));
            }
            let _ = surface.clock().next_rebase();
            let _ = surface.next_timer(vcpu(at), chronovisor_host::synthetic_timer::Presence::Present);
            let _ = surface.expire_timers(vcpu(at), ticks(tsc), &memory);
        }
        // Whatever happened, the next update makes the records valid again.
        update(&mut surface, Change::GuestStopped, now, &memory);
        if surface.clock().system_time_register(vcpu(0)) == (RECORDS | 1) {
            prop_assert_eq!(memory.records[0].version() & 1, 0);
        }
    }

    /// Any bytes are a state or an error, and what decodes can be adjusted, restored and used.
    #[test]
    fn any_bytes_are_a_state_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = VmState::decode(&bytes);
        let _ = VcpuState::decode(&bytes);
        let _ = VcpuTimersState::decode(&bytes);
    }

    /// Timers survive their bytes, whatever a guest did to them.
    #[test]
    fn timers_survive_their_bytes(writes in prop::collection::vec((prop_oneof![0x4000_0080_u32..0x4000_00a0, 0x4000_00b0_u32..0x4000_00b8], any_value(), 0_u64..1 << 40), 0..40)) {
        let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
        let mut now = 0;
        for (number, value, gap) in writes {
            now += gap;
            let _ = surface.access(vcpu(0), Msr(number), Access::Write(value), ticks(now), &memory);
        }
        let (_, timers) = surface.save_vcpu(vcpu(0), &memory).unwrap();
        let mut buffer = [0; VcpuTimersState::MAX_BYTES];
        let length = timers.encode(&mut buffer).unwrap();
        prop_assert_eq!(VcpuTimersState::decode(&buffer[..length]), Ok(timers));
    }

    /// A real state with one byte changed is refused; with its checksum repaired it is harmless.
    #[test]
    fn a_damaged_state_is_refused_and_a_forged_one_is_harmless(at: prop::sample::Index, with: u8, time in 0_u64..1 << 60) {
        let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 77);
        update(&mut surface, Change::TimeOfDay(time_of_day(77, 1_800_000_000)), 1000, &memory);
        let mut buffer = [0; VmState::MAX_BYTES];
        let length = surface.save(ticks(2000)).encode(&mut buffer).unwrap();
        let bytes = &mut buffer[..length];
        let at = at.index(length);
        prop_assume!(bytes[at] != with);
        bytes[at] = with;
        prop_assert!(VmState::decode(bytes).is_err());
        let (body, sum) = bytes.split_at_mut(length - 4);
        sum.copy_from_slice(&crc32(body).to_le_bytes());
        let Ok(state) = VmState::decode(bytes) else { return Ok(()) };
        let there = destination(time, time, hz(2_100_000_000), ScalingHardware::None);
        for policy in [Policy::Stop, Policy::Advance, Policy::PerEncoding] {
            let Ok((state, done)) = adjust(&state, &source(time, 0), &there, policy) else { continue };
            let _ = done.deadline(ticks(5));
            let restored = MsrSurface::restore(Config::for_vcpus(1), Privileges::EVERYTHING, hz(1), &state);
            let Ok(mut restored) = restored else { continue };
            restored.clock_mut().hold(&memory);
            for change in [Change::Resume, Change::Rebase, Change::Frequency(hz(3_000_000_000))] {
                if let Ok(open) = restored.clock_mut().begin_update(change, &memory) {
                    let _ = open.publish(ticks(time));
                }
            }
            let _ = restored.clock().next_rebase();
            let _ = restored.access(vcpu(0), Msr::HV_TIME_REF_COUNT, Access::Read, ticks(time), &memory);
        }
    }
}

/// The checksum of a state, so that a forger can repair it.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 * (crc & 1))
        })
    })
}

#[test]
fn a_state_names_what_is_wrong_with_it() {
    let (surface, _) = enabled(1, hz(GHZ_2_6), 0);
    let mut buffer = [0; VmState::MAX_BYTES];
    let length = surface.save(ticks(1)).encode(&mut buffer).unwrap();
    let bytes = &buffer[..length];
    assert_eq!(
        VmState::decode(&bytes[..3]),
        Err(DecodeError::CutOff { at: 3 })
    );
    assert_eq!(
        VmState::decode(&bytes[..length - 1]),
        Err(DecodeError::CutOff { at: length - 1 })
    );
    assert!(matches!(
        VmState::decode(&buffer),
        Err(DecodeError::LeftOver { .. })
    ));
    assert!(matches!(
        VcpuState::decode(bytes),
        Err(DecodeError::NotAState {
            found: [b'C', b'V', b'v', b'm']
        })
    ));
    let mut newer = bytes.to_vec();
    newer[4] = 9;
    let error = VmState::decode(&newer).unwrap_err();
    assert_eq!(error, DecodeError::UnknownVersion { found: 9 });
    assert!(error.to_string().contains("knows 1"), "{error}");
    for size in 0..length {
        let mut small = vec![0; size];
        assert!(surface.save(ticks(1)).encode(&mut small).is_err());
    }
}

/// The largest states: every option present, every field full.
#[test]
fn the_largest_states_fit_their_limits() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    let told = chronovisor_host::partition_clock::TimeOfDay {
        rate_estimated_error: Some(chronovisor_abi::quantity::Ppb::from_ppb_saturating(1)),
        rate_maximum_error: Some(chronovisor_abi::quantity::Ppb::from_ppb_saturating(2)),
        ..time_of_day(0, 1_800_000_000)
    };
    update(&mut surface, Change::TimeOfDay(told), 0, &memory);
    let mut now = 5000;
    let _ = support::partition::counter(&mut surface, 0, &mut now, &memory);
    let _ = surface.access(
        vcpu(0),
        Msr::HV_TSC_EMULATION_CONTROL,
        Access::Write(1),
        ticks(now),
        &memory,
    );
    let _ = surface.reenlightenment_mut().rate_changes(
        ticks(now),
        ticks(now),
        hz(GHZ_2_6),
        hz(1_000_000_001),
    );
    let mut buffer = [0; 600];
    let largest = surface.save(ticks(now)).encode(&mut buffer).unwrap();
    assert_eq!(largest, VmState::MAX_BYTES);
    const { assert!(VmState::MAX_BYTES < 512 && VcpuState::MAX_BYTES < 256) };
    let skewed = chronovisor_host::kvmclock::VcpuTsc::Skewed {
        offset: chronovisor_abi::quantity::TscDelta::from_ticks(u64::MAX),
        bound: chronovisor_abi::quantity::TscDelta::from_ticks(9),
    };
    update(
        &mut surface,
        Change::VcpuTsc {
            vcpu: vcpu(0),
            tsc: skewed,
        },
        now,
        &memory,
    );
    let (clock, _) = surface.save_vcpu(vcpu(0), &memory).unwrap();
    let largest = clock.encode(&mut buffer).unwrap();
    assert_eq!(largest, VcpuState::MAX_BYTES);
    let (_, mut timers) = surface.save_vcpu(vcpu(0), &memory).unwrap();
    for timer in &mut timers.timers {
        let time = Some(support::partition::ref_time(u64::MAX));
        (timer.due, timer.undelivered, timer.last_signal) = (time, time, time);
    }
    assert_eq!(timers.encode(&mut buffer), Ok(VcpuTimersState::MAX_BYTES));
}

#[derive(Default)]
struct Counts {
    faults: u32,
    waits: u32,
    enabled: u32,
    invalid: u32,
}

impl Events for Counts {
    fn fault(&mut self, _: VcpuIndex, _: Msr, _: Access) {
        self.faults += 1;
    }

    fn counter_not_before(&mut self, _: VcpuIndex) {
        self.waits += 1;
    }

    fn page_enabled(&mut self, _: VcpuIndex, _: Page, _: GuestAddress) {
        self.enabled += 1;
    }

    fn page_not_valid(&mut self, _: VcpuIndex, _: Page, _: GuestAddress) {
        self.invalid += 1;
    }
}

#[test]
fn events_are_told() {
    let memory = Memory::new(1);
    let clock = PartitionClock::start(Config::for_vcpus(1), hz(GHZ_2_6), ticks(0)).unwrap();
    let mut surface = MsrSurface::with_events(
        clock,
        Privileges::EVERYTHING,
        hz(1_000_000_000),
        Counts::default(),
    );
    for (msr, access) in [
        (Msr::HV_REFERENCE_TSC, Access::Write(PAGE | 1)),
        (Msr::HV_REFERENCE_TSC, Access::Write(0xbad_0001)),
        (Msr::KVM_SYSTEM_TIME, Access::Write(RECORDS | 1)),
        (Msr::KVM_SYSTEM_TIME, Access::Write(0)),
        (Msr::KVM_WALL_CLOCK, Access::Write(WALL)),
        (Msr::HV_TIME_REF_COUNT, Access::Write(0)),
        (Msr::HV_TIME_REF_COUNT, Access::Read),
        (Msr::HV_TIME_REF_COUNT, Access::Read),
    ] {
        let _ = surface.access(vcpu(0), msr, access, ticks(0), &memory);
    }
    let Counts {
        faults,
        waits,
        enabled,
        invalid,
    } = *surface.events();
    // The wall clock is not known, so its record was not filled.
    assert_eq!((faults, waits, enabled, invalid), (1, 1, 2, 2));
}
