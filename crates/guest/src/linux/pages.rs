//! Finds the kernel's clock pages in this process: pvclock, Hyper-V, time data.
//!
//! # Theory
//!
//! Linux maps its clock pages into each process for the vDSO. [`maps`](super::maps) knows where each stands, [`presence`](super::presence) asks whether
//! there is anything behind it: a page is present once the kernel has used that clock source, if only for an instant at boot.
//!
//! # Practice
//!
//! ```
//! use chronovisor_guest::clock::GuestClock;
//! use chronovisor_guest::counter::Ordered;
//! use chronovisor_guest::linux::pages::KernelPages;
//! use chronovisor_guest::pvclock::StableBit;
//!
//! match KernelPages::find().map_err(|e| e.to_string()).and_then(|pages| pages.pvclock().map_err(|e| e.to_string())) {
//!     Ok(page) => println!("{:?}", page.reader(Ordered::detect(), StableBit::Advertised).read()),
//!     Err(why) => println!("no pvclock page: {why}"),
//! }
//! ```
//!
//! # Migration
//!
//! The pages stay where they are; their sequence words tell of an update.
//!
//! # Caveats
//!
//! The mappings are the kernel's and stay for the life of the process, unless the program itself unmaps or moves them, as checkpointing tools do.
//!
//! # References
//!
//! Linux `arch/x86/entry/vdso/vma.c`, `arch/x86/kernel/kvmclock.c` (the array behind the page).

// Why unsafe: the kernel's pages become references.
#![allow(unsafe_code)]

use std::io;

use chronovisor_abi::pvclock::{Record, SLOT_BYTES, Slot};
use chronovisor_abi::reference_tsc::{Parameters, ReferenceTscPage};
use chronovisor_abi::seqlock::{DEFAULT_TRIES, ReadError};

use super::maps::{Layout, LayoutError, PAGE_BYTES};
use super::presence::is_readable;
use super::time_data::{TimeDataPage, Words};
use crate::counter::{Counter, CpuCounter};
use crate::pvclock::{PerCpuRecords, SharedRecord, StableBit};
use crate::reference_tsc::{ReferenceClock, ReferencePage};

/// Records in the kernel's pvclock page: one for each of the first 64 CPUs.
pub const PVCLOCK_SLOTS: usize = PAGE_BYTES / SLOT_BYTES;

/// Why the kernel's pages could not be looked for.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The list of mappings is not readable.
    #[error("/proc/self/maps cannot be read: {0}")]
    Maps(#[source] io::Error),
    /// The pages are not where a known kernel has them.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Why one page cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// This kernel has no such page.
    #[error("this kernel maps no {page} page")]
    NotMapped {
        /// The page's name.
        page: &'static str,
    },
    /// The page is mapped and nothing is behind it.
    #[error("the kernel has not used the {page} page since boot, so there is nothing behind it")]
    NotUsed {
        /// The page's name.
        page: &'static str,
    },
    /// It could not be found out whether the page is present.
    #[error("whether the {page} page is present could not be found out: {source}")]
    NotAsked {
        /// The page's name.
        page: &'static str,
        /// What failed.
        #[source]
        source: io::Error,
    },
    /// The page is there in a layout that is not known.
    #[error("the {page} page has a layout that is not known")]
    NotRecognised {
        /// The page's name.
        page: &'static str,
    },
}

/// The kernel's clock pages in this process.
#[derive(Clone, Copy, Debug)]
pub struct KernelPages {
    layout: Layout,
}

impl KernelPages {
    /// Looks the pages' addresses up; touches none.
    ///
    /// # Errors
    ///
    /// [`FindError`] if the process's mappings cannot be read or are none that a known kernel makes.
    pub fn find() -> Result<Self, FindError> {
        // The names of mapped files are in it, and a file's name need not be UTF-8.
        let maps = std::fs::read("/proc/self/maps").map_err(FindError::Maps)?;
        Ok(Self {
            layout: Layout::from_maps(&String::from_utf8_lossy(&maps))?,
        })
    }

