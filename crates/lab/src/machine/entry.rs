//! A vCPU's state at its first instruction: 64-bit mode, everything identity-mapped.

use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::LabError;
use crate::contract::PAGE_TABLES_GPA;

const PAGE: u64 = 4096;
const GIB_TABLES: u64 = 4;
const ENTRIES: u64 = 512;
const TWO_MIB: u64 = 2 << 20;
/// Present, writable, user.
const TABLE: u64 = 0x7;
/// The same, and a 2 MiB page.
const LARGE_PAGE: u64 = 0x87;

const CR0_PE_PG: u64 = 0x8000_0001;
const CR4_PAE: u64 = 0x20;
const EFER_LME_LMA: u64 = 0x500;
/// Bit 1 is always set; interrupts are off.
const RFLAGS: u64 = 0x2;

/// Writes page tables that map the first 4 GiB one to one, for both rings.
pub(super) fn write_page_tables(memory: &GuestMemoryMmap) -> Result<(), LabError> {
    let put = |gpa: u64, value: u64| {
        memory
            .write_obj(value, GuestAddress(gpa))
            .map_err(|error| LabError::Memory {
                what: format!("page tables at {gpa:#x}: {error}"),
            })
    };
    let pml4 = PAGE_TABLES_GPA;
    let pdpt = pml4 + PAGE;
    let directories = pdpt + PAGE;
    put(pml4, pdpt | TABLE)?;
    for gib in 0..GIB_TABLES {
        put(pdpt + 8 * gib, (directories + PAGE * gib) | TABLE)?;
    }
    for entry in 0..GIB_TABLES * ENTRIES {
        put(directories + 8 * entry, (entry * TWO_MIB) | LARGE_PAGE)?;
    }
    Ok(())
}

/// System registers for 64-bit mode, over what KVM starts with.
pub(super) fn system_registers(mut sregs: kvm_sregs) -> kvm_sregs {
    let segment = |selector: u16, type_: u8, l: u8| kvm_segment {
        base: 0,
        limit: 0xFFFF_FFFF,
        selector,
        type_,
        present: 1,
        dpl: 0,
        db: 1 - l,
        s: 1,
        l,
        g: 1,
        ..kvm_segment::default()
    };
    sregs.cs = segment(0x08, 0xB, 1);
    let data = segment(0x10, 0x3, 0);
    sregs.ds = data;
    sregs.es = data;
    sregs.fs = data;
    sregs.gs = data;
    sregs.ss = data;
    sregs.cr0 = CR0_PE_PG;
    sregs.cr3 = PAGE_TABLES_GPA;
    sregs.cr4 = CR4_PAE;
    sregs.efer = EFER_LME_LMA;
    sregs
}

/// General registers: the image takes its CPU index in RDI and finds its stack by it.
pub(super) fn registers(entry: GuestAddress, vcpu: u32) -> kvm_regs {
    kvm_regs {
        rip: entry.0,
        rdi: u64::from(vcpu),
        rflags: RFLAGS,
        ..kvm_regs::default()
    }
}
