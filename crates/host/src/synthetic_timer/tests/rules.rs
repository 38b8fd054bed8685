//! How often each rule was met, so that a run that missed one fails.

use core::fmt;
use std::vec::Vec;

const RULES: [&str; 34] = [
    "steps",
    "one-shot expires",
    "one-shot in the past fires at once",
    "periodic expires",
    "several periods in one call",
    "count 0 stops",
    "auto-enable starts",
    "enabled with source 0 is cleared",
    "config of a running timer written",
    "count of a running timer written",
    "a write finds a timer due",
    "a due timer is written and due again",
    "minimum period applied",
    "ticks merged",
    "ticks skipped on the grid",
    "backlog of a catch-up",
    "backlog at its cap",
    "lazy timer does not wake an absent processor",
    "direct interrupt",
    "direct vector below 16",
    "message with its interrupt",
    "message without an interrupt",
    "auto-eoi source",
    "message waits for its slot",
    "two messages wait",
    "message waits for its page",
    "waiting message sent on end-of-message",
    "waiting message sent when page or controller is enabled",
    "guest told to write end-of-message",
    "unmasked low vector refused",
    "saved with a message that waits",
    "saved with a backlog",
    "restored under another policy with a backlog",
    "reference time wraps",
];

/// Counts, one a rule.
#[derive(Clone, Debug)]
pub(super) struct Rules([u64; RULES.len()]);

impl Default for Rules {
    fn default() -> Self {
        Self([0; RULES.len()])
    }
}

impl Rules {
    pub(super) fn note(&mut self, rule: &str) {
        self.note_if(rule, true);
    }

    pub(super) fn note_if(&mut self, rule: &str, met: bool) {
        let index = RULES.iter().position(|other| *other == rule);
        self.0[index.expect("every rule is listed")] += u64::from(met);
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    pub(super) fn missing(&self) -> Vec<&'static str> {
        let pairs = RULES.iter().zip(self.0);
        pairs
            .filter(|(_, count)| *count == 0)
            .map(|(rule, _)| *rule)
            .collect()
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rule, count) in RULES.iter().zip(self.0) {
            writeln!(f, "{count:>12}  {rule}")?;
        }
        Ok(())
    }
}
