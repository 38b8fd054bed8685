//! The wall clock: steps, a start years off, and what a restore leaves behind.

use super::Facts;
use super::facts::log_line;
use super::rates::{compare, paired};
use super::watchdog::in_boot;
use crate::code::Code;
use crate::evidence::{ClockEvent, Column, Interruption, Samples};
use crate::finding::Finding;
use crate::forensics::series::Step;
use crate::forensics::{real, seconds};

/// A step below this is noise, in ns.
const LEAST_STEP_NS: f64 = 1_000_000.0;

/// Years off: 300 days, in ns.
const YEARS_NS: i128 = 300 * 86_400 * 1_000_000_000;

/// 2000-01-01, in ns since 1970: no machine of today starts before it.
const YEAR_2000_NS: i128 = 946_684_800 * 1_000_000_000;

/// Behind by less than this is no stale clock, in ns.
const LEAST_BEHIND_NS: i128 = 500_000_000;

/// Off by less than this is what a reading over a network may be, in ns.
const LEAST_OFF_NS: i128 = 100_000_000;

/// Behind from the first row on, without a sign of a restore: from here on a restore is the likely reason, in ns.
const LEAST_BEHIND_UNSEEN_NS: i128 = 60_000_000_000;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(samples) = facts.evidence.samples.seen() {
        let epoch = epoch_missing(samples);
        if epoch.is_none() {
            findings.extend(stale(facts, samples));
        }
        findings.extend(epoch);
        findings.extend(stepped(facts, samples));
    }
    if !findings
        .iter()
        .any(|finding| finding.code == Code::EpochMissing)
    {
        findings.extend(epoch_in_log(facts));
    }
    if findings.is_empty() {
        findings.extend(facts.evidence.samples.seen().and_then(unsynchronised));
    }
    findings
}

/// A wall clock that is off, and that nothing corrects while it is looked at.
fn unsynchronised(samples: &Samples) -> Option<Finding> {
    let outside = wall_reference(samples)?;
    let (reference, realtime) = paired(samples, outside, Column::RealtimeNs)?;
    let off = realtime.last()? - reference.last()?;
    if off.abs() < LEAST_OFF_NS {
        return None;
    }
    let rate = compare(samples, outside, Column::RealtimeNs, None, LEAST_STEP_NS)
        .map_or(String::new(), |comparison| {
            format!("; it runs {:+.1} ppm against it", comparison.rate.ppm)
        });
    Some(
        Finding::new(
            Code::ClockUnsynchronised,
            format!("the wall clock is {:+.3} s off {} and nothing corrects it", seconds(off), outside.name()),
        )
        .seen(
            format!("realtime minus {} is {:+.6} s in the last row{rate}", outside.name(), seconds(off)),
            "samples.csv",
        )
        .because("No row shows a correction. Whether a daemon runs, and which bound it claims, the samples do not tell.")
        .real("offset_s", seconds(off)),
    )
}

/// Signs in the current boot that the machine slept.
fn slept(facts: &Facts<'_>) -> bool {
    facts.current_boot().events.iter().any(|logged| {
        matches!(
            logged.event,
            ClockEvent::Interrupted(
                Interruption::SuspendEntry
                    | Interruption::SuspendExit
                    | Interruption::HibernationEntry
                    | Interruption::HibernationExit
            )
        )
    })
}

/// Signs in the current boot that it was restored, cloned or woken.
fn interrupted(facts: &Facts<'_>) -> Option<u64> {
    facts
        .current_boot()
        .first(|event| matches!(event, ClockEvent::Interrupted(_)).then_some(()))
        .map(|((), line)| line)
}

/// A clock outside that tells wall time.
fn wall_reference(samples: &Samples) -> Option<Column> {
    [Column::HostRealtimeNs, Column::ReferenceNs]
        .into_iter()
        .find(|column| {
            samples.columns.get(column).is_some_and(|values| {
                values
                    .iter()
                    .flatten()
                    .next()
                    .is_some_and(|first| *first > YEAR_2000_NS)
            })
        })
}

/// The steps of realtime, and the clock that it was compared with.
struct Steps {
    steps: Vec<Step>,
    times_ns: Vec<i128>,
    against: Column,
}

