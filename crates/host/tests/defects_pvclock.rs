//! Faults of other publishers of pvclock, each as a test that ours does not have it.

mod support;

use chronovisor_abi::msr::Msr;
use chronovisor_abi::pvclock::Flags;
use chronovisor_abi::quantity::{Hertz, Nanos, TscDelta};
use chronovisor_abi::vmclock::WallTime;
use chronovisor_host::kvmclock::VcpuTsc;
use chronovisor_host::migration::{Policy, ScalingHardware, adjust};
use chronovisor_host::msr_surface::Answer;
use chronovisor_host::partition_clock::{Change, WallClockError};
use support::partition::{
    GHZ_2_6, destination, enabled, hz, ns, page, pvclock, read, restored, source, ticks,
    time_of_day, update, vcpu, write,
};
use support::{Memory, PAGE, WALL};

/// A host of 3 GHz scaled to a guest of 2.6 GHz: time derived with the host's rate would be 15 % fast.
#[test]
fn d01_time_is_derived_from_the_guests_rate() {
    let (surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(GHZ_2_6));
    let there = destination(7, 0, hz(3_000_000_000), ScalingHardware::Bits48);
    let (state, done) = adjust(&state, &source(GHZ_2_6, 0), &there, Policy::Stop).unwrap();
    let mut moved = restored(&surface, &state, &memory);
    update(&mut moved, Change::Resume, GHZ_2_6, &memory);
    assert_eq!(done.rate.rounded_hz(), GHZ_2_6);
    assert_eq!(
        pvclock(&memory, 0, 11 * GHZ_2_6) - pvclock(&memory, 0, GHZ_2_6),
        10_000_000_000
    );
}

/// Forty hours with a re-base whenever one is due: no step, and never further from the master than the budget. (A periodic snapshot
/// was measured to yank the clock by 4.5 ms.)
#[test]
fn d02_a_rebase_is_no_step() {
    let (mut surface, memory) = enabled(1, hz(2_593_906_000), 0);
    let end = 40 * 3600 * 2_593_906_000_u64;
    let mut rebases = 0;
    while let Some(due) = surface
        .clock()
        .next_rebase()
        .filter(|due| due.is_before(ticks(end)))
    {
        let before = pvclock(&memory, 0, due.as_ticks());
        update(&mut surface, Change::Rebase, due.as_ticks(), &memory);
        let after = pvclock(&memory, 0, due.as_ticks());
        assert!(after - before <= 1, "{before} {after}");
        let master = surface.clock().exact_time_at(due).floor().as_ns();
        assert!(after.abs_diff(master) <= 102, "{after} {master}");
        rebases += 1;
    }
    assert!(rebases > 40, "{rebases}");
}

/// 2 899 999 499 Hz cut to kHz would be 172 ppb slow: 14.9 ms a day.
#[test]
fn d03_the_rate_is_never_cut_to_khz() {
    let (mut surface, memory) = enabled(1, hz(2_899_999_499), 0);
    let day = 86_400 * 2_899_999_499_u64;
    let (expected, shown) = (86_400_000_000_000, pvclock(&memory, 0, day));
    assert!(shown.abs_diff(expected) < 20_200, "{shown}"); // 0.233 ppb of a day
    assert!(page(&memory, day).unwrap().abs_diff(expected / 100) <= 1);
    assert_eq!(
        read(&mut surface, 0, Msr::HV_TSC_FREQUENCY, 0, &memory),
        Answer::Value(2_899_999_499)
    );
}

/// A multiplier rounded down would be C4EC4EC4, 0.279 ppb slow; a page made from it would inherit that.
#[test]
fn d04_multipliers_are_nearest_and_the_pages_is_its_own() {
    let (_, memory) = enabled(1, hz(GHZ_2_6), 0);
    assert_eq!(memory.records[0].load().mul, 0xC4EC_4EC5);
    assert_eq!(memory.page.load().scale.as_raw(), 0x00FC_0FC0_FC0F_C0FC);
}

