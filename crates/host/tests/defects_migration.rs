//! Faults of other save and restore paths, and of what guests are told about rates, each as a test that ours does not have it.

mod support;

use chronovisor_abi::cpuid::{self, Leaf};
use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Hertz, Nanos, TscDelta};
use chronovisor_host::cpuid_leaves::{
    Channel, Crystal, HypervisorFrequencies, Offer, OfferError, Source as Told, check_channels,
};
use chronovisor_host::migration::{
    AdjustError, Policy, RESTORE_ORDER, Ratio, ScalingHardware, adjust,
};
use chronovisor_host::msr_surface::{Answer, Privileges};
use support::partition::{
    GHZ_2_6, destination, enabled, hz, ns, pvclock, read, source, ticks, update,
};

/// A deadline is the guest's counter, whatever offset the host adds to its own.
#[test]
fn d62_a_deadline_is_in_the_guests_counter() {
    let (surface, _) = enabled(1, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(1_000_000));
    for host_tsc in [0, 5, u64::MAX / 2, u64::MAX] {
        let there = destination(host_tsc, 0, hz(GHZ_2_6), ScalingHardware::None);
        let (_, done) = adjust(&state, &source(1_000_000, 0), &there, Policy::Stop).unwrap();
        assert_eq!(done.deadline(ticks(2_000_000)), ticks(2_000_000));
    }
}

