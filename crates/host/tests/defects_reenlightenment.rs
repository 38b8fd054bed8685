//! Re-enlightenment as others leave it, stored and not acted on, as tests that ours does the whole.

mod support;

use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::TscDelta;
use chronovisor_host::migration::{Policy, ScalingHardware, adjust};
use chronovisor_host::msr_surface::{Access, Answer, Effect};
use chronovisor_host::partition_clock::Change;
use chronovisor_host::reenlightenment::{RateChange, VcpuInterrupt};
use support::partition::{
    GHZ_2_6, destination, enabled, hz, page, read, restored, source, ticks, update, vcpu, write,
};

/// The whole protocol: control, interrupt, emulation at the old rate, acknowledgement, new rate.
#[test]
fn d32_reenlightenment_is_complete() {
    let (mut surface, memory) = enabled(2, hz(GHZ_2_6), 0);
    write(
        &mut surface,
        0,
        Msr::HV_REENLIGHTENMENT_CONTROL,
        1 << 32 | 1 << 16 | 0xee,
        &memory,
    );
    write(&mut surface, 0, Msr::HV_TSC_EMULATION_CONTROL, 1, &memory);
    let (old_line, old_sequence) = (memory.page.load(), memory.page.sequence());

    // The hardware goes on at 2.1 GHz from here.
    let start = GHZ_2_6;
    let change = surface.reenlightenment_mut().rate_changes(
        ticks(start),
        ticks(start),
        hz(GHZ_2_6),
        hz(2_100_000_000),
    );
    let interrupt = VcpuInterrupt {
        vcpu: vcpu(1),
        vector: 0xee,
    };
    assert_eq!(change, RateChange::Emulate(Some(interrupt)));
    assert_eq!(
        read(
            &mut surface,
            0,
            Msr::HV_TSC_EMULATION_STATUS,
            start,
            &memory
        ),
        Answer::Value(1)
    );
    assert_eq!(
        (memory.page.load(), memory.page.sequence()),
        (old_line, old_sequence)
    );

    // A second later on the hardware, the guest still sees a second of the old rate.
    let raw = ticks(start + 2_100_000_000);
    let emulation = surface.reenlightenment().emulation().unwrap();
    let seen = emulation.tsc(raw);
    assert_eq!(seen, ticks(2 * GHZ_2_6));
    let before = page(&memory, seen.as_ticks()).unwrap();

    // The guest may only clear the status.
    let refused = surface.access(
        vcpu(1),
        Msr::HV_TSC_EMULATION_STATUS,
        Access::Write(1),
        seen,
        &memory,
    );
    assert_eq!(refused, Answer::Fault);
    let answer = surface.access(
        vcpu(1),
        Msr::HV_TSC_EMULATION_STATUS,
        Access::Write(0),
        seen,
        &memory,
    );
    let Answer::Written(Effect::TscEmulationEnds(ended)) = answer else {
        panic!("{answer:?}");
    };
    // The counter jumps from what was emulated to what the hardware has; reference time does not.
    let ahead = ended.raw_ahead(raw);
    update(
        &mut surface,
        Change::Counter {
            rate: ended.new,
            ahead,
        },
        raw.as_ticks(),
        &memory,
    );
    assert_eq!(page(&memory, raw.as_ticks()), Some(before));
    assert!(memory.page.sequence() > old_sequence);
    assert_eq!(
        read(
            &mut surface,
            0,
            Msr::HV_TSC_FREQUENCY,
            raw.as_ticks(),
            &memory
        ),
        Answer::Value(2_100_000_000)
    );
    assert_eq!(
        read(
            &mut surface,
            0,
            Msr::HV_TSC_EMULATION_STATUS,
            raw.as_ticks(),
            &memory
        ),
        Answer::Value(0)
    );
    let second_later = raw.as_ticks() + 2_100_000_000;
    assert!(
        page(&memory, second_later)
            .unwrap()
            .abs_diff(before + 10_000_000)
            <= 1
    );
}

/// A migration begins the emulation by itself, and a second one goes on from the emulated counter.
#[test]
fn d32_a_migration_emulates_until_the_guest_has_followed() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    write(
        &mut surface,
        0,
        Msr::HV_REENLIGHTENMENT_CONTROL,
        1 << 16 | 0xee,
        &memory,
    );
    write(&mut surface, 0, Msr::HV_TSC_EMULATION_CONTROL, 1, &memory);
    let state = surface.save(ticks(GHZ_2_6));
    let there = destination(9, 0, hz(2_100_000_000), ScalingHardware::None);
    let (state, done) = adjust(&state, &source(GHZ_2_6, 0), &there, Policy::Stop).unwrap();
    assert!(matches!(done.rate_change, RateChange::Emulate(Some(_))));
    assert_eq!(done.deadline(ticks(5)), ticks(5));
    let mut moved = restored(&surface, &state, &memory);
    update(&mut moved, Change::Resume, GHZ_2_6, &memory);
    assert_eq!(
        moved.clock().rate(),
        hz(GHZ_2_6),
        "the guest's world still has the old rate"
    );

    // A second of the new host passes, then the next move, to a third rate.
    let raw = GHZ_2_6 + 2_100_000_000;
    let seen = moved.reenlightenment().emulation().unwrap().tsc(ticks(raw));
    assert_eq!(seen, ticks(2 * GHZ_2_6));
    let state = moved.save(seen);
    let there = destination(0, 0, hz(1_000_000_000), ScalingHardware::None);
    let (state, done) = adjust(&state, &source(raw, 0), &there, Policy::Stop).unwrap();
    assert_eq!((done.tsc_before, done.tsc), (seen, seen));
    let third = restored(&moved, &state, &memory);
    let emulation = third.reenlightenment().emulation().unwrap();
    assert_eq!(
        (emulation.old, emulation.new),
        (hz(GHZ_2_6), hz(1_000_000_000))
    );
    assert_eq!(
        emulation.tsc(seen.wrapping_add(TscDelta::from_ticks(1_000_000_000))),
        ticks(3 * GHZ_2_6)
    );
}
