//! What the timer should do, written down from the rules with exact fractions over its whole history. It shares nothing with the timer: it
//! keeps all counts since the start of the count and numbers the points of the grid, where the timer keeps the rest of a period.

mod writes;

use super::fraction::Fraction;

pub(super) const ONE_SHOT: u32 = 0;
pub(super) const PERIODIC: u32 = 1;
pub(super) const DEADLINE: u32 = 2;
const MASK: u32 = 1 << 16;

/// What to do with late ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Merge,
    Skip,
    CatchUp { spacing_128ths: u8, cap: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    On,
    Software,
    Off,
}

/// What a call should tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Told {
    pub(super) raised: Option<u8>,
    pub(super) expiries: u64,
    pub(super) merged: u64,
    pub(super) lost: u64,
}

impl Told {
    pub(super) fn then(self, later: Self) -> Self {
        let both = self.raised.is_some() && later.raised.is_some();
        Self {
            raised: later.raised.or(self.raised),
            expiries: self.expiries + later.expiries,
            merged: self.merged + later.merged + u64::from(both),
            lost: self.lost + later.lost,
        }
    }
}

/// The count since the initial count was written.
#[derive(Clone, Copy, Debug)]
struct Counting {
    /// Counts up to the last change of rate, and when that was.
    carried: Fraction,
    since: u128,
    /// The count at which the present grid begins, and how many of its points were seen.
    origin: Fraction,
    seen: u128,
    /// The count at the last interrupt on this grid.
    last_interrupt: Option<Fraction>,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) bus: Fraction,
    pub(super) tsc: Fraction,
    pub(super) minimum_ns: u128,
    pub(super) policy: Policy,
    pub(super) deadline_mode_exists: bool,
    pub(super) switch: Switch,
    pub(super) lvt: u32,
    pub(super) initial: u32,
    pub(super) divide: u32,
    pub(super) deadline: u64,
    counting: Option<Counting>,
    pub(super) backlog: u64,
    pub(super) pending: u64,
    /// Guest TSC = time + offset, modulo 2^64.
    pub(super) offset: u64,
    pub(super) last: u128,
}

impl Model {
    pub(super) fn new(
        bus: Fraction,
        tsc: Fraction,
        minimum_ns: u128,
        policy: Policy,
        deadline_mode_exists: bool,
        offset: u64,
    ) -> Self {
        Self {
            bus,
            tsc,
            minimum_ns,
            policy,
            deadline_mode_exists,
            switch: Switch::On,
            lvt: MASK,
            initial: 0,
            divide: 0,
            deadline: 0,
            counting: None,
            backlog: 0,
            pending: 0,
            offset,
            last: 0,
        }
    }

    pub(super) fn guest(&self, t: u128) -> u64 {
        u64::try_from(t).unwrap().wrapping_add(self.offset)
    }

    pub(super) fn mode(&self) -> u32 {
        (self.lvt >> 17) & 3
    }

    pub(super) fn masked(&self) -> bool {
        self.lvt & MASK != 0
    }

    pub(super) fn is_counting(&self) -> bool {
        self.counting.is_some()
    }

    fn divider(&self) -> u128 {
        match self.divide & 0xb {
            0 => 2,
            1 => 4,
            2 => 8,
            3 => 16,
            8 => 32,
            9 => 64,
            0xa => 128,
            _ => 1,
        }
    }

    /// Counts per TSC tick.
    fn rate(&self) -> Fraction {
        self.bus
            .times_fraction(self.tsc.times(self.divider()).inverse())
    }

    fn counts_at(&self, counting: &Counting, t: u128) -> Fraction {
        counting.carried.plus(self.rate().times(t - counting.since))
    }

    /// The minimum period in exact counts.
    fn minimum(&self) -> Fraction {
        let seconds = Fraction::new(self.minimum_ns, 1_000_000_000);
        self.bus
            .times_fraction(seconds)
            .times_fraction(Fraction::new(1, self.divider()))
    }

    /// Periods that one interrupt stands for.
    pub(super) fn stride(&self) -> u128 {
        if self.mode() != PERIODIC || self.initial == 0 || self.counting.is_none() {
            return 1;
        }
        let periods = self
            .minimum()
            .times_fraction(Fraction::new(1, self.initial.into()));
        periods.ceil().max(1)
    }

    fn period(&self) -> Fraction {
        Fraction::whole(u128::from(self.initial) * self.stride())
    }

    fn spacing(&self) -> Option<Fraction> {
        let Policy::CatchUp { spacing_128ths, .. } = self.policy else {
            return None;
        };
        let part = self
            .period()
            .times_fraction(Fraction::new(spacing_128ths.into(), 128));
        Some(
            part.max(Fraction::whole(self.minimum().ceil()))
                .min(self.period()),
        )
    }

    fn points(&self, counting: &Counting, t: u128) -> u128 {
        let gone = self.counts_at(counting, t).minus(counting.origin);
        gone.times_fraction(self.period().inverse()).floor()
    }

    fn tell(&self, expiries: u64) -> Told {
        let vector = u8::try_from(self.lvt & 0xff).unwrap();
        match (expiries, self.masked()) {
            (0, _) => Told::default(),
            (lost, true) => Told {
                expiries,
                lost,
                ..Told::default()
            },
            (n, false) => Told {
                raised: Some(vector),
                expiries,
                merged: n - 1,
                lost: 0,
            },
        }
    }

