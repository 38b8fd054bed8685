//! Known defects of synthetic timers in the field, each as a test: the wrong behaviour must not be ours.

use crate::vp::{ON, PAGE, PERIODIC, VECTOR, Vp, at, config, count, direct, message, vectors};
use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::RefTime;
use chronovisor_abi::synthetic_timer::Config;
use chronovisor_host::apic::{CatchUp, LostTicks};
use chronovisor_host::synthetic_timer::{
    DirectMode, Presence, Settings, StateError, SyntheticTimerState, VcpuTimers,
};

/// A tick of 1 ms, each handled 50 us late, 1000 of them: not 50 000 us behind, but 50.
#[test]
fn d33_a_late_tick_does_not_move_the_next_one() {
    let mut vp = Vp::plain();
    vp.set(count(0), 10_000, 0);
    vp.set(config(0), direct(0x50, PERIODIC), 0);
    for tick in 1..=1000 {
        assert_eq!(vp.due(), Some(tick * 10_000));
        assert_eq!(vectors(vp.expire(tick * 10_000 + 500)), [0x50]);
    }
}

#[test]
fn d34_count_0_clears_enabled_whatever_auto_enable_says() {
    let mut vp = Vp::plain();
    vp.set(config(0), direct(0x50, Config::AUTO_ENABLE), 0);
    vp.set(count(0), 1000, 0);
    vp.set(count(0), 0, 0);
    assert_eq!((vp.enabled(0, 0), vp.due()), (false, None));
}

#[test]
fn d35_enabled_with_source_0_is_cleared_at_the_first_write_too() {
    let mut vp = Vp::plain();
    vp.set(count(0), 1000, 0);
    vp.set(config(0), ON, 0);
    assert_eq!((vp.enabled(0, 0), vp.due()), (false, None));
    vp.set(config(0), Config::AUTO_ENABLE, 0);
    vp.set(count(0), 1000, 0);
    assert!(!vp.enabled(0, 0));
}

/// P = 1 ms, nothing handled for 10.35 ms after the first tick: 11 are due.
#[test]
fn d36_late_ticks_are_caught_up_or_with_the_lazy_flag_skipped() {
    let settings = Settings {
        punctual: LostTicks::CatchUp(CatchUp::DEFAULT),
        ..Settings::DEFAULT
    };
    let mut vp = Vp::new(settings);
    vp.set(count(0), 10_000, 0);
    vp.set(config(0), message(PERIODIC), 0);
    let mut now = 10_000 + 103_500;
    let mut told = Vec::new();
    while told.len() < 20 {
        if !told.is_empty() {
            // Called too soon, it holds back.
            assert_eq!(vp.expire(now - 1).signals, 0);
        }
        if vp.expire(now).signals == 1 {
            told.push((now, vp.take().unwrap().0.expiration.as_100ns()));
        }
        now = vp.due().unwrap();
    }
    // Every tick is told, in order, each as the tick that it is, half a period apart until the guest is back on the grid.
    let due: Vec<_> = told.iter().map(|(_, due)| *due).collect();
    assert_eq!(due, (1..=20).map(|tick| tick * 10_000).collect::<Vec<_>>());
    assert!(told.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 5000));
    assert_eq!(told.last(), Some(&(208_500, 200_000)));
    while vp.due() != Some(now) || now % 10_000 != 0 {
        now = vp.due().unwrap();
        let _ = (vp.expire(now), vp.take());
        now = vp.due().unwrap();
        assert!(now < 400_000, "never back on the grid");
    }
    let lazy = |late: u64| {
        let mut vp = Vp::new(Settings::DEFAULT);
        vp.set(count(0), 10_000, 0);
        vp.set(config(0), message(PERIODIC | Config::LAZY), 0);
        // While the processor is away, the timer does not wake it.
        assert_eq!(vp.timers.next_due(Presence::Away), None);
        let effects = vp.expire(10_000 + late);
        (effects.signals, effects.lost, vp.due())
    };
    assert_eq!(lazy(103_500), (1, 10, Some(120_000)));
    assert_eq!(lazy(107_500), (0, 11, Some(120_000)));
}

#[test]
fn d37_a_message_page_or_controller_enabled_later_gets_the_message() {
    for (msr, on) in [(Msr::HV_SIMP, PAGE | 1), (Msr::HV_SCONTROL, 1)] {
        let mut vp = Vp::plain();
        vp.set(msr, on & !1, 0);
        vp.set(count(0), 1000, 0);
        vp.set(config(0), message(ON), 0);
        assert_eq!(vp.expire(1000).signals, 0);
        assert_eq!(vectors(vp.write(msr, on, 5000)), [VECTOR]);
        let (late, _) = vp.take().unwrap();
        assert_eq!((late.expiration, late.delivery), (at(1000), at(5000)));
    }
    // Off and on again between expiry and now, and a page outside memory: held as well.
    let mut vp = Vp::plain();
    vp.set(Msr::HV_SIMP, 0xdead_0001, 0);
    vp.set(count(0), 1000, 0);
    vp.set(config(0), message(ON), 0);
    assert_eq!(vp.expire(1000).signals, 0);
    vp.set(Msr::HV_SIMP, 0, 1100);
    assert_eq!(vp.write(Msr::HV_SIMP, PAGE | 1, 1200).signals, 1);
}

