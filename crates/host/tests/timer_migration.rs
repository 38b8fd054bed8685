//! A timer that moves to another host: the rest of its count, its deadline, its fraction.
#![allow(clippy::unwrap_used, reason = "a test may")]

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode};
use chronovisor_abi::quantity::{Hertz, Tsc, TscDelta};
use chronovisor_host::apic::{
    CountFraction, DeadlineMode, Delivery, LocalTimer, LostTicks, MinimumPeriod, Power, Rates,
    SavedCount, Settings, StateError, TimerRegister,
};
use proptest::prelude::*;

fn hz(hz: u64) -> Hertz {
    Hertz::from_hz(hz).unwrap()
}

fn settings(bus: u64, tsc: u64) -> Settings {
    Settings {
        rates: Rates::new(hz(bus), hz(tsc)).unwrap(),
        minimum_period: MinimumPeriod::NONE,
        lost_ticks: LostTicks::Merge,
        deadline_mode: DeadlineMode::Offered,
    }
}

fn timer(settings: Settings, mode: TimerMode, count: u32) -> LocalTimer {
    let start = Tsc::from_ticks(0);
    let mut timer = LocalTimer::new(settings, start);
    for (register, value) in [
        (
            TimerRegister::DivideConfiguration,
            DivideConfiguration::BY_1.0,
        ),
        (TimerRegister::LvtTimer, LvtTimer::new(mode, 0x40).0),
        (TimerRegister::InitialCount, count),
    ] {
        let _ = timer.write(register, value.into(), start);
    }
    timer
}

proptest! {
    /// due' = now' + ceil((count - gone * bus / tsc) * tsc' / bus), to the tick, although `gone` is no whole number of counts.
    #[test]
    fn the_rest_of_a_count_is_exact_on_another_host(
        tsc in 1_000_000_000_u64..4_000_000_000, other in 1_000_000_000_u64..4_000_000_000, count in 1_000_u32.., part in 0_u64..1_000_000,
        there in 0_u64..1 << 60, after in any::<bool>(),
    ) {
        let bus = 200_000_000_u64;
        let whole = u128::from(count) * u128::from(tsc) / u128::from(bus);
        let gone = u64::try_from(whole * u128::from(part) / 1_000_000).unwrap();
        let source = timer(settings(bus, tsc), TimerMode::ONE_SHOT, count);
        let moved = if after {
            // Restored under the old rates, then told the new ones.
            let mut moved = LocalTimer::restore(settings(bus, tsc), &source.save(Tsc::from_ticks(gone)), Tsc::from_ticks(there)).unwrap();
            let _ = moved.set_rates(settings(bus, other).rates, Tsc::from_ticks(there));
            moved
        } else {
            LocalTimer::restore(settings(bus, other), &source.save(Tsc::from_ticks(gone)), Tsc::from_ticks(there)).unwrap()
        };
        // rest = (count * tsc - gone * bus) / tsc counts; times other / bus.
        let rest = u128::from(count) * u128::from(tsc) - u128::from(gone) * u128::from(bus);
        let ticks = (rest * u128::from(other)).div_ceil(u128::from(tsc) * u128::from(bus));
        let due = moved.next_deadline().unwrap().at();
        prop_assert_eq!(due, Tsc::from_ticks(there + u64::try_from(ticks).unwrap()));
    }

    /// deadline' = restored + ceil((deadline - saved) * to / from)
    #[test]
    fn a_deadline_keeps_its_distance_in_time(
        from in 1_000_000_000_u64..4_000_000_000, to in 1_000_000_000_u64..4_000_000_000, saved in 0_u64..1 << 60, ahead in 1_u64..1 << 60, restored in 0_u64..1 << 60,
    ) {
        let now = Tsc::from_ticks(saved);
        let mut source = timer(settings(200_000_000, from), TimerMode::TSC_DEADLINE, 0);
        let _ = source.write(TimerRegister::TscDeadline, saved + ahead, now);
        let state = source.save(now).with_tsc_rate(now, hz(from), Tsc::from_ticks(restored), hz(to));
        let exact = (u128::from(ahead) * u128::from(to)).div_ceil(u128::from(from));
        prop_assert_eq!(u128::from(state.deadline), u128::from(restored) + exact);
    }
}

#[test]
fn a_deadline_that_is_not_armed_stays_so_and_one_beyond_all_time_is_held() {
    let source = timer(
        settings(200_000_000, 1_000_000_000),
        TimerMode::TSC_DEADLINE,
        0,
    );
    let (zero, late) = (Tsc::from_ticks(0), Tsc::from_ticks(u64::MAX));
    let state = source.save(zero);
    let moved = |state: chronovisor_host::apic::TimerState, restored| {
        state
            .with_tsc_rate(zero, hz(1_000_000_000), restored, hz(3_000_000_000))
            .deadline
    };
    assert_eq!(moved(state, late), 0);
    let mut armed = state;
    armed.deadline = u64::MAX;
    assert_eq!(moved(armed, zero), u64::MAX);
    armed.deadline = 100;
    assert_eq!(moved(armed, late), u64::MAX);
}

