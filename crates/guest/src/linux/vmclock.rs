//! Maps the VMClock page of a `/dev/vmclockN`.
//!
//! The device lets a process map its page, read-only. It is there if the hypervisor announces a VMClock and the kernel has the driver (6.13 and later).
//!
//! References: Linux `drivers/ptp/ptp_vmclock.c`.

// Why unsafe: a mapping becomes a reference.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use chronovisor_abi::vmclock::{HeaderError, PAGE_BYTES, Page};

use super::presence::is_readable;
use crate::counter::Counter;
use crate::vmclock::VmclockPage;

const LENGTH: usize = PAGE_BYTES as usize;

/// Why a device gave no page.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device cannot be opened: it is not there, or this user may not read it.
    #[error("{} cannot be opened: {source}", path.display())]
    Open {
        /// The device's file.
        path: PathBuf,
        /// What failed.
        #[source]
        source: io::Error,
    },
    /// The device cannot be mapped.
    #[error("{} cannot be mapped: {source}; kernels map it only if it has a whole page", path.display())]
    Map {
        /// The device's file.
        path: PathBuf,
        /// What failed.
        #[source]
        source: io::Error,
    },
    /// Nothing is behind the mapping.
    #[error("{} has no page behind its mapping", path.display())]
    Empty {
        /// The device's file.
        path: PathBuf,
    },
}

/// The mapped page of a device; unmapped when dropped.
#[derive(Debug)]
pub struct VmclockDevice {
    page: NonNull<Page>,
}

// SAFETY: the page consists of atomics, and the mapping belongs to the process, not to a thread.
unsafe impl Send for VmclockDevice {}
// SAFETY: as above; nothing but loads is done through it.
unsafe impl Sync for VmclockDevice {}

impl VmclockDevice {
    /// Opens and maps the device at `path`, such as `/dev/vmclock0`.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if there is no such device or it has no page to map.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DeviceError> {
        let path = path.as_ref();
        let named = || path.to_path_buf();
        let file = File::open(path).map_err(|source| DeviceError::Open {
            path: named(),
            source,
        })?;
        // SAFETY: a fresh mapping of an open file at an address that the kernel chooses; the file may be closed afterwards.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                LENGTH,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        let mapped = NonNull::new(address.cast::<Page>()).filter(|_| address != libc::MAP_FAILED);
        let Some(page) = mapped else {
            let source = io::Error::last_os_error();
            return Err(DeviceError::Map {
                path: named(),
                source,
            });
        };
        // From here on the mapping is unmapped on every path.
        let device = Self { page };
        match is_readable(address.addr()) {
            Ok(true) => Ok(device),
            Ok(false) => Err(DeviceError::Empty { path: named() }),
            Err(source) => Err(DeviceError::Map {
                path: named(),
                source,
            }),
        }
    }

    /// A reader of the page with `counter`, which should be ordered.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] if this is no VMClock page of a known version.
    pub fn clock<C: Counter>(&self, counter: C) -> Result<VmclockPage<'_, C>, HeaderError> {
        // SAFETY: `page` is a live mapping of 4096 bytes, aligned to a page, with a page behind it (asked when it was made); it is unmapped only
        // when `self` is dropped, which the reference's lifetime forbids. `Page` is atomics, of which any bytes are valid, and the reader only
        // loads from them.
        let page = unsafe { self.page.as_ref() };
        VmclockPage::open(page, counter)
    }
}

impl Drop for VmclockDevice {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open`, of this length, to which no reference is left.
        unsafe { libc::munmap(self.page.as_ptr().cast(), LENGTH) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronovisor_abi::quantity::Tsc;
    use std::io::Write;

    /// A file in the place of the device: markers only, as several VMMs have it.
    #[test]
    fn a_page_is_mapped_and_read() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = [0_u8; LENGTH];
        for (at, value) in [
            (0, &b"VCLK"[..]),
            (4, &4096_u32.to_le_bytes()),
            (8, &[1, 0, 0xff, 1]),
            (0xc, &6_u32.to_le_bytes()),
            (0x10, &0x0123_4567_89ab_cdef_u64.to_le_bytes()),
        ] {
            bytes[at..at + value.len()].copy_from_slice(value);
        }
        file.write_all(&bytes).unwrap();
        let device = VmclockDevice::open(file.path()).unwrap();
        let clock = device.clock(|| Tsc::from_ticks(0)).unwrap();
        assert_eq!(clock.markers().unwrap().disruption, 0x0123_4567_89ab_cdef);
    }

    #[test]
    fn what_is_no_device_is_said() {
        let missing = VmclockDevice::open("/dev/vmclock-that-is-not-there").unwrap_err();
        assert!(
            missing
                .to_string()
                .contains("vmclock-that-is-not-there cannot be opened"),
            "{missing}"
        );
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(
            VmclockDevice::open(empty.path()),
            Err(DeviceError::Empty { .. })
        ));
        let mut zeros = tempfile::NamedTempFile::new().unwrap();
        zeros.write_all(&[0; LENGTH]).unwrap();
        let device = VmclockDevice::open(zeros.path()).unwrap();
        assert!(matches!(
            device.clock(|| Tsc::from_ticks(0)),
            Err(HeaderError::NotVmclock { found: 0 })
        ));
    }
}
