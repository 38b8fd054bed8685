//! Whether a mapped page can be read, asked without a signal handler.
//!
//! # Theory
//!
//! The kernel's clock pages are mapped in every process, but a page that the kernel never used has nothing behind it: a load raises
//! SIGBUS. A system call that copies *from* such an address returns EFAULT instead, and no signal is sent. So one byte of the page is written
//! into a pipe. Other system calls are no use: `process_vm_readv` and `/proc/self/mem` fail for every page of `[vvar]`, present or not.
//!
//! # References
//!
//! write(2), EFAULT; Linux `arch/x86/entry/vdso/vma.c` (`VM_FAULT_SIGBUS` for a clock that was not used).

// Why unsafe: one system call that is handed an address which may have nothing behind it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

/// Whether one byte at `address` can be read by the kernel on this process's behalf.
///
/// # Errors
///
/// The pipe could not be made (no descriptors left), or write(2) failed for another reason than the address.
pub fn is_readable(address: usize) -> io::Result<bool> {
    let (_reader, writer) = io::pipe()?;
    loop {
        // SAFETY: write(2) may be given any address: it copies one byte from it or returns EFAULT, and changes no memory of this process.
        // The descriptor is open for the whole call. An empty pipe takes one byte without blocking.
        let written = unsafe { libc::write(writer.as_raw_fd(), address as *const libc::c_void, 1) };
        if written == 1 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EFAULT) => return Ok(false),
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn memory_is_readable_and_a_hole_is_not() {
        let byte = 7_u8;
        assert!(is_readable(ptr::from_ref(&byte).addr()).unwrap());
        assert!(!is_readable(0).unwrap());
        assert!(!is_readable(usize::MAX).unwrap());
    }

    /// A page beyond the end of its file is what an unused clock page is: mapped, and a load raises SIGBUS.
    #[test]
    fn a_mapped_page_with_nothing_behind_it_is_not_readable() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1).unwrap();
        // SAFETY: a fresh mapping of an open file, at an address that the kernel chooses; nothing reads it but write(2).
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                3 * 4096,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED);
        assert!(is_readable(address.addr()).unwrap(), "the file's page");
        assert!(
            !is_readable(address.addr() + 4096).unwrap(),
            "beyond its end"
        );
        // SAFETY: the mapping made above, used by nobody.
        assert_eq!(unsafe { libc::munmap(address, 3 * 4096) }, 0);
    }
}