fn steps(facts: &Facts<'_>, samples: &Samples) -> Option<Steps> {
    let tsc = facts.tsc().map(|rate| rate.frequency);
    // Boottime first: what realtime gains in a suspend, boottime gains too.
    let bases = [
        Column::BoottimeNs,
        Column::MonotonicNs,
        Column::MonotonicRawNs,
        Column::HpetNs,
        Column::Tsc,
    ];
    for base in bases {
        if base == Column::Tsc && tsc.is_none() {
            continue;
        }
        let Some(comparison) = compare(samples, base, Column::RealtimeNs, tsc, LEAST_STEP_NS)
        else {
            continue;
        };
        let suspended = base != Column::BoottimeNs && slept(facts);
        let steps: Vec<Step> = comparison
            .steps
            .into_iter()
            .filter(|step| !(suspended && step.size_ns > 0.0))
            .collect();
        return Some(Steps {
            steps,
            times_ns: times(samples, base).unwrap_or(comparison.x_ns),
            against: base,
        });
    }
    if let Some(two) = two_rows(samples) {
        return Some(two);
    }
    // Only clocks outside: a wall clock that gains was stepped; one that loses was so only where it went back.
    let outside = super::rates::outside(samples)?;
    let comparison = compare(samples, outside, Column::RealtimeNs, None, LEAST_STEP_NS)?;
    let (_, real_times) = paired(samples, outside, Column::RealtimeNs)?;
    let steps = comparison
        .steps
        .into_iter()
        .filter(|step| step.size_ns > 0.0 || real_times[step.at] < real_times[step.at - 1])
        .collect();
    Some(Steps {
        steps,
        times_ns: comparison.x_ns,
        against: outside,
    })
}

/// Two rows that hold realtime and a clock that the kernel advances with it: whatever they part by is a step.
fn two_rows(samples: &Samples) -> Option<Steps> {
    [Column::BoottimeNs, Column::MonotonicNs]
        .into_iter()
        .find_map(|base| {
            let (times_ns, real_times) = paired(samples, base, Column::RealtimeNs)?;
            let [first, last] = times_ns[..] else {
                return None;
            };
            let moved = real_times[1].checked_sub(real_times[0])?;
            let size_ns = real(moved.checked_sub(last.checked_sub(first)?)?);
            let steps = if size_ns.abs() >= LEAST_STEP_NS {
                vec![Step { at: 1, size_ns }]
            } else {
                Vec::new()
            };
            Some(Steps {
                steps,
                times_ns,
                against: base,
            })
        })
}

/// The clock outside at the rows that realtime and `base` share, if it is there for all of them.
fn times(samples: &Samples, base: Column) -> Option<Vec<i128>> {
    let outside = samples.columns.get(&super::rates::outside(samples)?)?;
    let base = samples.columns.get(&base)?;
    let realtime = samples.columns.get(&Column::RealtimeNs)?;
    let mut last = None;
    let mut kept = Vec::new();
    for ((o, b), r) in outside.iter().zip(base).zip(realtime) {
        if let (Some(b), Some(_)) = (b, r)
            && last.is_none_or(|last| *b > last)
        {
            last = Some(*b);
            kept.push((*o)?);
        }
    }
    Some(kept)
}

/// A wall clock that goes back where nothing else was read.
fn alone(samples: &Samples) -> Option<Steps> {
    if samples.columns.len() > 1 {
        return None;
    }
    let values: Vec<i128> = samples
        .columns
        .get(&Column::RealtimeNs)?
        .iter()
        .flatten()
        .copied()
        .collect();
    let steps = values
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| pair[1] < pair[0])
        .filter(|(_, pair)| {
            crate::forensics::quantised::truncation(pair[0], pair[1], None).is_none()
        })
        .map(|(i, pair)| Step {
            at: i + 1,
            size_ns: real(pair[1] - pair[0]),
        })
        .collect();
    Some(Steps {
        steps,
        times_ns: values,
        against: Column::RealtimeNs,
    })
}

