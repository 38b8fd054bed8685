//! PTP clock devices: clocks outside the guest that the kernel can read, the host's among them.
//!
//! # Theory
//!
//! A precise read gives device and system time of one counter value. An extended read gives system, device, system; the device's time lies
//! between the two, and half their distance bounds the error. The basic read alternates the two, which is the same with wider brackets.
//!
//! # Practice
//!
//! [`devices`] tries the three in this order, each once or, for the brackets, as often as the kernel allows in one call, and keeps the narrowest.
//!
//! # Caveats
//!
//! A device may count TAI, which is 37 s ahead of UTC since 2017. Whether it does is not told by the interface.
//!
//! # References
//!
//! Linux `include/uapi/linux/ptp_clock.h`, `drivers/ptp/ptp_chardev.c`.

// Why unsafe: ioctl reads and fills structures through pointers.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::Path;

use chronovisor_diagnose::evidence::PtpDevice;

use crate::text_file;

/// Samples of one extended or basic read.
const SAMPLES: usize = 10;

/// Every PTP device of this machine, readable or not, by number.
#[must_use]
pub fn devices() -> Vec<PtpDevice> {
    let mut numbers: Vec<u32> = fs::read_dir("/dev")
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|entry| {
            entry
                .file_name()
                .to_str()?
                .strip_prefix("ptp")?
                .parse()
                .ok()
        })
        .collect();
    numbers.sort_unstable();
    numbers
        .into_iter()
        .map(|number| device(Path::new(&format!("/dev/ptp{number}")), number))
        .collect()
}

fn device(path: &Path, number: u32) -> PtpDevice {
    let clock_name =
        text_file::first_line(format!("/sys/class/ptp/ptp{number}/clock_name")).unwrap_or_default();
    let mut found = PtpDevice {
        device: path.display().to_string(),
        clock_name,
        ..PtpDevice::default()
    };
    match File::open(path).and_then(|file| offset(&file)) {
        Ok(offset) => {
            found.method = Some(offset.method.to_owned());
            found.offset_ns = i64::try_from(offset.realtime_minus_device_ns).ok();
            found.bound_ns = Some(offset.bound_ns);
        }
        Err(error) => {
            let hint = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    " (try as root, or let your group read the device)"
                }
                _ => "",
            };
            found.not_readable = Some(format!("{error}{hint}"));
        }
    }
    found
}

/// `CLOCK_REALTIME` minus a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offset {
    method: &'static str,
    realtime_minus_device_ns: i128,
    bound_ns: u64,
}

fn offset(file: &File) -> io::Result<Offset> {
    precise(file)
        .or_else(|_| extended(file))
        .or_else(|_| basic(file))
}

fn precise(file: &File) -> io::Result<Offset> {
    // SAFETY: the structure is plain integers, for which zeros are valid.
    let mut answer: libc::ptp_sys_offset_precise = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the request's number carries the structure's size, and the structure lives over the call.
    let code = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::PTP_SYS_OFFSET_PRECISE,
            &raw mut answer,
        )
    };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Offset {
        method: "precise",
        realtime_minus_device_ns: ns(answer.sys_realtime) - ns(answer.device),
        bound_ns: 1, // both are rounded down to a ns, at one counter value
    })
}

fn extended(file: &File) -> io::Result<Offset> {
    // SAFETY: the structure is plain integers, for which zeros are valid.
    let mut request: libc::ptp_sys_offset_extended = unsafe { MaybeUninit::zeroed().assume_init() };
    request.n_samples = u32::try_from(SAMPLES).unwrap_or(1);
    // SAFETY: the request's number carries the structure's size, and the structure lives over the call.
    let code = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::PTP_SYS_OFFSET_EXTENDED,
            &raw mut request,
        )
    };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    let brackets = request.ts[..SAMPLES]
        .iter()
        .map(|[before, device, after]| (ns(*before), ns(*device), ns(*after)));
    narrowest("extended", brackets)
}

fn basic(file: &File) -> io::Result<Offset> {
    // SAFETY: the structure is plain integers, for which zeros are valid.
    let mut request: libc::ptp_sys_offset = unsafe { MaybeUninit::zeroed().assume_init() };
    request.n_samples = u32::try_from(SAMPLES).unwrap_or(1);
    // SAFETY: the structure is the one that this request is defined for, and lives over the call; the kernel writes all of it.
    let code = unsafe { libc::ioctl(file.as_raw_fd(), libc::PTP_SYS_OFFSET, &raw mut request) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    // System times at the even places, device times between them.
    let brackets = request.ts[..=2 * SAMPLES]
        .windows(3)
        .step_by(2)
        .map(|three| (ns(three[0]), ns(three[1]), ns(three[2])));
    narrowest("basic", brackets)
}

/// The offset of the narrowest (system, device, system).
fn narrowest(
    method: &'static str,
    brackets: impl Iterator<Item = (i128, i128, i128)>,
) -> io::Result<Offset> {
    let (before, device, after) = brackets
        .filter(|(before, _, after)| before <= after)
        .min_by_key(|(before, _, after)| after - before)
        .ok_or_else(|| io::Error::other("the system clock went back in every sample"))?;
    Ok(Offset {
        method,
        realtime_minus_device_ns: (before + after).div_euclid(2) - device,
        bound_ns: u64::try_from((after - before + 1) / 2 + 1).unwrap_or(u64::MAX),
    })
}

fn ns(time: libc::ptp_clock_time) -> i128 {
    i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// offset = (before + after) / 2 - device, bound = (after - before) / 2 and the rounding of both
    #[test]
    fn the_narrowest_bracket_decides() {
        let brackets = [(1000, 990, 1400), (2000, 2010, 2100), (3000, 0, 2999)];
        assert_eq!(
            narrowest("extended", brackets.into_iter()).unwrap(),
            Offset {
                method: "extended",
                realtime_minus_device_ns: 40,
                bound_ns: 51
            }
        );
        assert!(narrowest("basic", [(3, 0, 2)].into_iter()).is_err());
    }

    #[test]
    fn a_file_that_is_no_ptp_device_is_an_error() {
        let file = File::open("/dev/null").unwrap();
        assert_eq!(
            offset(&file).unwrap_err().raw_os_error(),
            Some(libc::ENOTTY)
        );
        let missing = device(Path::new("/dev/nonexistent-ptp"), 4_000_000_000);
        assert!(missing.not_readable.is_some() && missing.offset_ns.is_none());
    }

    /// The kernel's structure sizes stand in the request numbers.
    #[test]
    fn layouts_are_those_of_the_requests() {
        assert_eq!(size_of::<libc::ptp_clock_time>(), 16);
        assert_eq!(size_of::<libc::ptp_sys_offset_precise>(), 64);
        assert_eq!(size_of::<libc::ptp_sys_offset_extended>(), 1216);
        assert_eq!(size_of::<libc::ptp_sys_offset>(), 832);
    }
}
