//! Synthetic timers over random histories: whatever a guest writes and however late it is served, every message is on the grid of its timer, none is
//! early, none comes twice, and each expiry is accounted for.

use crate::vp::{PAGE, SOURCE, Vp, at, config, count};
use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::RefTime;
use chronovisor_abi::synthetic_timer::{Config, TimerMessage};
use chronovisor_host::apic::{CatchUp, LostTicks};
use chronovisor_host::synthetic_timer::{Effects, Presence, Settings, VcpuTimers};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Act {
    Config {
        timer: u32,
        flags: u64,
        direct: bool,
    },
    Count {
        timer: u32,
        value: u64,
    },
    /// The guest takes the message, and writes end-of-message if it is asked to.
    Take,
    /// The VMM is woken when it asked to be, this much late.
    Wake {
        late: u64,
    },
    MessagePage {
        on: bool,
    },
    SaveRestore,
}

fn act() -> impl Strategy<Value = Act> {
    let timer = || 0_u32..4;
    prop_oneof![
        3 => (timer(), 0_u64..16, any::<bool>()).prop_map(|(timer, flags, direct)| Act::Config { timer, flags, direct }),
        3 => (timer(), prop_oneof![Just(0_u64), 1_u64..100, 1_000_u64..100_000, any::<u64>()]).prop_map(|(timer, value)| Act::Count { timer, value }),
        4 => Just(Act::Take),
        6 => prop_oneof![Just(0_u64), 0_u64..1_000, 0_u64..1_000_000].prop_map(|late| Act::Wake { late }),
        1 => any::<bool>().prop_map(|on| Act::MessagePage { on }),
        1 => Just(Act::SaveRestore),
    ]
}

/// What the model remembers of one timer: when it was last started, and with what.
#[derive(Clone, Copy, Debug, Default)]
struct Started {
    at: u64,
    count: u64,
    periodic: bool,
    /// The due time of the last message since then.
    last: Option<u64>,
}

struct History {
    vp: Vp,
    settings: Settings,
    now: u64,
    started: [Started; 4],
    /// expiries, signals, merged, lost
    account: [u64; 4],
}

impl History {
    fn note(&mut self, effects: Effects) {
        let parts = [
            effects.expiries,
            effects.signals,
            effects.merged,
            effects.lost,
        ];
        for (sum, part) in self.account.iter_mut().zip(parts) {
            *sum += part;
        }
    }

    /// Messages that wait and ticks that are owed, in expiries of the guest's own period.
    fn held(&self) -> u64 {
        let state = self.vp.timers.save();
        let minimum = self.settings.minimum_period.as_100ns();
        let each = state.timers.iter().map(|timer| {
            let fast =
                timer.config.has(Config::PERIODIC) && timer.count != 0 && timer.count < minimum;
            let stride = if fast {
                minimum.div_ceil(timer.count)
            } else {
                1
            };
            u64::from(timer.undelivered.is_some()) + u64::from(timer.backlog) * stride
        });
        each.sum()
    }

    fn restart(&mut self, timer: u32) {
        let count = self.vp.read(count(timer), self.now);
        let config = Config(self.vp.read(config(timer), self.now));
        let periodic = config.has(Config::PERIODIC);
        self.started[usize::try_from(timer).unwrap()] = Started {
            at: self.now,
            count,
            periodic,
            last: None,
        };
    }

    fn judge(&mut self, message: TimerMessage) {
        let started = &mut self.started[usize::try_from(message.timer).unwrap()];
        let (due, delivered) = (message.expiration.as_100ns(), message.delivery.as_100ns());
        if started.periodic {
            assert!(due <= delivered, "early: {message:?}");
            assert!(
                due > started.at && (due - started.at).is_multiple_of(started.count),
                "off the grid: {message:?}, {started:?}"
            );
            assert!(
                started.last.is_none_or(|last| last < due),
                "again or out of order: {message:?}, {started:?}"
            );
        } else {
            assert_eq!(due, started.count, "{message:?}");
            assert_eq!(started.last, None, "a one-shot twice: {message:?}");
        }
        started.last = Some(due);
    }

