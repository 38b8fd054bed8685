//! What each code means, how it is told, what to do, and a worked example.
//!
//! `check --explain`, the list of codes and `docs/findings.md` are all made from these entries.

mod clocksources;
mod hypervisor;
mod series;
mod watchdog;

use crate::code::{Code, Severity};

/// All that there is to say about one code.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The code.
    pub code: Code,
    /// One sentence: when it applies.
    pub meaning: &'static str,
    /// How it is told, with the arithmetic.
    pub detection: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// Figures by name, each with what it is.
    pub figures: &'static [(&'static str, &'static str)],
    /// Where the rule comes from.
    pub sources: &'static [&'static str],
    /// Files of a machine on which it is found: path in the evidence tree, content.
    pub example: &'static [(&'static str, &'static str)],
}

/// The entry of a code.
///
/// # Panics
///
/// Never: a test walks every code.
///
/// # Examples
///
/// ```
/// use chronovisor_diagnose::{Code, catalogue};
///
/// let entry = catalogue::entry(Code::WatchdogWrapped);
/// assert!(entry.detection.contains("mask"));
/// ```
#[must_use]
pub fn entry(code: Code) -> &'static Entry {
    all()
        .find(|entry| entry.code == code)
        .expect("a test walks every code")
}

/// Every entry.
pub fn all() -> impl Iterator<Item = &'static Entry> {
    clocksources::ENTRIES
        .iter()
        .chain(watchdog::ENTRIES)
        .chain(series::ENTRIES)
        .chain(hypervisor::ENTRIES)
}

/// The entry as text, as `check --explain` prints it.
#[must_use]
pub fn explain(code: Code) -> String {
    let entry = entry(code);
    let mut text = format!(
        "{} ({})\n\nWhat it means\n  {}\n\nHow it is told\n  {}\n\nWhat to do\n  {}\n",
        code.name(),
        weight(code.severity()),
        entry.meaning,
        entry.detection,
        entry.remedy
    );
    if !entry.figures.is_empty() {
        text.push_str("\nFigures\n");
        for (name, meaning) in entry.figures {
            text.push_str(&format!("  {name}: {meaning}\n"));
        }
    }
    text.push_str("\nSources\n");
    for source in entry.sources {
        text.push_str(&format!("  {source}\n"));
    }
    text
}

/// What a finding of that severity does to the verdict.
#[must_use]
pub const fn weight(severity: Severity) -> &'static str {
    match severity {
        Severity::Fault => "fault: something to act on",
        Severity::Observation => "observation: alone it leaves the verdict inconclusive",
        Severity::Note => "note: changes no verdict",
    }
}

#[cfg(test)]
mod tests {
    use super::{all, entry, explain};
    use crate::code::Code;

    #[test]
    fn every_code_has_one_entry_with_everything_in_it() {
        for code in Code::ALL {
            let entry = entry(*code);
            for text in [entry.meaning, entry.detection, entry.remedy] {
                assert!(text.len() > 40 && text.ends_with('.'), "{code}: {text}");
            }
            assert!(!entry.sources.is_empty(), "{code}");
            assert!(!entry.example.is_empty(), "{code}");
            let text = explain(*code);
            assert!(text.starts_with(code.name()) && text.contains(entry.remedy));
        }
        assert_eq!(all().count(), Code::ALL.len());
    }
}