/// Halving an odd rate drops half a Hz each time.
#[test]
fn d05_an_odd_rate_is_divided_once() {
    for rate in [
        4_000_000_001_u64,
        8_000_000_003,
        16_000_000_007,
        999_999_999_999,
    ] {
        let (_, memory) = enabled(1, hz(rate), 0);
        let contents = memory.records[0].load();
        // |mul * f - 10^9 * 2^(32 - shift)| <= f / 2
        let exact = 1_000_000_000_u128 << (32 - i32::from(contents.shift));
        let ours = u128::from(contents.mul) * u128::from(rate);
        assert!(
            ours.abs_diff(exact) * 2 <= u128::from(rate),
            "{rate}: {contents:?}"
        );
    }
}

/// A leap second during the pause: UTC shows 9 s, TAI 10 s.
#[test]
fn d06_a_leap_second_is_no_time() {
    let (surface, _) = enabled(1, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(GHZ_2_6));
    let (before, after) = (1_483_228_832_000_000_000, 1_483_228_842_000_000_000);
    let there = destination(0, after, hz(GHZ_2_6), ScalingHardware::None);
    let (_, done) = adjust(&state, &source(GHZ_2_6, before), &there, Policy::Advance).unwrap();
    assert_eq!(
        (done.downtime, done.pvclock_gained),
        (ns(10_000_000_000), ns(10_000_000_000))
    );
}

/// All records are made from one pair of counter and time.
#[test]
fn d07_every_record_shows_one_line() {
    let (mut surface, memory) = enabled(64, hz(GHZ_2_6), 5);
    update(
        &mut surface,
        Change::Frequency(hz(2_100_000_000)),
        12_345_678_901,
        &memory,
    );
    let first = memory.records[0].load();
    assert!(
        memory.records.iter().all(|record| record.load() == first),
        "{first:?}"
    );
}

/// A time of day told at one counter value and published at a later one holds at the first.
#[test]
fn d08_a_time_belongs_to_its_own_reading() {
    let (mut surface, memory) = enabled(1, hz(1_000_000_000), 0);
    let told = time_of_day(1_000_000_000, 1_800_000_000);
    update(
        &mut surface,
        Change::TimeOfDay(told),
        4_000_000_000,
        &memory,
    );
    let at = surface.clock().vmclock_at(ticks(4_000_000_000)).unwrap();
    assert_eq!(
        at,
        WallTime {
            sec: 1_800_000_003,
            frac_sec: 0
        }
    );
}

/// A guest counter that is ahead of its host's, and a deadline that has passed.
#[test]
fn d09_negative_distances_are_negative() {
    let (surface, _) = enabled(1, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(10 * GHZ_2_6));
    let there = destination(77, 0, hz(1_300_000_000), ScalingHardware::None);
    let (_, done) = adjust(&state, &source(10 * GHZ_2_6, 0), &there, Policy::Stop).unwrap();
    assert_eq!(ticks(77).wrapping_add(done.offset), ticks(10 * GHZ_2_6));
    // One second overdue at either rate.
    assert_eq!(
        done.deadline(ticks(9 * GHZ_2_6)),
        ticks(10 * GHZ_2_6 - 1_300_000_000)
    );
    assert_eq!(
        done.deadline(ticks(11 * GHZ_2_6)),
        ticks(10 * GHZ_2_6 + 1_300_000_000)
    );
}

/// Unequal counters are reported, and every page says so.
#[test]
fn d10_unequal_counters_are_not_silent() {
    let (mut surface, memory) = enabled(2, hz(GHZ_2_6), 0);
    let skewed = VcpuTsc::Skewed {
        offset: TscDelta::from_ticks(1000),
        bound: TscDelta::from_ticks(10),
    };
    update(
        &mut surface,
        Change::VcpuTsc {
            vcpu: vcpu(1),
            tsc: skewed,
        },
        GHZ_2_6,
        &memory,
    );
    assert!(!surface.clock().is_stable());
    assert!(
        memory
            .records
            .iter()
            .all(|record| !record.load().flags.contains(Flags::TSC_STABLE))
    );
    assert_eq!(page(&memory, GHZ_2_6), None);
}

