//! Known defects of local APIC timers in the field, each as a test: the wrong behaviour must not be ours. The numbers are those of the
//! project's list of known defects.
#![allow(clippy::unwrap_used, reason = "a test may")]

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode, TimerRegisters};
use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Hertz, Nanos, Reading, Tsc, TscDelta};
use chronovisor_host::apic::{
    AccessFault, Backend, DeadlineMode, Delivery, LastInterrupt, LocalTimer, LostTicks,
    MinimumPeriod, Place, PreemptionTimer, Rates, Set, Settings, SoftwareTimer, StateError,
    TimerRegister, TimerState, Wake, Wakeups,
};

const VECTOR: u8 = 0xec;

fn hz(hz: u64) -> Hertz {
    Hertz::from_hz(hz).unwrap()
}

fn at(ticks: u64) -> Tsc {
    Tsc::from_ticks(ticks)
}

fn settings(bus: Hertz, tsc: Hertz) -> Settings {
    Settings {
        rates: Rates::new(bus, tsc).unwrap(),
        minimum_period: MinimumPeriod::NONE,
        lost_ticks: LostTicks::Merge,
        deadline_mode: DeadlineMode::Offered,
    }
}

/// A bus of 1 GHz, as KVM's, and a TSC of 2 GHz: 1 count is 2 ticks.
fn plain() -> Settings {
    settings(hz(1_000_000_000), hz(2_000_000_000))
}

fn write(timer: &mut LocalTimer, register: TimerRegister, value: u64, now: u64) -> Delivery {
    timer.write(register, value, at(now)).delivery
}

/// A timer that counts `count` in `mode`, divided by 1, from TSC 0.
fn counting(settings: Settings, mode: TimerMode, count: u32) -> LocalTimer {
    let mut timer = LocalTimer::new(settings, at(0));
    let lvt = LvtTimer::new(mode, VECTOR).0.into();
    let by_1 = DivideConfiguration::BY_1.0.into();
    write(&mut timer, TimerRegister::LvtTimer, lvt, 0);
    write(&mut timer, TimerRegister::DivideConfiguration, by_1, 0);
    write(&mut timer, TimerRegister::InitialCount, count.into(), 0);
    timer
}

/// A timer with an armed deadline.
fn armed(settings: Settings, deadline: u64, now: u64) -> LocalTimer {
    let mut timer = LocalTimer::new(settings, at(now));
    let lvt = LvtTimer::new(TimerMode::TSC_DEADLINE, VECTOR).0.into();
    write(&mut timer, TimerRegister::LvtTimer, lvt, now);
    write(&mut timer, TimerRegister::TscDeadline, deadline, now);
    timer
}

fn due(timer: &LocalTimer) -> Option<u64> {
    timer
        .next_deadline()
        .map(|deadline| deadline.at().as_ticks())
}

fn count(timer: &LocalTimer, now: u64) -> u64 {
    timer.read(TimerRegister::CurrentCount, at(now))
}

fn reading(ns: u64, tsc: u64) -> Reading<Nanos> {
    Reading::new(Nanos::from_ns(ns), at(tsc))
}

fn wakeups(tsc: Hertz) -> Wakeups<SoftwareTimer, PreemptionTimer> {
    Wakeups::new(SoftwareTimer::new(tsc), PreemptionTimer::new(5).unwrap())
}

const FIRED: Delivery = Delivery::Interrupt(VECTOR);

/// 1 ms at 2 599 999 500 Hz is 2 599 999.5 ticks: two truncated deadlines would part by 0.58 ppm.
#[test]
fn d41_the_deadline_does_not_drift_between_two_back_ends() {
    let tsc = hz(2_599_999_500);
    let mut timer = counting(
        settings(hz(1_000_000_000), tsc),
        TimerMode::PERIODIC,
        1_000_000,
    );
    let mut wakeups = wakeups(tsc);
    for tick in 1..=100_000_u64 {
        let exact = (tick * 5_199_999).div_ceil(2);
        assert_eq!(due(&timer), Some(exact));
        let place = if tick % 2 == 0 {
            Place::Guest
        } else {
            Place::Host
        };
        let now = reading(tick * 1_000_000, exact);
        assert!(
            matches!(wakeups.wake(&mut timer, place, now), Wake::Done(effects) if effects.delivery == FIRED)
        );
    }
}

#[test]
fn d42_a_one_shot_on_the_software_timer_waits_for_the_rest() {
    let settings = plain();
    let mut timer = counting(settings, TimerMode::ONE_SHOT, 1_000_000);
    let mut wakeups = wakeups(settings.rates.tsc());
    assert_eq!(
        wakeups.set(&timer, Place::Guest, reading(0, 0)),
        Set::Preemption
    );
    // Halted after 0.4 ms: 0.6 ms are left.
    assert_eq!(
        wakeups.set(&timer, Place::Host, reading(400_000, 800_000)),
        Set::Software
    );
    assert_eq!(
        wakeups.software().expires(),
        Some(Nanos::from_ns(1_000_001))
    );
    assert_eq!(count(&timer, 800_000), 600_000);
    let woken = wakeups.wake(&mut timer, Place::Host, reading(1_000_001, 2_000_002));
    assert!(matches!(woken, Wake::Done(effects) if effects.delivery == FIRED));
}

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

