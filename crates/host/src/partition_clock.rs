//! One exact clock behind pvclock, the reference TSC page, the reference counter and VMClock.
//!
//! # Theory
//!
//! The master is one exact rational line a epoch from the guest's counter to its time. Every encoding is derived from it and starts, at
//! each update, at the value that it showed before:
//!
//! | encoding | granularity | parts from the master by |
//! | --- | --- | --- |
//! | pvclock record | 1 ns, and the ticks that the shift drops (less than 1 ns) | 0.47 ppb at most, until the drift budget is used up |
//! | reference page and counter | 100 ns | the drift budget at most |
//!
//! # Practice
//!
//! An update of the partition's pages has two calls, with the VMM's counter reading between them:
//!
//! ```
//! use chronovisor_abi::quantity::{Hertz, Tsc};
//! use chronovisor_host::partition_clock::{Change, Config, PartitionClock};
//! # let memory = chronovisor_host::guest_memory::NoMemory;
//! # let guest_tsc = || Tsc::from_ticks(2_600_000_000);
//! let rate = Hertz::from_hz(2_600_000_000).expect("not zero");
//! let mut clock = PartitionClock::start(Config::for_vcpus(4), rate, Tsc::from_ticks(0))?;
//! let open = clock.begin_update(Change::Frequency(Hertz::from_hz(2_100_000_000).expect("not zero")), &memory)?;
//! open.publish(guest_tsc())?; // an ordered reading, taken after `begin_update` returned
//! assert_eq!(clock.exact_time_at(Tsc::from_ticks(4_700_000_000)).floor().as_ns(), 2_000_000_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `begin_update` marks each page that will change as invalid and waits until every CPU sees it, so a reader that still uses the old line
//! read its counter before the VMM did, and one that uses the new line after it.
//!
//! # Migration
//!
//! A restored clock is held: its pages stay invalid until an update with [`Change::Resume`].
//!
//! # Caveats
//!
//! The counter is taken not to wrap: a reference page cannot be right on both sides of 2^64, by its definition. Time ends after 584 years.
//!
//! # References
//!
//! Hyper-V TLFS, "Partition Reference Time Enlightenment"; Linux `Documentation/virt/kvm/x86/msr.rst`.

mod counter_read;
mod exact;
pub(crate) mod mutant;
mod pvclock_line;
mod reference_line;
mod registers;
mod saved;
mod update;
mod wall;

use alloc::boxed::Box;
use alloc::vec;

use chronovisor_abi::pvclock::Flags;
use chronovisor_abi::quantity::{Hertz, Nanos, RefTime, Tsc, TscDelta};
use chronovisor_abi::scale::ScaleError;
use chronovisor_abi::seqlock::sync::{Ordering, fence};
use chronovisor_abi::vmclock::WallTime;

use crate::guest_memory::GuestMemory;
use crate::kvmclock::{self, VcpuTsc};
use crate::reference_tsc;
use crate::vmclock::{self, Notification, Offered, Stability};

pub use counter_read::CounterRead;
pub use exact::ExactNanos;
pub(crate) use exact::{Master, advance};
pub(crate) use pvclock_line::PvclockLine;
pub(crate) use reference_line::{ReferenceLine, Start as ReferenceStart};
pub(crate) use saved::RecordState;
pub use update::{Change, OpenUpdate, Published, UpdateError};
pub(crate) use wall::Wall;
pub use wall::{TimeOfDay, WallClockError};

use mutant::Mutant;
use pvclock_line::Multipliers;

/// A virtual processor's index, from 0; what TLFS calls the VP index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VcpuIndex(pub u32);

/// What a VMM chooses about a partition's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many vCPUs there can be; room for each record is made at construction.
    pub vcpus: u32,
    /// How far an encoding may drift from the master before it is re-based; below 4 ns it is taken as 4 ns, which the roundings need.
    pub drift_budget: Nanos,
    /// Whether the host's counter keeps its rate in all states.
    pub counter: Counter,
}

impl Config {
    fn budget(self) -> Nanos {
        self.drift_budget.max(Nanos::from_ns(4))
    }
}

/// Whether the host's counter can carry a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Counter {
    /// It keeps its rate in all states.
    #[default]
    Invariant,
    /// It does not: no record is stable, and the reference page and VMClock give no time.
    Varying,
}

impl Config {
    /// Room for `vcpus` vCPUs and a drift budget of 100 ns.
    #[must_use]
    pub const fn for_vcpus(vcpus: u32) -> Self {
        Self {
            vcpus,
            drift_budget: Nanos::from_ns(100),
            counter: Counter::Invariant,
        }
    }
}

/// What shows the partition's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Pvclock,
    Reference,
    Vmclock,
}

/// Whether the partition's clock runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Restored, and no page valid yet.
    Held,
    Running,
}

