//! A folder that mirrors the files of a machine, or the same as an archive.
//!
//! A file that is not there is evidence of nothing. `NAME.1` is a later capture of `NAME`, `NAME.2` a later one still; each
//! file may be compressed (`dmesg.gz`, `samples.csv.xz`).

use super::complaint::Complaints;
use super::{csv, hyperv, kvm, log, packed, proc};
use crate::evidence::{Evidence, Origin, Part};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

/// Largest file that is read as a whole; a kernel log is streamed and may have any size.
const MOST_BYTES: u64 = 16 << 20;

/// Largest sum of files that an archive may hold in memory.
const MOST_ARCHIVED: u64 = 256 << 20;

const CLOCKSOURCE: &str = "sys/devices/system/clocksource/clocksource0";

/// Names under which a kernel log may stand, best first.
const LOGS: [&str; 5] = [
    "dmesg",
    "dmesg.txt",
    "var/log/dmesg",
    "var/log/kern.log",
    "journal",
];

/// Something with files in it.
pub(super) trait Tree {
    /// The file of that path, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// It is there and cannot be opened.
    fn open(&self, path: &str) -> io::Result<Option<Box<dyn Read + Send>>>;
}

/// A folder of this machine's file system.
pub(super) struct Folder {
    root: PathBuf,
}

impl Folder {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }
}

impl Tree for Folder {
    fn open(&self, path: &str) -> io::Result<Option<Box<dyn Read + Send>>> {
        let full = self.root.join(path);
        match std::fs::metadata(&full) {
            Ok(meta) if !meta.is_file() => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
            Err(error) => return Err(error),
        }
        Ok(Some(Box::new(File::open(full)?)))
    }
}

/// A tar archive, its known files in memory.
pub(super) struct Archive {
    files: BTreeMap<String, Vec<u8>>,
    complaints: Complaints,
}

impl Archive {
    /// Files that are already in memory.
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        Self {
            files: files
                .iter()
                .map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec()))
                .collect(),
            complaints: Complaints::default(),
        }
    }

    /// Reads the archive as far as it goes.
    pub(super) fn read(input: Box<dyn Read + Send>) -> Self {
        let mut archive = Self {
            files: BTreeMap::new(),
            complaints: Complaints::default(),
        };
        if let Err(error) = archive.fill(input) {
            archive.complaints.add(format!(
                "archive: ends early after {} file(s): {error}",
                archive.files.len()
            ));
        }
        archive
    }

    fn fill(&mut self, input: Box<dyn Read + Send>) -> io::Result<()> {
        let mut left = MOST_ARCHIVED;
        let mut tar = tar::Archive::new(input);
        for entry in tar.entries()? {
            let mut entry = entry?;
            let path = entry.path()?.to_string_lossy().into_owned();
            let Some(path) = known_tail(&path) else {
                continue;
            };
            let mut bytes = Vec::new();
            let got = entry.by_ref().take(left).read_to_end(&mut bytes);
            left = left.saturating_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            self.files.insert(path, bytes);
            got?;
            if left == 0 {
                self.complaints.add(format!(
                    "archive: larger than {MOST_ARCHIVED} bytes, the rest was passed over"
                ));
                break;
            }
        }
        Ok(())
    }

    pub(super) fn into_complaints(self) -> Vec<String> {
        self.complaints.into_lines()
    }
}

/// The part of a path from which on it is one that the tree knows, whatever folder it was packed in.
fn known_tail(path: &str) -> Option<String> {
    let plain = path.trim_start_matches("./");
    let starts = core::iter::once(0).chain(plain.match_indices('/').map(|(i, _)| i + 1));
    starts
        .map(|start| &plain[start..])
        .find(|tail| {
            let base = tail.trim_end_matches(".gz").trim_end_matches(".xz");
            let base = base
                .rsplit_once('.')
                .filter(|(_, number)| {
                    number.len() == 1 && number.bytes().all(|b| b.is_ascii_digit())
                })
                .map_or(base, |(base, _)| base);
            LOGS.contains(&base)
                || base.starts_with(CLOCKSOURCE)
                || matches!(
                    base,
                    "proc/cmdline"
                        | "proc/cpuinfo"
                        | "proc/stat"
                        | "proc/interrupts"
                        | "samples.csv"
                        | "cost.csv"
                        | "syscalls.csv"
                        | "kvm/trace"
                        | "kvm/msr_counts.csv"
                        | "hyperv/tsc_page"
                        | "hyperv/privileges"
                        | "bundle.json"
                )
        })
        .map(str::to_owned)
}

