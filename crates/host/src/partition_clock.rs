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

mod exact;
mod pvclock_line;
mod reference_line;
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

pub use exact::ExactNanos;
pub(crate) use exact::{Master, advance};
pub(crate) use pvclock_line::PvclockLine;
pub(crate) use reference_line::ReferenceLine;
pub(crate) use saved::RecordState;
pub use update::{Change, OpenUpdate, Published, UpdateError};
pub(crate) use wall::Wall;
pub use wall::{TimeOfDay, WallClockError};

use pvclock_line::Multipliers;

/// A virtual processor's index, from 0; what TLFS calls the VP index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VcpuIndex(pub u32);

/// What a VMM chooses about a partition's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many vCPUs there can be; room for each record is made at construction.
    pub vcpus: u32,
    /// How far an encoding may drift from the master before it is re-based.
    pub drift_budget: Nanos,
    /// Whether the host's counter keeps its rate in all states.
    pub counter: Counter,
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
            budget: config.drift_budget,
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
    /// drift budget for 2^63 ticks.
    ///
    /// ```
    /// # use chronovisor_abi::quantity::{Hertz, Tsc};
    /// # use chronovisor_host::partition_clock::{Config, PartitionClock};
    /// let rate = |hz| Hertz::from_hz(hz).expect("not zero");
    /// let start = Tsc::from_ticks(0);
    /// // 2.6 GHz has no exact multiplier: 0.023 ppb use up 100 ns in 4300 s.
    /// let clock = PartitionClock::start(Config::for_vcpus(1), rate(2_600_000_000), start)?;
    /// assert_eq!(clock.next_rebase().map(|tsc| tsc.as_ticks() / 2_600_000_000), Some(4294));
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
            // A due time before the last update is now.
            let due = due.map(|due| if due.is_before(since) { since } else { due })?;
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

    /// Reads the reference counter for `vcpu`, whose own TSC stands at `now`.
    ///
    /// Values are strictly increasing over all vCPUs, and one clock with the page: a page read before is never later, a page read
    /// afterwards never earlier.
    pub fn read_reference_counter(&mut self, vcpu: VcpuIndex, now: Tsc) -> CounterRead {
        let time = match self.vcpu_reference_at(vcpu, now) {
            Ok(time) => time,
            Err(refusal) => return refusal,
        };
        match self.last_count {
            Some(last) if time <= last => match self.reference.first_after(last, &self.master) {
                // wrapping: the counter itself wraps.
                Some(tsc) => CounterRead::NotBefore(tsc.wrapping_add(self.vcpu_tsc(vcpu).offset())),
                // The end of the counter's range: nothing exceeds the last value any more.
                None => CounterRead::Time(time),
            },
            _ => {
                self.last_count = Some(time);
                CounterRead::Time(time)
            }
        }
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

    /// The vCPU's system-time register, MSR 0x4b564d01; 0 for a vCPU that does not exist.
    #[must_use]
    pub fn system_time_register(&self, vcpu: VcpuIndex) -> u64 {
        self.record(vcpu).map_or(0, kvmclock::Publisher::register)
    }

    /// The guest's write to the vCPU's system-time register: its record shows the partition's line at once. Other records are not
    /// touched. `false` if there is no such vCPU or the address is not reachable.
    pub fn write_system_time_register(
        &mut self,
        vcpu: VcpuIndex,
        value: u64,
        memory: &(impl GuestMemory + ?Sized),
    ) -> bool {
        let (flags, phase) = (self.record_flags(), self.phase);
        let Some(record) = usize::try_from(vcpu.0)
            .ok()
            .and_then(|at| self.records.get_mut(at))
        else {
            return false;
        };
        record.set_register(value);
        if phase == Phase::Held {
            return false;
        }
        record.mark(memory);
        fence(Ordering::SeqCst); // W2 of the sequence lock: the address may hold a record that is being read
        record.publish(&self.pvclock, flags, memory)
    }

    /// The wall-clock register, MSR 0x4b564d00.
    #[must_use]
    pub const fn wall_clock_register(&self) -> u64 {
        self.wall_clock.register()
    }

    /// The guest's write to the wall-clock register, which fills the record at that address once: the time of day at which pvclock stood at 0.
    /// `Ok(false)` if the address is not reachable.
    ///
    /// # Errors
    ///
    /// [`WallClockError`] if that time is not known or does not fit the record; the record is not touched then.
    pub fn write_wall_clock_register(
        &mut self,
        value: u64,
        memory: &(impl GuestMemory + ?Sized),
    ) -> Result<bool, WallClockError> {
        self.wall_clock.set_register(value);
        let wall = self.wall.ok_or(WallClockError::Unknown)?.wall_clock()?;
        Ok(self.wall_clock.fill(wall, memory))
    }

    /// How many vCPUs there is room for.
    #[must_use]
    pub fn vcpus(&self) -> u32 {
        u32::try_from(self.records.len()).unwrap_or(u32::MAX)
    }

    /// The reference TSC register, MSR 0x40000021.
    #[must_use]
    pub const fn reference_tsc_register(&self) -> u64 {
        self.page.register()
    }

    /// The guest's write to the reference TSC register: the page at the new address is valid at once if the clock can be shown there. `false` if
    /// it is not, for whichever reason.
    pub fn write_reference_tsc_register(
        &mut self,
        value: u64,
        memory: &(impl GuestMemory + ?Sized),
    ) -> bool {
        self.page.set_register(value);
        self.page.mark(memory);
        fence(Ordering::SeqCst); // W2 of the sequence lock: the address may be that of the page as it was
        match self.page_parameters() {
            Some(parameters) => self.page.publish(&parameters, memory),
            None => false,
        }
    }

    /// Marks every page invalid until the next update is published: for a restored partition, before any vCPU runs.
    pub fn hold(&mut self, memory: &(impl GuestMemory + ?Sized)) {
        self.phase = Phase::Held;
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
    const fn record_flags(&self) -> Flags {
        if self.is_stable() {
            Flags::TSC_STABLE
        } else {
            Flags::NONE
        }
    }

    /// What the page shows, or `None` while it must not be valid.
    fn page_parameters(&self) -> Option<chronovisor_abi::reference_tsc::Parameters> {
        if self.phase == Phase::Running && self.is_stable() {
            self.reference.parameters()
        } else {
            None
        }
    }

    /// How far the timestamp must lie back for the most doubtful vCPU counter.
    fn lead(&self) -> TscDelta {
        self.records
            .iter()
            .map(|record| record.tsc().bound())
            .max()
            .unwrap_or_default()
    }
}
