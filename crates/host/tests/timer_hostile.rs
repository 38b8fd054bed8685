//! A guest that writes anything anywhere, and a state file that holds anything: no panic, no loop, no periodic timer below the minimum period.
#![allow(clippy::unwrap_used, reason = "a test may")]

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, Offset, TimerMode};
use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Hertz, Nanos, RefTime, Tsc, TscDelta};
use chronovisor_abi::synthetic_timer::{Config, InterruptSource};
use chronovisor_host::apic::{
    CatchUp, CountFraction, DeadlineMode, LocalTimer, LostTicks, MinimumPeriod, Power, Rates,
    SavedCount, Settings, TimerRegister, TimerState,
};
use chronovisor_host::guest_memory::NoMemory;
use chronovisor_host::synic::SynicRegisters;
use chronovisor_host::synthetic_timer::{
    self, Presence, SyntheticTimerState, VcpuTimers, VcpuTimersState,
};
use proptest::prelude::*;

/// TSC ticks in the minimum period of the timers here: 200 us at 2.6 GHz.
const MINIMUM_TICKS: u64 = 520_000;

fn policy() -> impl Strategy<Value = LostTicks> {
    prop_oneof![
        Just(LostTicks::Merge),
        Just(LostTicks::SkipOnGrid),
        (1_u8..=128, any::<u32>())
            .prop_map(|(spacing, cap)| LostTicks::CatchUp(CatchUp::new(spacing, cap).unwrap())),
    ]
}

fn settings(policy: LostTicks) -> Settings {
    let (bus, tsc) = (
        Hertz::from_ratio(400_000_000, 3).unwrap(),
        Hertz::from_hz(2_600_000_000).unwrap(),
    );
    Settings {
        rates: Rates::new(bus, tsc).unwrap(),
        minimum_period: MinimumPeriod::new(Nanos::from_ns(200_000)).unwrap(),
        lost_ticks: policy,
        deadline_mode: DeadlineMode::Offered,
    }
}

/// Numbers of every size, not only huge ones.
fn sized() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0_u32..64).prop_map(|(value, shift)| value >> shift)
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Msr(u32, u64),
    Page(u32, u32),
    Poll,
    Expire,
    MoveTsc(u64),
    Power(Power),
    Rates(u64, u64),
    SaveRestore,
}

fn act() -> impl Strategy<Value = Act> {
    let number = prop_oneof![
        Just(Msr::TSC_DEADLINE.0),
        Just(0x832),
        Just(0x838),
        Just(0x839),
        Just(0x83e),
        0x800_u32..0x900,
        any::<u32>()
    ];
    let offset = prop_oneof![
        Just(0x320_u32),
        Just(0x380),
        Just(0x390),
        Just(0x3e0),
        any::<u32>()
    ];
    prop_oneof![
        4 => (number, sized()).prop_map(|(msr, value)| Act::Msr(msr, value)),
        // Values that pass the reserved-bit check.
        4 => (0_u32..3, any::<u8>()).prop_map(|(mode, vector)| Act::Msr(0x832, u64::from((mode << 17) | u32::from(vector)))),
        3 => any::<u32>().prop_map(|count| Act::Msr(0x838, u64::from(count >> (count & 31)))),
        3 => (offset, any::<u32>()).prop_map(|(offset, value)| Act::Page(offset, value)),
        1 => Just(Act::Poll),
        2 => Just(Act::Expire),
        1 => any::<u64>().prop_map(Act::MoveTsc),
        1 => prop_oneof![Just(Power::On), Just(Power::SoftwareDisabled), Just(Power::Off)].prop_map(Act::Power),
        1 => (1_000_u64..1 << 40, 1_u64..1 << 44).prop_map(|(tsc, bus)| Act::Rates(tsc, bus)),
        1 => Just(Act::SaveRestore),
    ]
}

fn carry_out(timer: &mut LocalTimer, act: Act, now: &mut Tsc) {
    match act {
        Act::Msr(number, value) => {
            let msr = Msr(number);
            let before = *timer;
            if timer.write_msr(msr, value, *now).is_err() {
                assert_eq!(*timer, before, "a refused write left a trace");
            }
            let _ = timer.read_msr(msr, *now);
        }
        Act::Page(offset, value) => {
            let _ = timer.write_page(Offset(offset), value, *now);
            let _ = timer.read_page(Offset(offset), *now);
        }
        Act::Poll => {
            let count = timer.read(TimerRegister::CurrentCount, *now);
            assert!(count <= timer.read(TimerRegister::InitialCount, *now));
        }
        Act::Expire => {
            let _ = timer.expire(*now);
        }
        Act::MoveTsc(to) => {
            let _ = timer.tsc_moved(*now, Tsc::from_ticks(to));
            *now = Tsc::from_ticks(to);
        }
        Act::Power(power) => {
            let _ = timer.set_power(power, *now);
        }
        Act::Rates(tsc, bus) => {
            if let Ok(rates) =
                Rates::new(Hertz::from_hz(bus).unwrap(), Hertz::from_hz(tsc).unwrap())
            {
                let _ = timer.set_rates(rates, *now);
            }
        }
        Act::SaveRestore => {
            *timer = LocalTimer::restore(timer.settings(), &timer.save(*now), *now).unwrap();
        }
    }
}