fn stepped(facts: &Facts<'_>, samples: &Samples) -> Option<Finding> {
    let found = steps(facts, samples).or_else(|| alone(samples))?;
    let steps = &found.steps;
    let first = steps.first()?;
    // A clock that jumps in most rows is not stepped but noisy.
    if steps.len() * 2 > found.times_ns.len() {
        return None;
    }
    let forward = steps.iter().filter(|step| step.size_ns > 0.0).count();
    let backward = steps.len() - forward;
    let net: f64 = steps.iter().map(|step| step.size_ns).sum();
    let largest = steps
        .iter()
        .map(|step| step.size_ns.abs())
        .fold(0.0, f64::max);
    let apart: Vec<f64> = steps
        .windows(2)
        .filter_map(|pair| {
            Some(seconds(
                found.times_ns.get(pair[1].at)? - found.times_ns.get(pair[0].at)?,
            ))
        })
        .collect();
    let period = period(&apart);
    let mut finding = Finding::new(
        Code::WallClockStepped,
        format!(
            "the wall clock was stepped {} time(s), {backward} of them back, by up to {:.6} s",
            steps.len(),
            largest / 1e9
        ),
    )
    .seen(
        format!(
            "realtime against {}: first step {:+.6} s at row {}, {:+.6} s in all{}",
            found.against.name(),
            first.size_ns / 1e9,
            first.at + 1,
            net / 1e9,
            period.map_or(String::new(), |period| format!(", one every {period:.1} s")),
        ),
        "samples.csv",
    )
    .because("Somebody set the wall clock: a time daemon or the hypervisor's time service that found it too far off to slew. Regular steps of one size are a rate error that is being corrected again and again; the cause is the rate.")
    .count("steps", count(steps.len()))
    .count("forward_steps", count(forward))
    .count("backward_steps", count(backward))
    .real("max_step_s", largest / 1e9)
    .real("net_s", net / 1e9);
    finding = finding.real_if("period_s", period);
    Some(finding)
}

fn count(n: usize) -> i128 {
    i128::try_from(n).unwrap_or(i128::MAX)
}

/// The time between steps, if at least two intervals agree.
fn period(apart: &[f64]) -> Option<f64> {
    if apart.len() < 2 {
        return None;
    }
    let mut sorted = apart.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted[sorted.len() / 2];
    let regular = apart
        .iter()
        .filter(|interval| (*interval - middle).abs() <= 0.2 * middle)
        .count();
    (regular * 3 >= apart.len() * 2).then_some(middle)
}

fn epoch_missing(samples: &Samples) -> Option<Finding> {
    let Some(outside) = wall_reference(samples) else {
        let first = samples
            .columns
            .get(&Column::RealtimeNs)?
            .iter()
            .flatten()
            .next()?;
        return (*first < YEAR_2000_NS).then(|| {
            Finding::new(
                Code::EpochMissing,
                "the wall clock stands near the beginning of its count",
            )
            .seen(
                format!("realtime is {:.3} s after 1970", seconds(*first)),
                "samples.csv row 1",
            )
            .because("The guest got no date: no RTC, no wall clock record of the hypervisor, or one that was filled with zeros.")
        });
    };
    let first = behind_at_first(samples, outside)?;
    if first.abs() < YEARS_NS {
        return None;
    }
    let rate = compare(samples, outside, Column::RealtimeNs, None, 1e8)
        .map(|comparison| comparison.rate.ppm);
    Some(
        Finding::new(
            Code::EpochMissing,
            format!(
                "the wall clock starts {:.1} years off",
                seconds(first).abs() / (365.2425 * 86_400.0)
            ),
        )
        .seen(
            format!(
                "{} minus realtime is {:.3} s in the first row{}",
                outside.name(),
                seconds(first),
                rate.map_or(String::new(), |ppm| format!("; rate {ppm:+.1} ppm"))
            ),
            "samples.csv",
        )
        .because("The rate is right, so the counter is; the guest got no date, or a wrong one: no RTC, no wall clock record of the hypervisor, one that was filled with zeros, or the monotonic clock taken for the wall clock.")
        .real("behind_s", seconds(first)),
    )
}

