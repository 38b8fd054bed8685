//! The rules of Hyper-V's synthetic timers, one test each.

use crate::vp::{
    ON, PAGE, PERIODIC, SOURCE, VECTOR, Vp, at, config, count, direct, message, vectors,
};
use chronovisor_abi::msr::Msr;
use chronovisor_abi::synthetic_timer::{Config, EndOfMessage, InterruptSource, TimerMessage};
use chronovisor_host::apic::{LostTicks, Rearm};
use chronovisor_host::synic::{EndOfInterrupt, Fault};
use chronovisor_host::synthetic_timer::{DirectMode, Settings, VcpuTimers};

#[test]
fn registers_are_0_after_reset_and_four_pairs() {
    let mut vp = Vp::plain();
    vp.set(count(3), 77, 0);
    assert_eq!(vp.read(count(3), 0), 77);
    vp.timers.reset();
    for timer in 0..4 {
        assert_eq!(
            (vp.read(config(timer), 0), vp.read(count(timer), 0)),
            (0, 0)
        );
    }
    assert_eq!(
        vp.timers.read(Msr(0x4000_00b8), at(0)),
        Err(Fault::NoSuchRegister {
            msr: Msr(0x4000_00b8)
        })
    );
    assert!(!VcpuTimers::owns(Msr(0x4000_00af)) && VcpuTimers::owns(Msr(0x4000_00b7)));
}

#[test]
fn a_timer_is_never_early_and_may_be_late() {
    let mut vp = Vp::plain();
    vp.set(count(0), 1000, 0);
    vp.set(config(0), direct(0x50, ON), 0);
    for early in [0, 1, 999] {
        assert_eq!(vectors(vp.expire(early)), []);
    }
    assert_eq!(vectors(vp.expire(1500)), [0x50]);
}

#[test]
fn a_one_shot_clears_enabled_and_fires_once() {
    let mut vp = Vp::plain();
    vp.set(count(0), 1000, 0);
    vp.set(config(0), direct(0x50, ON), 0);
    assert!(vp.enabled(0, 999));
    // The register tells the truth even before the wake-up is handled.
    assert!(!vp.enabled(0, 1000));
    assert_eq!(vectors(vp.expire(1000)), [0x50]);
    assert_eq!(vectors(vp.expire(5000)), []);
    assert_eq!((vp.read(count(0), 5000), vp.due()), (1000, None));
}

#[test]
fn a_one_shot_in_the_past_fires_at_once() {
    let mut vp = Vp::plain();
    vp.set(config(0), direct(0x50, Config::AUTO_ENABLE), 5000);
    assert_eq!(vectors(vp.write(count(0), 4999, 5000)), [0x50]);
    assert!(!vp.enabled(0, 5000));
}

#[test]
fn a_periodic_timer_starts_when_it_is_enabled_and_keeps_its_grid() {
    let mut vp = Vp::plain();
    vp.set(count(0), 1000, 0);
    vp.set(config(0), direct(0x50, PERIODIC), 300);
    assert_eq!(vp.due(), Some(1300));
    assert_eq!(vectors(vp.expire(1799)), [0x50]);
    assert_eq!(vp.due(), Some(2300));
    assert!(vp.enabled(0, 1799));
    let late = vp.expire(12_345);
    assert_eq!(
        (vectors(late), late.expiries, late.merged),
        (vec![0x50], 11, 10)
    );
    assert_eq!(vp.due(), Some(13_300));
}

#[test]
fn auto_enable_starts_with_the_count_and_without_it_enabled_does() {
    let mut vp = Vp::plain();
    vp.set(config(0), direct(0x50, Config::AUTO_ENABLE), 0);
    assert!(!vp.enabled(0, 0));
    vp.set(count(0), 1000, 0);
    assert!(vp.enabled(0, 0));
    assert_eq!(vp.due(), Some(1000));
    let mut vp = Vp::plain();
    vp.set(config(0), direct(0x50, 0), 0);
    vp.set(count(0), 1000, 0);
    assert_eq!((vp.enabled(0, 0), vp.due()), (false, None));
    vp.set(config(0), direct(0x50, ON), 0);
    assert_eq!(vp.due(), Some(1000));
}

#[test]
fn config_of_a_running_timer_starts_it_anew() {
    let mut vp = Vp::plain();
    vp.set(count(0), 1000, 0);
    vp.set(config(0), direct(0x50, PERIODIC), 0);
    vp.set(config(0), direct(0x51, PERIODIC), 400);
    assert_eq!(vp.due(), Some(1400));
    vp.set(config(0), direct(0x51, 0), 500);
    assert_eq!(vp.due(), None);
}

