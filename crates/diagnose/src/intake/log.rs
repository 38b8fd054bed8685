//! A kernel's log as text, read once from front to back.
//!
//! # Theory
//!
//! Only lines about clocks matter, and each of them carries one of a few dozen fixed texts. One pass of a many-pattern
//! search finds those lines; everything else is only counted. What is kept is bounded: see
//! [`Retained`](crate::evidence::Retained) for a boot and [`KernelLog`] for the boots. So neither the length of the log nor
//! that of a line sets the memory that a reading takes.
//!
//! # Practice
//!
//! Stamps, syslog and journal prefixes, colour codes, Windows line ends and two-byte text (as some shells write) are
//! understood. Several boots in one log are told apart by `Linux version`, by a journal's boot marker, and, where a log was
//! cut down so far that these are missing, by a stamp that falls back together with a line that a boot prints once.
//!
//! # Caveats
//!
//! A log cut down to lines that never repeat can hold two boots as one. The order of lines inside a boot does not matter.
//!
//! # References
//!
//! Linux `kernel/printk/printk.c` (stamps), and the files named in [`ClockEvent`](crate::evidence::ClockEvent).

mod boots;
mod calibration;
mod fields;
mod machine;
mod message;
mod stamp;
mod watchdog;

use super::complaint::Complaints;
use crate::evidence::{KernelLog, LoggedEvent};
use aho_corasick::{AhoCorasick, MatchKind};
use boots::Boots;
use message::ANCHORS;
use std::io::{self, Read};
use std::sync::LazyLock;

pub(crate) use machine::clock_words;

/// Bytes read at once, and the longest line that is looked at.
const BLOCK: usize = 1 << 20;

/// Text from which it is judged whether this is a kernel's log at all.
const SAMPLE: usize = 1 << 16;

static SEARCH: LazyLock<AhoCorasick> = LazyLock::new(|| {
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostFirst)
        .build(
            ANCHORS
                .iter()
                .map(|(text, _)| *text)
                .chain([JOURNAL_BOOT, JOURNAL_REBOOT]),
        )
        .expect("a few dozen short patterns always build")
});

/// How a journal marks a boot.
const JOURNAL_BOOT: &str = "-- Boot ";
const JOURNAL_REBOOT: &str = "-- Reboot --";

/// What a reading gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The events.
    pub log: KernelLog,
    /// What could not be made sense of.
    pub complaints: Vec<String>,
    /// Whether anything in it looks like a kernel's log: an event or a stamp.
    pub looks_like_a_log: bool,
}

/// Reads a kernel's log to its end.
///
/// # Errors
///
/// The first error of the reader that comes before any byte. A later one ends the log there, with a complaint.
///
/// # Examples
///
/// ```
/// use chronovisor_diagnose::intake::log;
///
/// let text = "[    0.089848] clocksource: Switched to clocksource tsc\n";
/// let reading = log::read(text.as_bytes())?;
/// assert_eq!(reading.log.lines, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read(mut reader: impl Read) -> io::Result<Reading> {
    let mut scan = Scan::default();
    let mut block = vec![0_u8; BLOCK];
    let mut filled = 0;
    let mut total = 0_u64;
    loop {
        let got = match reader.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if total == 0 => return Err(error),
            Err(error) => {
                scan.complaints.add(format!(
                    "kernel log: reading stopped at byte {total}: {error}"
                ));
                break;
            }
        };
        total += u64::try_from(got).unwrap_or(u64::MAX);
        filled += got;
        if filled < block.len() && got < BLOCK / 2 && !block[..filled].contains(&b'\n') {
            continue;
        }
        match memchr::memrchr(b'\n', &block[..filled]) {
            Some(last) => {
                scan.lines(&block[..=last]);
                block.copy_within(last + 1..filled, 0);
                filled -= last + 1;
            }
            None if filled == block.len() => {
                scan.piece_of_long_line(&block);
                filled = 0;
            }
            None => {}
        }
    }
    if filled > 0 {
        let mut rest = block[..filled].to_vec();
        rest.push(b'\n');
        scan.lines(&rest);
    }
    Ok(scan.finish())
}

#[derive(Default)]
struct Scan {
    boots: Boots,
    complaints: Complaints,
    /// Complete lines so far.
    lines: u64,
    events: u64,
    stamps_in_sample: bool,
    sampled: usize,
    nuls: Option<u64>,
    long_line: Option<u64>,
}

