//! Known defects of counting: rates, polling, dividers, modes, late and short periods.

use crate::timer::{FIRED, VECTOR, at, count, counting, due, hz, plain, settings, write};
use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode};
use chronovisor_abi::quantity::Hertz;
use chronovisor_host::apic::{Delivery, LocalTimer, MinimumPeriod, Settings, TimerRegister};

#[test]
fn d43_late_calls_do_not_add_up() {
    let mut timer = counting(plain(), TimerMode::PERIODIC, 1_000_000);
    for tick in 1..=100_000_u64 {
        // Each call is 5 us late.
        let now = tick * 2_000_000 + 10_000;
        assert_eq!(timer.expire(at(now)).expiries, 1);
        assert_eq!(due(&timer), Some((tick + 1) * 2_000_000));
    }
}

/// now - T = 10.35 ms: next due T + 11 ms.
#[test]
fn d45_a_late_tick_keeps_the_phase() {
    let mut timer = counting(plain(), TimerMode::PERIODIC, 1_000_000);
    let effects = timer.expire(at(2_000_000 + 20_700_000));
    assert_eq!(
        (effects.expiries, effects.merged, effects.delivery),
        (11, 10, FIRED)
    );
    assert_eq!(due(&timer), Some(12 * 2_000_000));
}

#[test]
fn d46_the_minimum_period_is_reported_and_time_is_counted() {
    let minimum = MinimumPeriod::KVM;
    let mut timer = counting(
        Settings {
            minimum_period: minimum,
            ..plain()
        },
        TimerMode::PERIODIC,
        1_000_000,
    );
    let effects = timer.write(TimerRegister::InitialCount, 70_000, at(0));
    // 70 us: three periods are the first multiple above 200 us.
    assert_eq!(effects.periods_per_interrupt, Some(3));
    assert_eq!(due(&timer), Some(3 * 140_000));
    let effects = timer.expire(at(3 * 140_000));
    assert_eq!(
        (effects.expiries, effects.merged, effects.delivery),
        (3, 2, FIRED)
    );
    assert_eq!(count(&timer, 3 * 140_000 + 70_000 + 140_000), 35_000);
}

#[test]
fn d47_a_count_of_1_is_not_an_interrupt_each_nanosecond() {
    let timer = counting(
        Settings {
            minimum_period: MinimumPeriod::KVM,
            ..plain()
        },
        TimerMode::PERIODIC,
        1,
    );
    assert_eq!(due(&timer), Some(400_000));
}

#[test]
fn d48_polling_does_not_speed_the_count_up() {
    for (divide, log2) in [(2, 3), (3, 4), (8, 5)] {
        let mut timer = counting(
            settings(hz(200_000_000), hz(2_600_000_000)),
            TimerMode::ONE_SHOT,
            10_000_000,
        );
        write(&mut timer, TimerRegister::DivideConfiguration, divide, 0);
        write(&mut timer, TimerRegister::InitialCount, 10_000_000, 0);
        // 0.3 us apart, for 0.1 s; both reads and calls.
        for poll in 0..333_333_u64 {
            let now = poll * 780;
            assert_eq!(count(&timer, now), 10_000_000 - now / (13 << log2));
            assert_eq!(timer.expire(at(now)).expiries, 0);
        }
    }
}

#[test]
fn d51_what_is_due_happens_before_the_mode_changes() {
    let mut timer = counting(plain(), TimerMode::PERIODIC, 1000);
    // Due at 2000; at 2500 the guest makes it a one-shot with another vector.
    let lvt = LvtTimer::new(TimerMode::ONE_SHOT, 0x55).0.into();
    assert_eq!(write(&mut timer, TimerRegister::LvtTimer, lvt, 2500), FIRED);
    assert_eq!(count(&timer, 2500), 750);
    assert_eq!(timer.expire(at(4000)).delivery, Delivery::Interrupt(0x55));
    assert_eq!(due(&timer), None);
}

#[test]
fn d52_one_shot_to_periodic_keeps_counting() {
    let mut timer = counting(plain(), TimerMode::ONE_SHOT, 1000);
    let lvt = LvtTimer::new(TimerMode::PERIODIC, VECTOR).0.into();
    write(&mut timer, TimerRegister::LvtTimer, lvt, 600);
    assert_eq!((count(&timer, 600), due(&timer)), (700, Some(2000)));
    assert_eq!(timer.expire(at(2000)).delivery, FIRED);
    assert_eq!(due(&timer), Some(4000));
}

#[test]
fn d53_another_divider_rescales_the_rest() {
    let mut timer = counting(plain(), TimerMode::ONE_SHOT, 1000);
    assert_eq!(count(&timer, 501), 750);
    write(
        &mut timer,
        TimerRegister::DivideConfiguration,
        DivideConfiguration::BY_16.0.into(),
        501,
    );
    // 749.5 counts are left, each 32 ticks now.
    assert_eq!(count(&timer, 501), 750);
    assert_eq!(due(&timer), Some(501 + 23_984));
}

/// due = ceil(count * f_tsc / f_bus)
#[test]
fn d54_the_bus_period_is_no_integer() {
    let third = Hertz::from_ratio(400_000_000, 3).unwrap();
    for (bus, expected) in [
        (hz(24_000_000), 108_333_333_334_u64), // not 42 ns a tick
        (hz(26_000_000), 100_000_000_000),
        (hz(38_400_000), 67_708_333_334),
        (third, 19_500_000_000),
        (hz(1_000_000_000), 2_600_000_000),
        (hz(2_500_000_000), 1_040_000_000), // above 1 GHz: no division by zero
    ] {
        let timer = counting(
            settings(bus, hz(2_600_000_000)),
            TimerMode::ONE_SHOT,
            1_000_000_000,
        );
        assert_eq!(due(&timer), Some(expected), "{bus}");
    }
}

#[test]
fn d55_the_period_is_the_initial_count() {
    let mut timer = counting(plain(), TimerMode::PERIODIC, 1000);
    assert_eq!(timer.expire(at(1000 * 2000)).expiries, 1000);
    assert_eq!(timer.expire(at(1000 * 2000 + 1999)).expiries, 0);
}

#[test]
fn d56_a_divider_never_written_is_2() {
    let mut timer = LocalTimer::new(plain(), at(0));
    let lvt = LvtTimer::new(TimerMode::ONE_SHOT, VECTOR).0.into();
    write(&mut timer, TimerRegister::LvtTimer, lvt, 0);
    write(&mut timer, TimerRegister::InitialCount, 1000, 0);
    assert_eq!(due(&timer), Some(4000));
}
