//! From texts, folders and bundles to evidence.
//!
//! [`open`] takes a path or standard input and finds out by itself what it holds: a folder that mirrors a machine, the text of
//! a kernel log, a bundle, a stream of bundles, each also compressed by gzip or xz, and a folder also as a tar archive.
//! Whatever cannot be read is named in one line with its position, and the rest is read all the same.

mod bundle;
pub(crate) mod complaint;
mod csv;
mod evidence_tree;
pub mod exercise;
mod hyperv;
mod kvm;
pub mod log;
mod packed;
pub mod proc;
mod redact;

pub use bundle::{Bundle, Bundles, SCHEMA};

use crate::evidence::{Evidence, Origin, Part};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Where evidence is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard input.
    Stdin,
    /// A file or a folder.
    Path(PathBuf),
}

impl core::fmt::Display for Source {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Stdin => f.write_str("standard input"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// Why nothing could be read.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// The source cannot be opened or read.
    #[error("{source_name}: {error}; check the path and its permissions")]
    Unreadable {
        /// The source.
        source_name: String,
        /// What the system says.
        error: io::Error,
    },
    /// Nothing in it is evidence.
    #[error(
        "{source_name}: {what}; expected a kernel log, a folder that mirrors a machine's files, or a saved bundle"
    )]
    Nothing {
        /// The source.
        source_name: String,
        /// What it holds instead.
        what: String,
    },
}

/// What a source holds.
#[allow(clippy::large_enum_variant, reason = "one value a run")]
pub enum Intake {
    /// One machine.
    One(Evidence),
    /// Bundles of any number of machines, read as they are asked for.
    Many(Bundles),
}

impl core::fmt::Debug for Intake {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::One(evidence) => f.debug_tuple("One").field(evidence).finish(),
            Self::Many(_) => f.write_str("Many(..)"),
        }
    }
}

/// Opens a source and reads it, as far as one machine needs it.
///
/// # Errors
///
/// [`IntakeError`] if nothing can be read at all. Damage inside is a complaint in the evidence.
pub fn open(source: &Source) -> Result<Intake, IntakeError> {
    let unreadable = |error| IntakeError::Unreadable {
        source_name: source.to_string(),
        error,
    };
    match source {
        Source::Path(path) if path.is_dir() => folder(path).map(Intake::One),
        Source::Path(path) => {
            let file = File::open(path).map_err(unreadable)?;
            reader(Box::new(file), &source.to_string())
        }
        Source::Stdin => reader(Box::new(io::stdin()), &source.to_string()),
    }
}

/// Reads a folder that mirrors a machine's files.
///
/// # Errors
///
/// [`IntakeError::Nothing`] if no known file in it can be read.
pub fn folder(path: &Path) -> Result<Evidence, IntakeError> {
    let mut evidence = evidence_tree::read(&evidence_tree::Folder::new(path));
    evidence.label = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    nothing_seen(&evidence, &path.display().to_string())?;
    Ok(evidence)
}

/// Reads files that are already in memory: pairs of path in the evidence tree and content.
///
/// # Errors
///
/// As [`folder`].
///
/// # Examples
///
/// ```
/// use chronovisor_diagnose::{Code, diagnose, intake};
///
/// let evidence = intake::files(&[("proc/cmdline", "ro clocksource=hpet")])?;
/// assert_eq!(diagnose(&evidence).findings[0].code, Code::ClocksourceForced);
/// # Ok::<(), intake::IntakeError>(())
/// ```
pub fn files(files: &[(&str, &str)]) -> Result<Evidence, IntakeError> {
    let archive = evidence_tree::Archive::of(files);
    let evidence = evidence_tree::read(&archive);
    nothing_seen(&evidence, "files in memory")?;
    Ok(evidence)
}

fn nothing_seen(evidence: &Evidence, name: &str) -> Result<(), IntakeError> {
    let diagnosis = crate::diagnose(evidence);
    if !diagnosis.looked_at.is_empty() {
        return Ok(());
    }
    let mut what = "no file of a machine could be read".to_owned();
    for complaint in evidence
        .complaints
        .iter()
        .chain(&diagnosis.not_readable)
        .take(3)
    {
        what.push_str("; ");
        what.push_str(complaint);
    }
    Err(IntakeError::Nothing {
        source_name: name.to_owned(),
        what,
    })
}

/// Reads a stream of bytes, whatever it holds.
///
/// # Errors
///
/// As [`open`].
pub fn reader(input: Box<dyn Read + Send>, name: &str) -> Result<Intake, IntakeError> {
    let unreadable = |error| IntakeError::Unreadable {
        source_name: name.to_owned(),
        error,
    };
    let (kind, input) = packed::unpack(input).map_err(unreadable)?;
    match kind {
        packed::Kind::Empty => Err(IntakeError::Nothing {
            source_name: name.to_owned(),
            what: "it is empty".to_owned(),
        }),
        packed::Kind::Json => Ok(Intake::Many(Bundles::new(input))),
        packed::Kind::Tar => {
            let archive = evidence_tree::Archive::read(input);
            let mut evidence = evidence_tree::read(&archive);
            evidence.complaints.extend(archive.into_complaints());
            nothing_seen(&evidence, name)?;
            Ok(Intake::One(evidence))
        }
        packed::Kind::Text => {
            let reading = log::read(input).map_err(unreadable)?;
            if !reading.looks_like_a_log {
                let mut what = format!(
                    "none of its {} line(s) is one of a kernel log",
                    reading.log.lines
                );
                if let Some(complaint) = reading.complaints.first() {
                    what.push_str("; ");
                    what.push_str(complaint);
                }
                return Err(IntakeError::Nothing {
                    source_name: name.to_owned(),
                    what,
                });
            }
            Ok(Intake::One(Evidence {
                origin: Origin::Log,
                kernel_log: Part::Seen(reading.log),
                complaints: reading.complaints,
                ..Evidence::default()
            }))
        }
    }
}
