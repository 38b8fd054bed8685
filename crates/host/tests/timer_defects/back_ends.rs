//! Known defects of back-ends: two deadlines, clocks that stand still, long pauses.

use crate::timer::{FIRED, at, count, counting, due, hz, plain, reading, settings, wakeups};
use chronovisor_abi::apic::TimerMode;
use chronovisor_abi::quantity::{Nanos, TscDelta};
use chronovisor_host::apic::{Place, Set, Wake};

/// 1 ms at 2 599 999 500 Hz is 2 599 999.5 ticks: two truncated deadlines would part by 0.2 ppm, which is 20 us at the end of this test.
#[test]
fn d41_the_deadline_does_not_drift_between_two_back_ends() {
    let tsc = hz(2_599_999_500);
    let mut timer = counting(
        settings(hz(1_000_000_000), tsc),
        TimerMode::PERIODIC,
        1_000_000,
    );
    let mut wakeups = wakeups(tsc);
    let _ = wakeups.set(&timer, Place::Guest, reading(0, 0));
    for tick in 1..=100_000_u64 {
        let exact = (tick * 5_199_999).div_ceil(2);
        assert_eq!(due(&timer), Some(exact));
        // Whichever is set wakes the host when it says, which is this tick's time to its own granularity.
        let wake = match wakeups.which() {
            Set::Software => {
                let ns = wakeups.software().expires().unwrap().as_ns();
                reading(ns, ns * 5_199_999 / 2_000_000)
            }
            Set::Preemption => {
                let ticks = wakeups.preemption().expires().unwrap().as_ticks();
                reading(ticks * 2_000_000 / 5_199_999, ticks)
            }
            Set::Nothing => panic!("nothing is set"),
        };
        let late = wake.tsc.as_ticks() - exact;
        assert!(late < 32, "tick {tick} is {late} ticks late");
        // The host takes 3 us to look. Runs for a second, halts for a second.
        let place = if tick / 1000 % 2 == 0 {
            Place::Guest
        } else {
            Place::Host
        };
        let now = reading(wake.time.as_ns() + 3000, wake.tsc.as_ticks() + 7800);
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