/// The one clock of a partition.
#[derive(Debug)]
pub struct PartitionClock {
    budget: Nanos,
    phase: Phase,
    counter: Counter,
    master: Master,
    multipliers: Multipliers,
    pvclock: PvclockLine,
    reference: ReferenceLine,
    records: Box<[kvmclock::Publisher]>,
    /// How many of them belong to vCPUs that count otherwise than the partition.
    skewed: u32,
    page: reference_tsc::Publisher,
    /// The last value that the counter MSR gave.
    last_count: Option<RefTime>,
    wall: Option<Wall>,
    wall_clock: kvmclock::WallClockPublisher,
    vmclock: vmclock::Publisher,
}

impl PartitionClock {
    /// A clock that stands at 0 when the guest's counter stands at `now` and runs at `rate` of it.
    ///
    /// # Errors
    ///
    /// [`ScaleError::OutOfPvclockRange`] below 0.5 Hz and above 4.2 * 10^18 Hz.
    pub fn start(config: Config, rate: Hertz, now: Tsc) -> Result<Self, ScaleError> {
        let multipliers = Multipliers::of(rate)?;
        let master = Master::new(now, ExactNanos::ZERO, rate);
        let slots = usize::try_from(config.vcpus).unwrap_or(usize::MAX);
        Ok(Self {
            budget: config.budget(),
            phase: Phase::Running,
            counter: config.counter,
            master,
            pvclock: PvclockLine::first(&master, &multipliers),
            reference: ReferenceLine::first(&master, ExactNanos::ZERO),
            multipliers,
            records: vec![kvmclock::Publisher::default(); slots].into_boxed_slice(),
            skewed: 0,
            page: reference_tsc::Publisher::default(),
            last_count: None,
            wall: None,
            wall_clock: kvmclock::WallClockPublisher::default(),
            vmclock: vmclock::Publisher::default(),
        })
    }

    /// The rate of the guest's counter.
    #[must_use]
    pub const fn rate(&self) -> Hertz {
        self.master.rate()
    }

    /// The master's time at `tsc`, at or after the last update, exact to 2^-64 ns.
    #[must_use]
    pub fn exact_time_at(&self, tsc: Tsc) -> ExactNanos {
        self.master.at(tsc)
    }

    /// What pvclock shows at `tsc` of the partition's counter, at or after the last update.
    #[must_use]
    pub const fn pvclock_at(&self, tsc: Tsc) -> Nanos {
        self.pvclock.at(tsc)
    }

    /// What the reference page and the counter MSR show at `tsc` of the partition's counter, at or after the last update.
    #[must_use]
    pub fn reference_at(&self, tsc: Tsc) -> RefTime {
        self.reference.at(tsc, &self.master)
    }

    /// The counter value of the last update of the pvclock line and of the reference line, whichever is later: no older reading is accepted.
    #[must_use]
    pub const fn last_update(&self) -> Tsc {
        let (pvclock, reference) = (self.pvclock.since(), self.reference.since());
        if pvclock.is_before(reference) {
            reference
        } else {
            pvclock
        }
    }

    /// The counter value by which the VMM should have done an update with [`Change::Rebase`], or `None` if the encodings stay within the
    /// drift budget for 2^63 ticks. Always later than [`Self::last_update`].
    ///
    /// ```
    /// # use chronovisor_abi::quantity::{Hertz, Tsc};
    /// # use chronovisor_host::partition_clock::{Config, PartitionClock};
    /// let rate = |hz| Hertz::from_hz(hz).expect("not zero");
    /// let start = Tsc::from_ticks(0);
    /// // 2.6 GHz has no exact multiplier: 0.023 ppb use up 99 ns in 4252 s; the last ns is for the roundings.
    /// let clock = PartitionClock::start(Config::for_vcpus(1), rate(2_600_000_000), start)?;
    /// assert_eq!(clock.next_rebase().map(|tsc| tsc.as_ticks() / 2_600_000_000), Some(4252));
    /// // 1 GHz has one.
    /// assert_eq!(PartitionClock::start(Config::for_vcpus(1), rate(1_000_000_000), start)?.next_rebase(), None);
    /// # Ok::<(), chronovisor_abi::scale::ScaleError>(())
    /// ```
    #[must_use]
    pub fn next_rebase(&self) -> Option<Tsc> {
        self.rebases().map(|(due, _)| due)
    }

    /// The encoding whose re-base is due first, and when.
    fn rebases(&self) -> Option<(Tsc, Encoding)> {
        let since = self.last_update();
        [
            (
                self.pvclock.rebase_due(&self.master, self.budget),
                Encoding::Pvclock,
            ),
            (self.reference.rebase_due(&self.master), Encoding::Reference),
            (
                self.vmclock.rebase_due(self.master.rate()),
                Encoding::Vmclock,
            ),
        ]
        .into_iter()
        .filter_map(|(due, encoding)| {
            // Always later than the last update, so that a VMM which re-bases while one is due comes to an end.
            let due = due.map(|due| {
                if since.is_before(due) {
                    due
                } else {
                    since.wrapping_add(TscDelta::from_ticks(1)) // wrapping: the counter itself wraps.
                }
            })?;
            Some((due, encoding))
        })
        .min_by_key(|(due, _)| due.wrapping_delta(since))
    }

