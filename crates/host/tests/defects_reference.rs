//! Faults of other publishers of Hyper-V reference time, each as a test that ours does not have it.

mod support;

use chronovisor_abi::cpuid::hyperv;
use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Tsc, TscDelta};
use chronovisor_abi::synthetic_timer::Config as TimerConfig;
use chronovisor_host::cpuid_leaves::{Offer, OfferError};
use chronovisor_host::kvmclock::VcpuTsc;
use chronovisor_host::migration::{Policy, Promise, ScalingHardware, adjust};
use chronovisor_host::msr_surface::{Access, Answer, Effect, MsrSurface, Privileges};
use chronovisor_host::partition_clock::{Change, Config, Counter};
use chronovisor_host::synthetic_timer::Presence;
use support::partition::{
    GHZ_2_6, counter, destination, enabled, hz, ns, page, read, restored, source, ticks, update,
    vcpu, write,
};
use support::{Memory, OTHER_PAGE, PAGE};

/// page <= MSR <= page, with no tolerance, on every vCPU, over every kind of update.
#[test]
fn d19_page_and_counter_are_one_clock() {
    let (mut surface, memory) = enabled(4, hz(GHZ_2_6), 12_345);
    let mut now = 12_345;
    let mut last = 0;
    for round in 0..2000_u64 {
        now += 37 + round * 11;
        let before = page(&memory, now).unwrap();
        let msr = counter(
            &mut surface,
            u32::try_from(round % 4).unwrap(),
            &mut now,
            &memory,
        );
        let after = page(&memory, now).unwrap();
        assert!(
            last <= before && before <= msr && msr <= after,
            "{last} {before} {msr} {after}"
        );
        last = after;
        match round % 5 {
            0 => update(
                &mut surface,
                Change::Frequency(hz(2_000_000_000 + round * 777)),
                now,
                &memory,
            ),
            1 => update(&mut surface, Change::Rebase, now, &memory),
            2 => {
                write(&mut surface, 0, Msr::HV_REFERENCE_TSC, PAGE, &memory);
                let off = counter(&mut surface, 0, &mut now, &memory);
                assert!(off >= last, "{off} {last}");
                last = off;
                write(&mut surface, 0, Msr::HV_REFERENCE_TSC, PAGE | 1, &memory);
            }
            _ => {}
        }
    }
}

#[test]
fn d20_the_page_follows_every_change() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    let first = memory.page.load();
    update(
        &mut surface,
        Change::Frequency(hz(2_100_000_000)),
        1_000_000,
        &memory,
    );
    let second = memory.page.load();
    let moved = Change::Counter {
        rate: hz(2_100_000_000),
        ahead: TscDelta::from_ticks(500_000_000),
    };
    update(&mut surface, moved, 502_000_000, &memory);
    let third = memory.page.load();
    assert!(
        first.scale != second.scale && second.offset != third.offset,
        "{first:?} {second:?} {third:?}"
    );
    // The counter jumped ahead, reference time did not.
    let (old, new) = (
        second.time_at(ticks(2_000_000)),
        third.time_at(ticks(502_000_000)),
    );
    assert_eq!(old, new);
}

/// Scale and offset change only while the sequence is 0.
#[test]
fn d21_the_sequence_comes_last() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    let old = (memory.page.sequence(), memory.page.load());
    let open = surface
        .clock_mut()
        .begin_update(Change::Frequency(hz(2_100_000_000)), &memory)
        .unwrap();
    assert_eq!((memory.page.sequence(), memory.page.load()), (0, old.1));
    open.publish(ticks(1_000)).unwrap();
    assert!(memory.page.sequence() > old.0 && memory.page.load() != old.1);
}

/// Over disabling, moving, a reset of the register and a restore.
#[test]
fn d22_the_sequence_never_starts_again() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    let mut last = memory.page.sequence();
    for value in [0, PAGE | 1, OTHER_PAGE | 1, 0, PAGE | 1] {
        write(&mut surface, 0, Msr::HV_REFERENCE_TSC, value, &memory);
        let sequence = match value & !1 {
            OTHER_PAGE => memory.other_page.sequence(),
            _ => memory.page.sequence(),
        };
        if value & 1 == 1 {
            assert!(sequence > last, "{sequence} after {last}");
            last = sequence;
        }
    }
    let state = surface.save(ticks(10));
    let mut again = restored(&surface, &state, &memory);
    update(&mut again, Change::Resume, 20, &memory);
    assert!(memory.page.sequence() > last);
}

