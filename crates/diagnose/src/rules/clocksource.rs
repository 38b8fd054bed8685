//! Which clock source is in use, who chose it, and whether a faster one is there.

use super::Facts;
use crate::code::Code;
use crate::evidence::ClockEvent;
use crate::finding::Finding;
use crate::forensics::read_path::speed_class;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    forced(facts).into_iter().chain(better(facts)).collect()
}

/// `clocksource=NAME`, the old `clock=NAME`, `tsc=reliable`, `tsc=nowatchdog`; whole words.
fn forces(word: &str) -> bool {
    matches!(word, "tsc=reliable" | "tsc=nowatchdog")
        || word
            .split_once('=')
            .is_some_and(|(key, value)| matches!(key, "clocksource" | "clock") && !value.is_empty())
}

fn forced(facts: &Facts<'_>) -> Option<Finding> {
    let (words, source) = facts.command_line_words()?;
    let forcing: Vec<String> = words.into_iter().filter(|word| forces(word)).collect();
    if forcing.is_empty() {
        return None;
    }
    Some(
        Finding::new(
            Code::ClocksourceForced,
            format!("the command line decides about the clock source: {}", forcing.join(" ")),
        )
        .seen(forcing.join(" "), source)
        .because("Somebody chose for the kernel, often as a cure for an older fault. The choice outlives its reason, and `tsc=reliable` also turns off the check that would notice a TSC that is not."),
    )
}

fn better(facts: &Facts<'_>) -> Option<Finding> {
    let (current, source) = facts.clocksource()?;
    let available = facts.evidence.available_clocksources.seen()?;
    let class = speed_class(&current)?;
    let invariant = facts.cpu_flag("constant_tsc") == Some(true)
        && facts.cpu_flag("nonstop_tsc") == Some(true)
        || facts
            .evidence
            .identity
            .seen()
            .is_some_and(|identity| identity.invariant_tsc);
    let withdrawn = facts.current_boot().events.iter().any(|logged| {
        matches!(
            logged.event,
            ClockEvent::TscUnstable(_) | ClockEvent::BrokenBiosRemark
        )
    });
    let best = available
        .iter()
        .filter_map(|name| Some((speed_class(name)?, name)))
        .min_by_key(|(class, _)| *class)?;
    let (best_class, best) = best;
    // Sources read through a page are fast; the TSC is worth naming beside them only where it is known to be safe.
    let worth = if (1..=2).contains(&class) && is_fast(facts, &current) {
        best == "tsc" && invariant && !withdrawn
    } else {
        best_class < class
    };
    if !worth {
        return None;
    }
    let condition = match best.as_str() {
        "tsc" if invariant && !withdrawn => {
            "The CPU flags say that the TSC is constant and does not stop; it is safe as long as the hypervisor does not emulate or shift it in a migration."
        }
        "tsc" if withdrawn => {
            "The kernel withdrew the TSC in this boot: use it only if the cause found beside this clears it."
        }
        "tsc" => {
            "It is safe only if the TSC is constant and nonstop (flags constant_tsc, nonstop_tsc), is not emulated by the hypervisor, and keeps its rate in a migration. The evidence does not say so."
        }
        "kvm-clock" => "It is fast in user space only while the host keeps the stable bit set.",
        "hyperv_clocksource_tsc_page" => "It is fast while the page's sequence is not 0.",
        _ => "It is not read in user space either, but is finer.",
    };
    Some(
        Finding::new(
            Code::BetterClocksourceAvailable,
            format!("{best} is listed and faster than {current}, which is in use"),
        )
        .seen(format!("in use: {current}"), source)
        .seen(
            format!("available: {}", available.join(" ")),
            "available_clocksource",
        )
        .because(condition),
    )
}

/// Whether a source of the middle class is read in user space as far as anybody can tell.
fn is_fast(facts: &Facts<'_>, current: &str) -> bool {
    use crate::forensics::read_path::{UserSpaceRead, of_clocksource};
    let slow_read = super::read_path::find(facts)
        .iter()
        .any(|finding| matches!(finding.code, Code::SlowReadPath | Code::VdsoFallback));
    if slow_read {
        return false;
    }
    match of_clocksource(current) {
        Some(UserSpaceRead::Yes) => true,
        // Nothing was measured: an honest report names the faster source with its condition.
        Some(UserSpaceRead::Depends) => {
            facts.evidence.costs.seen().is_some() || facts.evidence.syscalls.seen().is_some()
        }
        _ => false,
    }
}