#[test]
fn d38_times_are_compared_across_the_wrap() {
    let mut vp = Vp::plain();
    let start = u64::MAX - 500;
    vp.set(config(0), direct(0x50, Config::AUTO_ENABLE), start);
    // 501 units until the wrap, 499 after it.
    assert_eq!(vectors(vp.write(count(0), 499, start)), []);
    vp.set(config(1), direct(0x51, Config::AUTO_ENABLE), start);
    vp.set(count(1), u64::MAX - 100, start);
    assert_eq!(vp.due(), Some(u64::MAX - 100));
    assert_eq!(vectors(vp.expire(u64::MAX)), [0x51]);
    assert_eq!(vectors(vp.expire(498)), []);
    assert_eq!(vectors(vp.expire(499)), [0x50]);
    // The grid of a periodic timer crosses it as well.
    vp.set(count(2), 1000, start);
    vp.set(config(2), direct(0x52, PERIODIC), start);
    assert_eq!(vp.due(), Some(499));
    let effects = vp.expire(2600);
    assert_eq!(
        (vectors(effects), effects.expiries, vp.due()),
        (vec![0x52], 3, Some(3499))
    );
}

#[test]
fn d39_state_round_trips_and_what_expired_just_before_fires_once() {
    let settings = Settings {
        punctual: LostTicks::Merge,
        ..Settings::DEFAULT
    };
    let mut vp = Vp::new(settings);
    vp.set(count(0), 1000, 0);
    vp.set(config(0), message(ON), 0);
    vp.set(count(1), 10_000, 0);
    vp.set(config(1), message(PERIODIC), 300);
    vp.set(count(2), 10_300, 0);
    vp.set(config(2), direct(0x52, ON), 0);
    // The slot holds timer 0's message, timer 1's waits, timer 2 is due and not looked at.
    let _ = vp.expire(1000);
    let _ = vp.timers.expire(at(10_300 - 1), &vp.memory);
    let state = vp.timers.save();
    assert_eq!(state.timers[1].due, Some(at(10_300)));
    vp.timers = VcpuTimers::restore(settings, &state).unwrap();
    let effects = vp.expire(10_300);
    assert_eq!(vectors(effects), [0x52]);
    let held = vp.timers.save();
    assert_eq!(held.timers[1].undelivered, Some(at(10_300)));
    vp.timers = VcpuTimers::restore(settings, &held).unwrap();
    assert_eq!(vp.take().map(|(first, _)| first.timer), Some(0));
    assert_eq!(vp.write(Msr::HV_EOM, 0, 10_400).signals, 1);
    assert_eq!(
        vp.take().map(|(second, _)| second.expiration),
        Some(at(10_300))
    );
    assert_eq!(vp.due(), Some(20_300));
    assert_eq!(vectors(vp.expire(10_500)), []);
}

#[test]
fn d39_a_state_that_cannot_be_is_refused() {
    let good = Vp::plain().timers.save();
    let with = |change: fn(&mut SyntheticTimerState)| {
        let mut state = good;
        change(&mut state.timers[1]);
        VcpuTimers::restore(Settings::DEFAULT, &state)
    };
    assert_eq!(
        with(|timer| timer.due = Some(RefTime::ZERO)),
        Err(StateError::ArmedWhileDisabled { timer: 1 })
    );
    // Enabled and never due: it would be dead. Enabled without a source: no write leaves it so.
    for dead in [Config::for_vector(0x50), Config::for_source(0)] {
        let mut state = good;
        state.timers[1] = SyntheticTimerState {
            config: dead.with(Config::ENABLED),
            count: 7,
            due: (dead.source() == 0 && !dead.has(Config::DIRECT_MODE)).then_some(at(7)),
            ..SyntheticTimerState::default()
        };
        assert_eq!(
            VcpuTimers::restore(Settings::DEFAULT, &state),
            Err(StateError::EnabledButNeverDue { timer: 1 })
        );
    }
    let config = Config(1 << 40);
    assert_eq!(
        with(|timer| timer.config = Config(1 << 40)),
        Err(StateError::ReservedBits { timer: 1, config })
    );
    assert_eq!(
        with(|timer| timer.undelivered = Some(RefTime::ZERO)),
        Err(StateError::MessageWithoutSource { timer: 1 })
    );
    let absent = Settings {
        direct_mode: DirectMode::Absent,
        ..Settings::DEFAULT
    };
    let mut state = good;
    state.timers[2].config = Config::for_vector(0x50);
    assert_eq!(
        VcpuTimers::restore(absent, &state),
        Err(StateError::DirectModeNotOffered { timer: 2 })
    );
}

#[test]
fn d40_a_wake_up_too_early_does_nothing_and_the_due_time_stays() {
    let mut vp = Vp::plain();
    vp.set(count(0), 1_000_000, 0);
    vp.set(config(0), direct(0x50, ON), 0);
    // A host clock 500 ppm fast wakes 50 us too soon.
    for early in [999_500, 999_999] {
        let effects = vp.expire(early);
        assert_eq!((vectors(effects), effects.expiries), (vec![], 0));
        assert_eq!(vp.due(), Some(1_000_000));
    }
    assert_eq!(vectors(vp.expire(1_000_000)), [0x50]);
}
