use super::*;
use proptest::prelude::*;

fn hz(hz: u64) -> Hertz {
    Hertz::from_hz(hz).unwrap()
}

/// mul = 10^9 * 2^(32 - shift) / f, once rounded down and once to nearest.
#[test]
fn pvclock_multipliers_of_known_rates() {
    for (rate, shift, floor, nearest) in [
        (800_000_000, 1, 0xA000_0000_u32, 0xA000_0000_u32),
        (1_000_000_000, 1, 0x8000_0000, 0x8000_0000),
        (1_996_250_000, 0, 0x803D_8E2F, 0x803D_8E30),
        (2_100_000_000, -1, 0xF3CF_3CF3, 0xF3CF_3CF4),
        (2_400_000_000, -1, 0xD555_5555, 0xD555_5555),
        (2_593_906_000, -1, 0xC562_BE75, 0xC562_BE76),
        (2_600_000_000, -1, 0xC4EC_4EC4, 0xC4EC_4EC5),
        (2_899_999_499, -1, 0xB08D_3FCA, 0xB08D_3FCB),
        (2_995_201_000, -1, 0xAAF0_AB4D, 0xAAF0_AB4D),
        (3_000_000_000, -1, 0xAAAA_AAAA, 0xAAAA_AAAB),
        (4_000_000_000, -1, 0x8000_0000, 0x8000_0000),
        (5_000_000_000, -2, 0xCCCC_CCCC, 0xCCCC_CCCD),
        (24_000_000, 6, 0xA6AA_AAAA, 0xA6AA_AAAB),
    ] {
        let of = |rounding| PvclockScale::from_frequency(hz(rate), rounding).unwrap();
        assert_eq!(
            (of(Rounding::Floor).mul(), of(Rounding::Floor).shift()),
            (floor, shift),
            "{rate} floor"
        );
        assert_eq!(
            (of(Rounding::Nearest).mul(), of(Rounding::Nearest).shift()),
            (nearest, shift),
            "{rate} nearest"
        );
    }
}

/// error = mul * f / (10^9 * 2^(32 - shift)) - 1
#[test]
fn pvclock_errors_of_known_rates() {
    for (rate, rounding, milli_ppb) in [
        (2_600_000_000, Rounding::Floor, -279),
        (2_600_000_000, Rounding::Nearest, 23),
        (3_000_000_000, Rounding::Floor, -233),
        (3_000_000_000, Rounding::Nearest, 116),
        (1_996_250_000, Rounding::Floor, -358),
        (1_996_250_000, Rounding::Nearest, 107),
        (24_000_000, Rounding::Nearest, 119),
        (4_000_000_000, Rounding::Nearest, 0),
    ] {
        let error = PvclockScale::from_frequency(hz(rate), rounding)
            .unwrap()
            .error(hz(rate));
        assert_eq!(
            (error.as_femto() + 500 * error.as_femto().signum()) / 1000,
            milli_ppb,
            "{rate} {rounding:?}: {error}"
        );
    }
}

/// ns = ((delta << shift) * mul) >> 32
#[test]
fn pvclock_times_of_known_distances() {
    for (mul, shift, delta, ns) in [
        (0xC4EC_4EC4, -1, 2_600_000_000, 999_999_999),
        (0xC4EC_4EC4, -1, 2_600_000_000 * 3600, 3_599_999_998_994),
        (0xC4EC_4EC5, -1, 2_600_000_000 * 3600, 3_600_000_000_083),
        (0xC4EC_4EC4, -1, u64::MAX, 7_094_901_564_829_073_407),
        (0x8000_0000, 1, 1000, 1000),
        (0xAAAA_AAAA, -1, 3_000_000_000, 999_999_999),
        (0xAAAA_AAAB, -1, 3_000_000_000, 1_000_000_000),
    ] {
        let scale = PvclockScale::from_raw(mul, shift).unwrap();
        assert_eq!(
            scale.nanos(TscDelta::from_ticks(delta)).as_ns(),
            ns,
            "{mul:#x} {shift} {delta}"
        );
    }
}

