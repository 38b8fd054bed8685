//! Rates and gaps of the guest's clocks against a clock outside, and against each other.

use super::Facts;
use crate::code::Code;
use crate::evidence::{Column, Samples};
use crate::finding::Finding;
use crate::forensics::quantised::truncation;
use crate::forensics::series::{Comparison, Rate};
use crate::forensics::{Frequency, real, registration, seconds};

/// A step below this is noise, in ns.
const LEAST_STEP_NS: f64 = 10_000_000.0;

/// A rate beyond this is wrong: what the kernel's clock discipline can correct, in ppm.
const WRONG_RATE_PPM: f64 = 500.0;

/// A counter's rate that changes by more than this has changed, in ppm.
const COUNTER_BEND_PPM: f64 = 100.0;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(samples) = facts.evidence.samples.seen() else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let lost = lost_ticks(facts, samples);
    if lost.is_none() {
        findings.extend(paused(facts, samples));
    }
    findings.extend(lost);
    findings.extend(rate_error(facts, samples));
    findings.extend(rate_step(facts, samples));
    findings
}

/// The rows that hold both columns and in which the first goes forward.
pub(super) fn paired(samples: &Samples, x: Column, y: Column) -> Option<(Vec<i128>, Vec<i128>)> {
    let xs = samples.columns.get(&x)?;
    let ys = samples.columns.get(&y)?;
    let mut paired = (Vec::new(), Vec::new());
    for (x, y) in xs.iter().zip(ys) {
        if let (Some(x), Some(y)) = (x, y)
            && paired.0.last().is_none_or(|last| x > last)
        {
            paired.0.push(*x);
            paired.1.push(*y);
        }
    }
    (paired.0.len() >= 2).then_some(paired)
}

/// The clock outside the guest, if there is one.
pub(super) fn outside(samples: &Samples) -> Option<Column> {
    [Column::ReferenceNs, Column::HostRealtimeNs]
        .into_iter()
        .find(|column| samples.columns.contains_key(column))
}

/// A clock against another, in ns. The counter is taken at `tsc`, or at its own rate over the first rows.
pub(super) fn compare(
    samples: &Samples,
    x: Column,
    y: Column,
    tsc: Option<Frequency>,
    least_step_ns: f64,
) -> Option<Comparison> {
    let (xs, ys) = paired(samples, x, y)?;
    if x == Column::Tsc {
        return Comparison::new(&ticks_to_ns(&xs, tsc?)?, &ys, least_step_ns);
    }
    if y != Column::Tsc {
        return Comparison::new(&xs, &ys, least_step_ns);
    }
    let rate = tsc.or_else(|| {
        let rows = (xs.len() / 4).max(2).min(xs.len() - 1);
        Frequency::from_ticks(
            u64::try_from(ys[rows].checked_sub(ys[0])?).ok()?,
            u128::try_from(xs[rows].checked_sub(xs[0])?).ok()?,
        )
    })?;
    Comparison::new(&xs, &ticks_to_ns(&ys, rate)?, least_step_ns)
}

fn ticks_to_ns(ticks: &[i128], rate: Frequency) -> Option<Vec<i128>> {
    let first = *ticks.first()?;
    ticks
        .iter()
        .map(|tick| {
            let since = tick.checked_sub(first)?;
            let ns = rate.ticks_to_ns(u64::try_from(since.unsigned_abs()).ok()?);
            let ns = i128::try_from(ns).ok()?;
            Some(if since < 0 { -ns } else { ns })
        })
        .collect()
}

