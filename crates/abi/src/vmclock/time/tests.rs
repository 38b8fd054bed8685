use super::*;
use crate::vmclock::{LeapIndicator, Page, SmearingHint};
use proptest::prelude::*;

fn hz(hz: u64) -> Hertz {
    Hertz::from_hz(hz).expect("not zero")
}

/// period = 2^(64 + shift) / f, rounded to nearest
#[test]
fn known_periods() {
    for (rate, frac_sec, shift) in [
        (1_000_000_000, 0x8970_5F41_36B4_A597, 29),
        (2_600_000_000, 0xD371_CD9F_67DA_D75F, 31),
        (2, 1 << 63, 0),
        (1 << 63, 1 << 63, 62),
    ] {
        assert_eq!(
            Period::of(hz(rate)),
            Ok(Period { frac_sec, shift }),
            "{rate}"
        );
    }
    for rate in [Hertz::from_hz(1), Hertz::from_ratio(1, 3)] {
        assert!(Period::of(rate.unwrap()).is_err(), "{rate:?}");
    }
}

/// A reader that checks only the header would take the time of a page that has none.
#[test]
fn d89_a_page_without_time_is_refused_and_a_time_has_its_bounds() {
    let period = Period::of(hz(1_000_000_000)).unwrap();
    let good = Contents {
        status: ClockStatus::SYNCHRONIZED,
        flags: Flags::TIME_MAXERROR_VALID.union(Flags::PERIOD_MAXERROR_VALID),
        period_frac_sec: period.frac_sec,
        period_shift: period.shift,
        period_maxerror: period.frac_sec / 1_000_000, // 1 ppm
        time_sec: 100,
        time_maxerror_ns: 50,
        ..Contents::default()
    };
    assert_eq!(good.check(&Constants::X86_TAI), Ok(()));
    for (status, usable) in [
        (0, false),
        (1, false),
        (2, true),
        (3, true),
        (4, false),
        (5, false),
    ] {
        let page = Contents {
            status: ClockStatus(status),
            ..good
        };
        assert_eq!(
            page.check(&Constants::X86_TAI).is_ok(),
            usable,
            "status {status}"
        );
    }
    for constants in [
        Constants {
            counter_id: CounterId::INVALID,
            ..Constants::X86_TAI
        },
        Constants {
            time_type: TimeType(3),
            ..Constants::X86_TAI
        },
    ] {
        assert!(good.check(&constants).is_err());
    }
    // A filled page whose period is 0 would show one time for ever.
    let standing = Contents {
        period_frac_sec: 0,
        ..good
    };
    assert_eq!(
        standing.check(&Constants::X86_TAI),
        Err(TimeError::ZeroPeriod)
    );
    let second_later = Tsc::from_ticks(1_000_000_000);
    // The period is rounded down, so the second is not quite over.
    assert_eq!(
        good.time_at(second_later)
            .map(|time| (time.sec, time.subsec_nanos())),
        Ok((100, 999_999_999))
    );
    // 50 ns and 1 ppm of 1 s, rounded up.
    assert_eq!(
        good.bounds_at(second_later),
        Bounds {
            estimated: None,
            maximum: Some(Nanos::from_ns(1050))
        }
    );
}

/// UTC = TAI - 37, not TAI + 37, which would be 74 s off.
#[test]
fn d90_utc_is_tai_less_the_offset() {
    // 2017-01-01T00:00:37 TAI is 2017-01-01T00:00:00 UTC.
    let tai = WallTime {
        sec: 1_483_228_837,
        frac_sec: 1 << 63,
    };
    let utc = tai.checked_sub_secs(37).unwrap();
    assert_eq!((utc.sec, utc.subsec_nanos()), (1_483_228_800, 500_000_000));
    assert_eq!(tai.checked_sub_secs(-37).unwrap().sec - utc.sec, 74);
}

proptest! {
    /// |2^(64 + shift) / f - period| <= 1/2, cross-multiplied
    #[test]
    fn a_period_is_nearest(n in 3_u64..1 << 62, cut in 0_u32..62, d in 1_u64..1000) {
        let rate = Hertz::from_ratio(u128::from((n >> cut).max(2001)), u128::from(d)).unwrap();
        if rate <= hz(2) { return Ok(()); }
        let period = Period::of(rate).unwrap();
        prop_assert!(period.frac_sec >> 63 == 1);
        let ours = wide::mul(2 * u128::from(period.frac_sec), u128::from(rate.numerator()));
        let exact = wide::mul(u128::from(rate.denominator()) << 1, 1 << (64 + u32::from(period.shift)));
        prop_assert!(wide::abs_diff(ours, exact) <= (0, u128::from(rate.numerator())));
    }

    /// Whatever a page holds, reading it does not panic.
    #[test]
    fn any_contents_are_safe(words: [u64; 12], small: [u8; 5], offset: i16, tsc: u64) {
        let page = Page::new();
        let contents = Contents {
            disruption_marker: words[0],
            flags: Flags::from_bits(words[1]),
            status: ClockStatus(small[0]),
            smearing_hint: SmearingHint(small[1]),
            tai_offset_sec: offset,
            leap_indicator: LeapIndicator(small[2]),
            period_shift: small[3],
            counter_value: Tsc::from_ticks(words[2]),
            period_frac_sec: words[3],
            period_esterror: words[4],
            period_maxerror: words[5],
            time_sec: words[6],
            time_frac_sec: words[7],
            time_esterror_ns: words[8],
            time_maxerror_ns: words[9],
            vm_generation_counter: words[10],
        };
        page.mark(3);
        page.store(&contents);
        page.publish(3);
        prop_assert_eq!(page.read(1, || ()), Ok((contents, ())));
        let _ = contents.bounds_at(Tsc::from_ticks(tsc));
        let _ = contents.check(&Constants { counter_id: CounterId(small[4]), ..Constants::X86_TAI });
        // time = reference + (delta * period >> shift), in 128 bits of 2^-64 s.
        let delta = u128::from(tsc.wrapping_sub(words[2]));
        let expected = if small[3] > 63 {
            Err(TimeError::BadShift { shift: small[3] })
        } else {
            ((u128::from(words[6]) << 64) | u128::from(words[7]))
                .checked_add((delta * u128::from(words[3])) >> small[3])
                .map(WallTime::from_frac)
                .ok_or(TimeError::OutOfRange)
        };
        prop_assert_eq!(contents.time_at(Tsc::from_ticks(tsc)), expected);
    }

    #[test]
    fn a_header_is_read_as_it_was_written(size in 100_u32..4110, version in 0_u16..3, counter: u8, time: u8) {
        let page = Page::new();
        prop_assert!(page.constants().is_err());
        let constants = Constants { size_bytes: size, version, counter_id: CounterId(counter), time_type: TimeType(time) };
        page.write_constants(&constants);
        match page.constants() {
            Ok(read) => prop_assert!(read == constants && version == 1 && (112..=4096).contains(&size)),
            Err(_) => prop_assert!(version != 1 || !(112..=4096).contains(&size)),
        }
    }
}
