//! The publisher of one vCPU's pvclock record.
//!
//! # Theory
//!
//! A vCPU names its record in MSR 0x4b564d01 (bit 0 enables). Every record of a partition shows the same line, so a new one costs the others
//! nothing, and a hot-plugged vCPU can make no clock jump.
//!
//! # Practice
//!
//! The version is the host's own: it is never read back from the guest. One thing is: [`Flags::GUEST_STOPPED`], which the host sets and only
//! the guest clears, so the host keeps it as long as the guest's copy has it. What a record holds before its first publication is
//! the guest's junk and counts for nothing.
//!
//! # Migration
//!
//! Address, version and a flag that the guest has not answered yet are saved. The version goes on counting.
//!
//! # Caveats
//!
//! A record that is not aligned to 8 bytes is not reachable (the interface asks for 4, Linux gives 64).
//!
//! # References
//!
//! Linux `Documentation/virt/kvm/x86/msr.rst` (MSR_KVM_SYSTEM_TIME_NEW), `arch/x86/kvm/x86.c`.

use chronovisor_abi::msr::ENABLE;
use chronovisor_abi::pvclock::{Flags, Record, WallClock};
use chronovisor_abi::quantity::TscDelta;

use crate::guest_memory::{GuestAddress, GuestMemory};
use crate::partition_clock::PvclockLine;
use crate::partition_clock::mutant::{self, Mutant};

/// How a vCPU's counter stands to the partition's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum VcpuTsc {
    /// The same counter.
    #[default]
    Equal,
    /// Another one.
    Skewed {
        /// What is known of it: the vCPU's counter less the partition's, modulo 2^64.
        offset: TscDelta,
        /// How far from that it may be, either way.
        bound: TscDelta,
    },
}

impl VcpuTsc {
    /// The vCPU's counter less the partition's, modulo 2^64.
    #[must_use]
    pub const fn offset(self) -> TscDelta {
        match self {
            Self::Equal => TscDelta::ZERO,
            Self::Skewed { offset, .. } => offset,
        }
    }

    /// How far the vCPU's counter may be from where it is thought to be.
    #[must_use]
    pub const fn bound(self) -> TscDelta {
        match self {
            Self::Equal => TscDelta::ZERO,
            Self::Skewed { bound, .. } => bound,
        }
    }
}

/// Whether a guest has still to learn that it was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum StopUnanswered {
    #[default]
    No,
    Yes,
}

/// Whether what lies at a record's address is the host's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Ownership {
    /// Nothing was published at this address: the bytes are the guest's.
    #[default]
    Junk,
    /// Published at least once.
    Published,
}

/// One vCPU's record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Publisher {
    register: u64,
    version: u32,
    ownership: Ownership,
    /// Asked for and not yet in the record.
    stop: StopUnanswered,
    tsc: VcpuTsc,
}

impl Publisher {
    /// The publisher as it was saved: the record in guest memory is the host's.
    pub(crate) const fn restored(
        register: u64,
        version: u32,
        stop: StopUnanswered,
        tsc: VcpuTsc,
    ) -> Self {
        Self {
            register,
            version,
            ownership: Ownership::Published,
            stop,
            tsc,
        }
    }

    /// The MSR as the guest wrote it.
    pub(crate) const fn register(&self) -> u64 {
        self.register
    }

    /// The version that the record had when it was last valid.
    pub(crate) const fn version(&self) -> u32 {
        self.version
    }

    pub(crate) const fn tsc(&self) -> VcpuTsc {
        self.tsc
    }

    pub(crate) const fn set_tsc(&mut self, tsc: VcpuTsc) {
        self.tsc = tsc;
    }

    /// The guest's write to the MSR.
    pub(crate) const fn set_register(&mut self, value: u64) {
        self.register = value;
        self.ownership = Ownership::Junk;
    }

    /// Asks for [`Flags::GUEST_STOPPED`] at the next publication, if a record is enabled.
    pub(crate) const fn request_guest_stopped(&mut self) {
        if self.register & ENABLE != 0 {
            self.stop = StopUnanswered::Yes;
        }
    }

    /// Whether the guest has still to learn that it was stopped.
    pub(crate) fn stop_unanswered(&self, memory: &(impl GuestMemory + ?Sized)) -> StopUnanswered {
        match self.record(memory) {
            Some(record) if self.guest_flag(record) => StopUnanswered::Yes,
            _ => self.stop,
        }
    }

    pub(crate) fn mark(&self, memory: &(impl GuestMemory + ?Sized)) {
        if let Some(record) = self.record(memory) {
            record.mark(self.version);
        }
    }

    /// Makes a marked record valid again as it was; `true` if there is one.
    pub(crate) fn reopen(&mut self, memory: &(impl GuestMemory + ?Sized)) -> bool {
        let Some(record) = self.record(memory) else {
            return false;
        };
        self.version = record.publish(self.version);
        true
    }

    /// Fills a marked record and makes it valid; `true` if there is one.
    pub(crate) fn publish(
        &mut self,
        line: &PvclockLine,
        flags: Flags,
        memory: &(impl GuestMemory + ?Sized),
    ) -> bool {
        let Some(record) = self.record(memory) else {
            return false;
        };
        let flags = if self.stop == StopUnanswered::Yes
            || (self.guest_flag(record) && !mutant::is(Mutant::StopFlagForgotten))
        {
            flags.union(Flags::GUEST_STOPPED)
        } else {
            flags
        };
        record.store(&line.contents(flags, self.tsc.offset()));
        self.version = record.publish(self.version);
        self.ownership = Ownership::Published;
        self.stop = StopUnanswered::No;
        true
    }

    fn guest_flag(&self, record: &Record) -> bool {
        self.ownership == Ownership::Published && record.load().flags.contains(Flags::GUEST_STOPPED)
    }

    fn record<'m>(&self, memory: &'m (impl GuestMemory + ?Sized)) -> Option<&'m Record> {
        if self.register & ENABLE == 0 {
            return None;
        }
        memory.pvclock_record(GuestAddress::new(self.register & !ENABLE))
    }
}

/// The partition's wall-clock record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WallClockPublisher {
    register: u64,
    version: u32,
}

impl WallClockPublisher {
    /// The publisher as it was saved.
    pub(crate) const fn restored(register: u64, version: u32) -> Self {
        Self { register, version }
    }

    /// The MSR as the guest wrote it.
    pub(crate) const fn register(&self) -> u64 {
        self.register
    }

    /// The version that the record had when it was last valid.
    pub(crate) const fn version(&self) -> u32 {
        self.version
    }

    pub(crate) const fn set_register(&mut self, value: u64) {
        self.register = value;
    }

    pub(crate) fn fill(&mut self, wall: WallClock, memory: &(impl GuestMemory + ?Sized)) -> bool {
        let Some(record) = memory.wall_clock_record(GuestAddress::new(self.register)) else {
            return false;
        };
        self.version = record.fill(self.version, wall);
        true
    }
}