/// One vCPU that is set equal twice does not stand for two.
#[test]
fn d11_vcpus_are_counted_not_events() {
    let (mut surface, memory) = enabled(3, hz(GHZ_2_6), 0);
    let skewed = VcpuTsc::Skewed {
        offset: TscDelta::ZERO,
        bound: TscDelta::from_ticks(10),
    };
    for at in [1, 2] {
        update(
            &mut surface,
            Change::VcpuTsc {
                vcpu: vcpu(at),
                tsc: skewed,
            },
            GHZ_2_6,
            &memory,
        );
    }
    for _ in 0..3 {
        let equal = Change::VcpuTsc {
            vcpu: vcpu(1),
            tsc: VcpuTsc::Equal,
        };
        update(&mut surface, equal, GHZ_2_6, &memory);
        assert!(!surface.clock().is_stable());
    }
    let equal = Change::VcpuTsc {
        vcpu: vcpu(2),
        tsc: VcpuTsc::Equal,
    };
    update(&mut surface, equal, GHZ_2_6, &memory);
    assert!(surface.clock().is_stable());
}

#[test]
fn d12_a_change_of_rate_is_continuous() {
    let (mut surface, memory) = enabled(2, hz(GHZ_2_6), 0);
    let mut now = 1_000_000_007;
    for rate in [2_100_000_000, 2_899_999_499, 3_000_000_000, 1_996_250_000] {
        let before = (pvclock(&memory, 0, now), page(&memory, now));
        update(&mut surface, Change::Frequency(hz(rate)), now, &memory);
        assert!(pvclock(&memory, 1, now) - before.0 <= 1);
        assert_eq!(page(&memory, now), before.1);
        now += 987_654_321;
    }
}

#[test]
fn d13_the_wall_clock_record_ends_in_2106_by_name() {
    let (mut surface, memory) = enabled(1, hz(1_000_000_000), 0);
    let last = u64::from(u32::MAX) + 37;
    update(
        &mut surface,
        Change::TimeOfDay(time_of_day(0, last)),
        0,
        &memory,
    );
    assert_eq!(
        surface.clock_mut().write_wall_clock_register(WALL, &memory),
        Ok(true)
    );
    assert_eq!(memory.wall.read(1).unwrap().sec, u32::MAX);
    update(
        &mut surface,
        Change::TimeOfDay(time_of_day(0, last + 1)),
        0,
        &memory,
    );
    let refused = surface.clock_mut().write_wall_clock_register(WALL, &memory);
    assert_eq!(refused, Err(WallClockError::EndedIn2106 { sec: 1 << 32 }));
    assert!(refused.unwrap_err().to_string().contains("2106"));
    // The guest's write itself is no fault.
    write(&mut surface, 0, Msr::KVM_WALL_CLOCK, WALL, &memory);
}

/// The request comes while the clock is held, and a snapshot falls between the request and the update.
#[test]
fn d14_the_stop_flag_survives_a_snapshot() {
    let (mut surface, memory) = enabled(2, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(5));
    let mut held = restored(&surface, &state, &memory);
    update(&mut held, Change::GuestStopped, 6, &memory);
    let again = held.save(ticks(6));
    let mut second = restored(&held, &again, &memory);
    update(&mut second, Change::Resume, 7, &memory);
    for record in &memory.records {
        assert!(record.load().flags.contains(Flags::GUEST_STOPPED));
    }
    // One guest answers, the other has not looked yet: the flag of the second survives the next snapshot too.
    assert!(memory.records[0].clear_guest_stopped());
    surface = second;
    let state = surface.save(ticks(8));
    let mut third = restored(&surface, &state, &memory);
    update(&mut third, Change::Resume, 9, &memory);
    let flags = [0, 1].map(|at: usize| {
        memory.records[at]
            .load()
            .flags
            .contains(Flags::GUEST_STOPPED)
    });
    assert_eq!(flags, [false, true]);
}

