//! The VMClock pages of the hypervisor: `/dev/vmclockN`.
//!
//! # Practice
//!
//! The device is mapped, read-only; a page without a valid header is refused with the reason. Time and its bound are told only if the page's
//! counter is this one, its status says that it is set, and its time is UTC, or TAI with a valid offset.
//!
//! # References
//!
//! VMClock specification (UAPI.13); Linux `include/uapi/linux/vmclock-abi.h`, `drivers/ptp/ptp_vmclock.c`.

// Why unsafe: a device's page is mapped and becomes a reference.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use chronovisor_abi::quantity::{Hertz, Nanos, Tsc};
use chronovisor_abi::seqlock::DEFAULT_TRIES;
use chronovisor_abi::vmclock::{Contents, Flags, PAGE_BYTES, Page, TimeType};
use chronovisor_diagnose::evidence::{Part, VmclockPage};
use chronovisor_guest::counter::{Counter, Ordered};
use chronovisor_guest::linux::os_clock::ClockId;
use chronovisor_guest::linux::presence::is_readable;

use crate::bracket::Sandwich;
use crate::rate::as_hz;

/// Reads of which the narrowest is kept.
const TRIES: u32 = 40;

/// The first VMClock page of this machine that can be read.
#[must_use]
pub fn page() -> Part<VmclockPage> {
    let mut reason = "no /dev/vmclock device".to_owned();
    for device in devices() {
        match read(&device) {
            Ok(page) => return Part::Seen(page),
            Err(why) => reason = why,
        }
    }
    Part::NotReadable(reason)
}

fn devices() -> Vec<PathBuf> {
    let mut numbers: Vec<u32> = fs::read_dir("/dev")
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix("vmclock")?.parse().ok()
        })
        .collect();
    numbers.sort_unstable();
    numbers
        .into_iter()
        .map(|number| PathBuf::from(format!("/dev/vmclock{number}")))
        .collect()
}

/// Reads the page of one device.
///
/// # Errors
///
/// Why it cannot be read, with the device's name.
pub fn read(device: &Path) -> Result<VmclockPage, String> {
    let named = |why: String| format!("{}: {why}", device.display());
    let mapping = File::open(device)
        .and_then(|file| Mapping::of(&file))
        .map_err(|why| named(why.to_string()))?;
    describe(device, mapping.page()).map_err(named)
}

fn describe(device: &Path, page: &Page) -> Result<VmclockPage, String> {
    let constants = page.constants().map_err(|why| why.to_string())?;
    let counter = Ordered::detect();
    let (contents, tsc) = page
        .read(DEFAULT_TRIES, || counter.read())
        .map_err(|why| why.to_string())?;
    let mut found = VmclockPage {
        device: device.display().to_string(),
        seq_count: page.sequence(),
        disruption_marker: contents.disruption_marker,
        clock_status: contents.status.0,
        counter: frequency(&contents).map(as_hz),
        ..VmclockPage::default()
    };
    if contents.check(&constants).is_ok() {
        let utc = || {
            let (contents, tsc) = page.read(DEFAULT_TRIES, || counter.read()).ok()?;
            utc_at(&contents, constants.time_type, tsc)
        };
        let wall = Sandwich::narrowest(TRIES, utc, || ClockId::REALTIME.now());
        // The sandwich tells the page minus the wall clock.
        found.offset_ns = wall.and_then(|wall| i64::try_from(-wall.offset().0).ok());
        found.max_error_ns = contents.bounds_at(tsc).maximum.map(Nanos::as_ns);
    }
    Ok(found)
}

/// UTC in ns since 1970 by the page; `None` if its time is of another kind, or TAI without a valid offset.
fn utc_at(contents: &Contents, time_type: TimeType, tsc: Tsc) -> Option<Nanos> {
    let time = contents.time_at(tsc).ok()?;
    let utc = match time_type {
        TimeType::UTC => time,
        TimeType::TAI if contents.flags.contains(Flags::TAI_OFFSET_VALID) => {
            time.checked_sub_secs(contents.tai_offset_sec)?
        }
        _ => return None,
    };
    utc.sec
        .checked_mul(1_000_000_000)?
        .checked_add(u64::from(utc.subsec_nanos()))
        .map(Nanos::from_ns)
}

/// f = 2^(64 + shift) / period
fn frequency(contents: &Contents) -> Option<Hertz> {
    let numerator = 1_u128.checked_shl(64 + u32::from(contents.period_shift))?;
    Hertz::from_ratio_floor(numerator, u128::from(contents.period_frac_sec))
}

/// A mapped page, unmapped when dropped.
struct Mapping(NonNull<Page>);

