//! Timers and readings for the tests.

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode};
use chronovisor_abi::quantity::{Hertz, Nanos, Reading, Tsc};
use chronovisor_host::apic::{
    DeadlineMode, Delivery, LocalTimer, LostTicks, MinimumPeriod, PreemptionTimer, Rates, Settings,
    SoftwareTimer, TimerRegister, Wakeups,
};

pub(crate) const VECTOR: u8 = 0xec;

pub(crate) fn hz(hz: u64) -> Hertz {
    Hertz::from_hz(hz).unwrap()
}

pub(crate) fn at(ticks: u64) -> Tsc {
    Tsc::from_ticks(ticks)
}

pub(crate) fn settings(bus: Hertz, tsc: Hertz) -> Settings {
    Settings {
        rates: Rates::new(bus, tsc).unwrap(),
        minimum_period: MinimumPeriod::NONE,
        lost_ticks: LostTicks::Merge,
        deadline_mode: DeadlineMode::Offered,
    }
}

/// A bus of 1 GHz, as KVM's, and a TSC of 2 GHz: 1 count is 2 ticks.
pub(crate) fn plain() -> Settings {
    settings(hz(1_000_000_000), hz(2_000_000_000))
}

pub(crate) fn write(
    timer: &mut LocalTimer,
    register: TimerRegister,
    value: u64,
    now: u64,
) -> Delivery {
    timer.write(register, value, at(now)).delivery
}

/// A timer that counts `count` in `mode`, divided by 1, from TSC 0.
pub(crate) fn counting(settings: Settings, mode: TimerMode, count: u32) -> LocalTimer {
    let mut timer = LocalTimer::new(settings, at(0));
    let lvt = LvtTimer::new(mode, VECTOR).0.into();
    let by_1 = DivideConfiguration::BY_1.0.into();
    write(&mut timer, TimerRegister::LvtTimer, lvt, 0);
    write(&mut timer, TimerRegister::DivideConfiguration, by_1, 0);
    write(&mut timer, TimerRegister::InitialCount, count.into(), 0);
    timer
}

/// A timer with an armed deadline.
pub(crate) fn armed(settings: Settings, deadline: u64, now: u64) -> LocalTimer {
    let mut timer = LocalTimer::new(settings, at(now));
    let lvt = LvtTimer::new(TimerMode::TSC_DEADLINE, VECTOR).0.into();
    write(&mut timer, TimerRegister::LvtTimer, lvt, now);
    write(&mut timer, TimerRegister::TscDeadline, deadline, now);
    timer
}

pub(crate) fn due(timer: &LocalTimer) -> Option<u64> {
    timer
        .next_deadline()
        .map(|deadline| deadline.at().as_ticks())
}

pub(crate) fn count(timer: &LocalTimer, now: u64) -> u64 {
    timer.read(TimerRegister::CurrentCount, at(now))
}

pub(crate) fn reading(ns: u64, tsc: u64) -> Reading<Nanos> {
    Reading::new(Nanos::from_ns(ns), at(tsc))
}

pub(crate) fn wakeups(tsc: Hertz) -> Wakeups<SoftwareTimer, PreemptionTimer> {
    Wakeups::new(SoftwareTimer::new(tsc), PreemptionTimer::new(5).unwrap())
}

pub(crate) const FIRED: Delivery = Delivery::Interrupt(VECTOR);