/// On every path: dropped, refused, and a record that a crashed writer left odd.
#[test]
fn d15_no_sequence_stays_odd() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 1000);
    let change = Change::Frequency(hz(2_100_000_000));
    drop(surface.clock_mut().begin_update(change, &memory).unwrap());
    assert_eq!(memory.records[0].version() & 1, 0);
    let stale = surface
        .clock_mut()
        .begin_update(change, &memory)
        .unwrap()
        .publish(ticks(999));
    assert!(stale.is_err());
    assert_eq!(memory.records[0].version() & 1, 0);
    memory.records[0].mark(memory.records[0].version());
    update(&mut surface, change, 2000, &memory);
    assert_eq!(memory.records[0].version() & 1, 0);
}

/// A shift one larger than needed would lose the distance's top bit.
#[test]
fn d16_the_shift_is_the_smallest_and_reaches_the_end_of_the_counter() {
    for rate in [24_000_000_u64, 1_000_000_000, GHZ_2_6, 5_000_000_000] {
        let (_, memory) = enabled(1, hz(rate), 0);
        let contents = memory.records[0].load();
        assert!(contents.mul >= 1 << 31, "{contents:?}");
        // A left shift ends that much earlier, by the interface: 380 years at 24 MHz.
        let end = u64::MAX >> contents.shift.max(0);
        let exact = u128::from(end) * 1_000_000_000 / u128::from(rate);
        let shown = u128::from(pvclock(&memory, 0, end));
        let apart = shown.abs_diff(exact);
        assert!(apart <= exact / 4_000_000_000, "{rate}: {shown} {exact}"); // 0.25 ppb
        assert!(pvclock(&memory, 0, end - 1) <= pvclock(&memory, 0, end));
    }
}

/// The host's wall clock is set by an hour: no clock of the partition notices.
#[test]
fn d17_the_time_of_day_moves_no_other_clock() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    update(
        &mut surface,
        Change::TimeOfDay(time_of_day(0, 1_800_000_000)),
        0,
        &memory,
    );
    let before = (
        memory.records[0].version(),
        memory.page.sequence(),
        pvclock(&memory, 0, GHZ_2_6),
    );
    update(
        &mut surface,
        Change::TimeOfDay(time_of_day(0, 1_800_003_600)),
        GHZ_2_6,
        &memory,
    );
    let after = (
        memory.records[0].version(),
        memory.page.sequence(),
        pvclock(&memory, 0, GHZ_2_6),
    );
    assert_eq!(before, after);
}

/// A record that is rewritten on every request never lets a reader that asks finish.
#[test]
fn d18_no_read_rewrites_a_record() {
    let (mut surface, memory) = enabled(2, hz(GHZ_2_6), 0);
    let before = (
        memory.records[0].version(),
        memory.page.sequence(),
        memory.vmclock.sequence(),
    );
    for now in 0..1000 {
        for msr in [
            Msr::HV_TIME_REF_COUNT,
            Msr::KVM_SYSTEM_TIME,
            Msr::HV_REFERENCE_TSC,
            Msr::HV_TSC_FREQUENCY,
        ] {
            let _ = read(&mut surface, 0, msr, now * 1000, &memory);
        }
    }
    assert_eq!(
        (
            memory.records[0].version(),
            memory.page.sequence(),
            memory.vmclock.sequence()
        ),
        before
    );
    // Nor does a rate that is set to what it is.
    update(
        &mut surface,
        Change::Frequency(hz(GHZ_2_6)),
        5_000_000,
        &memory,
    );
    assert_eq!(
        (
            memory.records[0].version(),
            memory.page.sequence(),
            memory.vmclock.sequence()
        ),
        before
    );
}

/// A line that is not exact in any whole rate: a thirds-of-MHz counter over a day.
#[test]
fn a_rate_need_not_be_whole() {
    let rate = Hertz::from_ratio(8_000_000_000, 3).unwrap();
    let (surface, memory) = enabled(1, rate, 0);
    let day = 86_400 * 8_000_000_000 / 3;
    assert_eq!(
        surface.clock().exact_time_at(ticks(day)).floor(),
        Nanos::from_ns(86_400_000_000_000)
    );
    assert!(pvclock(&memory, 0, day).abs_diff(86_400_000_000_000) < 20_200);
    assert_eq!(PAGE & 0xfff, 0);
    assert_eq!(Memory::record_register(0) & 1, 1);
}
