use super::*;
use chronovisor_abi::quantity::{Hertz, Nanos};
use chronovisor_abi::vmclock::{ClockStatus, CounterId, LeapIndicator, Period, SmearingHint};
use proptest::prelude::*;
use std::cell::Cell;

fn tsc(ticks: u64) -> Tsc {
    Tsc::from_ticks(ticks)
}

/// 1 GHz, 2027-01-15T08:00:00 UTC at counter 0, good to 50 ns and 1 ppm.
fn contents() -> Contents {
    let period = Period::of(Hertz::from_hz(1_000_000_000).expect("not zero")).expect("above 1 Hz");
    Contents {
        status: ClockStatus::SYNCHRONIZED,
        flags: Flags::TAI_OFFSET_VALID
            .union(Flags::TIME_MAXERROR_VALID)
            .union(Flags::PERIOD_MAXERROR_VALID)
            .union(Flags::GENERATION_PRESENT),
        tai_offset_sec: 37,
        period_frac_sec: period.frac_sec,
        period_shift: period.shift,
        period_maxerror: period.frac_sec / 1_000_000,
        time_sec: 1_800_000_037,
        time_frac_sec: 1 << 62,
        time_maxerror_ns: 50,
        disruption_marker: 7,
        vm_generation_counter: 9,
        ..Contents::default()
    }
}

fn page(constants: &Constants, contents: &Contents) -> Page {
    let page = Page::new();
    page.write_constants(constants);
    publish(&page, contents);
    page
}

fn publish(page: &Page, contents: &Contents) {
    let last = page.sequence();
    page.mark(last);
    page.store(contents);
    page.publish(last);
}

#[test]
fn a_time_comes_with_its_bounds_in_utc_and_tai() {
    let utc_constants = Constants {
        time_type: TimeType::UTC,
        ..Constants::X86_TAI
    };
    for (constants, utc) in [
        (Constants::X86_TAI, 1_800_000_002),
        (utc_constants, 1_800_000_039),
    ] {
        let page = page(&constants, &contents());
        let clock = VmclockPage::open(&page, || tsc(2_000_000_000)).unwrap();
        let seen = clock.observe().unwrap();
        // 0.25 s and 2 s; the period is rounded, so the last ns is short.
        assert_eq!(seen.reading.time.subsec_nanos(), 249_999_999);
        assert_eq!(seen.reading.tsc, tsc(2_000_000_000));
        assert_eq!(seen.bounds.maximum, Some(Nanos::from_ns(50 + 2_000)));
        assert_eq!(seen.bounds.estimated, None, "no flag, no bound");
        assert_eq!(
            (seen.utc().unwrap().sec, seen.tai().unwrap().sec),
            (utc, utc + 37)
        );
    }
}

/// Without a valid offset, or of a monotonic page, there is no UTC to be had from TAI; nothing is guessed.
#[test]
fn d90_no_offset_is_no_utc() {
    let without = Contents {
        flags: Flags::NONE,
        ..contents()
    };
    for (time_type, utc, tai) in [
        (TimeType::TAI, None, Some(1_800_000_037)),
        (TimeType::UTC, Some(1_800_000_037), None),
        (TimeType::MONOTONIC, None, None),
    ] {
        let page = page(
            &Constants {
                time_type,
                ..Constants::X86_TAI
            },
            &without,
        );
        let seen = VmclockPage::open(&page, || tsc(0))
            .unwrap()
            .observe()
            .unwrap();
        assert_eq!(seen.utc().map(|time| time.sec), utc);
        assert_eq!(seen.tai().map(|time| time.sec), tai);
    }
}

/// A page with markers only, as several VMMs publish it: no time, and the markers can be read.
#[test]
fn d89_a_page_of_markers_gives_no_time_and_its_markers() {
    let constants = Constants {
        counter_id: CounterId::INVALID,
        ..Constants::X86_TAI
    };
    let page = page(
        &constants,
        &Contents {
            disruption_marker: 3,
            ..Contents::default()
        },
    );
    let clock = VmclockPage::open(&page, || tsc(0)).unwrap();
    assert_eq!(
        clock.read(),
        Err(VmclockError::NoTime(TimeError::OtherCounter {
            counter_id: CounterId::INVALID
        }))
    );
    let markers = clock.markers().unwrap();
    assert_eq!(
        markers,
        Markers {
            disruption: 3,
            generation: None
        }
    );
    assert!(clock.contents().is_ok());
}

