//! The clock at rest: taken out of a running partition, moved on, put into a new one.

use alloc::vec;

use chronovisor_abi::quantity::{Hertz, Nanos, RefTime, Tsc};
use chronovisor_abi::scale::ScaleError;

use super::pvclock_line::Multipliers;
use super::{Config, Master, PartitionClock, Phase, PvclockLine, VcpuIndex};
use crate::guest_memory::GuestMemory;
use crate::kvmclock::{self, VcpuTsc};
use crate::migration::{ClockState, Policy};
use crate::reenlightenment::RateChange;
use crate::reference_tsc;
use crate::vmclock::CatchUp;

impl PartitionClock {
    /// Everything but the vCPUs' records, for a partition whose vCPUs are paused; `now` is the partition's counter.
    pub(crate) fn snapshot(&self, now: Tsc) -> ClockState {
        ClockState {
            saved_at: now,
            budget: self.budget,
            counter: self.counter,
            lead: self.lead(),
            master: self.master,
            pvclock: self.pvclock,
            reference: self.reference,
            page_register: self.page.register(),
            page_sequence: self.page.sequence(),
            last_count: self.last_count,
            wall: self.wall,
            wall_clock_register: self.wall_clock.register(),
            wall_clock_version: self.wall_clock.version(),
            vmclock: self.vmclock,
        }
    }

    /// A held clock with `state`, without records. The drift budget is `config`'s.
    pub(crate) fn from_snapshot(config: Config, state: &ClockState) -> Result<Self, ScaleError> {
        let slots = usize::try_from(config.vcpus).unwrap_or(usize::MAX);
        Ok(Self {
            budget: config.budget(),
            phase: Phase::Held,
            counter: state.counter,
            master: state.master,
            multipliers: Multipliers::of(state.master.rate())?,
            pvclock: state.pvclock,
            reference: state.reference,
            records: vec![kvmclock::Publisher::default(); slots].into_boxed_slice(),
            skewed: 0,
            page: reference_tsc::Publisher::restored(state.page_register, state.page_sequence),
            last_count: state.last_count,
            wall: state.wall,
            wall_clock: kvmclock::WallClockPublisher::restored(
                state.wall_clock_register,
                state.wall_clock_version,
            ),
            vmclock: state.vmclock,
        })
    }

    /// The vCPU's record at rest; `None` if there is no such vCPU.
    pub(crate) fn record_state(
        &self,
        vcpu: VcpuIndex,
        memory: &(impl GuestMemory + ?Sized),
    ) -> Option<RecordState> {
        let record = self.record(vcpu)?;
        Some(RecordState {
            register: record.register(),
            version: record.version(),
            stop_unanswered: record.stop_unanswered(memory),
            tsc: record.tsc(),
        })
    }

    /// Puts a vCPU's record back; `None` if there is no such vCPU.
    pub(crate) fn restore_record(&mut self, vcpu: VcpuIndex, state: RecordState) -> Option<()> {
        self.set_vcpu_tsc(vcpu, state.tsc);
        let at = usize::try_from(vcpu.0).ok()?;
        *self.records.get_mut(at)? = kvmclock::Publisher::restored(
            state.register,
            state.version,
            state.stop_unanswered,
            state.tsc,
        );
        Some(())
    }
}

/// A vCPU's record at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordState {
    pub(crate) register: u64,
    pub(crate) version: u32,
    pub(crate) stop_unanswered: kvmclock::StopUnanswered,
    pub(crate) tsc: VcpuTsc,
}

impl ClockState {
    /// Every line goes on at `tsc`; before the pause the records showed `pvclock` and the reference counter `reference`.
    ///
    /// A line that holds beyond `tsc` is kept to the bit. While nobody reads, one that would have been re-based by then may start afresh from
    /// the master, at what it showed before or later.
    pub(crate) fn go_on_at(
        &mut self,
        tsc: Tsc,
        rate: Hertz,
        rate_change: RateChange,
        policy: Policy,
        (pvclock, reference): (Nanos, RefTime),
    ) -> Result<(), ScaleError> {
        let rate = match rate_change {
            RateChange::Update => rate,
            RateChange::Emulate(_) => self.master.rate(),
        };
        let passed = |due: Option<Tsc>| due.is_some_and(|due| due.is_before(tsc));
        let (pvclock_due, reference_due) = (
            passed(self.pvclock.rebase_due(&self.master, self.budget)),
            passed(self.reference.rebase_due(&self.master)),
        );
        let reference = match policy {
            Policy::Stop | Policy::PerEncoding => reference,
            Policy::Advance if reference_due => {
                self.reference.master_at(tsc, &self.master).max(reference)
            }
            Policy::Advance => self.reference.at(tsc, &self.master),
        };
        let exact = self.master.at(tsc);
        let changes = rate != self.master.rate();
        if changes {
            self.master = Master::new(tsc, exact, rate);
        }
        let multipliers = Multipliers::of(rate)?;
        if changes || pvclock_due {
            let old = if pvclock_due {
                PvclockLine::through(tsc, exact.floor().max(pvclock), &multipliers)
            } else {
                self.pvclock
            };
            self.pvclock = old.continued(tsc, exact, &multipliers, self.lead);
        }
        if changes || reference_due || policy == Policy::PerEncoding {
            self.reference =
                self.reference
                    .continued(tsc, reference, exact, multipliers.reference, self.budget);
        }
        self.vmclock
            .set_line(tsc, exact, rate, self.wall.as_ref(), CatchUp::Step);
        Ok(())
    }
}