#[test]
fn d23_reserved_bits_are_kept_and_a_bad_page_number_is_no_fault() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    for value in [PAGE | 0xfff, u64::MAX, 0xdead_beef_0000_0001, PAGE | 0xffe] {
        write(&mut surface, 0, Msr::HV_REFERENCE_TSC, value, &memory);
        assert_eq!(
            read(&mut surface, 0, Msr::HV_REFERENCE_TSC, 0, &memory),
            Answer::Value(value)
        );
    }
}

/// The counter goes on from its value, whatever the new host's counter stands at.
#[test]
fn d24_the_reference_counter_is_saved() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    let mut now = 260_000_000_001;
    let before = counter(&mut surface, 0, &mut now, &memory);
    let state = surface.save(ticks(now));
    let there = destination(5, 1_000, hz(2_100_000_000), ScalingHardware::None);
    let (state, done) = adjust(&state, &source(now, 0), &there, Policy::Stop).unwrap();
    let mut moved = restored(&surface, &state, &memory);
    now = done.tsc.as_ticks();
    update(&mut moved, Change::Resume, now, &memory);
    assert_eq!(page(&memory, now), Some(before));
    assert_eq!(counter(&mut moved, 0, &mut now, &memory), before + 1);
}

/// The guest's counter is set to 0: reference time and the timers armed in it go on together.
#[test]
fn d25_a_counter_set_to_zero_resets_nothing_else() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    let mut now = 100_100_000_000;
    let before = counter(&mut surface, 0, &mut now, &memory);
    let config = TimerConfig::for_vector(0xed)
        .with(TimerConfig::AUTO_ENABLE)
        .0;
    let arm = |surface: &mut MsrSurface, msr, value| {
        let answer = surface.access(
            vcpu(0),
            msr,
            Access::Write(value),
            ticks(100_100_000_000),
            &memory,
        );
        assert!(matches!(answer, Answer::Written(_)), "{answer:?}");
    };
    arm(&mut surface, Msr::HV_STIMER0_CONFIG, config);
    arm(&mut surface, Msr::HV_STIMER0_COUNT, before + 10_000_000);
    let to_zero = Change::Counter {
        rate: hz(GHZ_2_6),
        ahead: TscDelta::from_ticks(0_u64.wrapping_sub(now)),
    };
    update(&mut surface, to_zero, 0, &memory);
    let mut zero = 0;
    assert_eq!(counter(&mut surface, 0, &mut zero, &memory), before + 1);
    let due = surface.next_timer(vcpu(0), Presence::Present).unwrap();
    assert!(due.as_ticks().abs_diff(GHZ_2_6) < 520, "{due:?}"); // one second, within two units
}

/// Nothing is readable between restore and the clock being set.
#[test]
fn d26_a_restored_clock_is_invalid_until_it_is_set() {
    let (surface, memory) = enabled(2, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(1000));
    let mut held = restored(&surface, &state, &memory);
    assert_eq!(page(&memory, 2000), None);
    assert!(
        memory
            .records
            .iter()
            .all(|record| record.version() & 1 == 1)
    );
    assert_eq!(
        read(&mut held, 0, Msr::HV_TIME_REF_COUNT, 2000, &memory),
        Answer::Fault
    );
    // A page named meanwhile stays invalid as well.
    held.clock_mut()
        .write_reference_tsc_register(OTHER_PAGE | 1, &memory);
    assert_eq!(memory.other_page.sequence(), 0);
    update(&mut held, Change::Resume, 3000, &memory);
    assert!(memory.other_page.sequence() != 0 && memory.records[1].version() & 1 == 0);
}

#[test]
fn d27_equal_counters_bring_the_page_back() {
    let (mut surface, memory) = enabled(2, hz(GHZ_2_6), 0);
    let skewed = VcpuTsc::Skewed {
        offset: TscDelta::from_ticks(5000),
        bound: TscDelta::ZERO,
    };
    update(
        &mut surface,
        Change::VcpuTsc {
            vcpu: vcpu(1),
            tsc: skewed,
        },
        1000,
        &memory,
    );
    assert_eq!(page(&memory, 1000), None);
    let equal = Change::VcpuTsc {
        vcpu: vcpu(1),
        tsc: VcpuTsc::Equal,
    };
    update(&mut surface, equal, 2000, &memory);
    assert!(page(&memory, 2000).is_some());
}