impl Mapping {
    fn of(file: &File) -> io::Result<Self> {
        let length = size_of::<Page>();
        // SAFETY: a fresh mapping at an address that the kernel chooses, of an open file, read-only.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = NonNull::new(address.cast())
            .map(Self)
            .ok_or_else(|| io::Error::other("mapped at address 0"))?;
        // A device or file shorter than a page would raise SIGBUS at the first read.
        if is_readable(address.addr())? {
            Ok(mapping)
        } else {
            Err(io::Error::other("there is nothing behind the mapping"))
        }
    }

    fn page(&self) -> &Page {
        const { assert!(size_of::<Page>() == PAGE_BYTES as usize && align_of::<Page>() <= 4096) };
        // SAFETY: the mapping is a whole page, aligned as pages are, readable and present (`of`), and lives as long as `self`; `Page` is atomics, for
        // which any bytes are valid, and is only loaded from.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping that `of` made, of this length, to which no reference is left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Page>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronovisor_abi::vmclock::{ClockStatus, Constants, Period};
    use std::io::Write;

    /// A page that says: at the counter's value now it is the wall clock's time plus `ahead_sec`, in TAI.
    fn page(ahead_sec: u64, change: impl FnOnce(&mut Contents)) -> Page {
        let rate = Hertz::from_hz(2_600_000_000).unwrap();
        let period = Period::of(rate).unwrap();
        let now = ClockId::REALTIME.now().unwrap().as_ns();
        let mut contents = Contents {
            disruption_marker: 7,
            flags: Flags::TAI_OFFSET_VALID
                .union(Flags::TIME_MAXERROR_VALID)
                .union(Flags::PERIOD_MAXERROR_VALID),
            status: ClockStatus::SYNCHRONIZED,
            tai_offset_sec: 37,
            period_frac_sec: period.frac_sec,
            period_shift: period.shift,
            counter_value: Ordered::detect().read(),
            time_sec: now / 1_000_000_000 + 37 + ahead_sec,
            time_frac_sec: u64::try_from((u128::from(now % 1_000_000_000) << 64) / 1_000_000_000)
                .unwrap(),
            time_maxerror_ns: 500,
            ..Contents::default()
        };
        change(&mut contents);
        let page = Page::new();
        page.write_constants(&Constants::X86_TAI);
        page.mark(0);
        page.store(&contents);
        page.publish(0);
        page
    }

    #[test]
    fn a_page_tells_offset_bound_and_rate() {
        let found = describe(Path::new("/dev/vmclock0"), &page(5, |_| {})).unwrap();
        assert_eq!(
            (
                found.disruption_marker,
                found.clock_status,
                found.max_error_ns
            ),
            (7, 2, Some(500))
        );
        let counter = found.counter.unwrap();
        assert_eq!(
            (counter.numerator + counter.denominator / 2) / counter.denominator,
            2_600_000_000
        );
        // The page is 5 s ahead, so the wall clock is 5 s behind; the test itself may be slow, and the counter here is not exactly 2.6 GHz.
        let offset = found.offset_ns.unwrap();
        assert!((-5_000_000_000 - offset).abs() < 900_000_000, "{offset}");
    }

    /// A page whose clock is not set, or whose TAI offset is unknown, tells no offset.
    #[test]
    fn d89_a_header_is_not_enough() {
        for (name, change) in [
            (
                "initializing",
                (|contents: &mut Contents| contents.status = ClockStatus::INITIALIZING)
                    as fn(&mut Contents),
            ),
            ("no TAI offset", |contents| contents.flags = Flags::NONE),
        ] {
            let found = describe(Path::new("x"), &page(0, change)).unwrap();
            assert_eq!(
                (found.offset_ns, found.disruption_marker),
                (None, 7),
                "{name}"
            );
        }
    }

    /// UTC = TAI - offset, not plus: 74 s would lie between the two.
    #[test]
    fn d90_the_tai_offset_is_taken_off() {
        let contents = Contents {
            flags: Flags::TAI_OFFSET_VALID,
            tai_offset_sec: 37,
            time_sec: 1_800_000_037,
            period_frac_sec: 1 << 63,
            period_shift: 31,
            ..Contents::default()
        };
        let utc = |time_type| utc_at(&contents, time_type, Tsc::from_ticks(0)).map(Nanos::as_ns);
        assert_eq!(utc(TimeType::TAI), Some(1_800_000_000_000_000_000));
        assert_eq!(utc(TimeType::UTC), Some(1_800_000_037_000_000_000));
        assert_eq!(utc(TimeType::MONOTONIC), None);
    }

    #[test]
    fn a_file_that_is_no_page_is_refused_without_a_signal() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let why = read(file.path()).unwrap_err();
        assert!(why.contains("nothing behind"), "an empty file: {why}");
        file.write_all(&[0x55; 4096]).unwrap();
        let why = read(file.path()).unwrap_err();
        assert!(why.contains("no VMClock page"), "{why}");
        assert!(read(Path::new("/nonexistent/vmclock0")).is_err());
    }
}
