//! One thing that was found, with what shows it, why, and what to do.

use crate::code::{Code, Severity};
use crate::forensics::real;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Something seen, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Observation {
    /// What was seen, with the arithmetic where there is some.
    pub seen: String,
    /// Where: a file, a line, a measurement.
    pub source: String,
}

/// A number of a finding; its name ends in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Figure {
    /// A count, exact.
    Count(i64),
    /// A measured or computed value.
    Real(f64),
}

impl Figure {
    /// The value as a float.
    #[must_use]
    pub fn value(self) -> f64 {
        match self {
            Self::Count(count) => real(i128::from(count)),
            Self::Real(value) => value,
        }
    }
}

impl core::fmt::Display for Figure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Real(value) if value.abs() >= 1e6 => write!(f, "{value:.0}"),
            Self::Real(value) => {
                let text = format!("{value:.6}");
                f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Stable name.
    pub code: Code,
    /// Weight in the verdict.
    pub severity: Severity,
    /// One sentence.
    pub summary: String,
    /// What shows it.
    pub evidence: Vec<Observation>,
    /// The likely cause, with the alternatives and why this one is preferred.
    pub cause: String,
    /// What to do.
    pub remedy: String,
    /// Numbers by name.
    pub figures: BTreeMap<String, Figure>,
    /// The boot of the log that it belongs to, from 1, where the log has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<u64>,
}

impl Finding {
    /// A finding with nothing but its code and its sentence; the rest is added by the methods below.
    pub(crate) fn new(code: Code, summary: impl Into<String>) -> Self {
        Self {
            code,
            severity: code.severity(),
            summary: summary.into(),
            evidence: Vec::new(),
            cause: String::new(),
            remedy: crate::catalogue::entry(code).remedy.to_owned(),
            figures: BTreeMap::new(),
            boot: None,
        }
    }

    pub(crate) fn because(mut self, cause: impl Into<String>) -> Self {
        self.cause = cause.into();
        self
    }

    pub(crate) fn seen(mut self, seen: impl Into<String>, source: impl Into<String>) -> Self {
        self.evidence.push(Observation {
            seen: seen.into(),
            source: source.into(),
        });
        self
    }

    pub(crate) fn count(mut self, name: &str, value: i128) -> Self {
        let figure = i64::try_from(value).map_or_else(|_| Figure::Real(real(value)), Figure::Count);
        self.figures.insert(name.to_owned(), figure);
        self
    }

    pub(crate) fn real(mut self, name: &str, value: f64) -> Self {
        if value.is_finite() {
            self.figures.insert(name.to_owned(), Figure::Real(value));
        }
        self
    }

    pub(crate) fn real_if(self, name: &str, value: Option<f64>) -> Self {
        match value {
            Some(value) => self.real(name, value),
            None => self,
        }
    }
}