#[test]
fn a_state_that_contradicts_itself_is_refused_with_its_values() {
    let settings = settings(200_000_000, 2_000_000_000);
    let good = timer(settings, TimerMode::PERIODIC, 1000).save(Tsc::from_ticks(5000));
    let restore = |state| LocalTimer::restore(settings, &state, Tsc::from_ticks(0)).map(|_| ());
    assert_eq!(restore(good), Ok(()));
    let mut state = good;
    state.lvt = LvtTimer(good.lvt.0 | 1 << 20);
    assert_eq!(
        restore(state),
        Err(StateError::ReservedBits {
            value: state.lvt.0,
            reserved: 1 << 20
        })
    );
    let mut state = good;
    state.deadline = 7;
    assert_eq!(
        restore(state),
        Err(StateError::DeadlineOutsideItsMode {
            deadline: 7,
            mode: TimerMode::PERIODIC
        })
    );
    let mut state = good;
    state.initial_count = 0;
    assert_eq!(
        restore(state),
        Err(StateError::RunsWithoutCount {
            mode: TimerMode::PERIODIC,
            initial_count: 0
        })
    );
    let with = |elapsed| {
        let mut state = good;
        state.lvt = LvtTimer::new(TimerMode::ONE_SHOT, 0x40);
        state.count = SavedCount::Running {
            elapsed,
            since_interrupt: CountFraction::whole(0),
        };
        restore(state)
    };
    let elapsed = CountFraction::whole(1000);
    assert_eq!(
        with(elapsed),
        Err(StateError::ElapsedBeyondEnd {
            elapsed,
            initial_count: 1000
        })
    );
    for (numerator, denominator) in [(0, 0), (3, 3), (1, (1 << 70) + 1)] {
        let fraction = CountFraction {
            counts: 1,
            numerator,
            denominator,
        };
        assert_eq!(with(fraction), Err(StateError::BadFraction { fraction }));
    }
    assert_eq!(
        with(CountFraction {
            counts: 999,
            numerator: 2,
            denominator: 3
        }),
        Ok(())
    );
}

/// The deadline is compared as a number: a counter in the upper half of its range is past it, not 2^63 ticks before it.
#[test]
fn a_deadline_far_below_the_restored_counter_is_due_at_once() {
    let settings = settings(200_000_000, 2_000_000_000);
    let mut source = timer(settings, TimerMode::TSC_DEADLINE, 0);
    let _ = source.write(TimerRegister::TscDeadline, 5000, Tsc::from_ticks(0));
    let state = source.save(Tsc::from_ticks(0));
    for now in [
        5000,
        1 << 62,
        (1 << 63) + 5000,
        (1 << 63) + 5001,
        u64::MAX - 100,
    ] {
        let now = Tsc::from_ticks(now);
        let mut moved = LocalTimer::restore(settings, &state, now).unwrap();
        let wait = moved.next_deadline().map(|due| due.remaining(now));
        assert_eq!(wait, Some(TscDelta::ZERO), "{now:?}");
        assert_eq!(moved.expire(now).delivery, Delivery::Interrupt(0x40));
    }
}

/// 70 us below a minimum of 200 us: an interrupt each 3 periods. Saved after 150 us and restored where there is no minimum: two
/// periods are over and not told, the third goes on.
#[test]
fn a_host_with_another_minimum_period_takes_the_timer_over() {
    let there = settings(1_000_000_000, 2_000_000_000);
    let here = Settings {
        minimum_period: MinimumPeriod::KVM,
        ..there
    };
    let state = timer(here, TimerMode::PERIODIC, 70_000).save(Tsc::from_ticks(300_000));
    let zero = Tsc::from_ticks(0);
    let mut moved = LocalTimer::restore(there, &state, zero).unwrap();
    assert_eq!(moved.read(TimerRegister::CurrentCount, zero), 60_000);
    let effects = moved.expire(zero);
    assert_eq!(
        (effects.delivery, effects.expiries, effects.merged),
        (Delivery::Interrupt(0x40), 2, 1)
    );
    let due = moved.next_deadline().map(|due| due.at());
    assert_eq!(due, Some(Tsc::from_ticks(120_000)));
    // And back, where an interrupt stands for three periods again.
    let back = LocalTimer::restore(here, &moved.save(zero), zero).unwrap();
    let due = back.next_deadline().map(|due| due.at());
    assert_eq!(due, Some(Tsc::from_ticks(2 * (210_000 - 10_000))));
}

/// A disabled APIC masks its timer; one that is off has the registers of a reset.
#[test]
fn a_state_whose_power_contradicts_its_registers_is_refused() {
    let settings = settings(200_000_000, 2_000_000_000);
    let now = Tsc::from_ticks(0);
    let mut source = timer(settings, TimerMode::PERIODIC, 1000);
    let running = source.save(now);
    for power in [Power::SoftwareDisabled, Power::Off] {
        let mut state = running;
        state.power = power;
        let refused = StateError::PowerContradictsRegisters {
            power,
            lvt: running.lvt,
        };
        assert_eq!(
            LocalTimer::restore(settings, &state, now).map(|_| ()),
            Err(refused)
        );
        let _ = source.set_power(power, now);
        let state = source.save(now);
        assert_eq!(
            LocalTimer::restore(settings, &state, now).map(|timer| timer.save(now)),
            Ok(state)
        );
    }
}
