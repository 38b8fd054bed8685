//! Updates of the partition's pages: begin, read the counter, publish.

use chronovisor_abi::pvclock::Flags;
use chronovisor_abi::quantity::{Hertz, Tsc, TscDelta};
use chronovisor_abi::scale::ScaleError;
use chronovisor_abi::seqlock::sync::{Ordering, fence};

use super::mutant::{self, Mutant};
use super::pvclock_line::Multipliers;
use super::{Encoding, ExactNanos, Master, PartitionClock, Phase, TimeOfDay, VcpuIndex, Wall};
use crate::guest_memory::GuestMemory;
use crate::kvmclock::VcpuTsc;
use crate::vmclock::{CatchUp, Disruption, Outlook};

/// What an update changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The rate of the guest's counter from the update on.
    Frequency(Hertz),
    /// The encoding whose drift budget is used up first starts again at its own value, towards the master.
    Rebase,
    /// How a vCPU's counter stands to the partition's from the update on.
    VcpuTsc {
        /// The vCPU; one that does not exist changes nothing.
        vcpu: VcpuIndex,
        /// Its counter.
        tsc: VcpuTsc,
    },
    /// The guest's counter itself moved: what stood at `tsc` before the update stands at `tsc + ahead` after it, and runs at `rate`. The
    /// reading to publish with is the counter's new value.
    Counter {
        /// The rate from the update on.
        rate: Hertz,
        /// How far the counter was moved, modulo 2^64.
        ahead: TscDelta,
    },
    /// The time of day: the VMClock page changes, and what the wall-clock record will be filled with. The partition's own time does not.
    TimeOfDay(TimeOfDay),
    /// The VMClock page's markers: the machine was moved or copied.
    Disrupted(Disruption),
    /// Whether a disruption is planned, in the VMClock page's flags.
    Outlook(Outlook),
    /// Every enabled record tells its guest that it was stopped, until the guest answers.
    GuestStopped,
    /// A held clock runs, from its saved line.
    Resume,
}

/// What an update did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Published {
    /// How many records were written.
    pub records: u32,
    /// Whether the reference page was written and is valid.
    pub reference_page: bool,
    /// Whether the VMClock page was written: a VMM that promised to notify its guest does it now.
    pub vmclock_page: bool,
}

/// Why an update could not be published; the old line then stands again, under new sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The reading was not taken after `begin_update`.
    #[error(
        "the counter reading {} lies before the last update's {}: read the guest's counter after begin_update returns",
        reading.as_ticks(),
        last.as_ticks()
    )]
    ReadingBeforeLastUpdate {
        /// The caller's reading.
        reading: Tsc,
        /// The reading of the last update.
        last: Tsc,
    },
}

/// Which lines an update replaces and which pages it writes; pages not named are not touched.
#[derive(Clone, Copy, Debug, Default)]
struct Plan {
    ahead: TscDelta,
    time_of_day: Option<TimeOfDay>,
    rate: Option<(Hertz, Multipliers)>,
    vcpu_tsc: Option<(VcpuIndex, VcpuTsc)>,
    pvclock_line: bool,
    reference_line: bool,
    vmclock_line: bool,
    records: bool,
    page: bool,
    vmclock: bool,
    disruption: Option<Disruption>,
    outlook: Option<Outlook>,
    stop: bool,
    resume: bool,
}