/// A gap in the guest's clocks, with the rate kept before and after.
fn paused(facts: &Facts<'_>, samples: &Samples) -> Option<Finding> {
    let outside = outside(samples)?;
    let tsc = facts.tsc().map(|rate| rate.frequency);
    let clocks = [
        Column::MonotonicNs,
        Column::MonotonicRawNs,
        Column::BoottimeNs,
        Column::CounterNs,
        Column::Tsc,
    ];
    let (clock, comparison) = clocks
        .into_iter()
        .find_map(|clock| Some((clock, compare(samples, outside, clock, tsc, LEAST_STEP_NS)?)))?;
    // A time that lost its upper bits did not stop.
    let (outside_ns, clock_ns) = paired(samples, outside, clock)?;
    let truncated = |at: usize| {
        clock != Column::Tsc
            && truncation(
                clock_ns[at - 1],
                clock_ns[at],
                Some(outside_ns[at] - outside_ns[at - 1]),
            )
            .is_some()
    };
    let lost: Vec<_> = comparison
        .steps
        .iter()
        .filter(|step| step.size_ns < 0.0 && !truncated(step.at))
        .collect();
    if lost.is_empty() || comparison.bend.is_some() || comparison.net_step_ns() >= 0.0 {
        return None;
    }
    // Losing in most intervals is no gap.
    if lost.len() * 3 > comparison.x_ns.len() {
        return None;
    }
    let lost_ns: f64 = lost.iter().map(|step| -step.size_ns).sum();
    // CLOCK_BOOTTIME counts an orderly suspend, and did so here.
    if clock == Column::MonotonicNs
        && let Some(boottime) = compare(samples, outside, Column::BoottimeNs, tsc, LEAST_STEP_NS)
        && -boottime.net_step_ns() < lost_ns / 2.0
    {
        return None;
    }
    let passed = seconds(comparison.x_ns[lost[0].at] - comparison.x_ns[lost[0].at - 1]);
    Some(
        Finding::new(
            Code::GuestPaused,
            format!("the guest did not run for {:.3} s", lost_ns / 1e9),
        )
        .seen(
            format!(
                "{} gap(s) in {}, the first after row {}: {passed:.6} s passed outside, {:.6} s of them are missing; rate elsewhere {:+.1} ppm",
                lost.len(),
                clock.name(),
                lost[0].at,
                -lost[0].size_ns / 1e9,
                comparison.rate.ppm
            ),
            "samples.csv",
        )
        .because("One gap and the same rate on both sides: a rate error would show in every row. The host stopped the guest's clocks with the guest: a pause, a snapshot, a migration, or a host that slept.")
        .real("lost_s", lost_ns / 1e9),
    )
}

/// A clock source that counts interrupts falls behind a counter or a clock outside.
fn lost_ticks(facts: &Facts<'_>, samples: &Samples) -> Option<Finding> {
    let (name, source) = facts.clocksource()?;
    if !registration::counts_interrupts(&name) {
        return None;
    }
    let tsc = facts.tsc().map(|rate| rate.frequency);
    let by_counter = || {
        let (mono, ticks) = paired(samples, Column::MonotonicNs, Column::Tsc)?;
        let ns = ticks_to_ns(&ticks, tsc?)?;
        Some((mono.last()? - mono.first()?, *ns.last()?, "the TSC"))
    };
    let by_outside = || {
        let (outside, mono) = paired(samples, outside(samples)?, Column::MonotonicNs)?;
        Some((
            mono.last()? - mono.first()?,
            outside.last()? - outside.first()?,
            "a clock outside",
        ))
    };
    let (reference_ns, counter_ns, how) = by_counter().or_else(by_outside)?;
    let lost_ns = counter_ns - reference_ns;
    if real(lost_ns) < LEAST_STEP_NS || real(lost_ns) * 1e6 < WRONG_RATE_PPM * real(counter_ns) {
        return None;
    }
    Some(
        Finding::new(
            Code::ReferenceLostTicks,
            format!("{name} missed {:.3} s of ticks", seconds(lost_ns)),
        )
        .seen(format!("clock source in use: {name}"), source)
        .seen(
            format!(
                "{:.6} s by the monotonic clock, {:.6} s by {how}",
                seconds(reference_ns),
                seconds(counter_ns)
            ),
            "samples.csv",
        )
        .because("The clock counts timer interrupts. Where the vCPU is not run for a while, ticks merge or are lost, and the time between them is gone.")
        .real("reference_s", seconds(reference_ns))
        .real("counter_s", seconds(counter_ns))
        .real("lost_s", seconds(lost_ns)),
    )
}