/// scale = floor(2^64 * 10^7 / f)
#[test]
fn page_multipliers_of_known_rates() {
    for (rate, scale) in [
        (10_000_001, 0xFFFF_FE52_80D9_24C8_u64),
        (1_000_000_000, 0x028F_5C28_F5C2_8F5C),
        (1_996_250_000, 0x0148_4BA9_700C_D2F4),
        (2_100_000_000, 0x0138_1381_3813_8138),
        (2_400_000_000, 0x0111_1111_1111_1111),
        (2_593_906_000, 0x00FC_A75A_3027_6115),
        (2_600_000_000, 0x00FC_0FC0_FC0F_C0FC),
        (2_899_999_499, 0x00E1_FC7A_9D1F_E849),
        (3_000_000_000, 0x00DA_740D_A740_DA74),
        (4_000_000_000, 0x00A3_D70A_3D70_A3D7),
    ] {
        assert_eq!(
            ReferenceScale::from_frequency(hz(rate)).map(ReferenceScale::as_raw),
            Ok(scale),
            "{rate}"
        );
    }
    for rate in [1, 9_999_999, 10_000_000] {
        assert_eq!(
            ReferenceScale::from_frequency(hz(rate)),
            Err(ScaleError::TooSlowForReferencePage { rate: hz(rate) })
        );
    }
}

#[test]
fn a_record_that_tells_no_time_is_refused() {
    assert_eq!(
        PvclockScale::from_raw(0, 0),
        Err(ScaleError::ZeroMultiplier)
    );
    for shift in [-128, -32, 32, 127] {
        assert_eq!(
            PvclockScale::from_raw(1, shift),
            Err(ScaleError::ShiftOutOfRange { shift })
        );
    }
    assert_eq!(
        ReferenceScale::from_raw(0).frequency(),
        Err(ScaleError::ZeroMultiplier)
    );
}

#[test]
fn the_upper_half_of_known_products() {
    for (a, b, high) in [
        (u64::MAX, u64::MAX, 0xFFFF_FFFF_FFFF_FFFE_u64),
        (
            0x1234_5678_9ABC_DEF0,
            0x00FC_0FC0_FC0F_C0FC,
            0x0011_ECA3_E8F6_E159,
        ),
        (
            0xFFFF_FFFF_0000_0000,
            0x0000_0001_FFFF_FFFF,
            0x0000_0001_FFFF_FFFD,
        ),
    ] {
        assert_eq!(mul_limbs(a, b).0, high);
        assert_eq!(mul_high(a, b), high);
    }
}

/// A multiplier of kHz times 1000 in 32 bits overflows above 4.29 GHz, a fixed 0.32 multiplier below 1 GHz; neither end may give a wrong one here.
#[test]
fn d78_rates_above_4_29_ghz_and_below_1_ghz_keep_all_their_bits() {
    for rate in [
        1_000_000,
        24_000_000,
        999_999_999,
        4_294_967_296,
        5_300_000_000,
        9_000_000_000,
    ] {
        let scale = PvclockScale::nearest(hz(rate)).unwrap();
        assert!(scale.mul() >= 1 << 31, "{rate}: {scale:?}");
        assert!(
            scale.error(hz(rate)).saturating_abs() <= PvclockScale::MAX_ERROR_NEAREST,
            "{rate}: {scale:?}"
        );
    }
    assert_eq!(
        Hertz::from_khz(5_300_000).map(Hertz::rounded_hz),
        Some(5_300_000_000)
    );
}

/// A test that accepts 1 % sees nothing; this oracle sees one unit in a multiplier's last place.
#[test]
fn d91_the_exact_error_sees_a_multiplier_that_is_off_by_one() {
    for rate in [
        1_996_250_000,
        2_100_000_000,
        2_593_906_000,
        2_600_000_000,
        3_000_000_000,
    ] {
        let right = PvclockScale::nearest(hz(rate)).unwrap();
        assert!(right.error(hz(rate)).saturating_abs() <= PvclockScale::MAX_ERROR_NEAREST);
        for mul in [right.mul() - 1, right.mul() + 1] {
            let wrong = PvclockScale::from_raw(mul, right.shift()).unwrap();
            assert!(
                wrong.error(hz(rate)).saturating_abs() > right.error(hz(rate)).saturating_abs(),
                "{rate}: {mul:#x}"
            );
        }
    }
}

