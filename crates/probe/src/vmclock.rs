//! The VMClock pages of the hypervisor: `/dev/vmclockN`.
//!
//! # Practice
//!
//! The device's page is read by `chronovisor_guest::vmclock`; what is not readable is refused with the reason. Time and its bound are told only if
//! the page has a time for this counter and can say UTC.
//!
//! # References
//!
//! VMClock specification (UAPI.13); Linux `include/uapi/linux/vmclock-abi.h`, `drivers/ptp/ptp_vmclock.c`.

use std::fs;
use std::path::{Path, PathBuf};

use chronovisor_abi::quantity::Nanos;
use chronovisor_diagnose::evidence::VmclockPage;
use chronovisor_guest::counter::{Counter, Ordered};
use chronovisor_guest::frequency::Estimate;
use chronovisor_guest::linux::os_clock::ClockId;
use chronovisor_guest::linux::vmclock::VmclockDevice;
use chronovisor_guest::vmclock::{Observation, VmclockPage as Reader};

use crate::bracket::Sandwich;
use crate::rate::as_hz;

/// Reads of which the narrowest is kept.
const TRIES: u32 = 40;

/// What one device's page says.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The page as evidence.
    pub page: VmclockPage,
    /// The counter's rate by the page's period.
    pub rate: Option<Estimate>,
}

/// The first VMClock page of this machine that can be read.
///
/// # Errors
///
/// Why there is none.
pub fn first() -> Result<Seen, String> {
    let mut reason = "no /dev/vmclock device".to_owned();
    for device in devices() {
        match read(&device) {
            Ok(seen) => return Ok(seen),
            Err(why) => reason = why,
        }
    }
    Err(reason)
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
pub fn read(device: &Path) -> Result<Seen, String> {
    let mapped = VmclockDevice::open(device).map_err(|why| why.to_string())?;
    mapped
        .clock(Ordered::detect())
        .map_err(|why| why.to_string())
        .and_then(|page| describe(device, &page))
        .map_err(|why| format!("{}: {why}", device.display()))
}

fn describe<C: Counter>(device: &Path, page: &Reader<'_, C>) -> Result<Seen, String> {
    let (contents, _) = page.contents().map_err(|why| why.to_string())?;
    let utc = || page.observe().ok().as_ref().and_then(utc_ns);
    // The sandwich tells the page minus the wall clock.
    let wall = Sandwich::narrowest(TRIES, utc, || ClockId::REALTIME.now());
    let observed = page.observe().ok();
    let rate = Estimate::from_vmclock(&contents);
    let page = VmclockPage {
        device: device.display().to_string(),
        seq_count: page.sequence(),
        disruption_marker: contents.disruption_marker,
        clock_status: contents.status.0,
        counter: rate.map(|estimate| as_hz(estimate.rate)),
        offset_ns: wall.and_then(|wall| i64::try_from(-wall.offset().0).ok()),
        max_error_ns: observed
            .and_then(|seen| seen.bounds.maximum)
            .map(Nanos::as_ns),
    };
    Ok(Seen { page, rate })
}

/// UTC in ns since 1970; `None` if the page cannot tell it.
fn utc_ns(seen: &Observation) -> Option<Nanos> {
    let utc = seen.utc()?;
    utc.sec
        .checked_mul(1_000_000_000)?
        .checked_add(u64::from(utc.subsec_nanos()))
        .map(Nanos::from_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronovisor_abi::quantity::Hertz;
    use chronovisor_abi::vmclock::{ClockStatus, Constants, Contents, Flags, Page, Period};
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

    fn described(page: &Page) -> VmclockPage {
        let reader = Reader::open(page, Ordered::detect()).unwrap();
        describe(Path::new("/dev/vmclock0"), &reader).unwrap().page
    }

    #[test]
    fn a_page_tells_offset_bound_and_rate() {
        let found = described(&page(5, |_| {}));
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
            let found = described(&page(0, change));
            assert_eq!(
                (found.offset_ns, found.disruption_marker),
                (None, 7),
                "{name}"
            );
        }
    }

    #[test]
    fn a_file_that_is_no_page_is_refused_without_a_signal() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let why = read(file.path()).unwrap_err();
        assert!(why.contains("no page behind"), "an empty file: {why}");
        file.write_all(&[0x55; 4096]).unwrap();
        let why = read(file.path()).unwrap_err();
        assert!(why.contains("no VMClock page"), "{why}");
        assert!(read(Path::new("/nonexistent/vmclock0")).is_err());
    }
}
