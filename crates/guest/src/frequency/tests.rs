use super::*;
use chronovisor_abi::pvclock::Flags;
use chronovisor_abi::quantity::{Nanos, RefTime, Tsc};
use chronovisor_abi::scale::{PvclockScale, Rounding};
use proptest::prelude::*;
use std::string::ToString;
use std::vec::Vec;

fn hz(hz: u64) -> Hertz {
    Hertz::from_hz(hz).expect("not zero")
}

fn record(rate: Hertz, rounding: Rounding) -> Contents {
    let scale = PvclockScale::from_frequency(rate, rounding).expect("in range");
    Contents::new(Tsc::from_ticks(0), Nanos::ZERO, scale, Flags::NONE)
}

/// Every channel of a 2600 MHz machine says 2600 MHz, and their differences are what their forms cost.
#[test]
fn a_machine_whose_channels_agree() {
    let rate = hz(2_600_000_000);
    let page = Parameters::through(Tsc::from_ticks(0), RefTime::ZERO, rate).unwrap();
    let estimates = [
        Estimate::from_crystal(Leaf {
            eax: 3,
            ebx: 325,
            ecx: 24_000_000,
            edx: 0,
        }),
        Estimate::from_nominal(Leaf {
            eax: 2_600,
            ..Leaf::ZERO
        }),
        Estimate::from_hypervisor_leaf(Leaf {
            eax: 2_600_000,
            ..Leaf::ZERO
        }),
        Estimate::from_hyperv_msr(2_600_000_000),
        Estimate::from_pvclock(&record(rate, Rounding::Floor), Granularity::Kilohertz).ok(),
        Estimate::from_reference_page(&page, Granularity::Exact).ok(),
    ]
    .map(|estimate| estimate.expect("each channel states it"));
    for (first, second, apart) in disagreements(&estimates) {
        assert!(apart.is_explained(), "{first} and {second}: {apart:?}");
        // The multiplier rounded down stands for 0.7 Hz more.
        assert!(
            first.rate.rounded_hz().abs_diff(2_600_000_000) <= 1,
            "{first}"
        );
    }
    assert_eq!(disagreements(&estimates).count(), 15);
    assert_eq!(
        most_exact(&estimates).map(|best| best.channel),
        Some(Channel::ReferencePage)
    );
    // 0x16 is a MHz of 2600, 0x40000010 and a register of whole kHz a kHz of 2600000, 0x15 half a Hz of 24 MHz.
    let bounds: Vec<_> = estimates
        .iter()
        .map(|estimate| estimate.bound.as_femto())
        .collect();
    assert_eq!(
        bounds[..4],
        [20_833_334, 384_615_384_616, 384_615_385, 384_615_385]
    );
}

/// Whole MHz: 2593.906 MHz becomes 2593, which is 349 ppm or 30 s a day. The rate is kept exactly, and the nominal channel says that it cannot.
#[test]
fn d77_whole_megahertz_are_not_a_rate() {
    let real = Estimate::from_hyperv_msr(2_593_906_000).unwrap();
    let whole = Estimate::from_nominal(Leaf {
        eax: 2_593,
        ..Leaf::ZERO
    })
    .unwrap();
    let apart = disagreement(&whole, &real);
    assert_eq!(apart.difference, Ppb::from_femto(-349_280_197_509));
    assert!(apart.is_explained(), "a whole MHz can be that far off");
    assert_eq!(most_exact(&[whole, real]), Some(real));
    assert_eq!(real.rate.rounded_hz(), 2_593_906_000);
}

/// The host's 0x15 leaks into a guest whose counter is scaled to 1 GHz: timers run 2.8 times off. The channels cannot both be right.
#[test]
fn d65_a_leaf_of_the_hosts_disagrees_with_the_guests_own_clock() {
    let leaked = Estimate::from_crystal(Leaf {
        eax: 1,
        ebx: 112,
        ecx: 25_000_000,
        edx: 0,
    })
    .unwrap();
    let own = Estimate::from_pvclock(
        &record(hz(1_000_000_000), Rounding::Nearest),
        Granularity::Kilohertz,
    )
    .unwrap();
    let apart = disagreement(&leaked, &own);
    assert!(!apart.is_explained());
    assert!(
        (apart.difference.as_ppm_f64() - 1_800_000.0).abs() < 0.001,
        "{apart:?}"
    );
}

/// A period states its rate to 20 digits, and its page how far that can be off.
#[test]
fn a_period_states_its_rate_and_its_error() {
    let rate = hz(2_600_000_000);
    let period = vmclock::Period::of(rate).unwrap();
    let page = vmclock::Contents {
        period_frac_sec: period.frac_sec,
        period_shift: period.shift,
        period_maxerror: period.frac_sec / 1_000_000,
        ..vmclock::Contents::default()
    };
    let silent = Estimate::from_vmclock(&page).unwrap();
    assert_eq!(
        (silent.rate.rounded_hz(), silent.bound),
        (2_600_000_000, Ppb::from_femto(1))
    );
    let flags = vmclock::Flags::PERIOD_MAXERROR_VALID;
    let stated = Estimate::from_vmclock(&vmclock::Contents { flags, ..page }).unwrap();
    // 1 ppm and the period's own last digit, in parts of the shortest period that the page allows: 1 / (10^6 - 1), rounded up.
    assert_eq!(stated.bound, Ppb::from_femto(1_000_001_001));
    let hopeless = vmclock::Contents {
        flags,
        period_maxerror: period.frac_sec,
        ..page
    };
    assert_eq!(
        Estimate::from_vmclock(&hopeless).map(|e| e.bound),
        Some(Ppb::MAX)
    );
    assert_eq!(Estimate::from_vmclock(&vmclock::Contents::default()), None);
    for period_shift in [64, 255] {
        assert_eq!(
            Estimate::from_vmclock(&vmclock::Contents {
                period_shift,
                ..page
            }),
            None
        );
    }
}

