//! What a VMM may want to count or log. No logger is chosen here: implement what you need, the rest does nothing.

use chronovisor_abi::msr::Msr;

use crate::guest_memory::GuestAddress;
use crate::msr_surface::Access;
use crate::partition_clock::VcpuIndex;

/// A page or record that a guest named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Page {
    /// A vCPU's pvclock record.
    PvclockRecord,
    /// The wall-clock record.
    WallClockRecord,
    /// The reference TSC page.
    ReferenceTscPage,
}

/// What happened on the MSR surface.
///
/// ```
/// use chronovisor_abi::msr::Msr;
/// use chronovisor_host::{events::Events, msr_surface::Access, partition_clock::VcpuIndex};
///
/// #[derive(Default)]
/// struct Faults(u64);
///
/// impl Events for Faults {
///     fn fault(&mut self, _vcpu: VcpuIndex, _msr: Msr, _access: Access) {
///         self.0 += 1;
///     }
/// }
/// ```
pub trait Events {
    /// A guest's access was answered with #GP.
    fn fault(&mut self, vcpu: VcpuIndex, msr: Msr, access: Access) {
        let _ = (vcpu, msr, access);
    }

    /// A read of the reference counter came too early and must be repeated.
    fn counter_not_before(&mut self, vcpu: VcpuIndex) {
        let _ = vcpu;
    }

    /// A page was enabled and shows the partition's clock.
    fn page_enabled(&mut self, vcpu: VcpuIndex, page: Page, address: GuestAddress) {
        let _ = (vcpu, page, address);
    }

    /// A page was enabled and cannot be valid: not reachable, or the clock cannot be shown there now.
    fn page_not_valid(&mut self, vcpu: VcpuIndex, page: Page, address: GuestAddress) {
        let _ = (vcpu, page, address);
    }

    /// A guest ended the emulation of its counter.
    fn reenlightenment_acknowledged(&mut self, vcpu: VcpuIndex) {
        let _ = vcpu;
    }
}

/// Counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEvents;

impl Events for NoEvents {}