impl PartitionClock {
    /// Marks every page that `change` will alter as invalid, on every CPU. The caller then takes an ordered reading of the guest's
    /// counter and passes it to [`OpenUpdate::publish`]; readers in the guest wait meanwhile, so nothing else should happen in between.
    ///
    /// If the update is dropped the old line is published again, under new sequences.
    ///
    /// # Errors
    ///
    /// [`ScaleError::OutOfPvclockRange`] for a rate that a record cannot express; nothing is marked then.
    pub fn begin_update<'a, M: GuestMemory + ?Sized>(
        &'a mut self,
        change: Change,
        memory: &'a M,
    ) -> Result<OpenUpdate<'a, M>, ScaleError> {
        let mut plan = self.plan(change)?;
        if mutant::is(Mutant::EverythingIsWritten) {
            (plan.records, plan.page, plan.vmclock) = (true, true, true);
        }
        if plan.records {
            for record in &self.records {
                record.mark(memory);
                if mutant::is(Mutant::OneRecordMarked) {
                    break;
                }
            }
        }
        if plan.page && !mutant::is(Mutant::PageNotMarked) {
            self.page.mark(memory);
        }
        if plan.vmclock {
            self.vmclock.mark(memory);
        }
        if plan.records || plan.page || plan.vmclock {
            fence(Ordering::SeqCst); // W2 of the sequence lock, once for all marks
        }
        Ok(OpenUpdate {
            clock: self,
            memory,
            plan,
            state: State::Open,
        })
    }

    fn plan(&self, change: Change) -> Result<Plan, ScaleError> {
        let everything = Plan {
            pvclock_line: true,
            reference_line: true,
            vmclock_line: true,
            records: true,
            page: true,
            vmclock: true,
            ..Plan::default()
        };
        let vmclock_only = Plan {
            vmclock: true,
            ..Plan::default()
        };
        Ok(match change {
            Change::Frequency(rate) if rate == self.rate() => Plan::default(),
            Change::Frequency(rate) => Plan {
                rate: Some((rate, Multipliers::of(rate)?)),
                ..everything
            },
            Change::Counter { rate, ahead } if ahead == TscDelta::ZERO => {
                self.plan(Change::Frequency(rate))?
            }
            Change::Counter { rate, ahead } => Plan {
                ahead,
                rate: if rate == self.rate() {
                    None
                } else {
                    Some((rate, Multipliers::of(rate)?))
                },
                ..everything
            },
            Change::TimeOfDay(told) => Plan {
                time_of_day: Some(told),
                vmclock_line: true,
                ..vmclock_only
            },
            Change::Disrupted(disruption) => Plan {
                disruption: Some(disruption),
                ..vmclock_only
            },
            Change::Outlook(outlook) if outlook == self.vmclock.outlook => Plan::default(),
            Change::Outlook(outlook) => Plan {
                outlook: Some(outlook),
                ..vmclock_only
            },
            Change::Rebase => self.plan_rebase(),
            Change::VcpuTsc { vcpu, tsc }
                if self.record(vcpu).is_none_or(|record| record.tsc() == tsc) =>
            {
                Plan::default()
            }
            Change::VcpuTsc { vcpu, tsc } => Plan {
                vcpu_tsc: Some((vcpu, tsc)),
                reference_line: false,
                vmclock_line: false,
                ..everything
            },
            Change::GuestStopped => Plan {
                stop: true,
                records: true,
                ..Plan::default()
            },
            Change::Resume => Plan {
                records: true,
                page: true,
                vmclock: true,
                resume: true,
                ..Plan::default()
            },
        })
    }

    fn plan_rebase(&self) -> Plan {
        match self.rebases() {
            None => Plan::default(),
            Some((_, Encoding::Pvclock)) => Plan {
                pvclock_line: true,
                records: true,
                ..Plan::default()
            },
            Some((_, Encoding::Reference)) => Plan {
                reference_line: true,
                page: true,
                ..Plan::default()
            },
            Some((_, Encoding::Vmclock)) => Plan {
                vmclock_line: true,
                vmclock: true,
                ..Plan::default()
            },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Published,
}

/// An update in progress: its pages are invalid until it is published or dropped.
#[derive(Debug)]
#[must_use = "the guest's clocks stand until the update is published or dropped"]
pub struct OpenUpdate<'a, M: GuestMemory + ?Sized> {
    clock: &'a mut PartitionClock,
    memory: &'a M,
    plan: Plan,
    state: State,
}

