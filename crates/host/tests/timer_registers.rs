//! The guest's two doors to the APIC timer, the lead of a back-end, and the lost-tick policies as a VMM sees them.
#![allow(clippy::unwrap_used, reason = "a test may")]

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, Offset, TimerMode};
use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Hertz, Nanos, Ppb, Reading, Tsc, TscDelta};
use chronovisor_host::apic::{
    AccessFault, CatchUp, DeadlineMode, Delivery, Lead, LeadBounds, LocalTimer, LostTicks,
    MinimumPeriod, Place, Power, PreemptionTimer, Rates, Set, Settings, SoftwareTimer,
    TimerRegister, Wake, Wakeups,
};

const VECTOR: u8 = 0xec;

fn at(ticks: u64) -> Tsc {
    Tsc::from_ticks(ticks)
}

/// A bus of 1 GHz and a TSC of 2 GHz.
fn settings(lost_ticks: LostTicks, deadline_mode: DeadlineMode) -> Settings {
    let hz = |hz| Hertz::from_hz(hz).unwrap();
    Settings {
        rates: Rates::new(hz(1_000_000_000), hz(2_000_000_000)).unwrap(),
        minimum_period: MinimumPeriod::NONE,
        lost_ticks,
        deadline_mode,
    }
}

fn timer(deadline_mode: DeadlineMode) -> LocalTimer {
    LocalTimer::new(settings(LostTicks::Merge, deadline_mode), at(0))
}

/// A periodic timer of 1 ms, which is 2 000 000 ticks.
fn periodic(lost_ticks: LostTicks) -> LocalTimer {
    let mut timer = LocalTimer::new(settings(lost_ticks, DeadlineMode::Offered), at(0));
    for (register, value) in [
        (
            TimerRegister::DivideConfiguration,
            DivideConfiguration::BY_1.0,
        ),
        (
            TimerRegister::LvtTimer,
            LvtTimer::new(TimerMode::PERIODIC, VECTOR).0,
        ),
        (TimerRegister::InitialCount, 1_000_000),
    ] {
        let _ = timer.write(register, value.into(), at(0));
    }
    timer
}

#[test]
fn registers_after_reset() {
    let mut timer = periodic(LostTicks::Merge);
    timer.reset(at(1000));
    for (msr, value) in [
        (0x832, 0x1_0000),
        (0x838, 0),
        (0x839, 0),
        (0x83e, 0),
        (0x6e0, 0),
    ] {
        assert_eq!(timer.read_msr(Msr(msr), at(1000)), Ok(value), "{msr:#x}");
    }
    assert_eq!(timer.next_deadline(), None);
}

/// The spurious-interrupt vector register resets to 0xff: bit 8, the software enable, is 0. An APIC that is off stays off.
#[test]
fn after_a_reset_the_apic_waits_to_be_enabled() {
    let unmasked = LvtTimer::new(TimerMode::ONE_SHOT, VECTOR);
    let mut timer = periodic(LostTicks::Merge);
    timer.reset(at(1000));
    let mut lvt_after = |power, now| {
        let _ = timer.set_power(power, at(now));
        let _ = timer.write(TimerRegister::LvtTimer, unmasked.0.into(), at(now));
        let read = timer.read(TimerRegister::LvtTimer, at(now));
        (read, timer.save(at(now)).power)
    };
    let masked = u64::from(unmasked.masked().0);
    assert_eq!(
        lvt_after(Power::SoftwareDisabled, 1000),
        (masked, Power::SoftwareDisabled)
    );
    assert_eq!(lvt_after(Power::On, 2000), (unmasked.0.into(), Power::On));
    let _ = timer.set_power(Power::Off, at(3000));
    timer.reset(at(4000));
    assert_eq!(timer.save(at(4000)).power, Power::Off);
}