/// The APIC frequency MSR is the rate at which the timer counts, not a constant.
#[test]
fn d64_the_apic_frequency_is_the_real_one() {
    let (mut surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    assert_eq!(
        read(&mut surface, 0, Msr::HV_APIC_FREQUENCY, 0, &memory),
        Answer::Value(1_000_000_000)
    );
    let told = Channel {
        source: Told::HypervMsrApic,
        rate: hz(200_000_000),
    };
    assert!(check_channels(hz(GHZ_2_6), hz(GHZ_2_6), [told]).is_err());
}

/// The host's leaf 0x15 under scaling (timers late by 2.8), and a crystal of 24 MHz against a timer of 128 MHz.
#[test]
fn d65_every_channel_tells_one_rate() {
    let offer = Offer {
        privileges: Privileges::EVERYTHING,
        tsc: hz(1_000_000_000),
        ..Offer::nothing()
    };
    let leaves = offer.leaves().unwrap();
    let host = Leaf {
        eax: 1,
        ebx: 100,
        ecx: 28_000_000,
        edx: 0,
    };
    assert_eq!(leaves.amend(cpuid::TSC_AND_CRYSTAL, host), Leaf::ZERO);
    assert_eq!(leaves.amend(cpuid::PROCESSOR_FREQUENCIES, host), Leaf::ZERO);
    assert_eq!(leaves.amend(0x4000_0100 + 7, host), Leaf::ZERO);
    let crystal = Channel {
        source: Told::CrystalLeafApic,
        rate: hz(24_000_000),
    };
    let error = check_channels(hz(1_000_000_000), hz(128_000_000), [crystal]).unwrap_err();
    assert_eq!((error.told, error.real), (hz(24_000_000), hz(128_000_000)));
}

/// Every interface that stands alone tells the rate through at least one channel.
#[test]
fn d66_a_guest_can_learn_the_rate() {
    let hyperv = Privileges {
        kvm_eax: 0,
        ..Privileges::EVERYTHING
    };
    let kvm = Privileges {
        hyperv_eax: 0,
        hyperv_edx: 0,
        ..Privileges::EVERYTHING
    };
    for (privileges, crystal, tells) in [
        (hyperv, Crystal::Absent, true),
        (kvm, Crystal::Absent, true),
        (Privileges::NONE, Crystal::FromApicRate, true),
        (Privileges::NONE, Crystal::Absent, false),
    ] {
        let offer = Offer {
            privileges,
            crystal,
            apic: hz(25_000_000),
            ..Offer::nothing()
        };
        assert_eq!(offer.tells_tsc_rate(), tells, "{privileges:?} {crystal:?}");
    }
}

/// The destination's clock is behind the source's: no time has passed, and it is said.
#[test]
fn d67_a_negative_pause_is_none_and_reported() {
    let (surface, _) = enabled(1, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(1000));
    for policy in [Policy::Stop, Policy::Advance, Policy::PerEncoding] {
        let there = destination(0, 1_000_000, hz(GHZ_2_6), ScalingHardware::None);
        let (_, done) = adjust(&state, &source(1000, 5_000_000), &there, policy).unwrap();
        assert_eq!(
            (done.downtime, done.clamped, done.tsc),
            (Nanos::ZERO, ns(4_000_000), ticks(1000))
        );
        // A host that is younger than the guest: the offset is negative, not refused.
        assert_eq!(done.offset, TscDelta::from_ticks(1000));
        let young = destination(1_000_000, 5_000_000, hz(GHZ_2_6), ScalingHardware::None);
        let (_, done) = adjust(&state, &source(1000, 5_000_000), &young, policy).unwrap();
        assert_eq!(
            done.offset,
            TscDelta::from_ticks(1000_u64.wrapping_sub(1_000_000))
        );
    }
}

/// offset = tsc - (host * ratio >> bits); without the ratio it is off by a sixth of the host's counter.
#[test]
fn d68_the_offset_knows_the_ratio() {
    let (surface, _) = enabled(1, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(GHZ_2_6));
    for scaling in [ScalingHardware::Bits32, ScalingHardware::Bits48] {
        let there = destination(1 << 47, 0, hz(3_000_000_000), scaling);
        let (_, done) = adjust(&state, &source(GHZ_2_6, 0), &there, Policy::Stop).unwrap();
        assert_eq!(
            done.ratio.scale(ticks(1 << 47)).wrapping_add(done.offset),
            ticks(GHZ_2_6)
        );
        let exact = 2_600_000_000_f64 / 3_000_000_000_f64;
        let bits = i32::from(done.ratio.fraction_bits());
        #[expect(clippy::cast_precision_loss, reason = "a coarse look at the ratio")]
        let ratio = done.ratio.ratio() as f64 / 2_f64.powi(bits);
        assert!((ratio - exact).abs() < 1e-9);
    }
    // A source that is scaled as well.
    let scaled = chronovisor_host::migration::Source {
        scaling: Ratio::new(1 << 47, 48).unwrap(), // one half
        offset: TscDelta::from_ticks(7),
        ..source(2 * GHZ_2_6, 0)
    };
    let there = destination(3, 0, hz(GHZ_2_6), ScalingHardware::None);
    let (_, done) = adjust(&state, &scaled, &there, Policy::Stop).unwrap();
    assert_eq!(done.tsc_before, ticks(GHZ_2_6 + 7));
}

#[test]
fn d69_the_default_policy_is_to_stop() {
    assert_eq!(Policy::default(), Policy::Stop);
}

/// A clock that advances takes the counter with it, so a guest on either clock source sees the same.
#[test]
fn d70_counter_and_pvclock_advance_together() {
    let (surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(GHZ_2_6));
    let there = destination(0, 10_000_000_000, hz(GHZ_2_6), ScalingHardware::None);
    let (_, done) = adjust(&state, &source(GHZ_2_6, 0), &there, Policy::Advance).unwrap();
    assert_eq!(done.tsc, ticks(11 * GHZ_2_6));
    assert_eq!(done.pvclock_gained, ns(10_000_000_000));
    assert_eq!(pvclock(&memory, 0, 11 * GHZ_2_6), 11_000_000_000);
    // A deadline that the guest set is where it was: it has passed.
    assert_eq!(done.deadline(ticks(2 * GHZ_2_6)), ticks(2 * GHZ_2_6));
}

/// The offset is computed, not measured: it gives the counter to the tick.
#[test]
fn d71_the_offset_is_exact() {
    let (surface, _) = enabled(1, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(123_456_789));
    let there = destination(
        987_654_321_987,
        0,
        hz(2_111_111_111),
        ScalingHardware::Bits32,
    );
    let (_, done) = adjust(&state, &source(123_456_789, 0), &there, Policy::Stop).unwrap();
    assert_eq!(
        done.ratio
            .scale(ticks(987_654_321_987))
            .wrapping_add(done.offset),
        ticks(123_456_789)
    );
}

/// One offset for all vCPUs, set before the counter and the clock.
#[test]
fn d72_the_offset_is_the_vms_and_comes_first() {
    let at = |words: &str| {
        RESTORE_ORDER
            .iter()
            .position(|step| step.what.contains(words))
            .unwrap()
    };
    assert!(at("TSC rate") < at("TSC offset"));
    assert!(at("CPUID") < at("local APIC, then the MSRs"));
    assert!(at("TSC offset") < at("TSC before the TSC deadline"));
    assert!(at("TSC deadline") < at("Change::Resume"));
    assert!(at("Change::Resume") < at("Change::GuestStopped"));
    assert!(RESTORE_ORDER.iter().all(|step| !step.because.is_empty()));
}

#[test]
fn a_pair_from_before_the_save_is_refused() {
    let (surface, _) = enabled(1, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(1000));
    let there = destination(0, 0, hz(GHZ_2_6), ScalingHardware::None);
    let refused = adjust(&state, &source(999, 0), &there, Policy::Stop);
    assert!(
        matches!(refused, Err(AdjustError::PairBeforeSave { .. })),
        "{refused:?}"
    );
    let far = destination(0, 0, hz(1_000_000), ScalingHardware::Bits32);
    let refused = adjust(&state, &source(1000, 0), &far, Policy::Stop);
    assert!(
        matches!(refused, Err(AdjustError::RatioDoesNotFit { .. })),
        "{refused:?}"
    );
}

/// The true rate of a scaled counter is used, not the one that was wanted.
#[test]
fn a_rounded_ratio_is_a_rate_of_its_own() {
    let (surface, memory) = enabled(1, hz(GHZ_2_6), 0);
    let state = surface.save(ticks(GHZ_2_6));
    let there = destination(0, 0, hz(2_999_999_987), ScalingHardware::Bits32);
    let (state, done) = adjust(&state, &source(GHZ_2_6, 0), &there, Policy::Stop).unwrap();
    let exact = Hertz::from_ratio(2_999_999_987 * u128::from(done.ratio.ratio()), 1 << 32).unwrap();
    assert_eq!(done.rate, exact);
    assert_ne!(done.rate, hz(GHZ_2_6));
    let mut moved = support::partition::restored(&surface, &state, &memory);
    update(
        &mut moved,
        chronovisor_host::partition_clock::Change::Resume,
        GHZ_2_6,
        &memory,
    );
    assert_eq!(moved.clock().rate(), exact);
}

#[test]
fn leaves_that_would_mislead_are_refused() {
    let leaves = |offer: Offer| {
        offer
            .leaves()
            .map(|leaves| leaves.get(cpuid::TSC_AND_CRYSTAL))
    };
    let kvm = Privileges {
        hyperv_eax: 0,
        hyperv_edx: 0,
        ..Privileges::EVERYTHING
    };
    let crystal = Offer {
        privileges: kvm,
        tsc: hz(2_593_906_000),
        apic: hz(25_000_000),
        crystal: Crystal::FromApicRate,
        ..Offer::nothing()
    };
    // 25 000 kHz * 1 296 953 overflows the guest's 32 bits.
    assert!(matches!(
        leaves(crystal),
        Err(OfferError::CrystalDoesNotFit { .. })
    ));
    let fits = leaves(Offer {
        apic: hz(1_000_000),
        ..crystal
    })
    .unwrap();
    assert_eq!(cpuid::tsc_from_crystal(fits), Some(hz(2_593_906_000)));
    let with_khz = Offer {
        crystal: Crystal::Absent,
        hypervisor_frequencies: HypervisorFrequencies::Offered,
        ..crystal
    };
    let leaf = with_khz
        .leaves()
        .unwrap()
        .get(cpuid::HYPERVISOR_FREQUENCIES);
    assert_eq!((leaf.eax, leaf.ebx), (2_593_906, 25_000));
    let nominal = Offer {
        processor_mhz: Some(3_000),
        ..with_khz
    };
    assert!(matches!(nominal.leaves(), Err(OfferError::Channel(_))));
}
