//! The kernel's own log, where this process may read it: `/dev/kmsg`, else `syslog(2)`.
//!
//! # Practice
//!
//! [`open`] gives a stream of lines as `dmesg` prints them, record by record, so that a large ring buffer costs no memory.
//!
//! # References
//!
//! Linux `Documentation/ABI/testing/dev-kmsg`; syslog(2).

// Why unsafe: syslog(2) fills a buffer through a pointer.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io::{self, Cursor, Read};
use std::os::unix::fs::OpenOptionsExt;

/// Longest record of `/dev/kmsg`; the kernel refuses a shorter buffer.
const RECORD_BYTES: usize = 8192;

/// Most that is taken from `syslog(2)`: the largest ring buffer that a kernel is usually built with.
const SYSLOG_LIMIT: i32 = 32 << 20;

const SYSLOG_ACTION_READ_ALL: libc::c_int = 3;
const SYSLOG_ACTION_SIZE_BUFFER: libc::c_int = 10;

/// Why the log cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "/dev/kmsg: {kmsg}; syslog(2): {syslog}; run as root, or save the output of `dmesg` as root and give it with --from"
)]
pub struct KernelLogError {
    kmsg: io::Error,
    syslog: io::Error,
}

/// The log as lines with time stamps.
///
/// # Errors
///
/// [`KernelLogError`] if neither way is open.
pub fn open() -> Result<Box<dyn Read>, KernelLogError> {
    let kmsg = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/kmsg")
        .and_then(|file| {
            let mut lines = Kmsg::new(file);
            lines.next_record().map(|()| lines)
        });
    match kmsg {
        Ok(lines) => Ok(Box::new(lines)),
        Err(kmsg) => match syslog() {
            Ok(text) => Ok(Box::new(Cursor::new(text))),
            Err(syslog) => Err(KernelLogError { kmsg, syslog }),
        },
    }
}

fn syslog() -> io::Result<Vec<u8>> {
    // SAFETY: with this action the kernel uses no buffer.
    let size = unsafe { libc::klogctl(SYSLOG_ACTION_SIZE_BUFFER, std::ptr::null_mut(), 0) };
    if size < 0 {
        return Err(io::Error::last_os_error());
    }
    let size = size.min(SYSLOG_LIMIT);
    let mut text = vec![0_u8; usize::try_from(size).unwrap_or(0)];
    // SAFETY: the buffer is as long as is said.
    let got = unsafe { libc::klogctl(SYSLOG_ACTION_READ_ALL, text.as_mut_ptr().cast(), size) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    text.truncate(usize::try_from(got).unwrap_or(0));
    Ok(text)
}

/// Turns the records of `/dev/kmsg` into lines.
struct Kmsg<F> {
    records: F,
    line: Vec<u8>,
    at: usize,
}

impl<F: Read> Kmsg<F> {
    fn new(records: F) -> Self {
        Self {
            records,
            line: Vec::new(),
            at: 0,
        }
    }

    /// Reads one record; an empty line buffer afterwards is the end.
    fn next_record(&mut self) -> io::Result<()> {
        self.line.clear();
        self.at = 0;
        let mut record = [0_u8; RECORD_BYTES];
        loop {
            match self.records.read(&mut record) {
                Ok(got) => {
                    line_of(&record[..got], &mut self.line);
                    return Ok(());
                }
                // Nothing more for now: the end of what there is.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // Overwritten while we read: the next read goes on behind it.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl<F: Read> Read for Kmsg<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.line.len() {
            self.next_record()?;
        }
        let got = (&self.line[self.at..]).read(buffer)?;
        self.at += got;
        Ok(got)
    }
}

/// `prefix,sequence,us,flags;message\n KEY=value\n` as `[seconds.us] message\n`. A record of another form is kept as it is.
fn line_of(record: &[u8], line: &mut Vec<u8>) {
    if record.is_empty() {
        return;
    }
    let first = record.split(|byte| *byte == b'\n').next().unwrap_or(record);
    let stamped = first
        .iter()
        .position(|byte| *byte == b';')
        .and_then(|semicolon| {
            let us = first[..semicolon].split(|byte| *byte == b',').nth(2)?;
            let us: u64 = std::str::from_utf8(us).ok()?.parse().ok()?;
            Some((us, &first[semicolon + 1..]))
        });
    match stamped {
        Some((us, message)) => {
            line.extend_from_slice(
                format!("[{:5}.{:06}] ", us / 1_000_000, us % 1_000_000).as_bytes(),
            );
            line.extend_from_slice(message);
        }
        None => line.extend_from_slice(first),
    }
    line.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out one record a read, as the device does.
    struct Device(Vec<Result<&'static [u8], i32>>);

    impl Read for Device {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.pop() {
                Some(Ok(record)) => {
                    buffer[..record.len()].copy_from_slice(record);
                    Ok(record.len())
                }
                Some(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
                None => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            }
        }
    }

    #[test]
    fn records_become_lines_over_gaps() {
        let mut records = vec![
            Ok(&b"6,339,5140900,-;Switched to clocksource tsc\n SUBSYSTEM=x\n"[..]),
            Err(libc::EPIPE),
            Ok(b"4,340,61234567890,-,caller=T1;warned; twice\n"),
            Err(libc::EINTR),
            Ok(b"no record at all"),
        ];
        records.reverse();
        let mut text = String::new();
        Kmsg::new(Device(records))
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(
            text,
            "[    5.140900] Switched to clocksource tsc\n[61234.567890] warned; twice\nno record at all\n"
        );
    }

    #[test]
    fn a_device_that_fails_is_an_error() {
        let mut text = String::new();
        let answer = Kmsg::new(Device(vec![Err(libc::EPERM)])).read_to_string(&mut text);
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    /// Readable or not: a word, never a panic.
    #[test]
    fn this_machine_answers() {
        match open() {
            Ok(mut log) => {
                let mut text = Vec::new();
                log.read_to_end(&mut text).unwrap();
                assert!(text.is_empty() || text.ends_with(b"\n"));
            }
            Err(error) => assert!(error.to_string().contains("--from"), "{error}"),
        }
    }
}
