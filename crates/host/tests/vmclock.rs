//! The VMClock page as a guest reads it: time, bounds, markers, and that it never goes back.

mod support;

use chronovisor_abi::quantity::{Nanos, Ppb};
use chronovisor_abi::vmclock::{ClockStatus, Constants, Contents, Flags, LeapIndicator, WallTime};
use chronovisor_host::partition_clock::{Change, TimeOfDay};
use chronovisor_host::vmclock::{Disruption, Notification, Outlook};
use support::Memory;
use support::partition::{enabled, hz, ns, ticks, time_of_day, update};

fn contents(memory: &Memory) -> Contents {
    memory.vmclock.read(1, || ()).expect("a valid page").0
}

/// TAI at `now`, in ns since 1970.
fn tai(memory: &Memory, now: u64) -> u64 {
    let time = contents(memory)
        .time_at(ticks(now))
        .expect("a page with time");
    time.sec * 1_000_000_000 + u64::from(time.subsec_nanos())
}

#[test]
fn a_page_without_a_time_of_day_has_markers_only() {
    let (_, memory) = enabled(1, hz(1_000_000_000), 0);
    assert_eq!(memory.vmclock.constants(), Ok(Constants::X86_TAI));
    let page = contents(&memory);
    assert_eq!(page.status, ClockStatus::UNKNOWN);
    assert_eq!(page.flags, Flags::GENERATION_PRESENT);
    assert!(page.check(&Constants::X86_TAI).is_err());
}

#[test]
fn a_told_time_is_shown_with_its_bounds() {
    let (mut surface, memory) = enabled(1, hz(1_000_000_000), 0);
    let told = TimeOfDay {
        rate_maximum_error: Some(Ppb::from_ppb_saturating(1000)),
        leap: LeapIndicator::PRE_POSITIVE,
        ..time_of_day(1_000_000_000, 1_800_000_000)
    };
    // Published two seconds after it was told: 2 s at 1000 ppb are 2000 ns more.
    update(
        &mut surface,
        Change::TimeOfDay(told),
        3_000_000_000,
        &memory,
    );
    let page = contents(&memory);
    assert_eq!(page.check(&Constants::X86_TAI), Ok(()));
    assert_eq!(
        (page.status, page.leap_indicator, page.tai_offset_sec),
        (ClockStatus::SYNCHRONIZED, LeapIndicator::PRE_POSITIVE, 37)
    );
    assert!(
        page.flags
            .contains(Flags::TIME_MONOTONIC.union(Flags::TAI_OFFSET_VALID))
    );
    assert_eq!(tai(&memory, 3_000_000_000), 1_800_000_002_000_000_000);
    assert_eq!(
        page.bounds_at(ticks(3_000_000_000)).maximum,
        Some(ns(1000 + 2001))
    );
    let later = page.bounds_at(ticks(4_000_000_000)).maximum.unwrap();
    assert!(later >= ns(4001) && later <= ns(4003), "{later}");
    // The estimate has no rate error, so it says nothing about later.
    assert_eq!(page.bounds_at(ticks(4_000_000_000)).estimated, None);
    assert_eq!(
        (
            page.time_esterror_ns,
            page.flags.contains(Flags::PERIOD_ESTERROR_VALID)
        ),
        (100, false)
    );
}

/// The host's clock is set back by 1 ms: the page runs slow until the two meet, and its bound covers the difference meanwhile.
#[test]
fn a_time_that_was_set_back_is_never_seen_to_go_back() {
    let (mut surface, memory) = enabled(1, hz(1_000_000_000), 0);
    let mut told = time_of_day(0, 1_800_000_000);
    told.rate_maximum_error = Some(Ppb::ZERO);
    update(&mut surface, Change::TimeOfDay(told), 0, &memory);
    told.tsc = ticks(10_000_000_000);
    // 1 ms before what the page shows.
    let millisecond = (1_u128 << 64) / 1000;
    told.tai = WallTime::from_frac(
        WallTime {
            sec: 1_800_000_010,
            frac_sec: 0,
        }
        .as_frac()
            - millisecond,
    );
    update(
        &mut surface,
        Change::TimeOfDay(told),
        10_000_000_000,
        &memory,
    );
    // The period's cut to 64 bits costs less than a ns of 10 s.
    assert!(1_800_000_010_000_000_000 - tai(&memory, 10_000_000_000) <= 1);
    let bound = |now| {
        contents(&memory)
            .bounds_at(ticks(now))
            .maximum
            .unwrap()
            .as_ns()
    };
    assert!(bound(10_000_000_000) >= 1_000_000 + 1000);
    // 1 ms at 1/2048 is 2.048 s.
    let due = surface.clock().next_rebase().unwrap().as_ticks();
    assert!(due.abs_diff(12_048_000_000) < 10, "{due}");
    let truth = |now: u64| 1_800_000_000_000_000_000 + now - 1_000_000;
    let mut last = 0;
    for now in (10_000_000_000..due).step_by(1_000_003) {
        let shown = tai(&memory, now);
        assert!(
            shown >= last && shown.abs_diff(truth(now)) <= bound(now),
            "{now}: {shown}"
        );
        last = shown;
    }
    update(&mut surface, Change::Rebase, due, &memory);
    assert!(tai(&memory, due).abs_diff(truth(due)) <= 2);
    // One tick of the way is left, less than the page can show.
    assert_eq!(contents(&memory).time_maxerror_ns, 1001);
    assert_eq!(surface.clock().next_rebase(), None);
}

