//! The Hyper-V reference page: refused, stale, or apart from the counter.

use super::Facts;
use crate::code::Code;
use crate::evidence::{Column, MsrAccess, ReferencePage, Samples};
use crate::finding::Finding;
use crate::forensics::{real, reference_page, seconds};

/// `HV_X64_MSR_TIME_REF_COUNT`.
pub(super) const TIME_REF_COUNT: u32 = 0x4000_0020;

/// `HV_X64_MSR_REFERENCE_TSC`.
const REFERENCE_TSC: u32 = 0x4000_0021;

/// Counter reads a second from which it is the guest's clock: Linux reads it a few times at boot.
const LEAST_READS_PER_S: f64 = 100.0;

/// Page and counter of one instant are read within this, in ns.
const SAME_INSTANT_NS: i128 = 1_000_000;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    refused(facts).into_iter().chain(apart(facts)).collect()
}

/// Whether the partition offers the page; `None` if nothing says so.
fn offered(facts: &Facts<'_>) -> Option<bool> {
    let privileges = facts.evidence.privileges.seen()?;
    privileges
        .iter()
        .find(|(name, _)| is_page_privilege(name))
        .map(|(_, granted)| *granted)
}

fn is_page_privilege(name: &str) -> bool {
    let plain: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_lowercase())
        .collect();
    plain.contains("referencetsc") || plain.contains("partitionreftsc")
}

fn refused(facts: &Facts<'_>) -> Option<Finding> {
    let captures = facts.evidence.msr_counts.seen()?;
    let rows = || captures.iter().flat_map(|capture| &capture.rows);
    let reads: Vec<_> = rows()
        .filter(|row| row.msr == TIME_REF_COUNT && row.access == MsrAccess::Read)
        .collect();
    let read_count: u64 = reads.iter().map(|row| row.count).sum();
    let window_ns: u64 = reads.iter().map(|row| row.window_ns).sum();
    let per_second =
        (window_ns > 0).then(|| real(i128::from(read_count)) / seconds(i128::from(window_ns)));
    let writes_were_counted = rows().any(|row| row.access == MsrAccess::Write);
    let enable_writes: u64 = rows()
        .filter(|row| row.msr == REFERENCE_TSC && row.access == MsrAccess::Write)
        .map(|row| row.count)
        .sum();
    let enabled = facts
        .evidence
        .reference_page
        .seen()
        .and_then(|pages| pages.last())
        .is_some_and(reference_page::is_valid);
    let often = match per_second {
        Some(rate) => rate >= LEAST_READS_PER_S,
        None => read_count >= 10_000,
    };
    if !writes_were_counted
        || enable_writes > 0
        || enabled
        || !often
        || offered(facts) == Some(false)
    {
        return None;
    }
    let mut finding = Finding::new(
        Code::ReferencePageRefused,
        "the guest never enables the reference page and reads the counter MSR instead",
    )
    .seen(
        format!("{enable_writes} writes of MSR 0x40000021, {read_count} reads of MSR 0x40000020"),
        "kvm/msr_counts.csv",
    );
    let missing: Vec<&str> = facts
        .evidence
        .privileges
        .seen()
        .into_iter()
        .flatten()
        .filter(|(_, granted)| !**granted)
        .map(|(name, _)| name.as_str())
        .collect();
    if let Some(granted) = offered(facts) {
        finding = finding.seen(
            format!(
                "the page is offered ({granted}); privileges not granted: {}",
                if missing.is_empty() {
                    "none".to_owned()
                } else {
                    missing.join(", ")
                }
            ),
            "hyperv/privileges",
        );
    }
    Some(
        finding
            .because(if offered(facts).is_some() {
                "A guest takes the page only together with the privileges that the interface makes mandatory (hypercall MSRs and the VP index, CPUID 0x40000003 EAX bits 5 and 6); where one is missing it passes the page by."
            } else {
                "That the page is offered is an assumption: no privileges were seen. If it is, a mandatory privilege is probably missing (CPUID 0x40000003 EAX bits 5 and 6)."
            })
            .count("enable_writes", i128::from(enable_writes))
            .real_if("counter_reads_per_s", per_second),
    )
}

