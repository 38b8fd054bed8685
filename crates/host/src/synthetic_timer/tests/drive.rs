//! One random history, carried out on the timers and on the model side by side.

mod compare;

use std::string::String;
use std::{format, vec::Vec};

use chronovisor_abi::msr::Msr;
use chronovisor_abi::pvclock::{Record, WallClockRecord};
use chronovisor_abi::quantity::RefTime;
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_abi::synthetic_timer::{EndOfMessage, MessagePage};

use super::model::{Model, Policy, Slot, TIMERS, Timer, Told};
use super::rules::Rules;
use crate::apic::tests::random::Random;
use crate::apic::{CatchUp, LostTicks};
use crate::guest_memory::{GuestAddress, GuestMemory};
use crate::synic::Fault;
use crate::synthetic_timer::{DirectMode, Effects, Settings, VcpuTimers};

const PAGE: u64 = 0x7000;
/// The sources that the guest uses.
const SOURCES: [u8; 2] = [2, 5];

struct Memory(MessagePage);

impl GuestMemory for Memory {
    fn pvclock_record(&self, _address: GuestAddress) -> Option<&Record> {
        None
    }

    fn wall_clock_record(&self, _address: GuestAddress) -> Option<&WallClockRecord> {
        None
    }

    fn reference_tsc_page(&self, _address: GuestAddress) -> Option<&ReferenceTscPage> {
        None
    }

    fn message_page(&self, address: GuestAddress) -> Option<&MessagePage> {
        (address.as_u64() == PAGE).then_some(&self.0)
    }
}

/// The history of `seed`: 24 to 40 steps. `Err` tells the first difference.
pub(super) fn sequence(seed: u64, rules: &mut Rules) -> Result<(), String> {
    let mut run = Run::new(seed);
    let steps = 24 + run.random.below(17);
    for step in 0..steps {
        rules.note("steps");
        run.pass_time(rules);
        run.act(rules)
            .and_then(|()| run.compare(rules))
            .map_err(|difference| {
                format!(
                    "step {step}: {difference}\n{:#?}\n{:#?}\n{}",
                    run.timers.save().timers,
                    run.model.timers,
                    run.trace.join("\n")
                )
            })?;
    }
    Ok(())
}

struct Run {
    random: Random,
    settings: Settings,
    timers: VcpuTimers,
    memory: Memory,
    model: Model,
    /// Unwrapped reference time.
    t: u128,
    /// The wake-up that was asked for last, and whether the timers have said since that it may have changed.
    wakeup: Option<RefTime>,
    asked_again: bool,
    /// Expiries, signals, merged, lost so far.
    account: [u64; 4],
    trace: Vec<String>,
}

fn policy(random: &mut Random) -> (LostTicks, Policy) {
    match random.below(4) {
        0 => (LostTicks::Merge, Policy::Merge),
        1 => (LostTicks::SkipOnGrid, Policy::Skip),
        _ => {
            let spacing_128ths = u8::try_from(1 + random.below(128)).unwrap();
            let cap = random.below(20);
            let limits = CatchUp::new(spacing_128ths, cap).unwrap();
            let policy = Policy::CatchUp {
                spacing_128ths,
                cap,
            };
            (LostTicks::CatchUp(limits), policy)
        }
    }
}