proptest! {
    /// The limbs and the machine's wide multiply are one function.
    #[test]
    fn limbs_equal_the_wide_multiply(a: u64, b: u64) {
        let exact = u128::from(a) * u128::from(b);
        let (high, low) = mul_limbs(a, b);
        prop_assert_eq!((u128::from(high) << 64) | u128::from(low), exact);
        prop_assert_eq!(mul_high(a, b), high);
    }

    /// The same for pvclock's 64 by 32 bits: floor(a * mul / 2^32).
    #[test]
    fn the_halves_equal_the_wide_multiply(a: u64, mul: u32) {
        let exact = (u128::from(a) * u128::from(mul)) >> 32;
        prop_assert_eq!(u128::from(mul_32(a, mul)), exact);
        prop_assert_eq!(u128::from(mul_high(a, u64::from(mul) << 32)), exact);
    }

    /// mul has 32 significant bits and is within its stated error, for any rate from 1 kHz to 10 THz, whole or not.
    #[test]
    fn pvclock_multipliers_are_within_their_bounds(n in 1_000_000_u64..10_000_000_000_000_000, d in 1_u64..1000) {
        let rate = Hertz::from_ratio(u128::from(n), u128::from(d)).unwrap();
        let of = |rounding| PvclockScale::from_frequency(rate, rounding).unwrap();
        let (floor, nearest, ceil) = (of(Rounding::Floor), of(Rounding::Nearest), of(Rounding::Ceil));
        for scale in [floor, nearest, ceil] {
            prop_assert!(scale.mul() >= 1 << 31);
        }
        prop_assert!(floor.error(rate) <= Ppb::ZERO && ceil.error(rate) >= Ppb::ZERO);
        prop_assert!(nearest.error(rate).saturating_abs() <= PvclockScale::MAX_ERROR_NEAREST);
        prop_assert!(floor.error(rate).saturating_abs() <= PvclockScale::MAX_ERROR_DIRECTED);
        prop_assert!(ceil.error(rate).saturating_abs() <= PvclockScale::MAX_ERROR_DIRECTED);
        prop_assert!(nearest.error(rate).saturating_abs() <= floor.error(rate).saturating_abs().min(ceil.error(rate).saturating_abs()));
    }

    /// The split product equals the 128-bit one: ((delta shifted) * mul) >> 32.
    #[test]
    fn pvclock_time_equals_the_oracle(mul in 1_u32.., shift in -31_i8..=31, delta: u64) {
        let scale = PvclockScale::from_raw(mul, shift).unwrap();
        let shifted = if shift >= 0 { delta << shift } else { delta >> -shift };
        let oracle = (u128::from(shifted) * u128::from(mul)) >> 32;
        prop_assert_eq!(u128::from(scale.nanos(TscDelta::from_ticks(delta)).as_ns()), oracle);
    }

    /// Any record's rate can be told, and the multiplier made from it is the record's again (where it has all 32 bits).
    #[test]
    fn a_records_rate_gives_its_multiplier_back(mul in 1_u32 << 31.., shift in -20_i8..=20) {
        let scale = PvclockScale::from_raw(mul, shift).unwrap();
        prop_assert_eq!(PvclockScale::nearest(scale.frequency().unwrap()), Ok(scale));
    }

    /// No record makes the rate panic; one that has a rate has the right one: 0 <= exact - rate < exact * 2^-61, cross-multiplied in 256 bits.
    #[test]
    fn any_record_has_a_rate(mul in 1_u32.., cut in 0_u32..32, shift in -31_i8..=31) {
        let mul = (mul >> cut).max(1);
        // exact = 10^9 * 2^(32 - shift) / mul
        let numerator = 1_000_000_000_u128 << (32 - i32::from(shift));
        match PvclockScale::from_raw(mul, shift).unwrap().frequency() {
            Ok(rate) => {
                let ours = wide::mul(u128::from(rate.numerator()), u128::from(mul));
                let exact = wide::mul(numerator, u128::from(rate.denominator()));
                prop_assert!(ours <= exact, "{rate:?} is too high");
                let bound = (exact.0 >> 61, (exact.0 << 67) | (exact.1 >> 61));
                prop_assert!(wide::abs_diff(ours, exact) <= bound, "{rate:?} is too low");
            }
            Err(error) => {
                prop_assert_eq!(error, ScaleError::ImplausibleRate { mul, shift });
                prop_assert!(numerator / u128::from(mul) >= 1 << 62, "{}", error);
            }
        }
    }

    /// exact - 2 < ticks <= exact, over the whole counter: exact = tsc * 10^7 / f.
    #[test]
    fn page_time_is_within_two_units(tsc: u64, rate in 10_000_001_u64..20_000_000_000) {
        let ticks = u128::from(ReferenceScale::from_frequency(hz(rate)).unwrap().ticks(Tsc::from_ticks(tsc)));
        let exact = u128::from(tsc) * 10_000_000 / u128::from(rate);
        prop_assert!(ticks <= exact && exact - ticks < 2, "{ticks} for {exact}");
    }
}
