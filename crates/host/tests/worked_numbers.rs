//! Worked numbers, read off the pages as a guest reads them.

mod support;

use chronovisor_abi::quantity::{Hertz, Tsc};
use chronovisor_abi::scale::PvclockScale;
use chronovisor_host::partition_clock::Change;
use support::partition::{enabled, hz, page, pvclock, ticks, update};

/// shift = floor(log2(10^9 / f)) + 1, mul = 10^9 * 2^(32 - shift) / f to nearest, scale = 10^7 * 2^64 / f rounded down
#[test]
fn multipliers_and_scales_of_known_rates() {
    for (rate, shift, mul, scale) in [
        (
            1_000_000_000_u64,
            1,
            0x8000_0000_u32,
            0x028F_5C28_F5C2_8F5C_u64,
        ),
        (1_996_250_000, 0, 0x803D_8E30, 0x0148_4BA9_700C_D2F4),
        (2_100_000_000, -1, 0xF3CF_3CF4, 0x0138_1381_3813_8138),
        (2_400_000_000, -1, 0xD555_5555, 0x0111_1111_1111_1111),
        (2_593_906_000, -1, 0xC562_BE76, 0x00FC_A75A_3027_6115),
        (2_600_000_000, -1, 0xC4EC_4EC5, 0x00FC_0FC0_FC0F_C0FC),
        (2_899_999_499, -1, 0xB08D_3FCB, 0x00E1_FC7A_9D1F_E849),
        (3_000_000_000, -1, 0xAAAA_AAAB, 0x00DA_740D_A740_DA74),
        (4_000_000_000, -1, 0x8000_0000, 0x00A3_D70A_3D70_A3D7),
    ] {
        let (_, memory) = enabled(1, hz(rate), 0);
        let (record, page) = (memory.records[0].load(), memory.page.load());
        assert_eq!(
            (record.shift, record.mul, page.scale.as_raw()),
            (shift, mul, scale),
            "{rate}"
        );
    }
}

/// One hour at 2.6 GHz: a multiplier rounded down would show 3 599 999 998 994.
#[test]
fn an_hour_at_2_6_ghz() {
    let (_, memory) = enabled(1, hz(2_600_000_000), 0);
    assert_eq!(pvclock(&memory, 0, 2_600_000_000 * 3600), 3_600_000_000_083);
    assert_eq!(pvclock(&memory, 0, 2_600_000_000), 1_000_000_000);
}

/// scale(2.6 GHz): tsc 26e9 -> 99 999 999; a year -> 315 359 999 999 999
#[test]
fn reference_time_at_2_6_ghz() {
    let (_, memory) = enabled(1, hz(2_600_000_000), 0);
    assert_eq!(page(&memory, 26_000_000_000), Some(99_999_999));
    assert_eq!(
        page(&memory, 2_600_000_000 * 86_400 * 365),
        Some(315_359_999_999_999)
    );
}

/// 2.6 -> 2.1 GHz at 260e9 ticks: R = 999 999 999 before and after, the new offset is -238 095 239, and R a second later 1 009 999 999.
#[test]
fn a_change_from_2_6_to_2_1_ghz() {
    let (mut surface, memory) = enabled(1, hz(2_600_000_000), 0);
    update(
        &mut surface,
        Change::Frequency(hz(2_100_000_000)),
        260_000_000_000,
        &memory,
    );
    assert_eq!(memory.page.load().offset, -238_095_239);
    assert_eq!(page(&memory, 260_000_000_000), Some(999_999_999));
    assert_eq!(page(&memory, 262_100_000_000), Some(1_009_999_999));
    // 0.023 ppb of 100 s ahead, and from there on the multiplier that runs back to the master.
    assert_eq!(pvclock(&memory, 0, 260_000_000_000), 100_000_000_002);
    assert_eq!(memory.records[0].load().mul, 0xF3CF_3CF3);
    assert_eq!(pvclock(&memory, 0, 262_100_000_000), 101_000_000_001);
}

/// Every fraction of a step: whatever tick the update falls on, the new line starts at the old value, and later stands at most 1 ns off.
#[test]
fn an_update_at_every_tick_joins() {
    for rate in [
        24_000_000_u64,
        1_996_250_000,
        2_600_000_000,
        2_899_999_499,
        4_000_000_000,
        5_000_000_000,
        9_000_000_011,
    ] {
        for at in 1_000_000..1_003_000_u64 {
            let (mut surface, memory) = enabled(1, hz(rate), 0);
            let old = memory.records[0].load();
            // There and back: two updates, so that the first line's own grid matters.
            update(&mut surface, Change::Frequency(hz(rate + 1)), at, &memory);
            let join = |tsc: u64| {
                (
                    old.time_at(ticks(tsc)).unwrap().as_ns(),
                    pvclock(&memory, 0, tsc),
                )
            };
            let (before, after) = join(at);
            assert!(after - before <= 1, "{rate} at {at}: {before} {after}");
            update(&mut surface, Change::Frequency(hz(rate)), at + 1, &memory);
            for later in [1, 2, 3, 5, 1000] {
                let (before, after) = join(at + later);
                assert!(
                    after.abs_diff(before) <= 2,
                    "{rate} at {at}, {later} later: {before} {after}"
                );
            }
        }
    }
}

/// The TSC at which the budget is used up, from the multiplier's exact error.
#[test]
fn the_next_rebase_is_when_the_budget_is_used_up() {
    for rate in [2_600_000_000_u64, 2_593_906_000, 3_000_000_000] {
        let error = PvclockScale::nearest(hz(rate)).unwrap().error(hz(rate));
        let (surface, memory) = enabled(1, hz(rate), 0);
        let due = surface.clock().next_rebase().unwrap().as_ticks();
        // 99 ns at that drift: one ns of the budget is kept for the roundings.
        let seconds = 99e-9 / (error.saturating_abs().as_ppm_f64() * 1e-6);
        #[expect(clippy::cast_precision_loss, reason = "a check to one part in 1000")]
        let found = due as f64 / rate as f64;
        assert!(
            (found / seconds - 1.0).abs() < 1e-3,
            "{rate}: {found} s, {seconds} s expected"
        );
        let exact = surface
            .clock()
            .exact_time_at(Tsc::from_ticks(due))
            .floor()
            .as_ns();
        assert!(pvclock(&memory, 0, due).abs_diff(exact) <= 100);
    }
    let exact = Hertz::from_hz(1_000_000_000).unwrap();
    assert_eq!(enabled(1, exact, 0).0.clock().next_rebase(), None);
}
