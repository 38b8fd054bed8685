//! The JSON of `check`.

use chronovisor_diagnose::code::Severity;
use chronovisor_diagnose::evidence::{Evidence, ReadCost};
use chronovisor_diagnose::report::timeline::{BootTimeline, timeline};
use chronovisor_diagnose::report::{self, Machine, WallClock};
use chronovisor_diagnose::{Code, Diagnosis, Finding, Verdict, catalogue};
use schemars::JsonSchema;
use serde::Serialize;

use crate::provenance::Provenance;

/// What the document calls itself.
pub(crate) const SCHEMA: &str = "chronovisor/check/1";

/// A diagnosed machine.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Document {
    /// Always `chronovisor/check/1`.
    pub(crate) schema: String,
    /// Where and with what the evidence was made.
    pub(crate) provenance: Provenance,
    /// The answer.
    pub(crate) verdict: Verdict,
    /// What was found, heaviest first.
    pub(crate) findings: Vec<Finding>,
    /// The machine.
    pub(crate) machine: Machine,
    /// What one read of each clock costs.
    pub(crate) clocks: Vec<ReadCost>,
    /// What the wall clock was compared with; absent where nobody looked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wall_clock: Option<WallClock>,
    /// Parts of the evidence that were seen.
    pub(crate) looked_at: Vec<String>,
    /// Parts that could not be read, with the reason.
    pub(crate) not_readable: Vec<String>,
    /// What would settle an inconclusive verdict.
    pub(crate) would_settle: Vec<String>,
    /// What could not be made sense of, with its position.
    pub(crate) complaints: Vec<String>,
    /// Clock events of the log, boot by boot; empty without a log.
    pub(crate) timeline: Vec<BootTimeline>,
}

impl Document {
    /// From evidence that was measured here and now.
    pub(crate) fn of_this_machine(evidence: &Evidence, diagnosis: Diagnosis) -> Self {
        Self::new(evidence, diagnosis, |_| Provenance::here("host"))
    }

    /// From evidence that was read: it tells itself where it was made.
    pub(crate) fn of_evidence(evidence: &Evidence, diagnosis: Diagnosis) -> Self {
        Self::new(evidence, diagnosis, provenance)
    }

    fn new(
        evidence: &Evidence,
        diagnosis: Diagnosis,
        provenance: impl FnOnce(&Machine) -> Provenance,
    ) -> Self {
        let machine = Machine::of(evidence);
        Self {
            schema: SCHEMA.to_owned(),
            provenance: provenance(&machine),
            verdict: diagnosis.verdict,
            clocks: report::clocks(evidence),
            wall_clock: report::wall_clock(evidence, &diagnosis.findings),
            findings: diagnosis.findings,
            machine,
            looked_at: diagnosis.looked_at,
            not_readable: diagnosis.not_readable,
            would_settle: diagnosis.would_settle,
            complaints: evidence.complaints.clone(),
            timeline: timeline(evidence),
        }
    }
}

/// Of the machine that the evidence is of, as far as it says.
fn provenance(machine: &Machine) -> Provenance {
    let known = |text: &Option<String>| {
        text.clone()
            .unwrap_or_else(|| "not in the evidence".to_owned())
    };
    Provenance {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cpu: known(&machine.cpu),
        hypervisor: if machine.hypervisors.is_empty() {
            "not in the evidence".to_owned()
        } else {
            machine.hypervisors.join(", ")
        },
        backend: "evidence".to_owned(),
        clock_source: known(&machine.clock_source),
        kernel: known(&machine.kernel),
    }
}

/// One code of the list.
#[derive(Serialize)]
pub(crate) struct Listed {
    code: Code,
    severity: Severity,
    meaning: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detection: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    figures: Vec<(&'static str, &'static str)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<&'static str>,
}

/// The list of codes.
#[derive(Serialize)]
pub(crate) struct Codes {
    schema: &'static str,
    codes: Vec<Listed>,
}

/// Every code with its meaning.
pub(crate) fn codes() -> Codes {
    Codes {
        schema: "chronovisor/check-codes/1",
        codes: Code::ALL
            .iter()
            .map(|code| Listed {
                code: *code,
                severity: code.severity(),
                meaning: catalogue::entry(*code).meaning,
                detection: None,
                remedy: None,
                figures: Vec::new(),
                sources: Vec::new(),
            })
            .collect(),
    }
}

/// Everything about one code.
pub(crate) fn explanation(code: Code) -> Codes {
    let entry = catalogue::entry(code);
    Codes {
        schema: "chronovisor/check-codes/1",
        codes: vec![Listed {
            code,
            severity: code.severity(),
            meaning: entry.meaning,
            detection: Some(entry.detection),
            remedy: Some(entry.remedy),
            figures: entry.figures.to_vec(),
            sources: entry.sources.to_vec(),
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::Document;

    const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas/check-1.json");

    /// `CHRONOVISOR_WRITE=1 cargo test -p chronovisor` writes it anew.
    #[test]
    fn the_kept_schema_is_the_document_s() {
        let schema = schemars::schema_for!(Document);
        let text = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
        if std::env::var_os("CHRONOVISOR_WRITE").is_some() {
            std::fs::write(KEPT, &text).unwrap();
        }
        let kept = std::fs::read_to_string(KEPT).unwrap_or_default();
        assert_eq!(
            kept, text,
            "run with CHRONOVISOR_WRITE=1 after a wanted change"
        );
    }
}