impl<M: GuestMemory + ?Sized> OpenUpdate<'_, M> {
    /// Derives the new lines at `now`, the guest's counter after [`PartitionClock::begin_update`] returned, and publishes them.
    ///
    /// # Errors
    ///
    /// [`UpdateError::ReadingBeforeLastUpdate`]; the old line stands again then.
    pub fn publish(mut self, now: Tsc) -> Result<Published, UpdateError> {
        let last = self.clock.last_update().wrapping_add(self.plan.ahead); // wrapping: the counter itself wraps.
        if let Some(told) = self.plan.time_of_day
            && told.tsc.is_before(self.clock.master.base())
        {
            return Err(UpdateError::ReadingBeforeLastUpdate {
                reading: told.tsc,
                last: self.clock.master.base(),
            });
        }
        if now.is_before(last) {
            return Err(UpdateError::ReadingBeforeLastUpdate { reading: now, last });
        }
        self.derive(now);
        self.state = State::Published;
        Ok(self.write())
    }

    fn derive(&mut self, now: Tsc) {
        let Self { clock, plan, .. } = self;
        // wrapping: the counter itself wraps. The reference line has no timestamp that could be moved, so its value is taken first.
        let reference = clock.reference_at(now.wrapping_sub(plan.ahead));
        clock.master = clock.master.moved(plan.ahead);
        clock.pvclock = clock.pvclock.moved(plan.ahead);
        clock.vmclock.counter_moved(plan.ahead);
        clock.wall = clock.wall.map(|wall| wall.moved(plan.ahead));
        if let Some(told) = plan.time_of_day {
            clock.wall = Some(Wall::new(told, &clock.master));
        }
        let lines = plan.pvclock_line || plan.reference_line || plan.vmclock_line;
        let exact = if lines {
            clock.master.at(now)
        } else {
            ExactNanos::ZERO
        };
        if let Some((rate, multipliers)) = plan.rate {
            clock.master = Master::new(now, exact, rate);
            clock.multipliers = multipliers;
        }
        if let Some((vcpu, tsc)) = plan.vcpu_tsc {
            clock.set_vcpu_tsc(vcpu, tsc);
        }
        if plan.pvclock_line {
            let lead: TscDelta = clock.lead();
            clock.pvclock = clock
                .pvclock
                .continued(now, exact, &clock.multipliers, lead);
        }
        if plan.reference_line {
            clock.reference = clock.reference.continued(
                now,
                reference,
                exact,
                clock.multipliers.reference,
                clock.budget,
            );
        }
        if plan.vmclock_line {
            let catch_up = if plan.time_of_day.is_some() {
                CatchUp::Step
            } else {
                CatchUp::Run
            };
            clock.vmclock.set_line(
                now,
                exact,
                clock.master.rate(),
                clock.wall.as_ref(),
                catch_up,
            );
        }
        if let Some(disruption) = plan.disruption {
            clock.vmclock.disrupt(disruption);
        }
        if let Some(outlook) = plan.outlook {
            clock.vmclock.outlook = outlook;
        }
        if plan.stop {
            for record in &mut clock.records {
                record.request_guest_stopped();
            }
        }
        if plan.resume {
            clock.phase = Phase::Running;
        }
    }

    fn write(&mut self) -> Published {
        let Self {
            clock,
            memory,
            plan,
            ..
        } = self;
        let mut published = Published::default();
        if clock.phase == Phase::Held {
            return published;
        }
        if plan.records {
            let flags: Flags = clock.record_flags();
            for record in &mut clock.records {
                published.records += u32::from(record.publish(&clock.pvclock, flags, *memory));
            }
        }
        if plan.page
            && let Some(parameters) = clock.page_parameters()
        {
            published.reference_page = clock.page.publish(&parameters, *memory);
        }
        if plan.vmclock {
            published.vmclock_page = clock.publish_vmclock(*memory);
        }
        published
    }
}

impl<M: GuestMemory + ?Sized> Drop for OpenUpdate<'_, M> {
    fn drop(&mut self) {
        let nothing_to_do = self.state == State::Published || self.clock.phase == Phase::Held;
        if nothing_to_do || mutant::is(Mutant::DroppedUpdateStaysOpen) {
            return;
        }
        if self.plan.records {
            for record in &mut self.clock.records {
                record.reopen(self.memory);
            }
        }
        if self.plan.page && self.clock.page_parameters().is_some() {
            self.clock.page.reopen(self.memory);
        }
        if self.plan.vmclock {
            self.clock.vmclock.reopen(self.memory);
        }
    }
}