#[test]
fn d44_a_deadline_long_past_is_due_now_and_on_the_first_back_end() {
    let settings = plain();
    let mut timer = counting(settings, TimerMode::PERIODIC, 1_000_000);
    let mut wakeups = wakeups(settings.rates.tsc());
    let _ = wakeups.set(&timer, Place::Host, reading(0, 0));
    // Suspended for a year.
    let year = 2_000_000_000 * 86_400 * 365;
    let late = timer.next_deadline().unwrap().remaining(at(year));
    assert_eq!(late, TscDelta::ZERO);
    assert_eq!(
        wakeups.set(&timer, Place::Guest, reading(year / 2, year)),
        Set::Preemption
    );
    assert_eq!(wakeups.preemption().value(), Some(0));
    let woken = wakeups.wake(&mut timer, Place::Guest, reading(year / 2, year));
    assert!(matches!(woken, Wake::Done(effects) if effects.delivery == FIRED));
    assert_eq!(wakeups.which(), Set::Preemption);
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
fn d49_a_running_timer_survives_a_save() {
    let timer = counting(plain(), TimerMode::PERIODIC, 1_000_000);
    let state = timer.save(at(500_001));
    assert_eq!(state.registers().current_count, 750_000);
    let moved = LocalTimer::restore(plain(), &state, at(9_000_000)).unwrap();
    assert_eq!(due(&moved), Some(9_000_000 + 2_000_000 - 500_001));
}

#[test]
fn d50_a_restored_count_goes_on_and_an_expired_one_shot_stays_expired() {
    let mut timer = counting(plain(), TimerMode::ONE_SHOT, 1000);
    assert_eq!(timer.expire(at(2000)).delivery, FIRED);
    let mut moved = LocalTimer::restore(plain(), &timer.save(at(3000)), at(0)).unwrap();
    assert_eq!((due(&moved), count(&moved, 0)), (None, 0));
    assert_eq!(moved.expire(at(u64::MAX >> 2)).expiries, 0);
    // The same from the registers alone, as KVM hands them over.
    let half = TimerRegisters {
        lvt: LvtTimer::new(TimerMode::ONE_SHOT, VECTOR),
        initial_count: 1000,
        current_count: 400,
        divide: DivideConfiguration::BY_1,
        deadline: 0,
    };
    for (current_count, expected) in [(400, Some(800)), (2000, Some(2000)), (0, None)] {
        let state = TimerState::from_registers(
            TimerRegisters {
                current_count,
                ..half
            },
            LastInterrupt::Delivered,
        );
        assert_eq!(
            due(&LocalTimer::restore(plain(), &state, at(0)).unwrap()),
            expected
        );
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

#[test]
fn d57_tsc_deadline_mode_exists() {
    let mut timer = armed(plain(), 5000, 0);
    assert_eq!(timer.read(TimerRegister::TscDeadline, at(4999)), 5000);
    assert_eq!(timer.expire(at(4999)).delivery, Delivery::Nothing);
    assert_eq!(timer.expire(at(5000)).delivery, FIRED);
    assert_eq!(timer.read(TimerRegister::TscDeadline, at(5000)), 0);
    assert_eq!(timer.expire(at(9000)).delivery, Delivery::Nothing);
    // In the past: at once.
    assert_eq!(
        write(&mut timer, TimerRegister::TscDeadline, 8000, 9000),
        FIRED
    );
}

#[test]
fn d58_a_deadline_restored_before_the_tsc_is_not_dead() {
    let state = armed(plain(), 50_000_000, 40_000_000).save(at(45_000_000));
    // The counter still reads what the new host gave it; then it is set.
    let mut timer = LocalTimer::restore(plain(), &state, at(17)).unwrap();
    assert_eq!(
        timer.tsc_moved(at(20), at(45_000_000)).delivery,
        Delivery::Nothing
    );
    assert_eq!(due(&timer), Some(50_000_000));
    assert_eq!(timer.expire(at(50_000_000)).delivery, FIRED);
    // And where the new host's counter was already past it, the interrupt comes early but comes.
    let mut timer = LocalTimer::restore(plain(), &state, at(70_000_000)).unwrap();
    assert_eq!(timer.expire(at(70_000_001)).delivery, FIRED);
}

#[test]
fn d59_a_deadline_that_reads_0_may_have_an_interrupt_to_come() {
    let timer = armed(plain(), 5000, 0);
    let state = timer.save(at(6000));
    assert_eq!((state.deadline, state.pending), (0, 1));
    let mut moved = LocalTimer::restore(plain(), &state, at(6000)).unwrap();
    assert_eq!(due(&moved), Some(6000));
    assert_eq!(moved.expire(at(6000)).delivery, FIRED);
    assert_eq!(moved.expire(at(7000)).delivery, Delivery::Nothing);
    // From registers that cannot tell.
    let lvt = LvtTimer::new(TimerMode::TSC_DEADLINE, VECTOR);
    let registers = TimerRegisters {
        lvt,
        ..TimerRegisters::RESET
    };
    for (last, delivery) in [
        (LastInterrupt::MayBeLost, FIRED),
        (LastInterrupt::Delivered, Delivery::Nothing),
    ] {
        let state = TimerState::from_registers(registers, last);
        let mut timer = LocalTimer::restore(plain(), &state, at(0)).unwrap();
        assert_eq!(timer.expire(at(0)).delivery, delivery);
    }
}

#[test]
fn d60_the_mode_is_the_saved_one() {
    let state = armed(plain(), 5000, 0).save(at(0));
    let again = LocalTimer::restore(plain(), &state, at(0))
        .unwrap()
        .save(at(0));
    assert_eq!(again, state);
    // A host that lost the CPUID bit is told so; the timer does not become a one-shot.
    let without = Settings {
        deadline_mode: DeadlineMode::Absent,
        ..plain()
    };
    assert_eq!(
        LocalTimer::restore(without, &again, at(0)),
        Err(StateError::DeadlineModeNotOffered)
    );
}

#[test]
fn d61_the_deadline_and_its_mode_are_restored_together() {
    // Register by register, the deadline comes too early and is dropped, as the processor does.
    let mut timer = LocalTimer::new(plain(), at(0));
    let dropped = timer.write_msr(Msr::TSC_DEADLINE, 5000, at(0)).unwrap();
    assert_eq!(dropped.delivery, Delivery::Nothing);
    write(
        &mut timer,
        TimerRegister::LvtTimer,
        LvtTimer::new(TimerMode::TSC_DEADLINE, VECTOR).0.into(),
        0,
    );
    assert_eq!(timer.read_msr(Msr::TSC_DEADLINE, at(0)), Ok(0));
    // As one state there is no order to get wrong.
    let state = armed(plain(), 5000, 0).save(at(0));
    let timer = LocalTimer::restore(plain(), &state, at(0)).unwrap();
    assert_eq!(timer.read_msr(Msr::TSC_DEADLINE, at(0)), Ok(5000));
    let without = Settings {
        deadline_mode: DeadlineMode::Absent,
        ..plain()
    };
    let msr = Msr::TSC_DEADLINE;
    assert_eq!(
        LocalTimer::new(without, at(0)).read_msr(msr, at(0)),
        Err(AccessFault::NoSuchRegister { msr })
    );
}

#[test]
fn d62_the_deadline_is_compared_with_the_guests_tsc() {
    // The guest's counter is 10^12 behind the host's. The back-end gets the guest's value and counts the distance.
    let host_tsc = 1_000_000_005_000_u64;
    let guest_tsc = host_tsc - 1_000_000_000_000;
    let mut timer = armed(plain(), 9000, guest_tsc);
    let mut software = SoftwareTimer::new(hz(2_000_000_000));
    let now = reading(77, guest_tsc);
    software.set(timer.next_deadline().unwrap(), now).unwrap();
    assert_eq!(software.expires(), Some(Nanos::from_ns(77 + 2000 + 1)));
    // The guest moves its counter: the expiry moves along.
    assert_eq!(
        timer.tsc_moved(at(5000), at(8000)).delivery,
        Delivery::Nothing
    );
    assert_eq!(
        timer.next_deadline().unwrap().remaining(at(8000)),
        TscDelta::from_ticks(1000)
    );
    assert_eq!(timer.tsc_moved(at(8000), at(20_000)).delivery, FIRED);
}

#[test]
fn d63_time_in_host_mode_counts() {
    let settings = plain();
    let mut timer = counting(settings, TimerMode::ONE_SHOT, 1_000_000);
    let mut wakeups = wakeups(settings.rates.tsc());
    let _ = wakeups.set(&timer, Place::Guest, reading(0, 0));
    assert_eq!(wakeups.preemption().value(), Some(2_000_000 / 32));
    // 0.1 ms in the guest, 0.7 ms in the host: at the next entry 0.2 ms are left, not 0.9.
    let _ = wakeups.set(&timer, Place::Guest, reading(800_000, 1_600_000));
    assert_eq!(wakeups.preemption().value(), Some(400_000 / 32));
    assert_eq!(wakeups.preemption().expires(), Some(at(2_000_000)));
    let woken = wakeups.wake(&mut timer, Place::Guest, reading(1_000_000, 2_000_000));
    assert!(matches!(woken, Wake::Done(effects) if effects.delivery == FIRED));
}
