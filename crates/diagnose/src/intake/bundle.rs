//! Saved evidence: one JSON document a line, so that bundles of a fleet make a stream.

use super::csv::LARGEST;
use crate::evidence::Evidence;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read};

/// What a bundle calls itself.
pub const SCHEMA: &str = "chronovisor/bundle/1";

/// Longest line that is read.
const MOST_BYTES: usize = 64 << 20;

/// Rows of a series that are used.
const MOST_ROWS: usize = 2000;

/// Evidence of one machine, as saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bundle {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Version of the program that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
    /// The evidence.
    pub evidence: Evidence,
}

impl Bundle {
    /// The evidence as a bundle of this version.
    #[must_use]
    pub fn new(evidence: Evidence) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            made_by: Some(format!("chronovisor {}", env!("CARGO_PKG_VERSION"))),
            evidence,
        }
    }

    /// The bundle as one line, with its end.
    ///
    /// # Errors
    ///
    /// A number that JSON cannot hold (not a number, infinite).
    pub fn to_line(&self) -> serde_json::Result<String> {
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        Ok(line)
    }

    /// A bundle from its text.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in one line.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let mut bundle: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if bundle.schema != SCHEMA {
            let schema: String = bundle.schema.chars().take(40).collect();
            return Err(format!("schema {schema:?} is not {SCHEMA:?}"));
        }
        bundle.tame();
        Ok(bundle)
    }

    /// Takes out what no reading of a machine could hold: a bundle may come from anywhere.
    fn tame(&mut self) {
        let evidence = &mut self.evidence;
        let mut dropped = 0_u64;
        if let Some(samples) = evidence.samples.seen_mut() {
            for values in samples.columns.values_mut() {
                values.truncate(MOST_ROWS);
                for value in values {
                    if value.is_some_and(|value| !(-LARGEST..=LARGEST).contains(&value)) {
                        *value = None;
                        dropped += 1;
                    }
                }
            }
        }
        if let Some(costs) = evidence.costs.seen_mut() {
            costs.retain(|cost| cost.ns_per_read.is_finite() && cost.ns_per_read >= 0.0);
        }
        if dropped > 0 {
            evidence.complaints.push(format!(
                "bundle: {dropped} reading(s) beyond 64 bits, passed over"
            ));
        }
    }
}

/// Bundles of a stream, one after the other.
pub struct Bundles {
    input: BufReader<Box<dyn Read + Send>>,
    line: u64,
    ended: bool,
}

impl Bundles {
    /// From the start of a stream.
    #[must_use]
    pub fn new(input: Box<dyn Read + Send>) -> Self {
        Self {
            input: BufReader::with_capacity(1 << 20, input),
            line: 0,
            ended: false,
        }
    }

    /// The next line that is not blank, unparsed, with its number. For callers that parse on several threads.
    ///
    /// # Errors
    ///
    /// In one line: what is wrong, with its position.
    pub fn next_line(&mut self) -> Option<Result<(u64, Vec<u8>), String>> {
        while !self.ended {
            let mut text = Vec::new();
            let limit = u64::try_from(MOST_BYTES).unwrap_or(u64::MAX);
            let got = self.input.by_ref().take(limit).read_until(b'\n', &mut text);
            match got {
                Ok(0) => self.ended = true,
                Ok(_) => {
                    self.line += 1;
                    if text.len() == MOST_BYTES && !text.ends_with(b"\n") {
                        if let Err(error) = self.skip_line() {
                            self.ended = true;
                            return Some(Err(format!("line {}: {error}", self.line)));
                        }
                        return Some(Err(format!(
                            "line {}: longer than {MOST_BYTES} bytes, passed over",
                            self.line
                        )));
                    }
                    if !text.trim_ascii().is_empty() {
                        return Some(Ok((self.line, text)));
                    }
                }
                Err(error) => {
                    self.ended = true;
                    return Some(Err(format!(
                        "line {}: reading stopped: {error}",
                        self.line + 1
                    )));
                }
            }
        }
        None
    }

    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let buffer = self.input.fill_buf()?;
            if buffer.is_empty() {
                return Ok(());
            }
            match memchr::memchr(b'\n', buffer) {
                Some(end) => {
                    self.input.consume(end + 1);
                    return Ok(());
                }
                None => {
                    let all = buffer.len();
                    self.input.consume(all);
                }
            }
        }
    }

    /// A document that is spread over several lines: everything that is left belongs to it.
    fn rest(&mut self, mut text: Vec<u8>) -> Result<Bundle, String> {
        let limit = u64::try_from(MOST_BYTES).unwrap_or(u64::MAX);
        let read = self.input.by_ref().take(limit).read_to_end(&mut text);
        self.ended = true;
        read.map_err(|error| format!("line {}: reading stopped: {error}", self.line))?;
        Bundle::parse(&text).map_err(|error| format!("line {}: {error}", self.line))
    }
}

impl Iterator for Bundles {
    type Item = Result<Bundle, String>;

    fn next(&mut self) -> Option<Self::Item> {
        let (line, text) = match self.next_line()? {
            Ok(line) => line,
            Err(error) => return Some(Err(error)),
        };
        match Bundle::parse(&text) {
            Ok(bundle) => Some(Ok(bundle)),
            // Indented JSON: its first line ends in the middle.
            Err(_) if line == 1 && is_unfinished(&text) => Some(self.rest(text)),
            Err(error) => Some(Err(format!("line {line}: {error}"))),
        }
    }
}

/// Whether a text stops in the middle of a document.
#[must_use]
pub(crate) fn is_unfinished(text: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(text).is_err_and(|error| error.is_eof())
}
