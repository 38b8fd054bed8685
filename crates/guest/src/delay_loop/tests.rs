use super::*;
use proptest::prelude::*;
use std::string::ToString;

fn ticks(hz: u64) -> TickRate {
    TickRate::new(hz).expect("not zero")
}

fn lpj(loops: u64) -> LoopsPerJiffy {
    LoopsPerJiffy::new(loops).expect("not zero")
}

/// lpj = f / HZ; BogoMIPS = lpj * HZ / 500000, printed with two decimals, rounded down.
#[test]
fn known_machines() {
    for (hz, tick_hz, loops, printed) in [
        (2_600_000_000, 250, 10_400_000, "5200.00"),
        (2_593_906_000, 250, 10_375_624, "5187.81"),
        (2_593_906_000, 1_000, 2_593_906, "5187.81"),
        (2_593_905_000, 1_000, 2_593_905, "5187.81"),
        (2_599_981_000, 250, 10_399_924, "5199.96"),
    ] {
        let rate = Hertz::from_hz(hz).unwrap();
        let value = LoopsPerJiffy::from_frequency(rate, ticks(tick_hz)).unwrap();
        assert_eq!(value.get(), loops);
        assert_eq!(value.bogo_mips(ticks(tick_hz)).to_string(), printed);
        assert_eq!(value.frequency(ticks(tick_hz)), Some(rate));
    }
    // HZ = 300: 8666666 / 1666 = 5202, 8666666 / 16 mod 100 = 66, though 2 * 2600 MHz are 5200.
    assert_eq!(lpj(8_666_666).bogo_mips(ticks(300)).to_string(), "5202.66");
    assert_eq!(LoopsPerJiffy::new(0), None);
    assert_eq!(TickRate::new(0), None);
    assert_eq!(
        BogoMips::from_hundredths(0).loops_per_jiffy(ticks(250)),
        None
    );
    assert_eq!(BogoMips::from_hundredths(1_007).to_string(), "10.07");
}

/// Each source is taken when all before it are missing, and not when its condition does not hold.
#[test]
fn the_sources_stand_in_their_order() {
    let all = Bring {
        cpu: Cpu::Boot,
        kept: Some(lpj(1)),
        preset: Some(lpj(2)),
        from_tsc: Some(lpj(3)),
        tsc: Tsc::Shared,
        boot_cpu: Some(lpj(4)),
        sibling: Some(lpj(5)),
        by_timer: Some(lpj(6)),
    };
    let secondary = Bring {
        cpu: Cpu::Secondary,
        kept: None,
        preset: None,
        ..all
    };
    for (bring, source, value) in [
        (all, Source::Kept, Some(1)),
        (Bring { kept: None, ..all }, Source::Preset, Some(2)),
        (
            Bring {
                kept: None,
                preset: None,
                ..all
            },
            Source::FromTsc,
            Some(3),
        ),
        // Not the boot CPU: the TSC's value counts for that one only, but all share it through the boot CPU.
        (secondary, Source::BootCpu, Some(4)),
        (
            Bring {
                tsc: Tsc::Unstable,
                ..secondary
            },
            Source::Sibling,
            Some(5),
        ),
        (
            Bring {
                boot_cpu: None,
                ..secondary
            },
            Source::Sibling,
            Some(5),
        ),
        (
            Bring {
                tsc: Tsc::Varying,
                ..secondary
            },
            Source::Timer,
            Some(6),
        ),
        (
            Bring {
                tsc: Tsc::Varying,
                by_timer: None,
                ..secondary
            },
            Source::Search,
            None,
        ),
        (Bring::default(), Source::Search, None),
    ] {
        let choice = bring.choose();
        assert_eq!(
            (choice.source, choice.value.map(LoopsPerJiffy::get)),
            (source, value),
            "{bring:?}"
        );
        assert!(!choice.reason.is_empty());
    }
}

/// A preset value reaches every CPU: sixteen CPUs on Hyper-V without invariant TSC need no calibration. Without it, one calibration a package.
#[test]
fn every_cpu_takes_the_preset_and_siblings_copy() {
    for (preset, calibrations) in [(Some(lpj(2_593_906)), 0), (None, 4)] {
        let mut searched = 0;
        let mut packages = [None; 4];
        for cpu in 0..16 {
            let package = &mut packages[cpu / 4];
            let bring = Bring {
                cpu: if cpu == 0 { Cpu::Boot } else { Cpu::Secondary },
                preset,
                tsc: Tsc::Unstable,
                boot_cpu: Some(lpj(2_593_906)).filter(|_| cpu > 0),
                sibling: *package,
                ..Bring::default()
            };
            let choice = bring.choose();
            if choice.source == Source::Search {
                searched += 1;
            }
            *package = Some(choice.value.unwrap_or(lpj(2_593_906)));
        }
        assert_eq!(searched, calibrations);
    }
}

proptest! {
    /// rate <= lpj * HZ < rate + HZ: a delay of n jiffies is never too short.
    #[test]
    fn a_delay_is_never_too_short(numerator in 1_u64.., denominator in 1_u64..1_000_000, hz in 1_u64..10_000) {
        let rate = Hertz::from_ratio(u128::from(numerator), u128::from(denominator)).unwrap();
        let value = u128::from(LoopsPerJiffy::from_frequency(rate, ticks(hz)).unwrap().get()) * u128::from(hz);
        let (n, d) = (u128::from(rate.numerator()), u128::from(rate.denominator()));
        prop_assert!(value * d >= n && (value - u128::from(hz)) * d < n);
    }

    /// What was printed leads back to a value that prints the same, less than 5000 / HZ loops below the one that was printed; where HZ does not divide 5000
    /// there can be a second one, 100 such steps lower.
    #[test]
    fn bogo_mips_both_ways(loops in 1_000_u64..1 << 40, hz in prop::sample::select(&[24_u64, 64, 100, 128, 250, 300, 500, 1_000, 1_024][..])) {
        let printed = lpj(loops).bogo_mips(ticks(hz));
        prop_assume!(printed.hundredths() > 0);
        let back = printed.loops_per_jiffy(ticks(hz)).unwrap();
        prop_assert_eq!(back.bogo_mips(ticks(hz)), printed);
        let most = if 5_000 % hz == 0 { 5_000 / hz } else { 100 * (5_000 / hz) + 5_000 / hz };
        prop_assert!(back.get() <= loops && loops - back.get() < most, "{back:?}");
    }
}