    fn carry_out(&mut self, act: Act) {
        match act {
            Act::Config {
                timer,
                flags,
                direct,
            } => {
                let reports = if direct {
                    Config::for_vector(0x50)
                } else {
                    Config::for_source(SOURCE)
                };
                // A message of the former start that the guest has not taken yet is none of the new one's.
                self.drain();
                let effects = self
                    .vp
                    .write(config(timer), reports.with(flags).0, self.now);
                self.note(effects);
                self.take_what_the_write_sent(timer);
                self.restart(timer);
            }
            Act::Count { timer, value } => {
                self.drain();
                let effects = self.vp.write(count(timer), value, self.now);
                self.note(effects);
                self.take_what_the_write_sent(timer);
                self.restart(timer);
            }
            Act::Take => self.take(),
            Act::Wake { late } => {
                if let Some(due) = self.vp.timers.next_due(Presence::Present) {
                    let ahead = due.as_100ns().saturating_sub(self.now);
                    if ahead < 1 << 40 {
                        self.now += ahead + late;
                    }
                }
                let effects = self.vp.expire(self.now);
                self.note(effects);
            }
            Act::MessagePage { on } => {
                let effects = self.vp.write(Msr::HV_SIMP, PAGE | u64::from(on), self.now);
                self.note(effects);
            }
            Act::SaveRestore => {
                self.vp.timers =
                    VcpuTimers::restore(self.settings, &self.vp.timers.save()).unwrap();
            }
        }
    }

    fn take(&mut self) {
        if let Some((message, _)) = self.vp.take() {
            self.judge(message);
            let effects = self.vp.write(Msr::HV_EOM, 0, self.now);
            self.note(effects);
        }
    }

    /// The guest takes what there is, with what follows, before it programs a timer anew.
    fn drain(&mut self) {
        let effects = self.vp.expire(self.now);
        self.note(effects);
        for _ in 0..8 {
            self.take();
        }
    }

    /// A message that the write itself sent: a one-shot that was set into the past.
    fn take_what_the_write_sent(&mut self, timer: u32) {
        while let Some((message, _)) = self.vp.take() {
            assert_eq!(
                message.timer, timer,
                "only the timer that was written can have become due"
            );
            let count = self.vp.read(count(timer), self.now);
            assert_eq!(message.expiration, at(count), "{message:?}");
            let effects = self.vp.write(Msr::HV_EOM, 0, self.now);
            self.note(effects);
        }
    }
}

fn policy() -> impl Strategy<Value = LostTicks> {
    prop_oneof![
        Just(LostTicks::Merge),
        Just(LostTicks::SkipOnGrid),
        Just(LostTicks::CatchUp(CatchUp::DEFAULT)),
        (1_u8..=128, 0_u32..40)
            .prop_map(|(spacing, cap)| LostTicks::CatchUp(CatchUp::new(spacing, cap).unwrap())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn messages_are_on_the_grid_and_accounted_for(
        start in 0_u64..1 << 50, punctual in policy(), lazy in policy(), minimum in prop_oneof![Just(0_u64), Just(2000)],
        acts in prop::collection::vec(act(), 20..80),
    ) {
        let minimum_period = RefTime::from_100ns(minimum);
        let settings = Settings { punctual, lazy, minimum_period, ..Settings::DEFAULT };
        let mut history = History { vp: Vp::new(settings), settings, now: start, started: Default::default(), account: [0; 4] };
        for act in acts {
            history.carry_out(act);
            let [expiries, signals, merged, lost] = history.account;
            prop_assert_eq!(expiries, signals + merged + lost + history.held(), "{:?} after {:?}", history.account, act);
        }
    }

    /// Served at once, and with messages taken at once, a periodic timer tells each of its ticks once.
    #[test]
    fn a_prompt_guest_misses_nothing(start in 0_u64..1 << 62, period in 2_000_u64..1 << 30, punctual in policy()) {
        let mut vp = Vp::new(Settings { punctual, ..Settings::DEFAULT });
        vp.set(count(1), period, start);
        vp.set(config(1), Config::for_source(SOURCE).with(Config::ENABLED | Config::PERIODIC).0, start);
        for tick in 1..=50 {
            let due = vp.due().unwrap();
            prop_assert_eq!(due, start + tick * period);
            prop_assert_eq!(vp.expire(due).signals, 1);
            prop_assert_eq!(vp.take().map(|(message, _)| message.expiration), Some(at(due)));
        }
    }
}
