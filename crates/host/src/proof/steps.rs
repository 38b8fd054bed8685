//! The steps of a sequence, and what each must leave as it was.

use std::format;

use chronovisor_abi::pvclock::Flags;
use chronovisor_abi::quantity::{Nanos, Ppb, TscDelta};
use chronovisor_abi::vmclock::{ClockStatus, LeapIndicator, WallTime};

use super::oracle::Rate;
use super::tally::{Failure, Rule, Step};
use super::updates::{Scope, Truth};
use super::world::{Skew, VCPUS, World, YOUNGEST, hertz, random_rate, tsc, vcpu};
use crate::kvmclock::VcpuTsc;
use crate::partition_clock::{Change, TimeOfDay};
use crate::support::{Memory, OTHER_PAGE, PAGE};

impl World<'_> {
    pub(super) fn choose(&mut self) -> Step {
        match self.random.below(26) {
            0..3 => Step::Idle,
            3..6 => Step::Frequency,
            6 => Step::SameFrequency,
            7..9 => Step::Rebase,
            9 => Step::DroppedUpdate,
            10 => Step::StaleReading,
            11 => Step::CounterMoved,
            12 => Step::PageEnabled,
            13 => Step::PageMoved,
            14 => Step::PageDisabled,
            15 => Step::CounterMsr,
            16 => Step::HotPlug,
            17 => Step::RecordDisabled,
            18 => Step::GuestStopped,
            19 => Step::GuestAnswers,
            20 => Step::TimeOfDay,
            21 => Step::UnequalTsc,
            22 => Step::EqualTsc,
            23 => Step::MigrateStop,
            24 if self.random.one_in(2) => Step::MigrateAdvance,
            24 => Step::MigratePerEncoding,
            _ => Step::SlowCounter,
        }
    }

    pub(super) fn take(&mut self, step: Step) -> Result<(), Failure> {
        match step {
            Step::Idle => {
                let ns = self.random.magnitude(36);
                self.idle(ns)
            }
            Step::Frequency | Step::SlowCounter => {
                let rate = if step == Step::SlowCounter {
                    Rate {
                        n: 1_000_000 + self.random.below(9_000_001),
                        d: 1,
                    }
                } else {
                    random_rate(&mut self.random)
                };
                if hertz(rate) == hertz(self.oracle.rate) {
                    return Ok(());
                }
                self.update(
                    Change::Frequency(hertz(rate)),
                    Scope::ALL,
                    Truth::Rate(rate),
                )
            }
            Step::SameFrequency => {
                let change = Change::Frequency(hertz(self.oracle.rate));
                self.update(change, Scope::NONE, Truth::Same)
            }
            Step::Rebase => self.rebase_now(),
            Step::DroppedUpdate => self.dropped(false),
            Step::StaleReading => self.dropped(true),
            Step::CounterMoved => self.counter_moved(),
            Step::PageEnabled => {
                let reserved = self.random.next() & 0xfff;
                self.write_page_register(PAGE | reserved | 1)
            }
            Step::PageMoved => self.write_page_register(OTHER_PAGE | 1),
            Step::PageDisabled => self.write_page_register(PAGE),
            Step::CounterMsr => {
                for _ in 0..3 {
                    self.read_msr()?;
                }
                Ok(())
            }
            Step::HotPlug | Step::RecordDisabled => self.write_record_register(step),
            Step::GuestStopped => self.update(Change::GuestStopped, Scope::RECORDS, Truth::Stopped),
            Step::GuestAnswers => {
                for at in 0..VCPUS {
                    if self.random.one_in(2) && self.registered[at] {
                        self.memory.records[at].clear_guest_stopped();
                        self.stopped[at] = false;
                    }
                }
                Ok(())
            }
            Step::TimeOfDay => self.time_of_day(),
            Step::UnequalTsc => self.unequal(),
            Step::EqualTsc => self.equalise(),
            Step::MigrateStop | Step::MigrateAdvance | Step::MigratePerEncoding => {
                self.migrate(step)
            }
        }
    }

    /// An update that is dropped, or published with a reading that is too old.
    fn dropped(&mut self, stale: bool) -> Result<(), Failure> {
        let before = self.snapshot();
        let memory = self.memory;
        let rate = Rate {
            n: 1_234_567_891,
            d: 1,
        };
        if hertz(rate) == hertz(self.oracle.rate) {
            return Ok(());
        }
        let change = Change::Frequency(hertz(rate));
        let last = self.surface.clock().last_update();
        let open = self
            .surface
            .clock_mut()
            .begin_update(change, memory)
            .expect("a rate in range");
        self.now += self.random.magnitude(10);
        if stale {
            assert!(
                open.publish(last.wrapping_sub(TscDelta::from_ticks(1)))
                    .is_err()
            );
        } else {
            drop(open);
        }
        let after = self.snapshot();
        let (registered, was_valid) = (self.registered, before.page.is_some());
        let restored = (0..VCPUS).filter(|at| registered[*at]).all(|at| {
            before.records[at] == after.records[at]
                && before.versions[at] != after.versions[at]
                && after.versions[at] & 1 == 0
        }) && before.page == after.page
            && (!was_valid || before.sequence != after.sequence)
            && before.vmclock == after.vmclock
            && after.vmclock_sequence & 1 == 0;
        self.check(Rule::DroppedRestores, restored, |_| {
            format!("{before:?} {after:?}")
        })?;
        self.read_in_flight(&before)
    }

    fn counter_moved(&mut self) -> Result<(), Failure> {
        if !self.equal() {
            return Ok(());
        }
        let size = self.random.magnitude(40);
        // Never too young, and never where the test's own arithmetic ends.
        let ahead = if self.random.one_in(2) && self.now > size + YOUNGEST {
            size.wrapping_neg()
        } else if self.now < 1 << 60 {
            size
        } else {
            return Ok(());
        };
        if ahead == 0 {
            return Ok(());
        }
        let rate = if self.random.one_in(2) {
            self.oracle.rate
        } else {
            random_rate(&mut self.random)
        };
        let change = Change::Counter {
            rate: hertz(rate),
            ahead: TscDelta::from_ticks(ahead),
        };
        // The counter must have room below it while the readers before the update still run.
        self.update(change, Scope::ALL, Truth::Counter(rate, ahead))
    }

    fn write_page_register(&mut self, value: u64) -> Result<(), Failure> {
        let before = self.snapshot();
        let old_page = self.page;
        self.surface
            .clock_mut()
            .write_reference_tsc_register(value, self.memory);
        assert_eq!(
            self.surface.clock().reference_tsc_register(),
            value,
            "reserved bits are kept"
        );
        self.page = (value & 1 == 1).then_some(value & !0xfff);
        let after = self.snapshot();
        let same =
            before.versions == after.versions && before.vmclock_sequence == after.vmclock_sequence;
        self.check(Rule::UntouchedWithoutNeed, same, |_| {
            format!("{before:?} {after:?}")
        })?;
        if self.page == old_page && after.page.is_some() {
            let sequences = (before.sequence, after.sequence);
            self.check(Rule::SequenceChanges, sequences.0 != sequences.1, |_| {
                format!("page: {sequences:?}")
            })?;
        }
        Ok(())
    }

    fn write_record_register(&mut self, step: Step) -> Result<(), Failure> {
        let at = usize::try_from(self.random.below(4)).expect("four");
        let before = self.snapshot();
        let register = Memory::record_register(vcpu(at).0);
        let on = step == Step::HotPlug;
        let value = if on { register } else { register & !1 };
        let written =
            self.surface
                .clock_mut()
                .write_system_time_register(vcpu(at), value, self.memory);
        assert_eq!(written, on);
        self.registered[at] = on;
        self.stopped[at] = false;
        let after = self.snapshot();
        let others = (0..VCPUS).filter(|other| *other != at || !on).all(|other| {
            before.versions[other] == after.versions[other]
                && before.records[other] == after.records[other]
        });
        let same = others
            && before.sequence == after.sequence
            && before.vmclock_sequence == after.vmclock_sequence;
        self.check(Rule::UntouchedWithoutNeed, same, |_| {
            format!("{before:?} {after:?}")
        })?;
        if on {
            self.check_slope(at)?;
            let fresh = !after.records[at].flags.contains(Flags::GUEST_STOPPED);
            self.check(Rule::StopFlagKept, fresh, |_| {
                format!("junk was kept: {after:?}")
            })?;
        }
        Ok(())
    }

    fn time_of_day(&mut self) -> Result<(), Failure> {
        let (far, magnitude) = (self.random.one_in(2), self.random.magnitude(34));
        // The host's clock is off by up to its maximum error, either way.
        let maximum = magnitude + 1;
        let error = self.random.below(2 * maximum + 1);
        let truth =
            self.oracle.tai(self.now) + (u128::from(error) << 64) - (u128::from(maximum) << 64);
        let told = TimeOfDay {
            tsc: tsc(self.now),
            tai: WallTime::from_frac(truth / 1_000_000_000),
            tai_offset_sec: Some(37),
            leap: LeapIndicator::NONE,
            status: ClockStatus::SYNCHRONIZED,
            estimated_error: far.then_some(Nanos::from_ns(maximum / 2)),
            maximum_error: Some(Nanos::from_ns(maximum)),
            rate_estimated_error: None,
            rate_maximum_error: Some(Ppb::from_ppb_saturating(5)),
        };
        self.update(Change::TimeOfDay(told), Scope::VMCLOCK, Truth::TimeOfDay)
    }

    fn unequal(&mut self) -> Result<(), Failure> {
        let at = usize::try_from(self.random.below(4)).expect("four");
        let bound = 1 + self.random.magnitude(12);
        let error = i64::try_from(self.random.below(2 * bound + 1)).expect("small")
            - i64::try_from(bound).expect("small");
        let skew = Skew {
            offset: self.random.magnitude(40),
            bound,
            error,
        };
        let tsc = VcpuTsc::Skewed {
            offset: TscDelta::from_ticks(skew.offset),
            bound: TscDelta::from_ticks(skew.bound),
        };
        let change = Change::VcpuTsc {
            vcpu: vcpu(at),
            tsc,
        };
        // A clock that began less than the doubt ago would stand below 0 on such a vCPU: 2^12 ticks of the slowest rate are 4 ms.
        if self.oracle.at(self.now) < 20_000_000 << 64 {
            return Ok(());
        }
        let same =
            self.skews[at].is_some_and(|old| (old.offset, old.bound) == (skew.offset, skew.bound));
        if same {
            return Ok(());
        }
        self.update(change, Scope::ALL, Truth::Skew(at, Some(skew)))
    }

    /// Every vCPU's counter is set equal; its readers wait for the doubt to pass.
    fn equalise(&mut self) -> Result<(), Failure> {
        for at in 0..VCPUS {
            if self.skews[at].is_some() {
                let change = Change::VcpuTsc {
                    vcpu: vcpu(at),
                    tsc: VcpuTsc::Equal,
                };
                self.update(change, Scope::ALL, Truth::Skew(at, None))?;
            }
        }
        Ok(())
    }
}