    /// Where the pages stand.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// The pvclock records.
    ///
    /// # Errors
    ///
    /// [`PageError`] if the page is not present.
    pub fn pvclock(&self) -> Result<PvclockPage, PageError> {
        let address = present("pvclock", self.layout.pvclock)?;
        // SAFETY: `reference_to`'s conditions: `present` has seen the page; the kernel shares it with every process, read-only, and writes
        // whole fields; `[Slot; 64]` is 4096 bytes of atomics.
        let slots = unsafe { reference_to::<[Slot; PVCLOCK_SLOTS]>(address) };
        Ok(PvclockPage { slots })
    }

    /// The Hyper-V reference TSC page.
    ///
    /// # Errors
    ///
    /// [`PageError`] if the page is not present.
    pub fn hyperv(&self) -> Result<HypervPage, PageError> {
        let address = present("Hyper-V", self.layout.hyperv)?;
        // SAFETY: as for the pvclock page; `ReferenceTscPage` is 4096 bytes of atomics.
        let page = unsafe { reference_to::<ReferenceTscPage>(address) };
        Ok(HypervPage { page })
    }

    /// The kernel's time data, in a time namespace too.
    ///
    /// # Errors
    ///
    /// [`PageError`] if the page is not present or has no known layout.
    pub fn time_data(&self) -> Result<TimeDataPage, PageError> {
        const NAME: &str = "time data";
        let words = |address| -> Result<&'static Words, PageError> {
            let address = present(NAME, address)?;
            // SAFETY: as for the pvclock page; `Words` is 4096 bytes of atomics.
            Ok(unsafe { reference_to::<Words>(address) })
        };
        let mut found = words(Some(self.layout.time_data))?;
        if TimeDataPage::is_time_namespace(found) {
            found = words(self.layout.time_namespace)?;
        }
        TimeDataPage::recognise(found).ok_or(PageError::NotRecognised { page: NAME })
    }
}

/// The address, if a page is present there.
fn present(page: &'static str, address: Option<usize>) -> Result<usize, PageError> {
    let address = address.ok_or(PageError::NotMapped { page })?;
    match is_readable(address) {
        Ok(true) => Ok(address),
        Ok(false) => Err(PageError::NotUsed { page }),
        Err(source) => Err(PageError::NotAsked { page, source }),
    }
}

/// The page at `address` as a `T`.
///
/// # Safety
///
/// `address` is one of the kernel's clock pages and present; it stays mapped, readable and at its place for the life of the process. `T` has the size
/// of a page, an alignment of at most a page, any bytes are a valid `T`, and it consists of atomics, which are only loaded from (the mapping is
/// read-only).
unsafe fn reference_to<T>(address: usize) -> &'static T {
    const { assert!(size_of::<T>() == PAGE_BYTES && align_of::<T>() <= PAGE_BYTES) };
    // SAFETY: the caller's conditions are those of a shared reference for ever: not null, aligned, mapped, of valid bytes; and what the kernel
    // changes behind it is atomics, of which loads up to the width of a register are allowed on read-only memory.
    unsafe { &*(address as *const T) }
}

/// The kernel's own pvclock records, one for each of the first [`PVCLOCK_SLOTS`] CPUs; the boot CPU's is what the vDSO reads.
#[derive(Clone, Copy, Debug)]
pub struct PvclockPage {
    slots: &'static [Slot; PVCLOCK_SLOTS],
}

impl PvclockPage {
    /// A reader of the boot CPU's record on any CPU, right while the record is stable.
    #[must_use]
    pub fn reader<C: Counter>(
        &self,
        counter: C,
        stable_bit: StableBit,
    ) -> SharedRecord<'static, C> {
        SharedRecord::new(self.record(), counter, stable_bit)
    }

    /// A reader of each CPU's own record.
    #[must_use]
    pub fn per_cpu_reader<C: CpuCounter>(&self, counter: C) -> PerCpuRecords<'static, C> {
        PerCpuRecords::new(self.slots, counter)
    }

    /// The boot CPU's record. Not public: whoever clears its GUEST_STOPPED writes to read-only memory.
    pub(crate) fn record(&self) -> &'static Record {
        &self.slots[0].record
    }
}

