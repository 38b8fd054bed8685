//! Guest memory as `chronovisor-host` sees it: the clock pages at the addresses that the guest named.
#![allow(unsafe_code)] // hands out references into guest memory

use chronovisor_abi::pvclock::{Record, WallClockRecord};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_host::guest_memory::{GuestAddress, GuestMemory};
use vm_memory::{Bytes, GuestMemoryBackend, GuestMemoryMmap};

use crate::contract::TIME_PORT;

/// `mov dx, TIME_PORT; out dx, al; ret`. The answer comes in RAX; a hypercall may change RDX.
const fn hypercall_code() -> [u8; 6] {
    let [low, high] = TIME_PORT.to_le_bytes();
    [0x66, 0xBA, low, high, 0xEE, 0xC3]
}

/// The pages of one guest.
#[derive(Clone)]
pub struct GuestPages(GuestMemoryMmap);

impl GuestPages {
    /// The pages in `memory`.
    #[must_use]
    pub const fn new(memory: GuestMemoryMmap) -> Self {
        Self(memory)
    }

    /// Puts the code of our one hypercall into the page at `address`. An address outside memory names no page.
    ///
    /// KVM answers VMCALL and VMMCALL itself, so the code leaves the guest by a port; both rings may use it.
    pub fn fill_hypercall_page(&self, address: GuestAddress) {
        let code = hypercall_code();
        // Nothing to do about a page that is not there: the guest will see that it has no code.
        let _ = self
            .0
            .write_slice(&code, vm_memory::GuestAddress(address.as_u64()));
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
