//! Reading the reference counter: the page's formula, and strictly increasing.

use chronovisor_abi::quantity::{RefTime, Tsc};

use super::mutant::{self, Mutant};
use super::{PartitionClock, Phase, VcpuIndex};

/// What a read of the reference counter gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CounterRead {
    /// The counter, above every value that it gave before.
    Time(RefTime),
    /// The counter has not moved since its last read, or an update was published after the reading was taken: read the vCPU's TSC again until
    /// it is at least this (less than 100 ns away), and ask again.
    NotBefore(Tsc),
    /// The clock of a restored partition has not been set: no vCPU may run yet.
    Held,
}

impl PartitionClock {
    /// Reads the reference counter for `vcpu`, whose own TSC stands at `now`.
    ///
    /// Values are strictly increasing over all vCPUs, and one clock with the page: a page read before is never later, a page read
    /// afterwards never earlier.
    pub fn read_reference_counter(&mut self, vcpu: VcpuIndex, now: Tsc) -> CounterRead {
        let time = match self.vcpu_reference_at(vcpu, now) {
            Ok(time) => time,
            Err(CounterRead::NotBefore(since)) => {
                let until = self.exceeds_last(vcpu);
                return CounterRead::NotBefore(match until {
                    Some(until) if since.is_before(until) => until,
                    _ => since,
                });
            }
            Err(refusal) => return refusal,
        };
        match self.last_count {
            Some(last) if time <= last && mutant::is(Mutant::MsrRunsAhead) => {
                let ahead = last.wrapping_add(RefTime::from_100ns(1)); // wrapping: a fault
                self.last_count = Some(ahead);
                CounterRead::Time(ahead)
            }
            Some(last) if time <= last && !mutant::is(Mutant::MsrRepeats) => {
                // At the end of the counter's range nothing exceeds the last value any more.
                self.exceeds_last(vcpu)
                    .map_or(CounterRead::Time(time), CounterRead::NotBefore)
            }
            _ => {
                self.last_count = Some(time);
                CounterRead::Time(time)
            }
        }
    }

    /// The first value of `vcpu`'s counter at which the reference counter exceeds its last value.
    #[cold]
    fn exceeds_last(&self, vcpu: VcpuIndex) -> Option<Tsc> {
        let tsc = self.reference.first_after(self.last_count?, &self.master)?;
        Some(tsc.wrapping_add(self.vcpu_tsc(vcpu).offset())) // wrapping: the counter itself wraps.
    }

    /// The reference time when `vcpu`'s own counter stands at `now`, for its timers: not strictly increasing, and nothing is remembered.
    pub(crate) fn vcpu_reference_at(
        &self,
        vcpu: VcpuIndex,
        now: Tsc,
    ) -> Result<RefTime, CounterRead> {
        if self.phase == Phase::Held {
            return Err(CounterRead::Held);
        }
        let offset = self.vcpu_tsc(vcpu).offset();
        let now = now.wrapping_sub(offset); // wrapping, both: the counter itself wraps.
        if now.is_before(self.reference.since()) {
            return Err(CounterRead::NotBefore(
                self.reference.since().wrapping_add(offset),
            ));
        }
        if mutant::is(Mutant::MsrHasItsOwnFormula) {
            return Ok(RefTime::from_nanos_floor(self.master.at(now).floor()));
        }
        Ok(self.reference.at(now, &self.master))
    }

    /// The first value of `vcpu`'s own counter, from the last update on, at which the reference counter has reached `time`; `None` if that is
    /// beyond the counter's range.
    #[must_use]
    pub fn reference_reached_at(&self, vcpu: VcpuIndex, time: RefTime) -> Option<Tsc> {
        let since = self.reference.since();
        let reached = match time.checked_sub(RefTime::from_100ns(1)) {
            Some(before) if self.reference.at(since, &self.master) <= before => {
                self.reference.first_after(before, &self.master)?
            }
            _ => since,
        };
        Some(reached.wrapping_add(self.vcpu_tsc(vcpu).offset())) // wrapping: the counter itself wraps.
    }
}
