//! The guest OS identity and hypercall registers, and what to write into the hypercall page.
//!
//! The page stays disabled while the identity is 0; clearing the identity disables it. Once its lock bit is set the register keeps its value.
//! The VMM fills the page, since its code depends on the processor and on whether the VMM serves hypercalls at all.
//!
//! References: Hyper-V TLFS, "Establishing the Hypercall Interface".

use chronovisor_abi::msr::{ENABLE, PAGE_ADDRESS_MASK};

use crate::guest_memory::GuestAddress;

/// Code that answers every hypercall with "invalid hypercall code": `mov eax, 2; xor edx, edx; ret`.
pub const INVALID_HYPERCALL_CODE: [u8; 8] = [0xb8, 2, 0, 0, 0, 0x31, 0xd2, 0xc3];
/// Code that traps to the hypervisor on Intel: `vmcall; ret`.
pub const VMCALL: [u8; 4] = [0x0f, 0x01, 0xc1, 0xc3];
/// Code that traps to the hypervisor on AMD: `vmmcall; ret`.
pub const VMMCALL: [u8; 4] = [0x0f, 0x01, 0xd9, 0xc3];
/// To stand before either if the guest sees indirect-branch tracking: `endbr64`.
pub const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

const LOCKED: u64 = 1 << 1;

/// The two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Hypercall {
    pub(crate) guest_os_id: u64,
    pub(crate) register: u64,
}

impl Hypercall {
    pub(crate) const fn write_guest_os_id(&mut self, value: u64) {
        self.guest_os_id = value;
        if value == 0 {
            self.register &= !ENABLE;
        }
    }

    /// The address of the page to fill, if the write enabled one.
    pub(crate) const fn write_register(&mut self, value: u64) -> Option<GuestAddress> {
        if self.register & LOCKED != 0 || self.guest_os_id == 0 {
            return None;
        }
        self.register = value;
        if value & ENABLE != 0 {
            Some(GuestAddress::new(value & PAGE_ADDRESS_MASK))
        } else {
            None
        }
    }
}
