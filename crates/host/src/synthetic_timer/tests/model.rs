//! What the timers should do, written down from the rules over unwrapped time. It shares nothing with them: it numbers the ticks of a grid from
//! the moment it began and keeps how many were told, where a timer keeps its next due time and a backlog; and it has a message page of its own.

use std::vec::Vec;

pub(super) const TIMERS: usize = 4;
const ENABLED: u64 = 1;
const PERIODIC: u64 = 1 << 1;
const LAZY: u64 = 1 << 2;
const AUTO_ENABLE: u64 = 1 << 3;
const DIRECT: u64 = 1 << 12;
/// A period of this length or more is held here.
const LONGEST: u128 = (1 << 63) - 1;

/// What to do with late ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Merge,
    Skip,
    CatchUp { spacing_128ths: u8, cap: u32 },
}

/// What a call should tell.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Told {
    pub(super) expiries: u64,
    pub(super) signals: u64,
    pub(super) merged: u64,
    pub(super) lost: u64,
    /// Vector, and whether it ends itself.
    pub(super) interrupts: Vec<(u8, bool)>,
    pub(super) periods_per_signal: Option<u64>,
}

/// What a timer waits for, in unwrapped time.
#[derive(Clone, Copy, Debug)]
enum Waits {
    For(u128),
    /// The grid `from + k * period`; ticks up to `seen` were looked at, `owed` of them are still to be told.
    OnGrid {
        from: u128,
        seen: u128,
        owed: u64,
    },
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timer {
    pub(super) config: u64,
    pub(super) count: u64,
    waits: Option<Waits>,
    /// The due time of the message that waits for its slot.
    pub(super) message: Option<u64>,
    last: Option<u128>,
}

/// A slot of the message page: timer, due time, delivery time; and the flag that another message waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) message: Option<(u32, u64, u64)>,
    pub(super) flag: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) minimum: u64,
    pub(super) punctual: Policy,
    pub(super) lazy: Policy,
    pub(super) direct_exists: bool,
    pub(super) timers: [Timer; TIMERS],
    pub(super) controller_on: bool,
    /// Whether the page is enabled, and at an address that is memory.
    pub(super) page_on: bool,
    pub(super) page_there: bool,
    pub(super) sources: [u64; 16],
    pub(super) slots: [Slot; 16],
}

fn wrapped(t: u128) -> u64 {
    u64::try_from(t % (1 << 64)).unwrap()
}

impl Timer {
    fn has(&self, bit: u64) -> bool {
        self.config & bit != 0
    }

    pub(super) fn is_periodic(&self) -> bool {
        self.has(PERIODIC)
    }

    pub(super) fn is_lazy(&self) -> bool {
        self.has(LAZY)
    }

    pub(super) fn waits(&self) -> bool {
        self.waits.is_some()
    }

    pub(super) fn owed(&self) -> u64 {
        match self.waits {
            Some(Waits::OnGrid { owed, .. }) => owed,
            _ => 0,
        }
    }

    fn source(&self) -> usize {
        usize::try_from((self.config >> 16) & 15).unwrap()
    }

    /// Periods that one signal stands for.
    pub(super) fn stride(&self, minimum: u64) -> u64 {
        if self.has(PERIODIC) && self.count > 0 {
            minimum.div_ceil(self.count).max(1)
        } else {
            1
        }
    }

    fn period(&self, minimum: u64) -> u128 {
        (u128::from(self.count) * u128::from(self.stride(minimum))).min(LONGEST)
    }
}

impl Model {
    pub(super) fn policy(&self, timer: &Timer) -> Policy {
        if timer.has(LAZY) {
            self.lazy
        } else {
            self.punctual
        }
    }

    fn spacing(&self, timer: &Timer) -> u128 {
        let Policy::CatchUp { spacing_128ths, .. } = self.policy(timer) else {
            return 0;
        };
        let period = timer.period(self.minimum);
        let part = (period * u128::from(spacing_128ths)).div_ceil(128);
        part.max(self.minimum.into()).min(period)
    }

    pub(super) fn evaluate(&mut self, t: u128) -> Told {
        let mut told = Told::default();
        for index in 0..TIMERS {
            self.tick(index, t, &mut told);
        }
        self.send(t, &mut told);
        told
    }

    /// Brings one timer up to `t`.
    fn tick(&mut self, index: usize, t: u128, told: &mut Told) {
        let mut timer = self.timers[index];
        let due = match timer.waits {
            None => None,
            Some(Waits::For(at)) if at > t => None,
            Some(Waits::For(_)) => {
                timer.waits = None;
                timer.config &= !ENABLED;
                told.expiries += 1;
                Some(timer.count)
            }
            Some(Waits::OnGrid { from, seen, owed }) => {
                let period = timer.period(self.minimum);
                let points = (t - from) / period;
                let ticks = u64::try_from(points - seen).unwrap();
                let stride = timer.stride(self.minimum);
                let all = ticks + owed;
                let spaced = timer
                    .last
                    .is_none_or(|last| t - last >= self.spacing(&timer));
                let full = timer.message.is_some();
                // How many are told (0 or 1), kept, and what becomes of the others.
                let (tells, kept) = match self.policy(&timer) {
                    _ if all == 0 => (0, 0),
                    Policy::Merge => (u64::from(!full), 0),
                    Policy::Skip => {
                        let late = t - from - points * period;
                        (u64::from(!full && ticks > 0 && 2 * late <= period), 0)
                    }
                    Policy::CatchUp { cap, .. } => {
                        let tells = u64::from(!full && spaced);
                        (tells, (all - tells).min(cap.into()))
                    }
                };
                let others = (all - tells - kept) * stride;
                let merges = self.policy(&timer) == Policy::Merge && !full;
                told.expiries += ticks * stride;
                told.merged += tells * (stride - 1) + if merges { others } else { 0 };
                told.lost += if merges { 0 } else { others };
                timer.waits = Some(Waits::OnGrid {
                    from,
                    seen: points,
                    owed: kept,
                });
                if tells > 0 {
                    timer.last = Some(t);
                }
                (tells > 0).then(|| wrapped(from + (points - u128::from(kept)) * period))
            }
        };
        if let Some(due) = due {
            if timer.has(DIRECT) {
                match u8::try_from((timer.config >> 4) & 0xff).unwrap() {
                    0..16 => told.lost += 1,
                    vector => {
                        told.signals += 1;
                        told.interrupts.push((vector, false));
                    }
                }
            } else {
                timer.message = Some(due);
            }
        }
        self.timers[index] = timer;
    }

