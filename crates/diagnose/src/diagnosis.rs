//! From evidence to a verdict.

use crate::code::Severity;
use crate::evidence::{Evidence, Part};
use crate::finding::Finding;
use crate::rules;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The answer in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Something to act on; this includes a clock that is right but slow, or is blamed without cause.
    Fault,
    /// Enough was seen, and nothing is wrong with it.
    NoFault,
    /// The evidence does not settle it.
    Inconclusive,
}

impl core::fmt::Display for Verdict {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(match self {
            Self::Fault => "fault",
            Self::NoFault => "no-fault",
            Self::Inconclusive => "inconclusive",
        })
    }
}

/// What a machine's evidence amounts to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// The answer.
    pub verdict: Verdict,
    /// What was found, heaviest first.
    pub findings: Vec<Finding>,
    /// The parts of the evidence that were looked at.
    pub looked_at: Vec<String>,
    /// Parts that were looked for and could not be read, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_readable: Vec<String>,
    /// What would settle an open question.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_settle: Vec<String>,
}

/// Applies every rule to the evidence.
///
/// # Examples
///
/// ```
/// use chronovisor_diagnose::evidence::{Evidence, Part};
/// use chronovisor_diagnose::{Code, Verdict, diagnose};
///
/// let mut evidence = Evidence::default();
/// assert_eq!(diagnose(&evidence).verdict, Verdict::Inconclusive);
/// evidence.current_clocksource = Part::Seen(vec!["hpet".to_owned()]);
/// let diagnosis = diagnose(&evidence);
/// assert_eq!(diagnosis.verdict, Verdict::Fault);
/// assert_eq!(diagnosis.findings[0].code, Code::SlowReadPath);
/// ```
#[must_use]
pub fn diagnose(evidence: &Evidence) -> Diagnosis {
    let mut findings = rules::apply(evidence);
    findings.sort_by_key(|finding| (core::cmp::Reverse(finding.severity), finding.boot));
    let looked_at = looked_at(evidence);
    let verdict = verdict(evidence, &findings);
    Diagnosis {
        would_settle: would_settle(evidence, &findings, verdict),
        not_readable: not_readable(evidence),
        verdict,
        findings,
        looked_at,
    }
}

/// Any fault is a fault; only observations settle nothing; nothing found is no fault if one of the main sources was read.
fn verdict(evidence: &Evidence, findings: &[Finding]) -> Verdict {
    let heaviest = findings.iter().map(|finding| finding.severity).max();
    match heaviest {
        Some(Severity::Fault) => Verdict::Fault,
        Some(Severity::Observation) => Verdict::Inconclusive,
        Some(Severity::Note) | None => {
            let enough = evidence.kernel_log.seen().is_some()
                || evidence.current_clocksource.seen().is_some()
                || evidence.costs.seen().is_some()
                || evidence.samples.seen().is_some()
                || evidence.cpu_lines.seen().is_some();
            if enough {
                Verdict::NoFault
            } else {
                Verdict::Inconclusive
            }
        }
    }
}

/// Name and state of every part.
fn parts(evidence: &Evidence) -> Vec<(&'static str, Option<&str>, bool)> {
    fn row<'a, T>(name: &'static str, part: &'a Part<T>) -> (&'static str, Option<&'a str>, bool) {
        (name, part.why_not(), part.seen().is_some())
    }
    vec![
        row("identity", &evidence.identity),
        row("kernel log", &evidence.kernel_log),
        row("current clock source", &evidence.current_clocksource),
        row("available clock sources", &evidence.available_clocksources),
        row("command line", &evidence.command_line),
        row("CPU lines", &evidence.cpu_lines),
        row("frequencies", &evidence.frequencies),
        row("pvclock record", &evidence.pvclock),
        row("vDSO data", &evidence.vdso),
        row("VMClock page", &evidence.vmclock),
        row("reference TSC page", &evidence.reference_page),
        row("partition privileges", &evidence.privileges),
        row("read costs", &evidence.costs),
        row("system call counts", &evidence.syscalls),
        row("order across CPUs", &evidence.cpu_order),
        row("rates", &evidence.rates),
        row("CPU time", &evidence.cpu_time),
        row("interrupts", &evidence.interrupts),
        row("time reference", &evidence.reference),
        row("samples", &evidence.samples),
        row("KVM trace", &evidence.kvm_trace),
        row("MSR counts", &evidence.msr_counts),
    ]
}

fn looked_at(evidence: &Evidence) -> Vec<String> {
    parts(evidence)
        .into_iter()
        .filter(|(_, _, seen)| *seen)
        .map(|(name, ..)| name.to_owned())
        .collect()
}

fn not_readable(evidence: &Evidence) -> Vec<String> {
    parts(evidence)
        .into_iter()
        .filter_map(|(name, why, _)| why.map(|why| format!("{name}: {why}")))
        .collect()
}

fn would_settle(evidence: &Evidence, findings: &[Finding], verdict: Verdict) -> Vec<String> {
    use crate::code::Code;
    if verdict != Verdict::Inconclusive {
        return Vec::new();
    }
    let has = |code: Code| findings.iter().any(|finding| finding.code == code);
    let mut wanted: Vec<&str> = Vec::new();
    if has(Code::TscMarkedUnstable) {
        wanted.push(
            "the two lines after the watchdog's verdict (wd_now, cs_now), and the boot's line `tsc: Detected .. MHz` or `clocksource: tsc: mask: ..`, which name the counter's rate",
        );
    }
    if has(Code::BetterClocksourceAvailable) {
        wanted.push(
            "the flags of /proc/cpuinfo (constant_tsc, nonstop_tsc) and the cost of one read of the clock in use",
        );
    }
    if has(Code::ClocksourceForced) {
        wanted.push(
            "the kernel log of a boot without the forcing words: whether the kernel picks the same source, and whether its watchdog stays quiet",
        );
    }
    if has(Code::WatchdogReadbackNoise) {
        wanted.push(
            "the steal time of the vCPUs (/proc/stat twice), and whether the log ever compares the TSC successfully",
        );
    }
    if findings.is_empty() || wanted.is_empty() {
        if evidence.kernel_log.seen().is_none() {
            wanted.push("the kernel log (dmesg) from boot on");
        }
        if evidence.current_clocksource.seen().is_none() {
            wanted.push(
                "/sys/devices/system/clocksource/clocksource0/{current,available}_clocksource",
            );
        }
        if evidence.costs.seen().is_none() {
            wanted.push("the cost of a clock read through the vDSO and as a raw system call");
        }
    }
    wanted.into_iter().map(str::to_owned).collect()
}