    /// TAI as the VMClock page shows it at `tsc` of the partition's counter, at or after the last update; `None` if the page has no time.
    #[must_use]
    pub fn vmclock_at(&self, tsc: Tsc) -> Option<WallTime> {
        self.vmclock.at(tsc).map(WallTime::from_frac)
    }

    /// Fills the VMClock page of `memory` for the first time. `false` if there is none, or vCPUs count differently: then the page must not be
    /// offered.
    pub fn offer_vmclock(
        &mut self,
        notification: Notification,
        memory: &(impl GuestMemory + ?Sized),
    ) -> bool {
        if !self.is_stable() || memory.vmclock_page().is_none() {
            return false;
        }
        self.vmclock.offered = Offered::Yes;
        self.vmclock.notification = notification;
        self.vmclock.write_constants(memory);
        self.vmclock.mark(memory);
        fence(Ordering::SeqCst); // W2 of the sequence lock
        if self.phase == Phase::Held {
            return false;
        }
        self.publish_vmclock(memory)
    }

    fn publish_vmclock(&mut self, memory: &(impl GuestMemory + ?Sized)) -> bool {
        let stability = if self.is_stable() {
            Stability::Equal
        } else {
            Stability::Unequal
        };
        self.vmclock
            .publish(&self.master, self.wall.as_ref(), stability, memory)
    }

    /// How `vcpu`'s counter stands to the partition's.
    #[must_use]
    pub fn vcpu_tsc(&self, vcpu: VcpuIndex) -> VcpuTsc {
        self.record(vcpu)
            .map_or(VcpuTsc::Equal, kvmclock::Publisher::tsc)
    }

    /// Whether all vCPUs count the same, at one rate: pvclock's stable flag is set and the reference page valid only then.
    #[must_use]
    pub const fn is_stable(&self) -> bool {
        self.skewed == 0 && matches!(self.counter, Counter::Invariant)
    }

    /// How many vCPUs there is room for.
    #[must_use]
    pub fn vcpus(&self) -> u32 {
        u32::try_from(self.records.len()).unwrap_or(u32::MAX)
    }

    /// Marks every page invalid until the next update is published: for a restored partition, before any vCPU runs.
    pub fn hold(&mut self, memory: &(impl GuestMemory + ?Sized)) {
        self.phase = Phase::Held;
        if mutant::is(Mutant::HeldPagesStayValid) {
            return;
        }
        for record in &self.records {
            record.mark(memory);
        }
        self.page.mark(memory);
        self.vmclock.mark(memory);
        fence(Ordering::SeqCst); // W2 of the sequence lock
    }

    fn record(&self, vcpu: VcpuIndex) -> Option<&kvmclock::Publisher> {
        self.records.get(usize::try_from(vcpu.0).ok()?)
    }

    /// vCPUs are counted, not events: one that is set equal twice is one vCPU.
    fn set_vcpu_tsc(&mut self, vcpu: VcpuIndex, tsc: VcpuTsc) {
        let Some(record) = usize::try_from(vcpu.0)
            .ok()
            .and_then(|at| self.records.get_mut(at))
        else {
            return;
        };
        let (before, after) = (record.tsc() != VcpuTsc::Equal, tsc != VcpuTsc::Equal);
        record.set_tsc(tsc);
        // Cannot underflow or overflow: at most one count a record.
        self.skewed = self.skewed - u32::from(before) + u32::from(after);
    }

    /// The flags of every record, but for the one that belongs to the record itself.
    fn record_flags(&self) -> Flags {
        if self.is_stable() || mutant::is(Mutant::StableThoughUnequal) {
            Flags::TSC_STABLE
        } else {
            Flags::NONE
        }
    }

    /// What the page shows, or `None` while it must not be valid.
    fn page_parameters(&self) -> Option<chronovisor_abi::reference_tsc::Parameters> {
        let stable = self.is_stable() || mutant::is(Mutant::PageThoughUnequal);
        if self.phase == Phase::Running && stable {
            self.reference.parameters()
        } else {
            None
        }
    }

    /// How far the timestamp must lie back for the most doubtful vCPU counter.
    fn lead(&self) -> TscDelta {
        if self.skewed == 0 {
            return TscDelta::ZERO;
        }
        self.records
            .iter()
            .map(|record| record.tsc().bound())
            .max()
            .unwrap_or_default()
    }
}
