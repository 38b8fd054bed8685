//! What a read of the clock in use costs, and which way it goes.

use super::Facts;
use crate::code::Code;
use crate::evidence::{MsrAccess, ReadCost, ReadPath};
use crate::finding::Finding;
use crate::forensics::read_path::{FALLBACK_RATIO, UserSpaceRead, of_clocksource};
use crate::forensics::{real, reference_page};

/// Calls that a user-space read can answer.
const CLOCK_CALLS: [&str; 4] = ["gettimeofday", "clock_gettime", "clock_gettime64", "time"];

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    slow(facts).into_iter().chain(fallback(facts)).collect()
}

/// The clock's name without `@state`, and the state.
fn split(row: &ReadCost) -> (&str, Option<&str>) {
    match row.clock.split_once('@') {
        Some((clock, state)) => (clock, Some(state)),
        None => (&row.clock, None),
    }
}

/// Clocks that no user-space read serves, on any kernel or on older ones: no witness.
fn is_witness(clock: &str) -> bool {
    let clock = clock.to_ascii_lowercase();
    !["coarse", "cputime", "alarm", "boottime", "raw", "tai"]
        .iter()
        .any(|word| clock.contains(word))
}

/// Rows of the state that the machine is in now: the state named like the clock source in use, else the last in the file.
fn current_rows<'a>(costs: &'a [ReadCost], clocksource: Option<&str>) -> Vec<&'a ReadCost> {
    let named = |row: &&ReadCost| clocksource.is_some() && split(row).1 == clocksource;
    if costs.iter().any(|row| named(&row)) {
        return costs.iter().filter(named).collect();
    }
    let last_state = costs.last().and_then(|row| split(row).1);
    costs
        .iter()
        .filter(|row| split(row).1 == last_state)
        .collect()
}

/// Calls made and calls seen in the kernel, summed over the clock calls.
fn syscalls(facts: &Facts<'_>) -> Option<(u64, u64)> {
    let rows = facts.evidence.syscalls.seen()?;
    let mut made = 0_u64;
    let mut seen = 0_u64;
    for row in rows
        .iter()
        .filter(|row| CLOCK_CALLS.contains(&row.call.as_str()))
    {
        made = made.saturating_add(row.calls_made);
        seen = seen.saturating_add(row.syscalls_seen);
    }
    (made > 0).then_some((made, seen))
}

fn per_call(calls: (u64, u64)) -> f64 {
    real(i128::from(calls.1)) / real(i128::from(calls.0))
}

