//! Years of uptime: the closed form is the same as ticking, and after 723 days the grid is where it was.
#![allow(clippy::unwrap_used, reason = "a test may")]

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode};
use chronovisor_abi::quantity::{Hertz, Nanos, Reading, Tsc};
use chronovisor_host::apic::{
    DeadlineMode, Delivery, LocalTimer, LostTicks, MinimumPeriod, Place, PreemptionTimer, Rates,
    Set, Settings, SoftwareTimer, TimerRegister, Wake, Wakeups,
};

/// A rate with which 1 ms is no whole number of ticks.
const TSC_HZ: u64 = 2_599_999_507;
const VECTOR: u8 = 0xd1;
/// Host lock-ups were reported after this uptime: 723 days, 17 hours, 47 minutes.
const UPTIME_TICKS_MS: u64 = ((723 * 24 + 17) * 60 + 47) * 60 * 1000;

/// The first TSC value at which `tick` milliseconds are over.
fn exact(tick: u64) -> Tsc {
    let ticks = (u128::from(tick) * u128::from(TSC_HZ)).div_ceil(1000);
    Tsc::from_ticks(u64::try_from(ticks).unwrap())
}

fn timer(lost_ticks: LostTicks) -> LocalTimer {
    let bus = Hertz::from_ratio(400_000_000, 3).unwrap();
    let settings = Settings {
        rates: Rates::new(bus, Hertz::from_hz(TSC_HZ).unwrap()).unwrap(),
        minimum_period: MinimumPeriod::KVM,
        lost_ticks,
        deadline_mode: DeadlineMode::Offered,
    };
    let start = Tsc::from_ticks(0);
    let mut timer = LocalTimer::new(settings, start);
    for (register, value) in [
        (
            TimerRegister::DivideConfiguration,
            DivideConfiguration::BY_1.0,
        ),
        (
            TimerRegister::LvtTimer,
            LvtTimer::new(TimerMode::PERIODIC, VECTOR).0,
        ),
        (TimerRegister::InitialCount, 400_000),
    ] {
        let _ = timer.write(register, value.into(), start);
    }
    timer
}

/// One period of [`timer`]: 400 000 counts of a 133.333.. MHz bus.
const PERIOD_MS: u64 = 3;

#[test]
fn an_hour_in_one_call_is_an_hour_of_ticks() {
    for policy in [LostTicks::Merge, LostTicks::SkipOnGrid] {
        let (mut ticking, mut closed) = (timer(policy), timer(policy));
        let ticks = 3_600_000 / PERIOD_MS;
        let mut interrupts = 0_u64;
        for tick in 1..=ticks {
            let effects = ticking.expire(exact(tick * PERIOD_MS));
            interrupts += u64::from(effects.delivery == Delivery::Interrupt(VECTOR));
        }
        assert_eq!(interrupts, ticks);
        assert_eq!(closed.expire(exact(ticks * PERIOD_MS)).expiries, ticks);
        assert_eq!(ticking, closed, "{policy:?}");
    }
}

#[test]
fn a_million_ticks_after_723_days_are_on_the_grid_across_back_end_switches() {
    let mut timer = timer(LostTicks::Merge);
    let tsc = Hertz::from_hz(TSC_HZ).unwrap();
    let mut wakeups = Wakeups::new(SoftwareTimer::new(tsc), PreemptionTimer::new(5).unwrap());
    let before = UPTIME_TICKS_MS / PERIOD_MS;
    assert_eq!(timer.expire(exact(before * PERIOD_MS)).expiries, before);
    for tick in before + 1..=before + 1_000_000 {
        let due = exact(tick * PERIOD_MS);
        assert_eq!(
            timer.next_deadline().map(|deadline| deadline.at()),
            Some(due)
        );
        let host_ns = tick * PERIOD_MS * 1_000_000;
        // One back-end carries the first half of each period, the other one the second half.
        let (first, then, place) = if tick % 2 == 0 {
            (Place::Guest, Set::Software, Place::Host)
        } else {
            (Place::Host, Set::Preemption, Place::Guest)
        };
        let start = Reading::new(
            Nanos::from_ns(host_ns - 3_000_000),
            exact((tick - 1) * PERIOD_MS),
        );
        let _ = wakeups.set(&timer, first, start);
        let halfway = Reading::new(
            Nanos::from_ns(host_ns - 1_000_000),
            exact(tick * PERIOD_MS - 1),
        );
        assert_eq!(wakeups.set(&timer, place, halfway), then);
        let now = Reading::new(Nanos::from_ns(host_ns), due);
        let woken = wakeups.wake(&mut timer, place, now);
        assert!(
            matches!(woken, Wake::Done(effects) if effects.expiries == 1 && effects.delivery == Delivery::Interrupt(VECTOR)),
            "tick {tick}: {woken:?}"
        );
    }
}