/// Ticks of the minimum period at the timer's present rate, rounded down.
fn minimum_ticks(timer: &LocalTimer) -> u64 {
    let tsc = timer.settings().rates.tsc();
    u64::try_from(
        u128::from(tsc.numerator()) * 200_000 / (u128::from(tsc.denominator()) * 1_000_000_000),
    )
    .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_writes_leave_a_timer_that_keeps_its_distance(
        policy in policy(), start: u64, acts in prop::collection::vec((act(), sized()), 1..40),
    ) {
        let mut now = Tsc::from_ticks(start);
        let mut timer = LocalTimer::new(settings(policy), now);
        for (act, pause) in acts {
            // Up to 2^63 ticks, 112 years, between two calls.
            now = now.wrapping_add(TscDelta::from_ticks(pause >> 1));
            carry_out(&mut timer, act, &mut now);
        }
        // Left alone, two interrupts of a periodic timer are at least the minimum period apart, however late the calls.
        let periodic = LvtTimer(u32::try_from(timer.read(TimerRegister::LvtTimer, now)).unwrap()).mode() == TimerMode::PERIODIC;
        let _ = timer.expire(now);
        let mut last = None;
        for _ in 0..8 {
            let Some(deadline) = timer.next_deadline().filter(|_| periodic) else {
                break;
            };
            let wait = deadline.remaining(now);
            now = now.wrapping_add(wait);
            let effects = timer.expire(now);
            if effects.delivery != chronovisor_host::apic::Delivery::Nothing {
                if let Some(last) = last {
                    let apart = now.wrapping_delta(last).as_ticks();
                    prop_assert!(apart >= minimum_ticks(&timer), "{apart} ticks apart: {timer:?}");
                }
                last = Some(now);
            }
        }
    }

    /// The initial count alone cannot arm a periodic timer nearer than the minimum.
    #[test]
    fn no_initial_count_is_below_the_minimum(count in 1_u32.., divide: u32, start: u64) {
        let now = Tsc::from_ticks(start);
        let mut timer = LocalTimer::new(settings(LostTicks::Merge), now);
        let _ = timer.write(TimerRegister::LvtTimer, LvtTimer::new(TimerMode::PERIODIC, 0x30).0.into(), now);
        let _ = timer.write(TimerRegister::DivideConfiguration, divide.into(), now);
        let _ = timer.write(TimerRegister::InitialCount, count.into(), now);
        let deadline = timer.next_deadline().unwrap();
        prop_assert!(deadline.remaining(now) >= TscDelta::from_ticks(MINIMUM_TICKS));
    }

    #[test]
    fn any_state_is_refused_or_becomes_a_timer(
        lvt: u32, masks in any::<[bool; 3]>(), initial_count: u32, divide: u32, deadline in sized(), running: bool,
        elapsed in (sized(), any::<u128>(), any::<u128>()), since in (sized(), any::<u128>(), any::<u128>()),
        pending in sized(), backlog: u32, policy in policy(), now: u64, later in sized(),
    ) {
        let fraction = |(counts, numerator, denominator): (u64, u128, u128)| {
            // Half of them possible ones.
            let (numerator, denominator) = if masks[2] { (numerator, denominator) } else { (numerator & 0xfff, 0x1000) };
            CountFraction { counts, numerator, denominator }
        };
        let state = TimerState {
            power: Power::On,
            lvt: LvtTimer(if masks[0] { lvt } else { lvt & LvtTimer::WRITABLE }),
            initial_count,
            divide: DivideConfiguration(if masks[1] { divide } else { divide & 0xb }),
            deadline: if lvt & LvtTimer::MODE_HIGH == 0 { 0 } else { deadline },
            count: if running {
                SavedCount::Running { elapsed: fraction(elapsed), since_interrupt: fraction(since) }
            } else {
                SavedCount::Stopped
            },
            pending,
            backlog,
        };
        let now = Tsc::from_ticks(now);
        if let Ok(mut timer) = LocalTimer::restore(settings(policy), &state, now) {
            let _ = timer.next_deadline();
            let _ = timer.expire(now.wrapping_add(TscDelta::from_ticks(later >> 1)));
            let _ = timer.save(now).registers();
        }
    }

    #[test]
    fn any_synthetic_timer_writes_end_in_a_state(writes in prop::collection::vec((0x4000_0080_u32..0x4000_00c0, sized(), sized()), 1..40), state: [u64; 8]) {
        let mut timers = VcpuTimers::new(synthetic_timer::Settings::DEFAULT);
        let mut now = RefTime::ZERO;
        for (number, value, pause) in writes {
            let msr = Msr(number);
            now = now.wrapping_add(RefTime::from_100ns(pause));
            let before = timers;
            if timers.write(msr, value, now, &NoMemory).is_err() {
                prop_assert_eq!(timers, before);
            }
            prop_assert_eq!(timers.read(msr, now).is_ok(), VcpuTimers::owns(msr));
            let _ = timers.next_due(Presence::Away);
        }
        let _ = timers.expire(now.wrapping_add(RefTime::from_100ns(u64::MAX >> 1)), &NoMemory);
        prop_assert_eq!(VcpuTimers::restore(synthetic_timer::Settings::DEFAULT, &timers.save()), Ok(timers));
        let anything = SyntheticTimerState {
            config: Config(state[0]),
            count: state[1],
            due: Some(RefTime::from_100ns(state[2])),
            undelivered: (state[3] & 1 == 0).then(|| RefTime::from_100ns(state[3])),
            backlog: u32::try_from(state[4] >> 32).unwrap(),
            last_signal: Some(RefTime::from_100ns(state[5])),
        };
        let state = VcpuTimersState {
            synic: SynicRegisters { control: state[6], event_flags_page: 0, message_page: state[7], sources: [InterruptSource(state[6]); 16] },
            timers: [anything, SyntheticTimerState { config: Config(state[0] & !Config::RESERVED | 1), ..anything }, anything, anything],
        };
        for state in [state, VcpuTimersState { synic: timers.save().synic, ..state }] {
            if let Ok(mut timers) = VcpuTimers::restore(synthetic_timer::Settings::DEFAULT, &state) {
                let _ = timers.expire(now, &NoMemory);
            }
        }
    }
}