    /// Whether the armed deadline's instant has come: the counter reached its value, even if it has wrapped since.
    fn deadline_passed(&self, t: u128) -> bool {
        let ahead = u128::from(self.deadline.saturating_sub(self.guest(self.last)));
        self.deadline != 0 && t >= self.last + ahead
    }

    pub(super) fn evaluate(&mut self, t: u128) -> Told {
        let t = t.max(self.last);
        let fires = self.deadline_passed(t);
        self.last = t;
        let pending = core::mem::take(&mut self.pending);
        let Some(mut counting) = self.counting else {
            if fires {
                self.deadline = 0;
            }
            return self.tell(pending + u64::from(fires));
        };
        if self.mode() == ONE_SHOT {
            let expired = self.points(&counting, t) > 0;
            if expired {
                self.counting = None;
            }
            return self.tell(pending + u64::from(expired));
        }
        let points = self.points(&counting, t);
        let ticks = u64::try_from(points - counting.seen).unwrap() + pending;
        counting.seen = points;
        let stride = u64::try_from(self.stride()).unwrap();
        let now = self.counts_at(&counting, t);
        let told = self.apply_policy(&mut counting, ticks, stride, now);
        self.counting = Some(counting);
        told
    }

    fn apply_policy(
        &mut self,
        counting: &mut Counting,
        ticks: u64,
        stride: u64,
        now: Fraction,
    ) -> Told {
        let owed = ticks + self.backlog;
        if owed == 0 {
            return Told::default();
        }
        let expiries = ticks * stride;
        if self.masked() {
            self.backlog = 0;
            return Told {
                expiries,
                lost: owed * stride,
                ..Told::default()
            };
        }
        let raised = Some(u8::try_from(self.lvt & 0xff).unwrap());
        let (delivers, lost) = match self.policy {
            Policy::Merge => (true, 0),
            Policy::Skip => {
                let last_point = counting.origin.plus(self.period().times(counting.seen));
                let fresh = now.minus(last_point).times(2) <= self.period();
                (fresh, ticks - u64::from(fresh))
            }
            Policy::CatchUp { cap, .. } => {
                let delivers = match (counting.last_interrupt, self.spacing()) {
                    (Some(last), Some(spacing)) => last.plus(spacing) <= now,
                    _ => true,
                };
                let left = owed - u64::from(delivers);
                self.backlog = left.min(cap.into());
                (delivers, left - self.backlog)
            }
        };
        if delivers {
            counting.last_interrupt = Some(now);
        }
        let merged = match self.policy {
            Policy::Merge => ticks * stride - 1,
            _ => u64::from(delivers) * (stride - 1),
        };
        Told {
            raised: raised.filter(|_| delivers),
            expiries,
            merged,
            lost: lost * stride,
        }
    }

    /// The guest TSC at which the timer has to be looked at next, and that instant, where it is known.
    pub(super) fn next(&self) -> Option<(u64, Option<u128>)> {
        if self.masked() || self.switch == Switch::Off {
            return None;
        }
        let at = |t: u128| Some((self.guest(t), Some(t)));
        if self.pending > 0 {
            return at(self.last);
        }
        let Some(counting) = self.counting else {
            let ahead = u128::from(self.deadline.saturating_sub(self.guest(self.last)));
            let instant = self.last + ahead;
            return (self.deadline != 0).then_some((self.deadline, Some(instant)));
        };
        let mut target = counting.origin.plus(self.period().times(counting.seen + 1));
        if let (PERIODIC, Some(last), Some(spacing)) =
            (self.mode(), counting.last_interrupt, self.spacing())
        {
            let apart = last.plus(spacing);
            target = if self.backlog > 0 {
                apart
            } else {
                target.max(apart)
            };
        } else if self.backlog > 0 {
            return at(self.last);
        }
        if target <= counting.carried {
            return at(self.last);
        }
        let ticks = target
            .minus(counting.carried)
            .times_fraction(self.rate().inverse())
            .ceil();
        at((counting.since + ticks).max(self.last))
    }

    pub(super) fn current_count(&self, t: u128) -> u32 {
        let Some(counting) = self.counting else {
            return 0;
        };
        let gone = self
            .counts_at(&counting, t.max(self.last))
            .minus(counting.origin);
        let initial = u128::from(self.initial);
        if self.mode() == ONE_SHOT && gone >= Fraction::whole(initial) {
            return 0;
        }
        self.initial - u32::try_from(gone.floor() % initial).unwrap()
    }

    pub(super) fn deadline_register(&self, t: u128) -> u64 {
        if self.deadline_passed(t.max(self.last)) {
            0
        } else {
            self.deadline
        }
    }

    fn forget_backlog(&mut self) -> Told {
        let lost = core::mem::take(&mut self.backlog) * u64::try_from(self.stride()).unwrap();
        Told {
            lost,
            ..Told::default()
        }
    }

    /// The grid begins anew at the start of the guest's present period.
    fn new_grid(&mut self, t: u128) {
        let Some(mut counting) = self.counting else {
            return;
        };
        let gone = self.counts_at(&counting, t).minus(counting.origin).floor();
        let periods = gone / u128::from(self.initial);
        counting.origin = counting
            .origin
            .plus(Fraction::whole(periods * u128::from(self.initial)));
        counting.seen = 0;
        counting.last_interrupt = None;
        self.counting = Some(counting);
    }

    fn carry(&mut self, t: u128) {
        if let Some(mut counting) = self.counting {
            counting.carried = self.counts_at(&counting, t);
            counting.since = t;
            self.counting = Some(counting);
        }
    }
}