#[test]
fn reserved_bits_are_dropped_and_so_is_an_absent_direct_mode() {
    let mut vp = Vp::plain();
    vp.set(config(0), !ON, 0);
    assert_eq!(vp.read(config(0), 0), !Config::RESERVED & !ON);
    let mut vp = Vp::new(Settings {
        direct_mode: DirectMode::Absent,
        ..Settings::DEFAULT
    });
    vp.set(count(0), 1000, 0);
    vp.set(config(0), direct(0x50, ON), 0);
    // What is left reports to source 0: nowhere.
    assert_eq!((vp.read(config(0), 0), vp.due()), (0, None));
}

#[test]
fn a_message_carries_timer_due_time_and_delivery_time() {
    let mut vp = Vp::plain();
    vp.set(count(3), 1000, 0);
    vp.set(config(3), message(ON), 0);
    let effects = vp.expire(1007);
    assert_eq!(vectors(effects), [VECTOR]);
    let expected = TimerMessage {
        timer: 3,
        expiration: at(1000),
        delivery: at(1007),
    };
    assert_eq!(vp.take(), Some((expected, EndOfMessage::NotNeeded)));
}

#[test]
fn a_masked_or_polled_source_gets_the_message_without_the_interrupt() {
    for flag in [InterruptSource::MASKED, InterruptSource::POLLING] {
        let mut vp = Vp::plain();
        vp.set(
            Msr(Msr::HV_SINT0.0 + u32::from(SOURCE)),
            u64::from(VECTOR) | flag,
            0,
        );
        vp.set(count(0), 1000, 0);
        vp.set(config(0), message(ON), 0);
        let effects = vp.expire(1000);
        assert_eq!((vectors(effects), effects.signals), (vec![], 1));
        assert!(vp.take().is_some());
    }
}

#[test]
fn an_auto_eoi_source_says_so() {
    let mut vp = Vp::plain();
    vp.set(
        Msr(Msr::HV_SINT0.0 + u32::from(SOURCE)),
        u64::from(VECTOR) | InterruptSource::AUTO_EOI,
        0,
    );
    vp.set(count(0), 1000, 0);
    vp.set(config(0), message(ON), 0);
    let ends: Vec<_> = vp
        .expire(1000)
        .interrupts()
        .map(|interrupt| interrupt.end)
        .collect();
    assert_eq!(ends, [EndOfInterrupt::Automatic]);
}

#[test]
fn a_busy_slot_holds_the_message_until_the_end_of_message() {
    let mut vp = Vp::plain();
    for timer in [0, 1] {
        vp.set(count(timer), 1000, 0);
        vp.set(config(timer), message(ON), 0);
    }
    // Both are due; the second finds the slot taken.
    assert_eq!(vp.expire(1000).signals, 1);
    let (first, end) = vp.take().unwrap();
    assert_eq!((first.timer, end), (0, EndOfMessage::Write));
    let effects = vp.write(Msr::HV_EOM, 0, 1200);
    assert_eq!(vectors(effects), [VECTOR]);
    let second = TimerMessage {
        timer: 1,
        expiration: at(1000),
        delivery: at(1200),
    };
    assert_eq!(vp.take(), Some((second, EndOfMessage::NotNeeded)));
}

#[test]
fn the_end_of_an_interrupt_tries_again_too() {
    let mut vp = Vp::plain();
    for timer in [0, 1] {
        vp.set(count(timer), 1000, 0);
        vp.set(config(timer), message(ON), 0);
    }
    let _ = vp.expire(1000);
    let _ = vp.take();
    assert_eq!(vp.timers.retry(at(1100), &vp.memory).signals, 1);
}

#[test]
fn a_periodic_timer_whose_message_waits_needs_no_wake_up() {
    let mut vp = Vp::plain();
    vp.set(count(0), 1000, 0);
    vp.set(config(0), message(PERIODIC), 0);
    assert_eq!(vp.expire(1000).signals, 1);
    // The guest leaves the message where it is: the second waits, the next ones have no buffer.
    assert_eq!(vp.expire(2000).signals, 0);
    assert_eq!(vp.due(), None);
    let _ = vp.take();
    let effects = vp.write(Msr::HV_EOM, 0, 7300);
    assert_eq!((effects.signals, effects.rearm), (1, Rearm::Again));
    let (waited, _) = vp.take().unwrap();
    assert_eq!(waited.expiration, at(2000));
    assert_eq!(vp.due(), Some(8000));
}