/// Every clock of the guest, the raw counter included, runs at one wrong rate.
fn rate_error(facts: &Facts<'_>, samples: &Samples) -> Option<Finding> {
    let outside = outside(samples)?;
    let declared = facts.tsc();
    let tsc = declared.map(|rate| rate.frequency);
    let mut rates: Vec<(Column, Rate)> = Vec::new();
    for clock in [
        Column::MonotonicRawNs,
        Column::Tsc,
        Column::MonotonicNs,
        Column::BoottimeNs,
        Column::CounterNs,
        Column::PageNs,
        Column::HpetNs,
    ] {
        if clock == Column::Tsc && tsc.is_none() {
            continue;
        }
        let Some(comparison) = compare(samples, outside, clock, tsc, LEAST_STEP_NS) else {
            continue;
        };
        if comparison.bend.is_some() {
            return None;
        }
        rates.push((clock, comparison.rate));
    }
    let raw = rates
        .iter()
        .any(|(clock, _)| matches!(clock, Column::MonotonicRawNs | Column::Tsc));
    let (_, first) = rates.first()?;
    let wrong = first.ppm.abs() > WRONG_RATE_PPM && first.ppm.abs() > 3.0 * first.error_ppm;
    let same = rates.iter().all(|(_, rate)| {
        (rate.ppm - first.ppm).abs()
            <= (first.ppm.abs() * 0.02).max(rate.error_ppm + first.error_ppm)
    });
    if !raw || !wrong || !same {
        return None;
    }
    // A contradiction inside the guest is a calibration, not the layer below.
    if !super::frequencies::find(facts).is_empty() {
        return None;
    }
    let list = rates
        .iter()
        .map(|(clock, rate)| format!("{} {:+.1} ppm", clock.name(), rate.ppm))
        .collect::<Vec<_>>()
        .join(", ");
    let mut finding = Finding::new(
        Code::RateErrorBelowGuest,
        format!(
            "every clock of the guest runs {:+.0} ppm off, the raw counter included",
            first.ppm
        ),
    )
    .seen(format!("against {}: {list}", outside.name()), "samples.csv");
    let known = facts.cpu_flag("tsc_known_freq") == Some(true);
    if let Some(declared) = declared {
        finding = finding.seen(
            format!("{}: {}", declared.what, declared.frequency),
            declared.source.clone(),
        );
    }
    let reason = match (declared.is_some(), known) {
        (true, true) => {
            "The kernel took the frequency from the hypervisor (tsc_known_freq), no channel contradicts it, and all clocks agree with each other: so the counter itself runs at another rate than the hypervisor says."
        }
        (true, false) => {
            "All clocks agree with each other and no other frequency contradicts the one that the kernel uses. One assumption remains: that this frequency is the nominal one of the machine and was not miscalibrated by exactly this much."
        }
        (false, _) => {
            "All clocks agree with each other. One assumption remains: the evidence names no frequency of the counter, so a wrong calibration is not excluded."
        }
    };
    Some(
        finding
            .because(format!("{reason} Nothing inside the guest can correct it; time synchronisation can only step the wall clock."))
            .real("rate_error_ppm", first.ppm),
    )
}

/// A rate that changes at one moment.
fn rate_step(facts: &Facts<'_>, samples: &Samples) -> Option<Finding> {
    let tsc = facts.tsc().map(|rate| rate.frequency);
    let counters = [
        Column::MonotonicRawNs,
        Column::Tsc,
        Column::CounterNs,
        Column::PageNs,
    ];
    let disciplined = [Column::MonotonicNs, Column::BoottimeNs];
    let mut pairs: Vec<(Column, Column, f64)> = Vec::new();
    if let Some(outside) = outside(samples) {
        pairs.extend(counters.map(|clock| (outside, clock, COUNTER_BEND_PPM)));
        pairs.extend(disciplined.map(|clock| (outside, clock, WRONG_RATE_PPM)));
        if !disciplined
            .iter()
            .any(|clock| samples.columns.contains_key(clock))
        {
            pairs.push((outside, Column::RealtimeNs, WRONG_RATE_PPM));
        }
    } else {
        pairs.extend(counters.map(|clock| (Column::HpetNs, clock, COUNTER_BEND_PPM)));
        pairs.extend(disciplined.map(|clock| (Column::HpetNs, clock, WRONG_RATE_PPM)));
        pairs.extend(
            [Column::MonotonicRawNs, Column::MonotonicNs]
                .map(|clock| (Column::Tsc, clock, WRONG_RATE_PPM)),
        );
        pairs.push((Column::MonotonicNs, Column::Tsc, WRONG_RATE_PPM));
    }
    for (x, y, limit) in pairs {
        if x == y {
            continue;
        }
        let Some(comparison) = compare(samples, x, y, tsc, LEAST_STEP_NS) else {
            continue;
        };
        let Some(bend) = comparison.bend else {
            continue;
        };
        let change = (bend.after.ppm - bend.before.ppm).abs();
        if change <= limit || change <= 4.0 * (bend.before.error_ppm + bend.after.error_ppm) {
            continue;
        }
        // Inside the reach of the discipline a change of rate is its work.
        let steered = [x, y].iter().any(|clock| {
            matches!(
                clock,
                Column::MonotonicNs | Column::BoottimeNs | Column::RealtimeNs
            )
        });
        if steered && bend.before.ppm.abs().max(bend.after.ppm.abs()) <= WRONG_RATE_PPM {
            continue;
        }
        return Some(
            Finding::new(
                Code::RateStep,
                format!(
                    "the rate of {} changes from {:+.1} to {:+.1} ppm at one moment",
                    y.name(),
                    bend.before.ppm,
                    bend.after.ppm
                ),
            )
            .seen(
                format!(
                    "{} against {}: straight until row {} and from there on; spread {:.3} ms",
                    y.name(),
                    x.name(),
                    bend.at + 1,
                    comparison.noise_ns / 1e6
                ),
                "samples.csv",
            )
            .because("Two straight lines that meet: the frequency behind the clock changed at that moment and what converts it did not, as after a migration to a host of another TSC frequency without scaling, or a host that changed its own rate. A pause would leave a gap, a drift no corner.")
            .real("before_ppm", bend.before.ppm)
            .real("after_ppm", bend.after.ppm),
        );
    }
    None
}
