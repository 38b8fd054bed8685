//! The rules: a file a cause, or a few that share their arithmetic.
//!
//! A rule looks at the [`Facts`], which are the evidence put in order once, and returns its findings. Rules do not see each
//! other's findings, except where one cause explains what another would blame; that order stands in [`apply`].

mod calibration;
mod clocksource;
mod cpu_order;
mod delay_loop;
mod facts;
mod frequencies;
mod hyperv;
mod kvm;
mod local_timer;
mod rates;
mod read_path;
mod readings;
mod reference;
mod reset;
mod steal;
mod tsc_unstable;
mod wall_clock;
mod warp;
mod watchdog;

use crate::evidence::Evidence;
use crate::finding::Finding;
pub(crate) use facts::{BootFacts, Facts};

/// The findings of every rule.
pub(crate) fn apply(evidence: &Evidence) -> Vec<Finding> {
    let facts = Facts::new(evidence);
    let rules: [fn(&Facts<'_>) -> Vec<Finding>; 18] = [
        watchdog::find,
        tsc_unstable::find,
        warp::find,
        calibration::find,
        reset::find,
        read_path::find,
        clocksource::find,
        delay_loop::find,
        frequencies::find,
        hyperv::find,
        kvm::find,
        cpu_order::find,
        local_timer::find,
        steal::find,
        rates::find,
        readings::find,
        wall_clock::find,
        reference::find,
    ];
    let mut findings = Vec::new();
    for rule in rules {
        for finding in rule(&facts) {
            let same = |other: &Finding| other.code == finding.code && other.boot == finding.boot;
            match findings.iter_mut().find(|other| same(other)) {
                // One finding a code and boot: what a second one saw is added to the first.
                Some(first) => {
                    first.evidence.extend(finding.evidence);
                    for (name, figure) in finding.figures {
                        first.figures.entry(name).or_insert(figure);
                    }
                }
                None => findings.push(finding),
            }
        }
    }
    findings
}