/// The vDSO's cost over the system call's, of one clock in one state.
fn vdso_over_syscall<'a>(rows: &[&'a ReadCost]) -> Option<(f64, &'a ReadCost, &'a ReadCost)> {
    rows.iter()
        .filter(|row| row.path == ReadPath::Vdso && is_witness(split(row).0))
        .filter_map(|vdso| {
            let syscall = rows
                .iter()
                .find(|row| row.path == ReadPath::Syscall && split(row) == split(vdso))?;
            (syscall.ns_per_read > 0.0)
                .then(|| (vdso.ns_per_read / syscall.ns_per_read, *vdso, *syscall))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
}

/// A cost line for the report.
fn cost_text(row: &ReadCost) -> String {
    let path = match row.path {
        ReadPath::Rdtsc => "rdtsc",
        ReadPath::Page => "page",
        ReadPath::Vdso => "vDSO",
        ReadPath::Syscall => "system call",
        ReadPath::Msr => "MSR, so a VM exit",
    };
    format!("{}: {:.1} ns a read ({path})", row.clock, row.ns_per_read)
}

/// Why reads are slow here.
enum Slow {
    NoUserSpaceRead(String),
    Measured(String),
    PageInvalid,
    OnlyMsr,
}

fn slow(facts: &Facts<'_>) -> Option<Finding> {
    let clocksource = facts.clocksource();
    let name = clocksource.as_ref().map(|(name, _)| name.as_str());
    let costs = facts.evidence.costs.seen().map_or(&[][..], Vec::as_slice);
    let rows = current_rows(costs, name);
    let calls = syscalls(facts);
    let why = why_slow(facts, name, &rows, calls)?;
    let subject = name.unwrap_or("the clock in use");
    let mut finding = Finding::new(
        Code::SlowReadPath,
        match &why {
            Slow::NoUserSpaceRead(name) => {
                format!("{name} is in use and has no user-space read: each read enters the kernel")
            }
            Slow::Measured(name) => format!(
                "{name} is in use and is not read in user space here: each read enters the kernel"
            ),
            Slow::PageInvalid => {
                "the reference page is not valid, so each read goes to the counter MSR".to_owned()
            }
            Slow::OnlyMsr => "each read of the clock is a read of an MSR, so a VM exit".to_owned(),
        },
    );
    if let Some((name, source)) = &clocksource {
        finding = finding.seen(format!("clock source in use: {name}"), source.clone());
    }
    if let Some((page, source)) = invalid_page(facts) {
        finding = finding.seen(format!("sequence {page:#x}: not valid now"), source);
    }
    if let Some(calls) = calls {
        finding = finding
            .seen(
                format!("{} of {} calls reached the kernel", calls.1, calls.0),
                "syscalls.csv",
            )
            .real("syscalls_per_call", per_call(calls));
    }
    let slow_row = slow_row(&rows).map(|row| dearest_state(costs, row, name));
    if let Some(row) = slow_row {
        finding = finding
            .seen(cost_text(row), "read costs")
            .real("ns_per_read", row.ns_per_read);
        let fast = costs
            .iter()
            .filter(|other| split(other).0 == split(row).0 && split(other).1 != split(row).1)
            .filter(|other| other.ns_per_read > 0.0)
            .min_by(|a, b| a.ns_per_read.total_cmp(&b.ns_per_read));
        if let Some(fast) = fast
            && fast.ns_per_read < row.ns_per_read
        {
            finding = finding
                .seen(
                    format!(
                        "{}, {:.2} times less",
                        cost_text(fast),
                        row.ns_per_read / fast.ns_per_read
                    ),
                    "read costs",
                )
                .real("slowdown_ratio", row.ns_per_read / fast.ns_per_read);
        }
    }
    Some(finding.because(match why {
        Slow::NoUserSpaceRead(_) => format!(
            "{subject} can only be read by the kernel, and in a virtual machine reading it usually is a VM exit on top. The vDSO entry point is still there and passes every call on."
        ),
        Slow::Measured(_) => format!(
            "This kernel has no user-space read for {subject}, or the hypervisor does not offer what it needs; the counts show that calls go into the kernel."
        ),
        Slow::PageInvalid => "Sequence 0 tells the guest to use the counter register for now. A hypervisor leaves it so when it cannot express the guest's time as one line over the TSC, for example because the TSC offsets of the vCPUs differ.".to_owned(),
        Slow::OnlyMsr => "No page was used for these reads.".to_owned(),
    }))
}

fn why_slow(
    facts: &Facts<'_>,
    name: Option<&str>,
    rows: &[&ReadCost],
    calls: Option<(u64, u64)>,
) -> Option<Slow> {
    if let Some(name) = name {
        match of_clocksource(name) {
            Some(UserSpaceRead::No) => return Some(Slow::NoUserSpaceRead(name.to_owned())),
            Some(UserSpaceRead::Depends) => {
                let by_cost = vdso_over_syscall(rows).map(|(ratio, ..)| ratio >= FALLBACK_RATIO);
                let by_calls = calls.map(|calls| per_call(calls) >= FALLBACK_RATIO);
                let only_syscalls = !rows.is_empty()
                    && rows.iter().any(|row| row.path == ReadPath::Syscall)
                    && rows
                        .iter()
                        .all(|row| matches!(row.path, ReadPath::Syscall | ReadPath::Msr));
                return match (by_cost, by_calls) {
                    (Some(true), _) | (None, Some(true)) => Some(Slow::Measured(name.to_owned())),
                    (None, None) if only_syscalls => Some(Slow::Measured(name.to_owned())),
                    _ => None,
                };
            }
            _ => {}
        }
    }
    let page_could_be_used = matches!(name, None | Some("hyperv_clocksource_tsc_page"));
    let reads_counter = facts.evidence.msr_counts.seen().is_some_and(|captures| {
        captures
            .iter()
            .flat_map(|capture| &capture.rows)
            .any(|row| {
                row.msr == super::hyperv::TIME_REF_COUNT
                    && row.access == MsrAccess::Read
                    && row.count > 0
            })
    });
    let msr_row = rows.iter().any(|row| row.path == ReadPath::Msr);
    if page_could_be_used
        && invalid_page(facts).is_some()
        && (name.is_some() || msr_row || reads_counter)
    {
        return Some(Slow::PageInvalid);
    }
    // A row by MSR alone, of a clock that has no faster way in the same state.
    let only_msr = |row: &&&ReadCost| {
        row.path == ReadPath::Msr
            && !rows
                .iter()
                .any(|other| split(other).0 == split(row).0 && other.path != ReadPath::Msr)
    };
    let nothing_faster = rows.iter().all(|row| row.path == ReadPath::Msr);
    (name.is_none() && nothing_faster && rows.iter().any(|row| only_msr(&row)))
        .then_some(Slow::OnlyMsr)
}

/// The row of a normal read in the current state: through the vDSO where that was measured, else by system call or MSR.
fn slow_row<'a>(rows: &[&'a ReadCost]) -> Option<&'a ReadCost> {
    [ReadPath::Vdso, ReadPath::Msr, ReadPath::Syscall]
        .into_iter()
        .find_map(|path| {
            rows.iter()
                .find(|row| row.path == path && is_witness(split(row).0))
                .copied()
        })
}

