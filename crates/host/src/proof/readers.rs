//! Readers in the guest: their formulas once more, and what must hold of what they see.

use std::format;

use chronovisor_abi::pvclock;
use chronovisor_abi::quantity::Hertz;
use chronovisor_abi::reference_tsc::Parameters;
use chronovisor_abi::vmclock;

use super::tally::{Failure, Rule};
use super::world::{VCPUS, World, hertz, tsc, vcpu};
use crate::partition_clock::CounterRead;

/// `system_time + ((delta shifted) * mul >> 32)`, modulo 2^64.
pub(super) fn pvclock_time(contents: &pvclock::Contents, tsc: u64) -> u64 {
    let delta = tsc.wrapping_sub(contents.tsc_timestamp.as_ticks());
    let shifted = if contents.shift >= 0 {
        delta << contents.shift
    } else {
        delta >> -contents.shift
    };
    let ns = (u128::from(shifted) * u128::from(contents.mul)) >> 32;
    contents.system_time.as_ns().wrapping_add(low(ns))
}

/// `(tsc * scale >> 64) + offset`, modulo 2^64.
pub(super) fn reference_time(line: &Parameters, tsc: u64) -> u64 {
    let ticks = (u128::from(tsc) * u128::from(line.scale.as_raw())) >> 64;
    low(ticks).wrapping_add_signed(line.offset)
}

/// TAI in 2^-64 s.
pub(super) fn vmclock_time(contents: &vmclock::Contents, tsc: u64) -> u128 {
    let delta = u128::from(tsc.wrapping_sub(contents.counter_value.as_ticks()));
    let passed = (delta * u128::from(contents.period_frac_sec)) >> contents.period_shift;
    ((u128::from(contents.time_sec) << 64) | u128::from(contents.time_frac_sec)) + passed
}

fn low(value: u128) -> u64 {
    u64::try_from(value & u128::from(u64::MAX)).expect("64 bits")
}

/// Everything that the guest can see, valid or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snapshot {
    pub(super) versions: [u32; VCPUS],
    pub(super) records: [pvclock::Contents; VCPUS],
    pub(super) sequence: u32,
    pub(super) page: Option<Parameters>,
    pub(super) vmclock_sequence: u32,
    pub(super) vmclock: vmclock::Contents,
}

