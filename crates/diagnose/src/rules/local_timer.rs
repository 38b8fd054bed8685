//! A local timer that never fires again.

use super::Facts;
use crate::code::Code;
use crate::evidence::InterruptCapture;
use crate::finding::Finding;

/// Timer interrupts of the other CPUs from which a silent one stands out: even an idle CPU without ticks has some.
const LEAST_OF_OTHERS: u64 = 20;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(captures) = facts.evidence.interrupts.seen() else {
        return Vec::new();
    };
    let [first, .., last] = &captures[..] else {
        return Vec::new();
    };
    ["LOC", "HVS"]
        .into_iter()
        .filter_map(|row| lost(facts, first, last, row))
        .collect()
}

/// How far a row moved on each CPU that both captures have.
fn moved(first: &InterruptCapture, last: &InterruptCapture, name: &str) -> Vec<(u32, u64, u64)> {
    let row = |capture: &InterruptCapture| {
        capture
            .rows
            .iter()
            .find(|row| row.name == name)
            .map(|row| row.counts.clone())
    };
    let (Some(before), Some(after)) = (row(first), row(last)) else {
        return Vec::new();
    };
    let at = |capture: &InterruptCapture, cpu: u32| capture.cpus.iter().position(|c| *c == cpu);
    first
        .cpus
        .iter()
        .filter_map(|cpu| {
            let before = *before.get(at(first, *cpu)?)?;
            let after = *after.get(at(last, *cpu)?)?;
            Some((*cpu, before, after.checked_sub(before)?))
        })
        .collect()
}

fn lost(
    facts: &Facts<'_>,
    first: &InterruptCapture,
    last: &InterruptCapture,
    name: &str,
) -> Option<Finding> {
    let moves = moved(first, last, name);
    // A timer that never fired was never in use.
    let (silent, going): (Vec<&(u32, u64, u64)>, Vec<_>) = moves
        .iter()
        .filter(|(_, before, _)| *before > 0)
        .partition(|(.., delta)| *delta == 0);
    let others: u64 = going.iter().map(|(.., delta)| *delta).max().unwrap_or(0);
    let (cpu, before, _) = **silent.first()?;
    if going.is_empty() || others < LEAST_OF_OTHERS || silent.len() > going.len() {
        return None;
    }
    // A CPU that was told to have no ticks may well be silent.
    let tickless = facts.command_line_words().is_some_and(|(words, _)| {
        words
            .iter()
            .any(|word| word.starts_with("nohz_full") || word.starts_with("isolcpus"))
    });
    // Time went by for the CPU itself: other interrupts reached it.
    let alive = last
        .rows
        .iter()
        .filter(|row| row.name != name)
        .filter_map(|row| {
            moved(first, last, &row.name)
                .into_iter()
                .find(|(other, ..)| *other == cpu)
                .map(|(.., delta)| delta)
        })
        .sum::<u64>();
    if tickless {
        return None;
    }
    let list = moves
        .iter()
        .take(8)
        .map(|(cpu, before, delta)| format!("CPU {cpu}: {before} + {delta}"))
        .collect::<Vec<_>>()
        .join(", ");
    let mut finding = Finding::new(
        Code::DeadlineTimerLost,
        format!("the local timer of CPU {cpu} did not fire between two captures, the others did"),
    )
    .seen(format!("{name}: {list}"), "proc/interrupts, two captures");
    if silent.len() > 1 {
        finding = finding.seen(
            format!("silent too: {} more", silent.len() - 1),
            "proc/interrupts, two captures",
        );
    }
    Some(
        finding
            .because(format!(
                "The timer stood at {before} and never moved{}. A one-shot or deadline timer that is lost in a save or restore is not armed again by itself: the deadline was written before the TSC or before the timer's mode, or it had expired and its interrupt was not saved.",
                if alive > 0 {
                    format!(", while {alive} other interrupts reached this CPU")
                } else {
                    String::new()
                }
            ))
            .count("cpu", i128::from(cpu)),
    )
}
