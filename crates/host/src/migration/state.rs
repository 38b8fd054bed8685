//! A partition's clocks at rest.

use chronovisor_abi::quantity::{Nanos, RefTime, Tsc, TscDelta};
use chronovisor_abi::scale::ScaleError;

use crate::partition_clock::{
    Counter, Master, PvclockLine, RecordState, ReferenceLine, VcpuIndex, Wall,
};
use crate::reenlightenment::Reenlightenment;
use crate::synthetic_timer;
use crate::vmclock;

/// The clock of a partition, all but its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockState {
    /// The guest's counter when the state was saved.
    pub(crate) saved_at: Tsc,
    pub(crate) budget: Nanos,
    pub(crate) counter: Counter,
    /// How far the most doubtful vCPU's counter may be off.
    pub(crate) lead: TscDelta,
    pub(crate) master: Master,
    pub(crate) pvclock: PvclockLine,
    pub(crate) reference: ReferenceLine,
    pub(crate) page_register: u64,
    pub(crate) page_sequence: u32,
    pub(crate) last_count: Option<RefTime>,
    pub(crate) wall: Option<Wall>,
    pub(crate) wall_clock_register: u64,
    pub(crate) wall_clock_version: u32,
    pub(crate) vmclock: vmclock::Publisher,
}

/// The clocks of a partition: what [`MsrSurface::save`](crate::msr_surface::MsrSurface::save) gives and
/// [`MsrSurface::restore`](crate::msr_surface::MsrSurface::restore) takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmState {
    pub(crate) clock: ClockState,
    pub(crate) reenlightenment: Reenlightenment,
    pub(crate) guest_os_id: u64,
    pub(crate) hypercall: u64,
    pub(crate) invariant_control: u64,
}

impl VmState {
    /// The guest's counter when the state was saved.
    #[must_use]
    pub const fn saved_at(&self) -> Tsc {
        self.clock.saved_at
    }
}

/// The clocks of one vCPU. Its synthetic timers have a state of their own
/// ([`VcpuTimersState`](crate::synthetic_timer::VcpuTimersState)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuState {
    pub(crate) record: RecordState,
    pub(crate) assist_page: u64,
}

/// Why a state cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The rate has no pvclock multiplier.
    #[error("the saved rate cannot be published")]
    Rate(#[from] ScaleError),
    /// The timers' state contradicts itself or the privileges.
    #[error("vcpu {}: {reason}", vcpu.0)]
    Timers {
        /// The vCPU.
        vcpu: VcpuIndex,
        /// What is wrong.
        reason: synthetic_timer::StateError,
    },
    /// There is no room for this vCPU.
    #[error("vcpu {} does not exist: the partition was made for {vcpus}", vcpu.0)]
    NoSuchVcpu {
        /// The vCPU.
        vcpu: VcpuIndex,
        /// How many there are.
        vcpus: u32,
    },
}