#[test]
fn the_page_and_the_msrs_are_the_same_registers() {
    let mut timer = timer(DeadlineMode::Offered);
    for (offset, msr, value) in [
        (Offset::LVT_TIMER, Msr(0x832), 0x2_00ec),
        (Offset::INITIAL_COUNT, Msr(0x838), 77),
        (Offset::DIVIDE_CONFIGURATION, Msr(0x83e), 0x9),
    ] {
        let _ = timer.write_page(offset, value, at(0)).unwrap();
        assert_eq!(timer.read_msr(msr, at(0)), Ok(value.into()));
        assert_eq!(timer.read_page(offset, at(0)), Some(value));
    }
    assert!(timer.write_page(Offset::EOI, 0, at(0)).is_none());
    assert_eq!(timer.read_page(Offset::SPURIOUS_VECTOR, at(0)), None);
    // The page drops what is reserved, and takes no write to the current count.
    let _ = timer.write_page(Offset::LVT_TIMER, u32::MAX, at(0));
    assert_eq!(
        timer.read_page(Offset::LVT_TIMER, at(0)),
        Some(LvtTimer::WRITABLE)
    );
    let _ = timer.write_page(Offset::CURRENT_COUNT, 5, at(0));
    assert_eq!(timer.read_page(Offset::CURRENT_COUNT, at(0)), Some(0));
}

#[test]
fn the_msrs_refuse_reserved_bits() {
    use DeadlineMode::{Absent, Offered};
    for (msr, value, mode, reserved) in [
        (0x832, 0x8_0030, Offered, 0x8_0000),
        (0x832, 0x100, Offered, 0x100),
        (0x832, 1 << 32, Offered, 1 << 32),
        (0x832, 0x4_0030, Absent, 0x4_0000),
        (0x838, 1 << 32, Offered, 1 << 32),
        (0x83e, 0x4, Offered, 0x4),
        (0x83e, 0x13, Offered, 0x10),
    ] {
        let msr = Msr(msr);
        let fault = AccessFault::ReservedBits {
            msr,
            value,
            reserved,
        };
        assert_eq!(timer(mode).write_msr(msr, value, at(0)), Err(fault));
    }
    // The read-only status bit is no reserved one, and is not kept.
    let mut timer = timer(Offered);
    assert!(timer.write_msr(Msr(0x832), 0x1030, at(0)).is_ok());
    assert_eq!(timer.read_msr(Msr(0x832), at(0)), Ok(0x30));
    let msr = Msr(0x839);
    assert_eq!(
        timer.write_msr(msr, 0, at(0)),
        Err(AccessFault::ReadOnly { msr })
    );
    let msr = Msr(0x80b);
    assert_eq!(
        timer.read_msr(msr, at(0)),
        Err(AccessFault::NoSuchRegister { msr })
    );
}

#[test]
fn a_vector_below_16_is_an_error_and_no_interrupt() {
    let mut timer = periodic(LostTicks::Merge);
    let lvt = LvtTimer::new(TimerMode::PERIODIC, 15).0.into();
    let _ = timer.write(TimerRegister::LvtTimer, lvt, at(0));
    assert_eq!(
        timer.expire(at(2_000_000)).delivery,
        Delivery::IllegalVector(15)
    );
}

/// T = 1 ms, nothing until 10.35 ms later: n = 10.
#[test]
fn a_stall_under_each_policy() {
    let ms = 2_000_000;
    let stalled = ms + 20_700_000;
    let mut merge = periodic(LostTicks::Merge);
    let effects = merge.expire(at(stalled));
    assert_eq!(
        (effects.delivery, effects.merged, effects.lost),
        (Delivery::Interrupt(VECTOR), 10, 0)
    );

    let mut skip = periodic(LostTicks::SkipOnGrid);
    let effects = skip.expire(at(stalled));
    assert_eq!(
        (effects.delivery, effects.merged, effects.lost),
        (Delivery::Interrupt(VECTOR), 0, 10)
    );
    assert_eq!(skip.next_deadline().unwrap().at(), at(12 * ms));
    // 0.6 of a period late: lost.
    let effects = skip.expire(at(12 * ms + 1_200_000));
    assert_eq!((effects.delivery, effects.lost), (Delivery::Nothing, 1));

    let mut catch_up = periodic(LostTicks::CatchUp(CatchUp::DEFAULT));
    let mut told = vec![stalled];
    let mut total = catch_up.expire(at(stalled)).expiries;
    loop {
        let due = catch_up.next_deadline().unwrap().at().as_ticks();
        let effects = catch_up.expire(at(due));
        total += effects.expiries;
        assert_eq!(
            (effects.delivery, effects.lost),
            (Delivery::Interrupt(VECTOR), 0)
        );
        told.push(due);
        if due.is_multiple_of(ms) && catch_up.backlog() == 0 {
            break;
        }
    }
    assert_eq!(total, u64::try_from(told.len()).unwrap());
    assert!(
        told.windows(2).all(|pair| pair[1] - pair[0] >= ms / 2),
        "{told:?}"
    );
}