impl Scan {
    /// A stretch of whole lines.
    fn lines(&mut self, text: &[u8]) {
        let text = if self.long_line.take().is_some() {
            // The end of a line whose start was already looked at.
            let end = memchr::memchr(b'\n', text).map_or(text.len(), |end| end + 1);
            self.lines += 1;
            &text[end..]
        } else {
            text
        };
        self.sample(text);
        if self.nuls.is_none()
            && let Some(at) = memchr::memchr(0, text)
        {
            let line = self.lines + count_lines(&text[..at]) + 1;
            self.nuls = Some(line);
            self.complaints
                .add(format!("kernel log line {line}: NUL bytes, passed over"));
        }
        let mut from = 0;
        let mut counted = 0;
        while let Some(found) = SEARCH.find(&text[from..]) {
            let at = from + found.start();
            let start = memchr::memrchr(b'\n', &text[..at]).map_or(0, |newline| newline + 1);
            let end = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |end| at + end);
            self.lines += count_lines(&text[counted..start]);
            counted = start;
            let anchor = Some((found.pattern().as_usize(), at - start));
            self.line(self.lines + 1, &text[start..end], anchor);
            from = end;
            if from >= text.len() {
                break;
            }
        }
        self.lines += count_lines(&text[counted..]);
    }

    /// A block without any line end.
    fn piece_of_long_line(&mut self, text: &[u8]) {
        if self.long_line.is_some() {
            return;
        }
        let line = self.lines + 1;
        self.long_line = Some(line);
        self.sample(text);
        self.complaints.add(format!(
            "kernel log line {line}: longer than {BLOCK} bytes, only its start was read"
        ));
        if let Some(found) = SEARCH.find(text) {
            let end = text.len().min(found.start() + 4096);
            self.line(line, &text[found.start().saturating_sub(256)..end], None);
        }
    }

    /// A line with an anchor in it: which one and where, unless the line has to be searched again.
    fn line(&mut self, number: u64, bytes: &[u8], anchor: Option<(usize, usize)>) {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end_matches('\r');
        let plain;
        let (text, mut next) =
            if text.bytes().any(|byte| byte == 0x1b || byte == 0) || text.len() > bytes.len() {
                plain = without_colours(text);
                (plain.as_str(), None)
            } else {
                (text, anchor)
            };
        let mut from = 0;
        loop {
            let (pattern, start) = match next.take() {
                Some(known) => known,
                None => match text.get(from..).and_then(|rest| SEARCH.find(rest)) {
                    Some(found) => (found.pattern().as_usize(), from + found.start()),
                    None => break,
                },
            };
            let Some((anchor, family)) = ANCHORS.get(pattern) else {
                if text
                    .get(..start)
                    .is_some_and(|before| before.trim().is_empty())
                {
                    self.boots.marker(number);
                }
                return;
            };
            if let Some(event) = message::parse(*family, text, start) {
                let stamp = stamp::find(&text.as_bytes()[..start]);
                self.events += 1;
                self.boots.push(LoggedEvent {
                    line: number,
                    stamp,
                    event,
                });
                return;
            }
            from = start + anchor.len();
        }
        if oversized_number(text) {
            self.complaints.add(format!(
                "kernel log line {number}: a number beyond 64 bits, the line was passed over"
            ));
        }
    }

    fn sample(&mut self, text: &[u8]) {
        if self.sampled >= SAMPLE || self.stamps_in_sample {
            return;
        }
        let part = &text[..text.len().min(SAMPLE)];
        self.sampled += part.len();
        self.stamps_in_sample = part.split(|byte| *byte == b'\n').any(|line| {
            stamp::find(&line[..line.len().min(160)]).is_some() || is_kernel_line(line)
        });
    }

    fn finish(self) -> Reading {
        Reading {
            looks_like_a_log: self.events > 0 || self.stamps_in_sample,
            log: self.boots.finish(self.lines),
            complaints: self.complaints.into_lines(),
        }
    }
}

/// A syslog line of the kernel, which may have no stamp of its own.
fn is_kernel_line(line: &[u8]) -> bool {
    memchr::memmem::find(line, b" kernel: ").is_some()
}

fn count_lines(text: &[u8]) -> u64 {
    u64::try_from(memchr::memchr_iter(b'\n', text).count()).unwrap_or(u64::MAX)
}

/// The text without terminal colour codes and NULs.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => {
                // ESC [ parameters letter
                for c in rest.by_ref() {
                    if c.is_ascii_alphabetic() {
                        break;
                    }
                }
            }
            '\0' => {}
            _ => plain.push(c),
        }
    }
    plain
}

/// Whether a line about clocks holds a number that no 64-bit value can.
fn oversized_number(text: &str) -> bool {
    const KEYS: [&str; 8] = [
        "_now: ",
        "_last: ",
        "_nsec: ",
        "mask: ",
        "max_cycles: ",
        "max_idle_ns: ",
        "Measured ",
        "delay of ",
    ];
    KEYS.iter().any(|key| {
        fields::after(text, key).is_some_and(|rest| {
            let rest = rest.strip_prefix("0x").unwrap_or(rest);
            let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
            digits > 16 && fields::leading_number(rest).is_none()
        })
    })
}

#[cfg(test)]
mod tests;