/// Page time against counter time.
fn apart(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(samples) = facts.evidence.samples.seen() else {
        return stale_captures(facts, None).into_iter().collect();
    };
    let pages = facts.evidence.reference_page.seen();
    let page = pages.and_then(|pages| pages.last());
    let by_column = super::rates::paired(samples, Column::CounterNs, Column::PageNs)
        .or_else(|| one_row(samples))
        .map(|(counter, page)| (counter, page, "page_ns against counter_ns"));
    let computed = || {
        let page = page.filter(|page| reference_page::is_valid(page))?;
        let (counter, tsc) = super::rates::paired(samples, Column::CounterNs, Column::Tsc)?;
        let times: Option<Vec<i128>> = tsc
            .iter()
            .map(|tsc| reference_page::time_ns(page, u64::try_from(*tsc).ok()?))
            .collect();
        Some((
            counter,
            times?,
            "the page evaluated at tsc, against counter_ns",
        ))
    };
    let Some((counter, page_times, how)) = by_column.or_else(computed) else {
        return stale_captures(facts, None).into_iter().collect();
    };
    let differences: Vec<i128> = page_times
        .iter()
        .zip(&counter)
        .map(|(p, c)| p - c)
        .collect();
    let Some(last) = differences.last().copied() else {
        return Vec::new();
    };
    let beyond = differences
        .iter()
        .filter(|difference| difference.abs() > SAME_INSTANT_NS)
        .count();
    // One disturbed pair is no divergence; the last must be one of several, unless there are hardly any.
    if last.abs() <= SAME_INSTANT_NS || beyond < differences.len().min(3) {
        return Vec::new();
    }
    let divergence = seconds(last);
    let mut findings = vec![
        Finding::new(
            Code::PageCounterDivergence,
            format!("page time minus counter time is {divergence:.6} s"),
        )
        .seen(
            format!(
                "first row {:.6} s, last row {divergence:.6} s ({how})",
                seconds(differences[0])
            ),
            "samples.csv",
        )
        .because("Page and counter register are one clock: a counter read between two page reads lies between them, within microseconds. Timers are armed in one of the two and expire in the other, so they fire early or late by the difference.")
        .real("divergence_s", divergence),
    ];
    findings.extend(stale_captures(facts, Some(last)));
    findings
}

/// The only row that holds both counter and page: one instant is enough to compare them.
fn one_row(samples: &Samples) -> Option<(Vec<i128>, Vec<i128>)> {
    let counter = samples.columns.get(&Column::CounterNs)?;
    let page = samples.columns.get(&Column::PageNs)?;
    let mut both = counter
        .iter()
        .zip(page)
        .filter_map(|(c, p)| Some(((*c)?, (*p)?)));
    let (counter, page) = both.next()?;
    both.next().is_none().then(|| (vec![counter], vec![page]))
}

/// A valid page whose values did not change although they had to.
fn stale_captures(facts: &Facts<'_>, divergence_ns: Option<i128>) -> Option<Finding> {
    let pages = facts.evidence.reference_page.seen()?;
    let last = pages.last()?;
    if !reference_page::is_valid(last) {
        return None;
    }
    let same = |a: &ReferencePage, b: &ReferencePage| {
        a.scale == b.scale && a.offset_100ns == b.offset_100ns && a.sequence == b.sequence
    };
    let unchanged = pages.len() > 1 && same(&pages[0], last);
    let wrong_scale = last
        .scale
        .and_then(reference_page::frequency)
        .zip(facts.tsc().filter(|rate| rate.source != "proc/cpuinfo"))
        .filter(|(by_page, declared)| {
            declared.frequency.ppm_over(*by_page).abs() > super::frequencies::LIMIT_PPM
        });
    if divergence_ns.is_none() && !(unchanged && wrong_scale.is_some()) {
        return None;
    }
    let mut finding = Finding::new(
        Code::StaleReferencePage,
        "the reference page keeps old values under a valid sequence",
    )
    .seen(
        format!(
            "sequence {:#x}, scale {}, offset {}{}",
            last.sequence.unwrap_or_default(),
            last.scale.map_or("?".to_owned(), |scale| format!("{scale:#x}")),
            last.offset_100ns
                .map_or("?".to_owned(), |offset| offset.to_string()),
            if unchanged { "; the same in both captures" } else { "" }
        ),
        "hyperv/tsc_page",
    )
    .because("The page was not written anew after the machine's clock changed: a restore or migration that lets vCPUs run before the clock is set, or one that keeps scale and offset of the old host. Until then the sequence has to be 0.");
    if let Some((by_page, declared)) = wrong_scale {
        finding = finding.seen(
            format!(
                "the scale means {by_page}, {} is {}",
                declared.what, declared.frequency
            ),
            declared.source.clone(),
        );
    }
    Some(finding.real_if("divergence_s", divergence_ns.map(seconds)))
}