/// The kernel's own Hyper-V reference TSC page.
#[derive(Clone, Copy, Debug)]
pub struct HypervPage {
    page: &'static ReferenceTscPage,
}

impl HypervPage {
    /// A reader of the page alone.
    #[must_use]
    pub fn reader<C: Counter>(&self, counter: C) -> ReferencePage<'static, C> {
        ReferencePage::new(self.page, counter)
    }

    /// A reader of the page with a fall-back for the times when it is not usable.
    #[must_use]
    pub fn clock<C: Counter, F: Fn() -> chronovisor_abi::quantity::RefTime>(
        &self,
        counter: C,
        fall_back: F,
    ) -> ReferenceClock<'static, C, F> {
        ReferenceClock::new(self.page, counter, fall_back)
    }

    /// The page's multiplier and offset, consistent.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if the page is not usable now.
    pub fn parameters(&self) -> Result<Parameters, ReadError> {
        self.page
            .read(DEFAULT_TRIES, || ())
            .map(|(parameters, ())| parameters)
    }

    pub(crate) fn page(&self) -> &'static ReferenceTscPage {
        self.page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::Ordered;
    use crate::linux::os_clock::ClockId;

    #[test]
    fn the_time_data_of_this_kernel_is_recognised() {
        let pages = KernelPages::find().unwrap();
        let data = pages.time_data().unwrap().read().unwrap();
        let hz = data.frequency().unwrap().rounded_hz();
        assert!((10_000..20_000_000_000).contains(&hz), "{data:?}");
    }

    /// A program that has mapped a file whose name is not UTF-8 still finds its pages.
    #[test]
    fn a_file_name_that_is_no_text_does_not_hide_the_pages() {
        use std::os::fd::AsRawFd;
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::tempdir().unwrap();
        let name = std::ffi::OsStr::from_bytes(b"caf\xe9");
        let file = std::fs::File::create_new(folder.path().join(name)).unwrap();
        file.set_len(1).unwrap();
        // SAFETY: a fresh mapping of an open file, at an address that the kernel chooses; nothing reads it.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_NONE,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED);
        let found = KernelPages::find();
        // SAFETY: the mapping made above, used by nobody.
        assert_eq!(unsafe { libc::munmap(address, PAGE_BYTES) }, 0);
        found.unwrap();
    }

    /// Where the kernel has used kvm-clock, its record is a clock: it counts, and its rate is within 1000 ppm of MONOTONIC_RAW's.
    #[test]
    fn the_kernels_pvclock_page_counts() {
        let pages = KernelPages::find().unwrap();
        let page = match pages.pvclock() {
            Ok(page) => page,
            Err(PageError::NotUsed { .. }) => {
                return std::eprintln!("skipped: no pvclock page here");
            }
            Err(error) => panic!("{error}"),
        };
        let clock = page.reader(Ordered::detect(), StableBit::Advertised);
        let raw = || ClockId::MONOTONIC_RAW.now().unwrap();
        let time = || clock.observe().unwrap().reading.time;
        // The page's span lies within the outer two readings of the operating system's clock, and the inner two within it.
        let (raw_0, time_0, raw_1) = (raw(), time(), raw());
        while raw().saturating_sub(raw_1).as_ns() < 2_000_000 {}
        let (raw_2, time_1, raw_3) = (raw(), time(), raw());
        let span = time_1.saturating_sub(time_0).as_ns();
        let (least, most) = (
            raw_2.saturating_sub(raw_1).as_ns(),
            raw_3.saturating_sub(raw_0).as_ns(),
        );
        assert!(
            span >= least - least / 1_000 && span <= most + most / 1_000,
            "{least} <= {span} <= {most}"
        );
    }
}