impl Tree for Archive {
    fn open(&self, path: &str) -> io::Result<Option<Box<dyn Read + Send>>> {
        Ok(self
            .files
            .get(path)
            .map(|bytes| Box::new(Cursor::new(bytes.clone())) as Box<dyn Read + Send>))
    }
}

/// Reads everything that the tree holds.
pub(super) fn read(tree: &dyn Tree) -> Evidence {
    let mut reader = Reader {
        tree,
        complaints: Complaints::default(),
    };
    let mut evidence = reader.bundle().unwrap_or_default();
    evidence.origin = Origin::Folder;
    set(&mut evidence.kernel_log, reader.kernel_log());
    set(
        &mut evidence.current_clocksource,
        reader.captures(&format!("{CLOCKSOURCE}/current_clocksource"), |text| {
            proc::words(text)
                .into_iter()
                .next()
                .ok_or("it is empty".to_owned())
        }),
    );
    set(
        &mut evidence.available_clocksources,
        latest(
            reader.captures(&format!("{CLOCKSOURCE}/available_clocksource"), |text| {
                Some(proc::words(text))
                    .filter(|words| !words.is_empty())
                    .ok_or("it is empty".to_owned())
            }),
        ),
    );
    set(
        &mut evidence.command_line,
        latest(reader.captures("proc/cmdline", |text| Ok(text.trim().to_owned()))),
    );
    set(
        &mut evidence.cpu_lines,
        latest(reader.captures("proc/cpuinfo", |text| {
            Some(proc::cpuinfo(text))
                .filter(|cpus| !cpus.is_empty())
                .ok_or("no line of a CPU in it".to_owned())
        })),
    );
    set(
        &mut evidence.cpu_time,
        reader.captures("proc/stat", proc::stat),
    );
    set(
        &mut evidence.interrupts,
        reader.captures("proc/interrupts", proc::interrupts),
    );
    set(
        &mut evidence.reference_page,
        reader.captures("hyperv/tsc_page", hyperv::tsc_page),
    );
    set(
        &mut evidence.privileges,
        latest(reader.captures("hyperv/privileges", hyperv::privileges)),
    );
    set(
        &mut evidence.samples,
        reader.table("samples.csv", csv::samples),
    );
    set(&mut evidence.costs, reader.table("cost.csv", csv::costs));
    set(
        &mut evidence.syscalls,
        reader.table("syscalls.csv", csv::syscalls),
    );
    set(
        &mut evidence.kvm_trace,
        reader.table("kvm/trace", kvm::trace),
    );
    let counts = reader.table("kvm/msr_counts.csv", csv::msr_counts);
    set(&mut evidence.msr_counts, one(counts));
    evidence.complaints.extend(reader.complaints.into_lines());
    evidence
}

/// A file wins over what a bundle in the same folder says.
fn set<T>(part: &mut Part<T>, read: Part<T>) {
    if !read.is_absent() {
        *part = read;
    }
}

fn latest<T>(captures: Part<Vec<T>>) -> Part<T> {
    match captures {
        Part::Seen(mut list) => list.pop().map_or(Part::NotLookedAt, Part::Seen),
        Part::NotReadable(why) => Part::NotReadable(why),
        Part::NotLookedAt => Part::NotLookedAt,
    }
}

fn one<T>(part: Part<T>) -> Part<Vec<T>> {
    match part {
        Part::Seen(value) => Part::Seen(vec![value]),
        Part::NotReadable(why) => Part::NotReadable(why),
        Part::NotLookedAt => Part::NotLookedAt,
    }
}

struct Reader<'a> {
    tree: &'a dyn Tree,
    complaints: Complaints,
}

