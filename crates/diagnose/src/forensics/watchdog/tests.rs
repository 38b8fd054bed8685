use super::{Because, PERIOD_NS, ReferenceSide, implied_rate, ppm_to_trip, reset, wrapped};
use crate::forensics::Frequency;
use proptest::prelude::*;

fn hz(hz: u64) -> Frequency {
    Frequency::from_hz(hz).unwrap()
}

fn pm_timer(last: u64, now: u64) -> ReferenceSide {
    ReferenceSide {
        last,
        now,
        mask: 0xff_ffff,
        frequency: hz(3_579_545),
    }
}

/// 5.5 s = 11 * 0.5 s, 3203.149 MHz; without a wrap 21 668 MHz, with two 1729 MHz.
#[test]
fn d86_a_wrapped_pm_timer_clears_the_counter() {
    let reference = pm_timer(0x60_e92e, 0x8d_5199);
    let ticks = 0x198_1c97_3dc9 - 0x194_0283_c820;
    let found = wrapped(reference, ticks, &[], None).unwrap();
    assert_eq!(found.wraps, 1);
    assert_eq!(found.interval_ns / 1000, 5_500_009);
    assert_eq!(found.implied.to_string(), "3203.149 MHz");
    assert_eq!(found.without.unwrap().to_string(), "21668.480 MHz");
    assert!(matches!(found.because, Because::OnThePeriod { off_ns } if off_ns < 10_000));
}

/// 2.9839 s, 3493.4 MHz, no wrap needed; 500 us over it are 168 ppm, 62.5 ms are 20 946 ppm.
#[test]
fn d87_a_late_check_trips_a_fixed_margin_over_a_small_rate() {
    let reference = pm_timer(0x6c_50c5, 0x0f_4b7d);
    let ticks = 0x1ca3_24f6_2cac - 0x1ca0_b7a5_0c00;
    let interval = reference.interval_ns(0);
    assert_eq!(interval / 1000, 2_983_903);
    assert_eq!(
        implied_rate(ticks, interval).unwrap().to_string(),
        "3493.400 MHz"
    );
    assert_eq!(wrapped(reference, ticks, &[hz(3_500_000_000)], None), None);
    assert_eq!(
        wrapped(reference, ticks, &[], Some(hz(3_500_000_000))),
        None
    );
    assert!((ppm_to_trip(500_000, interval) - 167.6).abs() < 0.1);
    assert!((ppm_to_trip(62_500_000, interval) - 20_946.0).abs() < 1.0);
}

/// age = now / f.
#[test]
fn a_restarted_counter_tells_its_age() {
    let found = reset(
        0x2_1d71_72f2_b8c4,
        0x1_b686_1d00,
        Some(6_912_597_221),
        Some(hz(2_196_000_000)),
    )
    .unwrap();
    assert_eq!(found.since_ns.unwrap() / 1_000_000, 3350);
    assert_eq!(found.now_signed, 0x1_b686_1d00);
}

#[test]
fn small_steps_back_and_forward_jumps_are_no_reset() {
    for (last, now, rate) in [
        (10_000_000_000, 9_999_999_000, Some(hz(2_000_000_000))),
        (10_000_000_000, 9_999_999_000, None),
        (1_000, 900, Some(hz(2_000_000_000))),
        (5, 6, None),
        (u64::MAX - 5, 3, None),
        (
            i64::MAX.cast_unsigned() - 5,
            i64::MAX.cast_unsigned() + 5,
            None,
        ),
    ] {
        let found = reset(last, now, Some(500_000_000), rate);
        let wrapped_to_small = last > u64::MAX / 2;
        assert_eq!(found.is_some(), wrapped_to_small, "{last} {now}");
    }
}

#[test]
fn a_negative_base_is_a_reset() {
    let found = reset(
        5_000_000_000,
        (-3_000_000_000_i64).cast_unsigned(),
        Some(PERIOD_NS),
        None,
    )
    .unwrap();
    assert_eq!(found.now_signed, -3_000_000_000);
    assert_eq!(found.since_ns, None);
}

proptest! {
    /// elapsed_k = (dwd + k (mask + 1)) / f_wd: from a true interval back to k.
    #[test]
    fn wraps_are_recovered_from_a_declared_rate(
        f in 800_000_000_u64..5_000_000_000,
        start in 0_u64..0xff_ffff,
        halves in 10_u64..80,
    ) {
        let interval_ns = u128::from(halves) * PERIOD_NS;
        let wd_ticks = u64::try_from(interval_ns * 3_579_545 / 1_000_000_000).unwrap();
        let reference = pm_timer(start, (start + wd_ticks) & 0xff_ffff);
        let ticks = u64::try_from(interval_ns * u128::from(f) / 1_000_000_000).unwrap();
        let found = wrapped(reference, ticks, &[hz(f)], None);
        let expected = wd_ticks / 0x100_0000;
        prop_assert_eq!(found.map_or(0, |found| found.wraps), expected);
    }

    #[test]
    fn a_right_rate_is_never_a_wrap(f in 800_000_000_u64..5_000_000_000, start in 0_u64..0xff_ffff, ns in 400_000_000_u128..4_600_000_000) {
        let wd_ticks = u64::try_from(ns * 3_579_545 / 1_000_000_000).unwrap();
        let reference = pm_timer(start, (start + wd_ticks) & 0xff_ffff);
        let ticks = u64::try_from(ns * u128::from(f) / 1_000_000_000).unwrap();
        prop_assert_eq!(wrapped(reference, ticks, &[hz(f)], None), None);
        prop_assert_eq!(wrapped(reference, ticks, &[], None), None);
    }

    #[test]
    fn nothing_that_a_log_can_hold_panics(last: u64, now: u64, mask: u64, ticks: u64, f in 1_u64..u64::MAX / 2_000_000, a: u64, b: u64) {
        let reference = ReferenceSide { last, now, mask, frequency: hz(f / 1_000_000 + 1) };
        let _ = wrapped(reference, ticks, &[hz(f / 1_000_000 + 1)], None);
        let _ = wrapped(reference, ticks, &[], Some(hz(1)));
        let _ = reset(a, b, Some(u128::from(last)), Some(hz(1)));
    }
}