/// Move and copy, alone and together.
#[test]
fn the_markers_tell_what_happened() {
    let page = page(&Constants::X86_TAI, &contents());
    let clock = VmclockPage::open(&page, || tsc(0)).unwrap();
    let before = clock.observe().unwrap().markers();
    for (disruption, generation, happened) in [
        (7, 9, Happened::Nothing),
        (8, 9, Happened::CounterDisrupted),
        (7, 10, Happened::StateCopied),
        (8, 10, Happened::StateCopied),
    ] {
        publish(
            &page,
            &Contents {
                disruption_marker: disruption,
                vm_generation_counter: generation,
                ..contents()
            },
        );
        assert_eq!(clock.markers().unwrap().since(&before), happened);
    }
}

#[test]
fn a_page_that_is_none_left_odd_or_unset_is_refused() {
    assert_eq!(
        VmclockPage::open(&Page::new(), || tsc(0)).err(),
        Some(HeaderError::NotVmclock { found: 0 })
    );
    let unset = page(
        &Constants::X86_TAI,
        &Contents {
            status: ClockStatus::INITIALIZING,
            ..contents()
        },
    );
    let clock = VmclockPage::open(&unset, || tsc(0)).unwrap();
    assert!(matches!(
        clock.read(),
        Err(VmclockError::NoTime(TimeError::NotUsable { .. }))
    ));
    unset.mark(2);
    let clock = clock.with_tries(5);
    let invalid = ReadError::Invalid {
        sequence: 3,
        tries: 5,
    };
    assert_eq!(clock.read(), Err(VmclockError::Inconsistent(invalid)));
    assert_eq!(clock.markers(), Err(invalid));
}

/// The counter is read between the two looks; one before the page's counts as the page's.
#[test]
fn the_counter_belongs_to_the_fields() {
    let page = page(&Constants::X86_TAI, &contents());
    let reads = Cell::new(0);
    let clock = VmclockPage::open(&page, || {
        reads.set(reads.get() + 1);
        if reads.get() == 1 {
            publish(
                &page,
                &Contents {
                    counter_value: tsc(1_000),
                    time_sec: 5,
                    ..contents()
                },
            );
        }
        tsc(999)
    })
    .unwrap();
    let seen = clock.read().unwrap();
    assert_eq!(
        (seen.time.sec, seen.time.frac_sec, reads.get()),
        (5, 1 << 62, 2)
    );
}

proptest! {
    /// Whatever a page holds, a read ends, without panic.
    #[test]
    fn any_page_is_safe(words: [u64; 11], small: [u8; 6], offset: i16, ticks: u64) {
        let constants = Constants { counter_id: CounterId(small[4] % 3), time_type: TimeType(small[5] % 5), ..Constants::X86_TAI };
        let page = page(&constants, &Contents {
            disruption_marker: words[0],
            flags: Flags::from_bits(words[1]),
            status: ClockStatus(small[0] % 6),
            smearing_hint: SmearingHint(small[1]),
            tai_offset_sec: offset,
            leap_indicator: LeapIndicator(small[2]),
            period_shift: small[3] % 80,
            counter_value: tsc(words[2]),
            period_frac_sec: words[3],
            period_esterror: words[4],
            period_maxerror: words[5],
            time_sec: words[6],
            time_frac_sec: words[7],
            time_esterror_ns: words[8],
            time_maxerror_ns: words[9],
            vm_generation_counter: words[10],
        });
        let clock = VmclockPage::open(&page, || tsc(ticks)).unwrap();
        let usable = small[4] % 3 == 1 && small[5] % 5 < 3 && [2, 3].contains(&(small[0] % 6)) && small[3] % 80 <= 63;
        match clock.observe() {
            Ok(seen) => {
                prop_assert!(usable);
                let _ = (seen.utc(), seen.tai(), seen.markers());
            }
            Err(error) => prop_assert!(!usable || error == VmclockError::NoTime(TimeError::OutOfRange)),
        }
    }
}