fn msr(first: Msr, index: usize) -> Msr {
    Msr(first.0 + u32::try_from(index).unwrap())
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (ours, punctual) = policy(&mut random);
        let (ours_lazy, lazy) = policy(&mut random);
        let minimum = random.pick(&[0, 0, 2000, 10_000]);
        let direct_exists = !random.one_in(8);
        let settings = Settings {
            direct_mode: if direct_exists {
                DirectMode::Offered
            } else {
                DirectMode::Absent
            },
            punctual: ours,
            lazy: ours_lazy,
            minimum_period: RefTime::from_100ns(minimum),
        };
        // A quarter of the histories begins shortly before reference time wraps.
        let start = if random.one_in(4) {
            u64::MAX - random.magnitude(24)
        } else {
            random.magnitude(60)
        };
        let mut run = Self {
            random,
            settings,
            timers: VcpuTimers::new(settings),
            memory: Memory(MessagePage::new()),
            model: Model {
                minimum,
                punctual,
                lazy,
                direct_exists,
                timers: [Timer::default(); TIMERS],
                controller_on: false,
                page_on: false,
                page_there: false,
                sources: [1 << 16; 16],
                slots: [Slot::default(); 16],
            },
            t: start.into(),
            wakeup: None,
            asked_again: true,
            account: [0; 4],
            trace: Vec::new(),
        };
        if !run.random.one_in(4) {
            run.begin();
        }
        run
    }

    /// What a guest sets up first.
    fn begin(&mut self) {
        let (now, memory) = (self.now(), &self.memory);
        let source = |index: u8| 0x40 + u64::from(index);
        let mut set = |msr, value| {
            let _ = self.timers.write(msr, value, now, memory).unwrap();
        };
        set(Msr::HV_SCONTROL, 1);
        set(Msr::HV_SIMP, PAGE | 1);
        (self.model.controller_on, self.model.page_on) = (true, true);
        self.model.page_there = true;
        for index in SOURCES {
            set(msr(Msr::HV_SINT0, index.into()), source(index));
            self.model.sources[usize::from(index)] = source(index);
        }
    }

    fn now(&self) -> RefTime {
        RefTime::from_100ns(u64::try_from(self.t % (1 << 64)).unwrap())
    }

    fn pass_time(&mut self, rules: &mut Rules) {
        let from = self.now().as_100ns();
        match self.random.below(8) {
            0 => {}
            1 | 2 => self.t += u128::from(self.random.magnitude(16)),
            3 => self.t += u128::from(self.random.magnitude(40)),
            // The wake-up, on time or late.
            how => {
                if let Some(due) = self.model.next(false)
                    && due < self.t + (1 << 42)
                {
                    let late = if how < 6 {
                        0
                    } else {
                        self.random.magnitude(20)
                    };
                    self.t = self.t.max(due + u128::from(late));
                }
            }
        }
        rules.note_if("reference time wraps", self.now().as_100ns() < from);
    }

    fn act(&mut self, rules: &mut Rules) -> Result<(), String> {
        let index = usize::try_from(self.random.below(4)).unwrap();
        match self.random.below(24) {
            0..=3 => self.write_config(index, rules),
            4..=7 => self.write_count(index, rules),
            8 => self.write_page(rules),
            9 => self.write_controller(rules),
            10 => self.write_source(rules),
            11..=14 => self.take(rules),
            15 => self.save_and_restore(rules),
            _ => {
                let effects = self.timers.expire(self.now(), &self.memory);
                let expected = self.model.evaluate(self.t);
                self.agree("expire", effects, &expected, rules)
            }
        }
    }

    fn write_config(&mut self, index: usize, rules: &mut Rules) -> Result<(), String> {
        let flags = u64::from(self.random.below(16));
        let reports = if self.random.one_in(2) {
            let low = self.random.one_in(12);
            let vector = self.random.below(if low { 16 } else { 240 }) + if low { 0 } else { 16 };
            1 << 12 | u64::from(vector) << 4
        } else {
            self.random.pick(&[2_u64, 2, 2, 5, 0]) << 16
        };
        let reserved = self.random.next_u64() & !0xf_1fff;
        let value = flags | reports | if self.random.one_in(8) { reserved } else { 0 };
        self.say(format!("config {index} := {value:#x}"));
        let before = self.model.timers[index];
        rules.note_if("config of a running timer written", before.waits());
        let register = msr(Msr::HV_STIMER0_CONFIG, 2 * index);
        let effects = self.write(register, value)?;
        let expected = self.model.write_config(index, value, self.t);
        let silent = reports == 0 || (reports >> 12 == 1 && !self.model.direct_exists);
        rules.note_if("enabled with source 0 is cleared", flags & 1 == 1 && silent);
        self.note_write(before, &expected, rules);
        self.agree("config", effects, &expected, rules)
    }

    fn write_count(&mut self, index: usize, rules: &mut Rules) -> Result<(), String> {
        let now = self.now().as_100ns();
        let value = match self.random.below(10) {
            0 => 0,
            1 => self.random.next_u64(),
            2 => now.wrapping_sub(self.random.magnitude(30)),
            3 | 4 => now.wrapping_add(self.random.magnitude(24)),
            5 => 1 + u64::from(self.random.below(100)),
            _ => 1 + self.random.magnitude(18),
        };
        self.say(format!("count {index} := {value:#x}"));
        let before = self.model.timers[index];
        rules.note_if("count of a running timer written", before.waits());
        rules.note_if("count 0 stops", before.waits() && value == 0);
        let register = msr(Msr::HV_STIMER0_COUNT, 2 * index);
        let effects = self.write(register, value)?;
        let expected = self.model.write_count(index, value, self.t);
        let started = before.config & 1 == 0 && self.model.timers[index].waits();
        rules.note_if("auto-enable starts", started);
        self.note_write(before, &expected, rules);
        self.agree("count", effects, &expected, rules)
    }

    fn note_write(&self, before: Timer, expected: &Told, rules: &mut Rules) {
        let past = !before.waits() && expected.expiries == 1;
        rules.note_if("one-shot in the past fires at once", past);
        rules.note_if("a write finds a timer due", expected.expiries > 0);
        let twice = expected.interrupts.len() == 2 && before.waits();
        rules.note_if("a due timer is written and due again", twice);
        let minimum = expected.periods_per_signal.is_some();
        rules.note_if("minimum period applied", minimum);
    }

    fn write_page(&mut self, rules: &mut Rules) -> Result<(), String> {
        let on = !self.random.one_in(3);
        let there = !self.random.one_in(4);
        let address = if there { PAGE } else { 0xdead_0000 };
        self.say(format!("message page on: {on}, there: {there}"));
        let effects = self.write(Msr::HV_SIMP, address | u64::from(on))?;
        let mut expected = self.model.evaluate(self.t);
        (self.model.page_on, self.model.page_there) = (on, there);
        self.send_again(&mut expected, "page or controller is enabled", rules);
        self.agree("page", effects, &expected, rules)
    }

    fn write_controller(&mut self, rules: &mut Rules) -> Result<(), String> {
        let on = !self.random.one_in(3);
        self.say(format!("controller on: {on}"));
        let effects = self.write(Msr::HV_SCONTROL, u64::from(on))?;
        let mut expected = self.model.evaluate(self.t);
        self.model.controller_on = on;
        self.send_again(&mut expected, "page or controller is enabled", rules);
        self.agree("controller", effects, &expected, rules)
    }

    fn send_again(&mut self, told: &mut Told, when: &str, rules: &mut Rules) {
        let before = told.signals;
        self.model.send(self.t, told);
        let rule = match when {
            "end-of-message" => "waiting message sent on end-of-message",
            _ => "waiting message sent when page or controller is enabled",
        };
        rules.note_if(rule, told.signals > before);
    }

    fn write_source(&mut self, rules: &mut Rules) -> Result<(), String> {
        let source = usize::from(self.random.pick(&SOURCES));
        let vector = u64::from(self.random.below(256));
        let flags = self.random.pick(&[0_u64, 0, 0, 1, 2, 4, 6]) << 16;
        let value = vector | flags;
        let register = msr(Msr::HV_SINT0, source);
        self.say(format!("source {source} := {value:#x}"));
        if vector < 16 && flags & (1 << 16) == 0 {
            rules.note("unmasked low vector refused");
            let before = self.timers;
            let refused = self.write(register, value).is_err();
            return if refused && self.timers == before {
                Ok(())
            } else {
                Err(format!("{register} := {value:#x} was not refused"))
            };
        }
        let effects = self.write(register, value)?;
        let expected = self.model.evaluate(self.t);
        self.model.sources[source] = value;
        self.agree("source", effects, &expected, rules)
    }

    fn write(&mut self, register: Msr, value: u64) -> Result<Effects, String> {
        let now = self.now();
        let written = self.timers.write(register, value, now, &self.memory);
        written.map_err(|fault: Fault| format!("{fault}"))
    }

    /// The guest empties a slot, and writes end-of-message or ends the interrupt.
    fn take(&mut self, rules: &mut Rules) -> Result<(), String> {
        let source = self.random.pick(&SOURCES);
        self.say(format!("take {source}"));
        let slot = &mut self.model.slots[usize::from(source)];
        let expected = slot.message.take().map(|message| (message, slot.flag));
        let taken = self.memory.0.slot(source).take().map(|(message, end)| {
            let times = (message.expiration, message.delivery);
            let message = (message.timer, times.0.as_100ns(), times.1.as_100ns());
            (message, end == EndOfMessage::Write)
        });
        if taken != expected {
            return Err(format!("took {taken:?} where {expected:?} is right"));
        }
        let flagged = taken.is_some_and(|(_, flag)| flag);
        rules.note_if("guest told to write end-of-message", flagged);
        let effects = match self.random.below(3) {
            0 => return Ok(()),
            1 => self.timers.retry(self.now(), &self.memory),
            _ => self.write(Msr::HV_EOM, 0)?,
        };
        let waiting = self.model.held();
        let expected = self.model.evaluate(self.t);
        rules.note_if(
            "waiting message sent on end-of-message",
            waiting > 0 && expected.expiries == 0 && expected.signals > 0,
        );
        self.agree("take", effects, &expected, rules)
    }

    /// Somewhere else the policies may be others; reference time stands still.
    fn save_and_restore(&mut self, rules: &mut Rules) -> Result<(), String> {
        let state = self.timers.save();
        let waits = |timer: &Timer| timer.message.is_some();
        let owes = self.model.timers.iter().any(|timer| timer.owed() > 0);
        rules.note_if(
            "saved with a message that waits",
            self.model.timers.iter().any(waits),
        );
        rules.note_if("saved with a backlog", owes);
        if self.random.one_in(3) {
            (self.settings.punctual, self.model.punctual) = policy(&mut self.random);
            (self.settings.lazy, self.model.lazy) = policy(&mut self.random);
            rules.note_if("restored under another policy with a backlog", owes);
        }
        self.say(format!("save and restore: {:?}", self.settings));
        self.timers =
            VcpuTimers::restore(self.settings, &state).map_err(|error| format!("{error}"))?;
        self.asked_again = true;
        Ok(())
    }

    fn say(&mut self, what: String) {
        if self.trace.len() == 12 {
            self.trace.remove(0);
        }
        self.trace.push(format!("{:#x}: {what}", self.t));
    }
}