impl World<'_> {
    pub(super) fn snapshot(&self) -> Snapshot {
        let record = |at: usize| &self.memory.records[at];
        Snapshot {
            versions: core::array::from_fn(|at| record(at).version()),
            records: core::array::from_fn(|at| record(at).load()),
            sequence: self.page_memory().map_or(0, |page| page.sequence()),
            page: self
                .page_memory()
                .filter(|page| page.sequence() != 0)
                .map(|page| page.load()),
            vmclock_sequence: self.memory.vmclock.sequence(),
            vmclock: self.memory.vmclock.load(),
        }
    }

    /// Readers that took these pages' fields before an update and their counter at its very reading: the latest that may pass.
    pub(super) fn read_in_flight(&mut self, old: &Snapshot) -> Result<(), Failure> {
        for at in 0..VCPUS {
            if self.registered[at] {
                let time = pvclock_time(&old.records[at], self.own_tsc(at));
                self.saw_pvclock(at, time)?;
            }
        }
        if let Some(line) = old.page {
            self.saw_reference(reference_time(&line, self.now))?;
        }
        if old.vmclock.status == vmclock::ClockStatus::SYNCHRONIZED {
            self.saw_vmclock(vmclock_time(&old.vmclock, self.now))?;
        }
        Ok(())
    }

    /// Every clock and every vCPU's own record, now.
    pub(super) fn read_everything(&mut self) -> Result<(), Failure> {
        self.check_validity()?;
        for at in 0..VCPUS {
            if self.registered[at] {
                let contents = self.memory.records[at].load();
                let time = pvclock_time(&contents, self.own_tsc(at));
                self.near_master(at, time)?;
                self.saw_pvclock(at, time)?;
            }
        }
        if let Some(page) = self.page_memory().filter(|page| page.sequence() != 0) {
            let time = reference_time(&page.load(), self.now);
            self.reference_near_master(time, 0)?;
            self.saw_reference(time)?;
        }
        if self.memory.vmclock.load().status == vmclock::ClockStatus::SYNCHRONIZED {
            self.read_vmclock()?;
        }
        if self.random.one_in(3) {
            self.read_msr()?;
        }
        Ok(())
    }

    /// Pages are valid exactly when they may be.
    fn check_validity(&mut self) -> Result<(), Failure> {
        let equal = self.equal();
        for at in 0..VCPUS {
            if self.registered[at] {
                let record = &self.memory.records[at];
                let (version, flags) = (record.version(), record.load().flags);
                let stable = flags.contains(pvclock::Flags::TSC_STABLE);
                self.check(Rule::ValidityFitsState, version & 1 == 0 && stable == equal, |_| {
                    format!("record {at}: version {version}, flags {flags:?}, counters equal: {equal}")
                })?;
                let (stopped, shown) = (
                    self.stopped[at],
                    flags.contains(pvclock::Flags::GUEST_STOPPED),
                );
                self.check(Rule::StopFlagKept, stopped == shown, |_| {
                    format!("record {at}: stopped {stopped}, shown {shown}")
                })?;
            }
        }
        if let Some(page) = self.page_memory() {
            let sequence = page.sequence();
            let may =
                equal && hertz(self.oracle.rate) > Hertz::from_hz(10_000_000).expect("positive");
            self.check(
                Rule::ValidityFitsState,
                (sequence != 0 && sequence != u32::MAX) == may,
                |_| format!("page: sequence {sequence}, may be valid: {may}"),
            )?;
        }
        let status = self.memory.vmclock.load().status;
        let expected = match (equal, self.time_of_day_known) {
            (false, _) => vmclock::ClockStatus::UNRELIABLE,
            (true, false) => vmclock::ClockStatus::UNKNOWN,
            (true, true) => vmclock::ClockStatus::SYNCHRONIZED,
        };
        let sequence = self.memory.vmclock.sequence();
        self.check(
            Rule::ValidityFitsState,
            sequence & 1 == 0 && status == expected,
            |_| format!("vmclock: sequence {sequence}, status {status:?}, expected {expected:?}"),
        )
    }

    /// M - budget - 2 < P <= M + budget; with a doubtful counter the doubt besides.
    fn near_master(&mut self, at: usize, time: u64) -> Result<(), Failure> {
        let exact = self.oracle.at(self.now);
        let shown = u128::from(time) << 64;
        let budget = u128::from(self.config.drift_budget.as_ns()) << 64;
        let own = self.skews[at].map_or(0, |skew| self.oracle.rate.time(skew.bound));
        // A timestamp that lies back for a doubtful counter costs one more rounding.
        let doubt = own + self.oracle.slack() + if self.equal() { 0 } else { 1 << 64 };
        let holds = shown <= exact + budget + doubt && exact < shown + budget + doubt + (2 << 64);
        self.check(Rule::PvclockNearMaster, holds, |world| {
            format!(
                "record {at}: {time} ns, master {} ns + {:#x}, budget {}",
                exact >> 64,
                low(exact),
                world.config.drift_budget
            )
        })
    }

    /// M - budget - 1 unit < R <= M + budget, the budget being at least one unit.
    pub(super) fn reference_near_master(&mut self, time: u64, doubt: u128) -> Result<(), Failure> {
        let exact = self.oracle.at(self.now) - self.oracle.behind;
        let shown = (u128::from(time) * 100) << 64;
        let unit = 100 << 64;
        let budget = (u128::from(self.config.drift_budget.as_ns()) << 64).max(unit)
            + self.oracle.slack()
            + doubt;
        let holds = shown <= exact + budget && exact < shown + budget + unit;
        self.check(Rule::ReferenceNearMaster, holds, |_| {
            format!("reference {time}, master {} ns", exact >> 64)
        })
    }

    fn saw_pvclock(&mut self, at: usize, time: u64) -> Result<(), Failure> {
        let seen = self.seen.pvclock;
        if self.equal() {
            self.check(Rule::NeverBack, time >= seen, |world| {
                format!("record {at} shows {time} at {}, {seen} was seen", world.now)
            })?;
        } else {
            let skew = self.doubt_ns;
            self.check(
                Rule::BackWithinSkew,
                time.saturating_add(skew) >= seen && time < seen + (1 << 50),
                |_| format!("record {at} shows {time}, {seen} was seen, skew {skew}"),
            )?;
        }
        self.seen.pvclock = seen.max(time);
        Ok(())
    }

    fn saw_reference(&mut self, time: u64) -> Result<(), Failure> {
        let seen = self.seen.reference;
        self.check(Rule::NeverBack, time >= seen, |world| {
            format!(
                "reference page shows {time} at {}, {seen} was seen",
                world.now
            )
        })?;
        self.seen.reference = time;
        Ok(())
    }

    fn saw_vmclock(&mut self, time: u128) -> Result<(), Failure> {
        let seen = self.seen.vmclock;
        self.check(Rule::NeverBack, time >= seen, |_| {
            format!("vmclock shows {time:#x}, {seen:#x} was seen")
        })?;
        self.seen.vmclock = time;
        Ok(())
    }

    fn read_vmclock(&mut self) -> Result<(), Failure> {
        let contents = self.memory.vmclock.load();
        let time = vmclock_time(&contents, self.now);
        self.saw_vmclock(time)?;
        // Truth, in 2^-64 s.
        let truth = self.oracle.tai(self.now) / 1_000_000_000;
        let off = truth.abs_diff(time);
        let bound = contents
            .bounds_at(tsc(self.now))
            .maximum
            .expect("the test gives one")
            .as_ns();
        // Two ns for the oracle's and the page's own cuts.
        let bound = (u128::from(bound + 2) << 64) / 1_000_000_000;
        self.check(Rule::VmclockWithinBounds, off <= bound, |_| {
            format!("vmclock is off by {off:#x}, its bound is {bound:#x}")
        })
    }

    /// One read of the counter MSR on a random vCPU, with the wait that it may ask for.
    pub(super) fn read_msr(&mut self) -> Result<(), Failure> {
        let at = usize::try_from(self.random.below(4)).expect("four");
        let own = self.own_tsc(at);
        let mut answer = self
            .surface
            .clock_mut()
            .read_reference_counter(vcpu(at), tsc(own));
        if let CounterRead::NotBefore(until) = answer {
            self.waits += 1;
            let wait = until.as_ticks().wrapping_sub(own);
            // One tick less is still too early, if the wait is for the counter and not for an update.
            if wait > 1 && self.equal() {
                let early = tsc(until.as_ticks() - 1);
                let again = self
                    .surface
                    .clock_mut()
                    .read_reference_counter(vcpu(at), early);
                self.check(
                    Rule::NotBeforeIsExact,
                    again == CounterRead::NotBefore(until),
                    |_| format!("{answer:?}, but one tick before {again:?}"),
                )?;
            }
            let longest = self.config.drift_budget.as_ns() + 300 + 2 * self.doubt_ns;
            let longest = self.oracle.rate.ticks(longest) + 2;
            self.check(Rule::NotBeforeIsExact, wait <= longest, |_| {
                format!("a wait of {wait} ticks")
            })?;
            self.now += wait;
            answer = self
                .surface
                .clock_mut()
                .read_reference_counter(vcpu(at), until);
        }
        let CounterRead::Time(time) = answer else {
            return self.check(Rule::NotBeforeIsExact, false, |_| {
                format!("{answer:?} after the wait")
            });
        };
        let (time, last) = (time.as_100ns(), self.seen.msr);
        self.check(Rule::MsrStrict, last.is_none_or(|last| time > last), |_| {
            format!("msr {time} after {last:?}")
        })?;
        self.seen.msr = Some(time);
        if self.equal() {
            let seen = self.seen.reference;
            self.check(Rule::NeverBack, time >= seen, |_| {
                format!("msr {time}, {seen} was seen")
            })?;
            self.reference_near_master(time, 0)?;
        } else {
            let doubt = self
                .skews
                .iter()
                .flatten()
                .map(|skew| skew.bound)
                .max()
                .unwrap_or(0);
            self.reference_near_master(time, self.oracle.rate.time(2 * doubt))?;
        }
        self.seen.reference = self.seen.reference.max(time);
        Ok(())
    }
}