#[test]
fn d28_the_privileges_that_guests_insist_on_are_mandatory() {
    for missing in [hyperv::ACCESS_HYPERCALL, hyperv::ACCESS_VP_INDEX] {
        let offer = Offer {
            privileges: Privileges {
                hyperv_eax: Privileges::EVERYTHING.hyperv_eax & !missing,
                ..Privileges::EVERYTHING
            },
            ..Offer::nothing()
        };
        assert!(matches!(
            offer.leaves(),
            Err(OfferError::MandatoryPrivilegesMissing { .. })
        ));
    }
}

/// The counter is written on resume: the page is re-written, not dropped.
#[test]
fn d29_a_written_counter_keeps_the_page() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    let before = page(&memory, 1_000_000).unwrap();
    let moved = Change::Counter {
        rate: hz(GHZ_2_6),
        ahead: TscDelta::from_ticks(77_000_000),
    };
    update(&mut surface, moved, 78_000_000, &memory);
    assert_eq!(page(&memory, 78_000_000), Some(before));
}

/// An hour's pause, with the policy left alone.
#[test]
fn d30_reference_time_does_not_jump_by_the_downtime() {
    let (surface, _) = enabled(1, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(GHZ_2_6));
    let there = destination(1, 3_600_000_000_000, hz(GHZ_2_6), ScalingHardware::None);
    let (_, done) = adjust(&state, &source(GHZ_2_6, 0), &there, Policy::default()).unwrap();
    assert_eq!(
        (done.downtime, done.reference_gained, done.pvclock_gained),
        (ns(3_600_000_000_000), ns(0), ns(0))
    );
}

/// A timer's wake-up, computed from its reference time, is never before it and less than a tick after: it does not fire in a loop.
#[test]
fn d31_timers_and_pages_agree_about_reference_time() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    update(
        &mut surface,
        Change::Frequency(hz(2_899_999_499)),
        1_000_003,
        &memory,
    );
    for units in [10_000_u64, 10_001, 123_456_789, 315_360_000_000_000] {
        let due = surface
            .clock()
            .reference_reached_at(vcpu(0), support::partition::ref_time(units))
            .unwrap();
        assert_eq!(page(&memory, due.as_ticks()), Some(units));
        assert_eq!(page(&memory, due.as_ticks() - 1), Some(units - 1));
    }
}

/// At or below 10 MHz the multiplier does not fit; just above it does.
#[test]
fn a_slow_counter_has_no_page() {
    for (rate, scale) in [
        (10_000_000, None),
        (10_000_001, Some(0xFFFF_FE52_80D9_24C8)),
        (9_999_999, None),
    ] {
        let (mut surface, memory) = enabled(1, hz(rate), 0);
        let shown = (memory.page.sequence() != 0).then(|| memory.page.load().scale.as_raw());
        assert_eq!(shown, scale, "{rate}");
        let mut now = rate;
        assert_eq!(
            counter(&mut surface, 0, &mut now, &memory).abs_diff(10_000_000),
            u64::from(rate > 10_000_000)
        );
    }
}

/// From an invariant counter to one that varies: the guest falls back, and the broken promise is reported.
#[test]
fn a_host_without_an_invariant_counter_shows_no_page() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    write(&mut surface, 0, Msr::HV_TSC_INVARIANT_CONTROL, 1, &memory);
    let state = surface.save(ticks(1000));
    let mut there = destination(0, 0, hz(GHZ_2_6), ScalingHardware::None);
    there.counter = Counter::Varying;
    let (state, done) = adjust(&state, &source(1000, 0), &there, Policy::Stop).unwrap();
    assert_eq!(done.promise, Promise::InvariantTscBroken);
    let mut moved = restored(&surface, &state, &memory);
    update(&mut moved, Change::Resume, 2000, &memory);
    assert_eq!(page(&memory, 2000), None);
    assert!(matches!(
        read(&mut moved, 0, Msr::HV_TIME_REF_COUNT, 2000, &memory),
        Answer::Value(_)
    ));
}

/// The guest's promise cannot be taken back, and its other bits do not exist.
#[test]
fn the_invariant_control_is_set_once() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    let mut access = |value| {
        surface.access(
            vcpu(0),
            Msr::HV_TSC_INVARIANT_CONTROL,
            Access::Write(value),
            Tsc::default(),
            &memory,
        )
    };
    assert_eq!(access(2), Answer::Fault);
    assert_eq!(access(0), Answer::Written(Effect::None));
    assert_eq!(access(1), Answer::Written(Effect::ExposeInvariantTsc));
    assert_eq!(access(1), Answer::Written(Effect::None));
    assert_eq!(access(0), Answer::Fault);
    assert_eq!(Config::for_vcpus(1).drift_budget, ns(100));
    assert_eq!(Memory::record_register(1) - Memory::record_register(0), 64);
}