    /// Tries the messages that wait, those that were due first before the others.
    pub(super) fn send(&mut self, t: u128, told: &mut Told) {
        let mut waiting: Vec<usize> = (0..TIMERS)
            .filter(|index| self.timers[*index].message.is_some())
            .collect();
        // A stable sort: of two that were due together the lower number comes first. wrapping: due times wrap.
        waiting.sort_by_key(|index| {
            let due = self.timers[*index].message.unwrap();
            core::cmp::Reverse(wrapped(t).wrapping_sub(due))
        });
        for index in waiting {
            let timer = &mut self.timers[index];
            let slot = &mut self.slots[timer.source()];
            if !(self.controller_on && self.page_on && self.page_there) {
                continue;
            }
            if slot.message.is_some() {
                slot.flag = true;
                continue;
            }
            let number = u32::try_from(index).unwrap();
            *slot = Slot {
                message: Some((number, timer.message.take().unwrap(), wrapped(t))),
                flag: false,
            };
            timer.last = Some(t);
            told.signals += 1;
            let source = self.sources[timer.source()];
            if source & (1 << 16 | 1 << 18) == 0 {
                let vector = u8::try_from(source & 0xff).unwrap();
                told.interrupts.push((vector, source & (1 << 17) != 0));
            }
        }
    }

    /// A write of CONFIG or COUNT starts the timer anew.
    fn rewrite(&mut self, index: usize, t: u128, change: impl FnOnce(&mut Timer)) -> Told {
        let mut told = self.evaluate(t);
        let minimum = self.minimum;
        let timer = &mut self.timers[index];
        told.lost += timer.owed() * timer.stride(minimum) + u64::from(timer.message.is_some());
        (timer.waits, timer.message, timer.last) = (None, None, None);
        change(timer);
        if timer.source() == 0 && !timer.has(DIRECT) {
            timer.config &= !ENABLED;
        }
        if timer.has(ENABLED) && timer.count != 0 {
            timer.waits = Some(if timer.has(PERIODIC) {
                Waits::OnGrid {
                    from: t,
                    seen: 0,
                    owed: 0,
                }
            } else {
                // wrapping: COUNT wraps; half of all values are ahead, the others are past.
                let ahead = timer.count.wrapping_sub(wrapped(t));
                Waits::For(if ahead < 1 << 63 {
                    t + u128::from(ahead)
                } else {
                    t
                })
            });
            let stride = timer.stride(minimum);
            told.periods_per_signal = (stride > 1).then_some(stride);
        }
        self.tick(index, t, &mut told);
        self.send(t, &mut told);
        told
    }

    pub(super) fn write_config(&mut self, index: usize, value: u64, t: u128) -> Told {
        let kept = if self.direct_exists {
            0xf_1fff
        } else {
            0xf_000f
        };
        self.rewrite(index, t, |timer| timer.config = value & kept)
    }

    pub(super) fn write_count(&mut self, index: usize, value: u64, t: u128) -> Told {
        self.rewrite(index, t, |timer| {
            timer.count = value;
            if value == 0 {
                timer.config &= !ENABLED;
            } else if timer.has(AUTO_ENABLE) {
                timer.config |= ENABLED;
            }
        })
    }

    pub(super) fn config_register(&self, index: usize, t: u128) -> u64 {
        let timer = &self.timers[index];
        match timer.waits {
            Some(Waits::For(at)) if at <= t => timer.config & !ENABLED,
            _ => timer.config,
        }
    }

    /// When the timers have to be looked at next; `away` leaves the lazy ones out.
    pub(super) fn next(&self, away: bool) -> Option<u128> {
        let due = |timer: &Timer| {
            if away && timer.has(LAZY) {
                return None;
            }
            let (from, seen, owed) = match timer.waits? {
                Waits::For(at) => return Some(at),
                Waits::OnGrid { from, seen, owed } => (from, seen, owed),
            };
            if timer.message.is_some() {
                return None;
            }
            let due = from + (seen + 1) * timer.period(self.minimum);
            match (self.policy(timer), timer.last) {
                (Policy::CatchUp { .. }, Some(last)) => {
                    let apart = last + self.spacing(timer);
                    Some(if owed > 0 { apart } else { due.max(apart) })
                }
                _ => Some(due),
            }
        };
        self.timers.iter().filter_map(due).min()
    }

    /// Expiries that are neither told nor given up.
    pub(super) fn held(&self) -> u64 {
        let held = |timer: &Timer| {
            timer.owed() * timer.stride(self.minimum) + u64::from(timer.message.is_some())
        };
        self.timers.iter().map(held).sum()
    }
}