#[test]
fn zeros_state_nothing() {
    assert_eq!(Estimate::from_nominal(Leaf::ZERO), None);
    assert_eq!(Estimate::from_hypervisor_leaf(Leaf::ZERO), None);
    assert_eq!(Estimate::from_hyperv_msr(0), None);
    for leaf in [(0, 216, 24_000_000), (2, 0, 24_000_000), (2, 216, 0)] {
        let leaf = Leaf {
            eax: leaf.0,
            ebx: leaf.1,
            ecx: leaf.2,
            edx: 0,
        };
        assert_eq!(Estimate::from_crystal(leaf), None);
    }
    assert!(Estimate::from_pvclock(&Contents::default(), Granularity::Exact).is_err());
    assert_eq!(most_exact(&[]), None);
}

#[test]
fn an_estimate_is_printed_with_its_channel_and_bound() {
    let estimate = Estimate::from_hypervisor_leaf(Leaf {
        eax: 2_600_000,
        ..Leaf::ZERO
    })
    .unwrap();
    assert_eq!(
        estimate.to_string(),
        "2600.000000 MHz by CPUID 0x40000010 (+-384.615385 ppb)"
    );
}

/// A page whose period is wrong by all that it admits, one way or the other.
fn vmclock_page(rate: Hertz, off: u64, longer: bool) -> vmclock::Contents {
    let period = vmclock::Period::of(rate).expect("above 1 Hz");
    let longest = u64::MAX - period.frac_sec;
    let off = if longer { off.min(longest) } else { off };
    vmclock::Contents {
        period_frac_sec: if longer {
            period.frac_sec + off
        } else {
            period.frac_sec - off
        },
        period_shift: period.shift,
        period_maxerror: off,
        flags: vmclock::Flags::PERIOD_MAXERROR_VALID,
        ..vmclock::Contents::default()
    }
}

proptest! {
    /// Each channel's statement about a counter is within the channel's bound of that counter's rate, for every rate.
    #[test]
    fn the_true_rate_is_within_each_bound(true_hz in 100_000_000_u64..8_000_000_000, millihertz in 0_u64..1_000, off in 3_u64..1 << 62, sign: bool) {
        let rate = Hertz::from_ratio(u128::from(true_hz) * 1_000 + u128::from(millihertz), 1_000).unwrap();
        let khz = u32::try_from(true_hz / 1_000).unwrap();
        let by_khz = Hertz::from_khz(khz).unwrap();
        let page = |rate| Parameters::through(Tsc::from_ticks(0), RefTime::ZERO, rate).unwrap();
        let estimates = [
            Estimate::from_nominal(Leaf { eax: u32::try_from(true_hz / 1_000_000).unwrap(), ..Leaf::ZERO }),
            Estimate::from_hypervisor_leaf(Leaf { eax: khz, ..Leaf::ZERO }),
            Estimate::from_hyperv_msr(true_hz),
            Estimate::from_hyperv_msr(u64::from(khz) * 1_000),
            Estimate::from_crystal(Leaf { eax: 1, ebx: 100, ecx: u32::try_from((true_hz + 50) / 100).unwrap(), edx: 0 }),
            Estimate::from_vmclock(&vmclock_page(rate, off, sign)),
            Estimate::from_pvclock(&record(by_khz, Rounding::Floor), Granularity::Kilohertz).ok(),
            Estimate::from_pvclock(&record(by_khz, Rounding::Nearest), Granularity::Kilohertz).ok(),
            Estimate::from_pvclock(&record(rate, Rounding::Nearest), Granularity::Exact).ok(),
            Estimate::from_reference_page(&page(rate), Granularity::Exact).ok(),
        ]
        .map(|estimate| estimate.expect("each channel states it"));
        for estimate in &estimates {
            let off = rate.error_against(estimate.rate).saturating_abs();
            prop_assert!(off <= sum(estimate.bound, Ppb::from_femto(1)), "{} ppb off: {}", off, estimate);
        }
        for (first, second, apart) in disagreements(&estimates) {
            prop_assert!(apart.is_explained(), "{} and {}: {:?}", first, second, apart);
        }
    }

    #[test]
    fn any_leaf_is_safe(eax: u32, ebx: u32, ecx: u32) {
        let leaf = Leaf { eax, ebx, ecx, edx: 0 };
        for estimate in [Estimate::from_crystal(leaf), Estimate::from_nominal(leaf), Estimate::from_hypervisor_leaf(leaf)].into_iter().flatten() {
            prop_assert!(estimate.bound > Ppb::ZERO);
        }
    }
}