impl Reader<'_> {
    /// The file, plain or compressed, unpacked.
    fn open(&self, path: &str) -> io::Result<Option<Box<dyn Read + Send>>> {
        for suffix in ["", ".gz", ".xz"] {
            if let Some(input) = self.tree.open(&format!("{path}{suffix}"))? {
                return packed::unpack(input).map(|(_, input)| Some(input));
            }
        }
        Ok(None)
    }

    fn text(&mut self, path: &str) -> Result<Option<String>, String> {
        let input = match self.open(path) {
            Ok(Some(input)) => input,
            Ok(None) => return Ok(None),
            Err(error) => return Err(format!("{path}: {error}")),
        };
        let mut bytes = Vec::new();
        if let Err(error) = input.take(MOST_BYTES).read_to_end(&mut bytes) {
            if bytes.is_empty() {
                return Err(format!("{path}: {error}"));
            }
            self.complaints.add(format!(
                "{path}: reading stopped at byte {}: {error}",
                bytes.len()
            ));
        }
        if u64::try_from(bytes.len()).is_ok_and(|len| len == MOST_BYTES) {
            self.complaints.add(format!(
                "{path}: larger than {MOST_BYTES} bytes, only its start was read"
            ));
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Some(at) = text.find('\0') {
            let line = text[..at].matches('\n').count() + 1;
            self.complaints
                .add(format!("{path} line {line}: NUL bytes, passed over"));
        }
        Ok(Some(text.replace('\0', "")))
    }

    /// A file and its later captures.
    fn captures<T>(
        &mut self,
        path: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Part<Vec<T>> {
        let mut captures = Vec::new();
        let mut why = None;
        for n in 0..10 {
            let name = if n == 0 {
                path.to_owned()
            } else {
                format!("{path}.{n}")
            };
            match self.text(&name) {
                Ok(None) if n > 1 => break,
                Ok(None) => {}
                Ok(Some(text)) => match parse(&text) {
                    Ok(value) => captures.push(value),
                    Err(error) => why = Some(format!("{name}: {error}")),
                },
                Err(error) => why = Some(error),
            }
        }
        match (captures.is_empty(), why) {
            (false, why) => {
                if let Some(why) = why {
                    self.complaints.add(why);
                }
                Part::Seen(captures)
            }
            (true, Some(why)) => Part::NotReadable(why),
            (true, None) => Part::NotLookedAt,
        }
    }

    fn table<T>(
        &mut self,
        path: &str,
        parse: fn(&str, &str, &mut Complaints) -> Result<T, String>,
    ) -> Part<T> {
        match self.text(path) {
            Ok(None) => Part::NotLookedAt,
            Ok(Some(text)) => match parse(&text, path, &mut self.complaints) {
                Ok(value) => Part::Seen(value),
                Err(why) => Part::NotReadable(format!("{path}: {why}")),
            },
            Err(why) => Part::NotReadable(why),
        }
    }

    /// The log; of several captures the latest, which holds what the earlier ones hold.
    fn kernel_log(&mut self) -> Part<crate::evidence::KernelLog> {
        let captures = |name: &str| -> Vec<String> {
            let later = (1..10).rev().map(|n| format!("{name}.{n}"));
            later.chain([name.to_owned()]).collect()
        };
        for name in LOGS.into_iter().flat_map(captures) {
            let input = match self.open(&name) {
                Ok(Some(input)) => input,
                Ok(None) => continue,
                Err(error) => return Part::NotReadable(format!("{name}: {error}")),
            };
            return match log::read(input) {
                Ok(reading) if reading.looks_like_a_log => {
                    self.complaints.extend(reading.complaints);
                    Part::Seen(reading.log)
                }
                Ok(reading) => {
                    self.complaints.extend(reading.complaints);
                    Part::NotReadable(format!(
                        "{name}: none of its {} line(s) is one of a kernel log",
                        reading.log.lines
                    ))
                }
                Err(error) => Part::NotReadable(format!("{name}: {error}")),
            };
        }
        Part::NotLookedAt
    }

    /// A bundle that somebody put into the folder.
    fn bundle(&mut self) -> Option<Evidence> {
        let input = self.open("bundle.json").ok()??;
        match super::Bundles::new(input).next()? {
            Ok(bundle) => Some(bundle.evidence),
            Err(error) => {
                self.complaints.add(format!("bundle.json: {error}"));
                None
            }
        }
    }
}
