//! How the host reaches the pages that the guest named.

use chronovisor_abi::pvclock::{Record, WallClockRecord};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_abi::synthetic_timer::MessagePage;
use chronovisor_abi::vmclock;

/// A guest-physical address, as a guest wrote it into a register: any value is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct GuestAddress(u64);

impl GuestAddress {
    /// The address `address`.
    #[must_use]
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The address in bytes.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

/// The VMM's view of guest memory: references to the shared pages at the addresses that the guest named.
///
/// The VMM maps guest memory and checks bounds and alignment; the fields of every page are atomics, so the guest may do what it likes with
/// the same bytes meanwhile. `None` (an address outside memory, or one that is not aligned as the type asks) is no error: the page is just
/// not reachable, as the interfaces say. The VMM marks a page that it hands out as dirty if it tracks dirty pages.
///
/// An implementation answers the same for the same address as long as it is borrowed.
pub trait GuestMemory {
    /// The pvclock record at `address`: 32 bytes, aligned to 8.
    fn pvclock_record(&self, address: GuestAddress) -> Option<&Record>;

    /// The wall-clock record at `address`: 12 bytes, aligned to 4.
    fn wall_clock_record(&self, address: GuestAddress) -> Option<&WallClockRecord>;

    /// The reference TSC page at `address`: 4096 bytes, aligned to 4096.
    fn reference_tsc_page(&self, address: GuestAddress) -> Option<&ReferenceTscPage>;

    /// The VMClock page, which is a device's and not at an address of the guest's choice. A VMM without VMClock need not answer.
    fn vmclock_page(&self) -> Option<&vmclock::Page> {
        None
    }

    /// The message page at `address`: 4096 bytes, aligned to 4096. A VMM without SynIC need not answer.
    fn message_page(&self, _address: GuestAddress) -> Option<&MessagePage> {
        None
    }
}

/// No guest memory: every page is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct NoMemory;

impl GuestMemory for NoMemory {
    fn pvclock_record(&self, _address: GuestAddress) -> Option<&Record> {
        None
    }

    fn wall_clock_record(&self, _address: GuestAddress) -> Option<&WallClockRecord> {
        None
    }

    fn reference_tsc_page(&self, _address: GuestAddress) -> Option<&ReferenceTscPage> {
        None
    }
}