/// What was shown for an old counter value stays inside the bounds that were shown for it.
#[test]
fn a_later_update_keeps_the_bounds_of_an_earlier_one() {
    let (mut surface, memory) = enabled(1, hz(1_000_000_000), 0);
    let mut told = time_of_day(0, 1_800_000_000);
    told.rate_maximum_error = Some(Ppb::from_ppb_saturating(10_000));
    update(&mut surface, Change::TimeOfDay(told), 0, &memory);
    let (at, old) = (5_000_000_000, contents(&memory));
    let (shown, bound) = (
        old.time_at(ticks(at)).unwrap(),
        old.bounds_at(ticks(at)).maximum.unwrap(),
    );
    // The truth is at the edge of what was allowed, and is told now.
    told.tsc = ticks(at);
    told.tai =
        WallTime::from_frac(shown.as_frac() + (u128::from(bound.as_ns()) << 64) / 1_000_000_000);
    update(&mut surface, Change::TimeOfDay(told), at, &memory);
    let new = contents(&memory).time_at(ticks(at)).unwrap();
    let apart = new.as_frac().abs_diff(shown.as_frac());
    assert!(apart <= (u128::from(bound.as_ns()) << 64) / 1_000_000_000);
    assert!(new > shown);
}

#[test]
fn markers_change_once_each() {
    let (mut surface, memory) = enabled(1, hz(1_000_000_000), 0);
    let markers = |memory: &Memory| {
        (
            contents(memory).disruption_marker,
            contents(memory).vm_generation_counter,
        )
    };
    let first = markers(&memory);
    update(
        &mut surface,
        Change::Disrupted(Disruption::Moved),
        10,
        &memory,
    );
    let moved = markers(&memory);
    assert!(moved.0 != first.0 && moved.1 == first.1);
    update(
        &mut surface,
        Change::Disrupted(Disruption::Copied),
        20,
        &memory,
    );
    let copied = markers(&memory);
    assert!(copied.0 != moved.0 && copied.0 != first.0 && copied.1 != first.1);
    // Nothing else changes them.
    update(
        &mut surface,
        Change::Frequency(hz(2_000_000_000)),
        30,
        &memory,
    );
    update(
        &mut surface,
        Change::TimeOfDay(time_of_day(30, 5)),
        30,
        &memory,
    );
    assert_eq!(markers(&memory), copied);
}

#[test]
fn an_outlook_is_a_flag() {
    let (mut surface, memory) = enabled(1, hz(1_000_000_000), 0);
    for (outlook, flag) in [
        (Outlook::WithinDay, Flags::DISRUPTION_SOON),
        (Outlook::WithinHour, Flags::DISRUPTION_IMMINENT),
        (Outlook::Calm, Flags::NONE),
    ] {
        update(&mut surface, Change::Outlook(outlook), 0, &memory);
        let shown = contents(&memory)
            .flags
            .difference(Flags::GENERATION_PRESENT);
        assert_eq!(shown, flag);
    }
    assert!(
        surface
            .clock_mut()
            .offer_vmclock(Notification::Present, &memory)
    );
    assert!(
        contents(&memory)
            .flags
            .contains(Flags::NOTIFICATION_PRESENT)
    );
    assert_eq!(Nanos::ZERO, ns(0));
}

/// Unknown offsets and errors are not valid, rather than zero.
#[test]
fn what_is_not_told_is_not_valid() {
    let (mut surface, memory) = enabled(1, hz(1_000_000_000), 0);
    let told = TimeOfDay {
        tai_offset_sec: None,
        estimated_error: None,
        maximum_error: None,
        ..time_of_day(0, 100)
    };
    update(&mut surface, Change::TimeOfDay(told), 0, &memory);
    let flags = contents(&memory).flags;
    assert_eq!(
        flags,
        Flags::GENERATION_PRESENT.union(Flags::TIME_MONOTONIC)
    );
    let refused = surface
        .clock_mut()
        .write_wall_clock_register(support::WALL, &memory);
    assert_eq!(
        refused,
        Err(chronovisor_host::partition_clock::WallClockError::NoTaiOffset)
    );
}
