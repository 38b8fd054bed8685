//! Guest memory as `chronovisor-host` sees it: the clock pages at the addresses that the guest named.
#![allow(unsafe_code)] // hands out references into guest memory

use chronovisor_abi::pvclock::{Record, WallClockRecord};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_host::guest_memory::{GuestAddress, GuestMemory};
use vm_memory::{GuestMemoryBackend, GuestMemoryMmap};

/// The pages of one guest.
#[derive(Clone)]
pub struct GuestPages(GuestMemoryMmap);

impl GuestPages {
    /// The pages in `memory`.
    #[must_use]
    pub const fn new(memory: GuestMemoryMmap) -> Self {
        Self(memory)
    }

    /// # Safety
    ///
    /// `T` consists of atomics only and is valid for any bits.
    unsafe fn shared<T>(&self, address: GuestAddress) -> Option<&T> {
        let slice = self
            .0
            .get_slice(vm_memory::GuestAddress(address.as_u64()), size_of::<T>())
            .ok()?;
        let pointer = slice.ptr_guard_mut().as_ptr().cast::<T>();
        // SAFETY: `get_slice` checked that all of `T` lies in one mapped region, which lives as long as `self`; the
        // alignment is checked here; the guest writes to it at the same time, which atomics allow; validity by contract.
        pointer.is_aligned().then(|| unsafe { &*pointer })
    }
}

impl GuestMemory for GuestPages {
    fn pvclock_record(&self, address: GuestAddress) -> Option<&Record> {
        // SAFETY: a record is made of atomic integers.
        unsafe { self.shared(address) }
    }

    fn wall_clock_record(&self, address: GuestAddress) -> Option<&WallClockRecord> {
        // SAFETY: a record is made of atomic integers.
        unsafe { self.shared(address) }
    }

    fn reference_tsc_page(&self, address: GuestAddress) -> Option<&ReferenceTscPage> {
        // SAFETY: the page is made of atomic integers.
        unsafe { self.shared(address) }
    }
}
