//! The guest image that this crate carries, and how it gets into guest memory.

use std::io::Cursor;

use linux_loader::loader::{Elf, KernelLoader};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::LabError;

/// The image as ELF, built by this crate's build script.
pub const ELF: &[u8] = include_bytes!(env!("CHRONOVISOR_GUEST_IMAGE"));

/// Copies the image to the addresses it is linked for; returns the 64-bit entry.
///
/// # Errors
///
/// [`LabError::Memory`] if guest memory is too small.
pub fn load(memory: &GuestMemoryMmap) -> Result<GuestAddress, LabError> {
    // Offset zero: the program headers' own addresses. `None` would ask for the PVH note only.
    let loaded =
        Elf::load(memory, None, &mut Cursor::new(ELF), None).map_err(|error| LabError::Memory {
            what: format!("loading the guest image: {error}"),
        })?;
    Ok(loaded.kernel_load)
}