/// The row of the same clock in the state in which a normal read costs most: where no state is named like the clock source,
/// the order of the file alone does not tell which one is slow.
fn dearest_state<'a>(costs: &'a [ReadCost], row: &'a ReadCost, name: Option<&str>) -> &'a ReadCost {
    if split(row).1.is_some() && split(row).1 == name {
        return row;
    }
    costs
        .iter()
        .filter(|other| split(other).0 == split(row).0)
        .filter(|other| split(other).1 != split(row).1)
        .filter(|other| other.ns_per_read > row.ns_per_read && other.path != ReadPath::Rdtsc)
        .max_by(|a, b| a.ns_per_read.total_cmp(&b.ns_per_read))
        .unwrap_or(row)
}

fn invalid_page(facts: &Facts<'_>) -> Option<(u32, String)> {
    let page = facts.evidence.reference_page.seen()?.last()?;
    let sequence = page.sequence?;
    (!reference_page::is_valid(page)).then(|| (sequence, "hyperv/tsc_page".to_owned()))
}

fn fallback(facts: &Facts<'_>) -> Option<Finding> {
    let (name, source) = facts.clocksource()?;
    if of_clocksource(&name) != Some(UserSpaceRead::Yes) || invalid_page(facts).is_some() {
        return None;
    }
    let costs = facts.evidence.costs.seen().map_or(&[][..], Vec::as_slice);
    let rows = current_rows(costs, Some(&name));
    let by_cost = vdso_over_syscall(&rows).filter(|(ratio, ..)| *ratio >= FALLBACK_RATIO);
    let fast_by_cost = vdso_over_syscall(&rows).is_some_and(|(ratio, ..)| ratio < FALLBACK_RATIO);
    let calls = syscalls(facts).filter(|calls| per_call(*calls) >= FALLBACK_RATIO);
    if by_cost.is_none() && (calls.is_none() || fast_by_cost) {
        return None;
    }
    let mut finding = Finding::new(
        Code::VdsoFallback,
        match by_cost {
            Some((ratio, ..)) => format!(
                "{name} can be read in user space, yet a normal read costs {ratio:.2} of a raw system call"
            ),
            None => format!("{name} can be read in user space, yet the calls reach the kernel"),
        },
    )
    .seen(format!("clock source in use: {name}"), source);
    if let Some((ratio, vdso, syscall)) = by_cost {
        finding = finding
            .seen(
                format!(
                    "{}; {}; {ratio:.3} where 0.1 to 0.3 is usual",
                    cost_text(vdso),
                    cost_text(syscall)
                ),
                "read costs",
            )
            .real("vdso_over_syscall", ratio);
    }
    if let Some(calls) = calls {
        finding = finding.seen(
            format!("{} of {} calls reached the kernel", calls.1, calls.0),
            "syscalls.csv",
        );
    }
    let off = facts
        .command_line_words()
        .filter(|(words, _)| words.iter().any(|word| word == "vdso=0"));
    if let Some((_, source)) = &off {
        finding = finding.seen("vdso=0", source.clone());
    }
    let cause = if off.is_some() {
        "The command line turns the vDSO off.".to_owned()
    } else {
        match name.as_str() {
            "kvm-clock" => "The vDSO reads kvm-clock only while the host sets the stable bit in the record; without it every call goes on into the kernel, silently. A host loses the bit when its own clock source is not the TSC or when the vCPUs' TSC offsets differ, often after a migration.".to_owned(),
            "hyperv_clocksource_tsc_page" => "The vDSO of this kernel does not read the page (a backport lost it, or it was built without it), or the page's sequence is 0.".to_owned(),
            _ => "The program does not reach the vDSO (a static program, a sandbox, a tracer), or this kernel's vDSO does not read the source.".to_owned(),
        }
    };
    Some(finding.because(cause))
}