/// How far realtime is behind in the first row that holds both.
fn behind_at_first(samples: &Samples, outside: Column) -> Option<i128> {
    let reference = samples.columns.get(&outside)?;
    let realtime = samples.columns.get(&Column::RealtimeNs)?;
    reference
        .iter()
        .zip(realtime)
        .find_map(|(reference, realtime)| Some((*reference)? - (*realtime)?))
}

/// A real-time clock that says a year before any machine of today.
fn epoch_in_log(facts: &Facts<'_>) -> Option<Finding> {
    let boot = facts.current_boot();
    let (year, line) = boot.first(|event| match event {
        ClockEvent::ClockSetFromRtc { year } if *year < 2000 => Some(*year),
        _ => None,
    })?;
    Some(in_boot(
        Finding::new(
            Code::EpochMissing,
            format!("the kernel took the year {year} from the real-time clock"),
        )
        .seen(format!("year {year}"), log_line(line))
        .because(
            "The real-time clock holds no date: it is not backed by the host, or it was never set.",
        ),
        boot,
    ))
}

fn stale(facts: &Facts<'_>, samples: &Samples) -> Option<Finding> {
    let outside = wall_reference(samples)?;
    let (reference, realtime) = paired(samples, outside, Column::RealtimeNs)?;
    let behind: Vec<i128> = reference
        .iter()
        .zip(&realtime)
        .map(|(r, w)| r - w)
        .collect();
    let last = *behind.last()?;
    if last < LEAST_BEHIND_NS || behind.len() < 2 {
        return None;
    }
    let comparison = compare(samples, outside, Column::RealtimeNs, None, 1e7);
    let lost = comparison.as_ref().and_then(|comparison| {
        comparison
            .steps
            .iter()
            .rfind(|step| step.size_ns < 0.0)
            .copied()
    });
    let from = lost.map_or(0, |step| step.at);
    // Constant from there on: neither corrected nor running away.
    let after = &behind[from..];
    let low = after.iter().min()?;
    let high = after.iter().max()?;
    let span = reference.last()? - reference.get(from)?;
    let slack = (span / 2000).max(20_000_000).max(last / 1000);
    if high - low > slack || (high - low) * 10 > last {
        return None;
    }
    let sign = interrupted(facts);
    let how = match lost {
        Some(step) => {
            // Set back against the guest's own clock is a step, not what a restore leaves.
            let set_back = steps(facts, samples).is_some_and(|found| {
                found.against != outside
                    && found
                        .steps
                        .iter()
                        .any(|other| other.at.abs_diff(step.at) <= 1 && other.size_ns < 0.0)
            });
            if set_back || -step.size_ns < real(last) / 2.0 {
                return None;
            }
            format!(
                "realtime loses {:.3} s at row {} and stays behind",
                -step.size_ns / 1e9,
                step.at + 1
            )
        }
        None => {
            let half_hours = last % 1_800_000_000_000;
            let time_zone = half_hours.min(1_800_000_000_000 - half_hours) < 2_000_000_000
                && last < 15 * 3_600 * 1_000_000_000;
            if time_zone || (sign.is_none() && last < LEAST_BEHIND_UNSEEN_NS) {
                return None;
            }
            "realtime is behind by a constant in every row".to_owned()
        }
    };
    let mut finding = Finding::new(
        Code::WallClockStaleAfterRestore,
        format!(
            "the wall clock stays {:.3} s behind and nothing corrects it",
            seconds(last)
        ),
    )
    .seen(
        format!(
            "{how}: {} minus realtime is {:.6} s in the last row",
            outside.name(),
            seconds(last)
        ),
        "samples.csv",
    );
    if let Some(line) = sign {
        finding = finding.seen(
            "the machine was suspended, restored or cloned",
            log_line(line),
        );
    }
    Some(
        finding
            .because(if lost.is_some() || sign.is_some() {
                "The guest went on with the time that it had when it was stopped. A restore advances only the clocks that the hypervisor writes: a guest on the TSC keeps its old wall time even where kvm-clock was advanced, and without a time daemon nothing sets it."
            } else {
                "The offset is constant, so the rate is right, and it is no whole number of half hours, so it is no time zone. That a restore left it behind is an assumption: the evidence does not show the restore."
            })
            .real("behind_s", seconds(last)),
    )
}