#[test]
fn a_lead_wakes_early_waits_and_learns_within_its_bounds() {
    let ticks = TscDelta::from_ticks;
    assert_eq!(
        LeadBounds::new(ticks(2), ticks(1), ticks(0), ticks(9)),
        None
    );
    assert_eq!(
        LeadBounds::new(ticks(1), ticks(1), ticks(9), ticks(0)),
        None
    );
    let bounds = LeadBounds::new(ticks(2000), ticks(10_000), ticks(100), ticks(10_000)).unwrap();
    let mut timer = periodic(LostTicks::Merge);
    let preemption = PreemptionTimer::new(5).unwrap();
    let mut wakeups = Wakeups::new(SoftwareTimer::new(timer.settings().rates.tsc()), preemption)
        .with_lead(Lead::new(bounds));
    let reading = |tsc: u64| Reading::new(Nanos::from_ns(tsc / 2), at(tsc));
    assert_eq!(
        wakeups.set(&timer, Place::Guest, reading(0)),
        Set::Preemption
    );
    assert_eq!(wakeups.preemption().expires(), Some(at(1_998_016)));
    // Woken with 1984 ticks to go: wait for them, and lead less the next time.
    let woken = wakeups.wake(&mut timer, Place::Guest, reading(1_998_016));
    assert_eq!(woken, Wake::Wait(at(2_000_000)));
    assert_eq!(wakeups.lead().unwrap().ticks(), ticks(2000 - 1984 / 8));
    assert_eq!(timer.read(TimerRegister::CurrentCount, at(1_998_016)), 992);
    // The interrupt is never early, however large the lead; 400 ticks late, lead more.
    let woken = wakeups.wake(&mut timer, Place::Guest, reading(2_000_400));
    assert!(
        matches!(woken, Wake::Done(effects) if effects.delivery == Delivery::Interrupt(VECTOR))
    );
    assert_eq!(wakeups.lead().unwrap().ticks(), ticks(2000 - 1984 / 8 + 50));
    // Noise and absences teach nothing, and what grows beyond the bound starts again.
    let mut lead = Lead::new(bounds);
    for (late, expected) in [(99, 2000), (10_001, 2000), (8000, 3000)] {
        lead.learn_late(ticks(late));
        assert_eq!(lead.ticks(), ticks(expected));
    }
    for _ in 0..8 {
        lead.learn_late(ticks(8000));
    }
    assert_eq!(lead.ticks(), ticks(2000));
}

/// A clock 100 ppm fast wakes 100 ns before 1 ms is over, unless the back-end knows.
#[test]
fn a_fast_host_clock_costs_a_second_wake_up_unless_its_slew_is_known() {
    for (known, expected) in [(0, 2), (100_000, 1)] {
        let mut timer = periodic(LostTicks::Merge);
        let software = SoftwareTimer::new(timer.settings().rates.tsc())
            .with_slew(Ppb::from_ppb_saturating(known));
        let mut wakeups = Wakeups::new(software, PreemptionTimer::new(5).unwrap());
        let host = |tsc: u64| Reading::new(Nanos::from_ns((tsc / 2) * 10_001 / 10_000), at(tsc));
        let _ = wakeups.set(&timer, Place::Host, host(0));
        let mut wake_ups = 0;
        loop {
            wake_ups += 1;
            // The first TSC at which the host's clock says what the timer was set to.
            let expires = wakeups.software().expires().unwrap().as_ns();
            let tsc = (expires * 10_000).div_ceil(10_001) * 2;
            if let Wake::Done(effects) = wakeups.wake(&mut timer, Place::Host, host(tsc)) {
                assert_eq!(effects.delivery, Delivery::Interrupt(VECTOR));
                assert!((2_000_000..2_000_000 + 10).contains(&tsc), "{tsc}");
                break;
            }
        }
        assert_eq!(wake_ups, expected);
    }
}
