//! Updates: what is true before, inside and after each.

use std::format;

use chronovisor_abi::vmclock::ClockStatus;
use chronovisor_abi::wide;

use super::oracle::Rate;
use super::readers::{Snapshot, pvclock_time, reference_time, vmclock_time};
use super::tally::{Failure, Rule, Step};
use super::world::{Skew, VCPUS, World, tsc};
use crate::partition_clock::Change;
use crate::support::OTHER_PAGE;

/// Which pages an update has to write, as the test sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) records: bool,
    pub(super) page: bool,
    pub(super) vmclock: bool,
}

impl Scope {
    pub(super) const ALL: Self = Self {
        records: true,
        page: true,
        vmclock: true,
    };
    pub(super) const NONE: Self = Self {
        records: false,
        page: false,
        vmclock: false,
    };
    pub(super) const RECORDS: Self = Self {
        records: true,
        ..Self::NONE
    };
    pub(super) const VMCLOCK: Self = Self {
        vmclock: true,
        ..Self::NONE
    };
}

/// What the test does to the true machine at the instant of an update.
pub(super) enum Truth {
    Same,
    Rate(Rate),
    Counter(Rate, u64),
    Skew(usize, Option<Skew>),
    Stopped,
    TimeOfDay,
}

impl World<'_> {
    /// Time passes, with every re-base done when it is due.
    pub(super) fn idle(&mut self, ns: u64) -> Result<(), Failure> {
        let end = self.now + self.oracle.rate.ticks(ns);
        while let Some(due) = self.surface.clock().next_rebase() {
            if !due.is_before(tsc(end)) {
                break;
            }
            self.now = self.now.max(due.as_ticks());
            let late = self.oracle.rate.ticks(self.random.below(2));
            self.rebase(late)?;
        }
        self.now = self.now.max(end);
        Ok(())
    }

    pub(super) fn rebase_now(&mut self) -> Result<(), Failure> {
        // Early or on time: never late, which would cost what the line drifts meanwhile.
        let due = self
            .surface
            .clock()
            .next_rebase()
            .map_or(u64::MAX, |due| due.as_ticks());
        let ticks = self.random.magnitude(20);
        self.now = (self.now + ticks).min(due).max(self.now);
        self.rebase(0)
    }

    /// One encoding is re-based, and no other is touched.
    fn rebase(&mut self, window: u64) -> Result<(), Failure> {
        let before = self.snapshot();
        let memory = self.memory;
        let open = self
            .surface
            .clock_mut()
            .begin_update(Change::Rebase, memory)
            .expect("no rate changes");
        self.now += window;
        let published = open.publish(tsc(self.now)).expect("a later reading");
        let scope = Scope {
            records: published.records > 0,
            page: published.reference_page,
            vmclock: published.vmclock_page,
        };
        let clock = self.surface.clock();
        let last = clock.last_update();
        assert!(clock.next_rebase().is_none_or(|next| last.is_before(next)));
        let touched = [scope.records, scope.page, scope.vmclock]
            .iter()
            .filter(|touched| **touched)
            .count();
        self.check(Rule::UntouchedWithoutNeed, touched <= 1, |_| {
            format!("{scope:?}")
        })?;
        self.read_in_flight(&before)?;
        self.check_join(&before, scope, false)?;
        self.read_everything()
    }

    pub(super) fn update(
        &mut self,
        change: Change,
        scope: Scope,
        truth: Truth,
    ) -> Result<(), Failure> {
        let gap = self.random.magnitude(24);
        self.idle(gap)?;
        let before = self.snapshot();
        let memory = self.memory;
        self.doubt_ns = self.doubt_ns.max(self.skew_ns());
        let open = self
            .surface
            .clock_mut()
            .begin_update(change, memory)
            .expect("a rate in range");
        // Nothing that this update will change can still be read.
        let marked = (
            memory
                .records
                .iter()
                .map(|record| record.version() & 1 == 1)
                .collect::<std::vec::Vec<_>>(),
            [&memory.page, &memory.other_page].map(|page| page.sequence() == 0),
            memory.vmclock.sequence() & 1 == 1,
        );
        self.now += self.random.magnitude(10);
        let at = self.now;
        let reading = match truth {
            Truth::Counter(_, ahead) => at.wrapping_add(ahead),
            _ => at,
        };
        open.publish(tsc(reading)).expect("a later reading");

        let active = if self.page == Some(OTHER_PAGE) {
            marked.1[1]
        } else {
            marked.1[0]
        };
        let was_valid = before.page.is_some();
        for at in 0..VCPUS {
            if self.registered[at] {
                self.check_mark("record", marked.0[at], scope.records)?;
            }
        }
        if was_valid {
            self.check_mark("page", active, scope.page)?;
        }
        self.check_mark("vmclock", marked.2, scope.vmclock)?;
        self.read_in_flight(&before)?;
        let moved = self.become_true(truth, at);
        self.doubt_ns = if self.equal() {
            0
        } else {
            self.doubt_ns.max(self.skew_ns())
        };
        self.check_join(&before, scope, moved)?;
        self.read_everything()
    }

    fn check_mark(&mut self, page: &str, marked: bool, changes: bool) -> Result<(), Failure> {
        self.check(Rule::MarkedBeforeReading, marked || !changes, |_| {
            format!("{page} is not marked")
        })?;
        self.check(Rule::UntouchedWithoutNeed, changes || !marked, |_| {
            format!("{page} is marked")
        })
    }

    /// The true machine changes; says whether old contents mean nothing any more at the same counter value.
    fn become_true(&mut self, truth: Truth, at: u64) -> bool {
        match truth {
            Truth::Same => false,
            Truth::Rate(rate) => {
                self.oracle.change_rate(at, rate);
                false
            }
            Truth::Counter(rate, ahead) => {
                self.oracle.move_counter(ahead);
                self.now = at.wrapping_add(ahead);
                self.oracle.change_rate(self.now, rate);
                true
            }
            Truth::Skew(at, skew) => {
                // Equal counters are trusted once the doubt has passed.
                self.skews[at] = skew;
                if skew.is_none() {
                    self.now += self.oracle.rate.ticks(self.doubt_ns + 3) + 1;
                }
                true
            }
            Truth::TimeOfDay => {
                self.time_of_day_known = true;
                false
            }
            Truth::Stopped => {
                self.stopped = self.registered;
                false
            }
        }
    }

    /// What was in scope joins the old line and has another sequence; what was not is the same to the bit.
    pub(super) fn check_join(
        &mut self,
        before: &Snapshot,
        scope: Scope,
        moved: bool,
    ) -> Result<(), Failure> {
        let after = self.snapshot();
        for at in 0..VCPUS {
            let (old, new) = (before.records[at], after.records[at]);
            if !scope.records {
                let same = before.versions[at] == after.versions[at] && old == new;
                self.check(Rule::UntouchedWithoutNeed, same, |_| {
                    format!("record {at}: {old:?} {new:?}")
                })?;
            } else if self.registered[at] {
                let versions = (before.versions[at], after.versions[at]);
                self.check(Rule::SequenceChanges, versions.0 != versions.1, |_| {
                    format!("record {at}: {versions:?}")
                })?;
                self.check_slope(at)?;
                if !moved {
                    self.check_pvclock_join(at, before, &after)?;
                }
            }
        }
        if self.page.is_some() {
            let (old, new) = (before.page, after.page);
            if !scope.page {
                let same = before.sequence == after.sequence && old == new;
                self.check(Rule::UntouchedWithoutNeed, same, |_| {
                    format!("page: {old:?} {new:?}")
                })?;
            } else if let (Some(old), Some(new)) = (old, new) {
                let sequences = (before.sequence, after.sequence);
                self.check(Rule::SequenceChanges, sequences.0 != sequences.1, |_| {
                    format!("page: {sequences:?}")
                })?;
                if !moved {
                    let (old, new) = (
                        reference_time(&old, self.now),
                        reference_time(&new, self.now),
                    );
                    self.check(Rule::JoinWithinOneNanosecond, old == new, |_| {
                        format!("page: {old} {new}")
                    })?;
                }
            }
        }
        if !scope.vmclock {
            let same = before.vmclock_sequence == after.vmclock_sequence
                && before.vmclock == after.vmclock;
            self.check(Rule::UntouchedWithoutNeed, same, |_| {
                format!("vmclock: {before:?} {after:?}")
            })?;
        } else if before.vmclock.status == after.vmclock.status
            && after.vmclock.status == ClockStatus::SYNCHRONIZED
            && !moved
            && self.step != Step::TimeOfDay
        {
            let times = [&before.vmclock, &after.vmclock].map(|page| vmclock_time(page, self.now));
            // 1 ns in 2^-64 s
            let close = times[0].abs_diff(times[1]) <= (1 << 64) / 1_000_000_000;
            self.check(Rule::JoinWithinOneNanosecond, close, |_| {
                format!("vmclock: {times:?}")
            })?;
        }
        Ok(())
    }

    fn check_pvclock_join(
        &mut self,
        at: usize,
        before: &Snapshot,
        after: &Snapshot,
    ) -> Result<(), Failure> {
        // The record's own counter where the host believes it, which is what both lines are made for.
        let offset = self.skews[at].map_or(0, |skew| skew.offset);
        let believed = |ticks: u64| ticks.wrapping_add(offset);
        let (old, new) = (before.records[at], after.records[at]);
        let times = [&old, &new].map(|contents| pvclock_time(contents, believed(self.now)));
        let step = times[1].wrapping_sub(times[0]);
        self.check(Rule::JoinWithinOneNanosecond, step <= 1, |_| {
            format!("record {at}: {times:?}")
        })?;
        // A timestamp that lies back for a doubtful counter costs one more rounding.
        if (old.mul, old.shift) == (new.mul, new.shift) && self.equal() {
            for later in [1, 3, 1 << 16, 999_999_937] {
                let at_later = believed(self.now + later);
                let times = [&old, &new].map(|contents| pvclock_time(contents, at_later));
                let apart = times[0].abs_diff(times[1]);
                self.check(Rule::LaterWithinOneNanosecond, apart <= 1, |_| {
                    format!("record {at}, {later} ticks later: {times:?}")
                })?;
            }
        }
        Ok(())
    }

    /// |mul * 2^(shift - 32) * f / 10^9 - 1| <= 0.47 ppb
    pub(super) fn check_slope(&mut self, at: usize) -> Result<(), Failure> {
        let contents = self.memory.records[at].load();
        let Rate { n, d } = self.oracle.rate;
        // mul * 2^(31 + shift) * n against 2^63 * d * 10^9, in 256 bits
        let (left, right) = (contents.shift.max(0), (-contents.shift).max(0));
        let one = 1_u128 << (63 + right);
        let scale = u128::from(d) * 1_000_000_000;
        let slope = wide::mul(u128::from(contents.mul) << (31 + left), u128::from(n));
        let apart = wide::abs_diff(slope, wide::mul(one, scale));
        let bound = wide::mul(one / 100_000_000_000 * 47, scale);
        let holds = apart <= bound;
        self.check(Rule::SlopeWithinBound, holds, |_| {
            format!("record {at}: {contents:?} at {n}/{d}")
        })
    }
}