#[test]
fn direct_mode_needs_no_slot_and_no_synic() {
    let mut vp = Vp::plain();
    vp.set(Msr::HV_SCONTROL, 0, 0);
    vp.set(count(0), 1000, 0);
    vp.set(config(0), direct(0x50, ON), 0);
    assert_eq!(vectors(vp.expire(1000)), [0x50]);
    assert_eq!(vp.take(), None);
    // A vector that no interrupt can have is not raised.
    vp.set(count(0), 2000, 1000);
    vp.set(config(0), direct(15, ON), 1000);
    let effects = vp.expire(2000);
    assert_eq!((vectors(effects), effects.lost), (vec![], 1));
}

#[test]
fn a_periodic_timer_below_the_minimum_is_told_less_often_and_says_so() {
    let mut vp = Vp::new(Settings {
        punctual: LostTicks::Merge,
        ..Settings::DEFAULT
    });
    vp.set(
        config(0),
        direct(0x50, Config::AUTO_ENABLE | Config::PERIODIC),
        0,
    );
    let effects = vp.write(count(0), 1, 0);
    assert_eq!(effects.periods_per_signal, Some(2000));
    assert_eq!(vp.due(), Some(2000));
    let effects = vp.expire(2000);
    assert_eq!(
        (effects.expiries, effects.signals, effects.merged),
        (2000, 1, 1999)
    );
}

#[test]
fn synic_registers_are_checked() {
    let mut vp = Vp::plain();
    assert_eq!(vp.read(Msr::HV_SVERSION, 0), 1);
    assert_eq!(vp.read(Msr::HV_EOM, 0), 0);
    let msr = Msr::HV_SVERSION;
    assert_eq!(
        vp.timers.write(msr, 0, at(0), &vp.memory),
        Err(Fault::ReadOnly { msr })
    );
    let msr = Msr::HV_SINT0;
    assert_eq!(
        vp.timers.write(msr, 15, at(0), &vp.memory),
        Err(Fault::LowVector { msr, value: 15 })
    );
    vp.set(msr, 15 | InterruptSource::MASKED, 0);
    assert_eq!(vp.read(msr, 0), 15 | InterruptSource::MASKED);
    assert_eq!(
        vp.read(Msr(Msr::HV_SINT0.0 + 5), 0),
        InterruptSource::RESET.0
    );
    assert_eq!(vp.read(Msr::HV_SIMP, 0), PAGE | 1);
    vp.set(Msr::HV_SIEFP, 0xabc, 0);
    assert_eq!(vp.read(Msr::HV_SIEFP, 0), 0xabc);
}

/// The timer is due under its old vector when the guest gives it a new one, and due again under that: two interrupts, none lost.
#[test]
fn a_write_to_a_due_timer_loses_neither_interrupt() {
    let mut vp = Vp::plain();
    vp.set(count(0), 1000, 0);
    vp.set(config(0), direct(0x50, ON), 0);
    let effects = vp.write(config(0), direct(0x51, ON), 1500);
    assert_eq!((vectors(effects), effects.signals), (vec![0x50, 0x51], 2));
}

/// What a catch-up owes is told as one signal, or counted as lost, by a host that does not catch up.
#[test]
fn a_backlog_is_accounted_for_on_a_host_that_does_not_catch_up() {
    for (punctual, signals, merged, lost) in [
        (LostTicks::Merge, 1, 10, 0),
        (LostTicks::SkipOnGrid, 1, 0, 10),
    ] {
        let mut vp = Vp::new(Settings::DEFAULT);
        vp.set(count(0), 10_000, 0);
        vp.set(config(0), message(PERIODIC), 0);
        // 11 are due: one is told, 10 are owed.
        assert_eq!(vp.expire(110_000).signals, 1);
        let _ = vp.take();
        let settings = Settings {
            punctual,
            ..Settings::DEFAULT
        };
        vp.timers = VcpuTimers::restore(settings, &vp.timers.save()).unwrap();
        let effects = vp.expire(120_000);
        assert_eq!(
            (
                effects.expiries,
                effects.signals,
                effects.merged,
                effects.lost
            ),
            (1, signals, merged, lost),
            "{punctual:?}"
        );
        // With its message still in the buffer, too.
        let mut vp = Vp::new(Settings::DEFAULT);
        vp.set(count(0), 10_000, 0);
        vp.set(config(0), message(PERIODIC), 0);
        let _ = (vp.expire(10_000), vp.expire(20_000), vp.expire(50_000));
        vp.timers = VcpuTimers::restore(settings, &vp.timers.save()).unwrap();
        let effects = vp.expire(60_000);
        assert_eq!((effects.expiries, effects.lost), (1, 4), "{punctual:?}");
    }
}
