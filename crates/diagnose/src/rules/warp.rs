//! The kernel's own test of two CPUs saw the TSC go back.

use super::Facts;
use super::facts::{BootFacts, log_line};
use super::watchdog::in_boot;
use crate::code::Code;
use crate::evidence::ClockEvent;
use crate::finding::Finding;
use crate::forensics::real;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    facts
        .boots
        .iter()
        .filter_map(|boot| warped(boot).map(|finding| in_boot(finding, boot)))
        .collect()
}

fn warped(boot: &BootFacts<'_>) -> Option<Finding> {
    let tsc = |name: &str| matches!(name, "tsc" | "tsc-early");
    let seen = boot.all(|event| match event {
        ClockEvent::Warp { cycles } => Some((
            Some(*cycles),
            format!("measured {cycles} cycles of warp between CPUs"),
        )),
        ClockEvent::RandomWarp => Some((None, "the TSC warped at random between CPUs".to_owned())),
        ClockEvent::CpuSkew { lower, higher } => higher.checked_sub(*lower).map(|cycles| {
            (
                Some(cycles),
                format!("a later reading on another CPU was lower: {lower} < {higher} cycles"),
            )
        }),
        ClockEvent::CpusApart { name } if tsc(name) => Some((
            None,
            "CPUs stand ahead of or behind another in the check across CPUs".to_owned(),
        )),
        ClockEvent::CpuSkewVerdict { name } if tsc(name) => Some((
            None,
            format!("{name} marked unstable for skew between CPUs"),
        )),
        _ => None,
    });
    let (_, _) = seen.first()?;
    let largest = seen.iter().filter_map(|((cycles, _), _)| *cycles).max();
    let random = boot
        .first(|event| matches!(event, ClockEvent::RandomWarp).then_some(()))
        .is_some();
    let mut finding = Finding::new(
        Code::TscWarp,
        match largest {
            Some(cycles) => format!("the TSC went back by {cycles} cycles between two CPUs"),
            None => "the TSC went back between two CPUs".to_owned(),
        },
    );
    for ((_, text), line) in seen.iter().take(4) {
        finding = finding.seen(text.clone(), log_line(*line));
    }
    finding = finding.because(if random {
        "The warp changed from one round to the next: the counters of the CPUs do not run at one rate, or the hypervisor emulates each read."
    } else {
        "The counters of the vCPUs stand at a constant offset from each other: a hypervisor that sets each vCPU's TSC by itself leaves such an offset. It is no drift."
    });
    let rate = boot.tsc.first();
    if let (Some(cycles), Some(rate)) = (largest, rate) {
        let ns = real(i128::from(cycles)) / rate.frequency.mhz() * 1000.0;
        finding = finding
            .seen(
                format!(
                    "{cycles} cycles at {:.3} MHz ({}) are {ns:.1} ns",
                    rate.frequency.mhz(),
                    rate.what
                ),
                rate.source.clone(),
            )
            .real("warp_ns", ns);
    }
    if let Some(cycles) = largest {
        finding = finding.count("warp_cycles", i128::from(cycles));
    }
    if let Some(rate) = rate {
        finding = finding.real("tsc_mhz", rate.frequency.mhz());
    }
    Some(finding)
}
