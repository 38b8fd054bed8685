//! Frequencies that contradict each other.

use super::Facts;
use super::facts::{BootFacts, Declared, log_line};
use super::watchdog::check::{Shown, assess};
use super::watchdog::in_boot;
use crate::code::Code;
use crate::evidence::{ClockEvent, Column, FrequencyOrigin};
use crate::finding::Finding;
use crate::forensics::series::Comparison;
use crate::forensics::{Frequency, real, reference_page};

/// From here on two frequencies are two: 500 ppm, what the kernel's clock discipline can correct.
pub(super) const LIMIT_PPM: f64 = 500.0;

/// A contradiction: declared, measured (or declared by another).
struct Contradiction {
    declared: Declared,
    measured: Declared,
}

impl Contradiction {
    fn ppm(&self) -> f64 {
        self.declared.frequency.ppm_over(self.measured.frequency)
    }
}

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = facts
        .boots
        .iter()
        .filter_map(|boot| {
            let worst = in_log(boot)
                .into_iter()
                .filter(|found| found.ppm().abs() > LIMIT_PPM)
                .max_by(|a, b| a.ppm().abs().total_cmp(&b.ppm().abs()))?;
            Some(in_boot(report(&worst), boot))
        })
        .collect();
    let measured = by_channels(facts)
        .into_iter()
        .chain(by_page(facts))
        .chain(by_samples(facts))
        .chain(by_clock(facts))
        .filter(|found| found.ppm().abs() > LIMIT_PPM)
        .max_by(|a, b| a.ppm().abs().total_cmp(&b.ppm().abs()));
    if let Some(worst) = measured {
        findings.insert(0, report(&worst));
    }
    findings
}

fn report(found: &Contradiction) -> Finding {
    let (declared, measured) = (&found.declared, &found.measured);
    let ppm = found.ppm();
    Finding::new(
        Code::FrequencySourcesDisagree,
        format!(
            "{} says {}, {} says {}: {ppm:.0} ppm apart",
            declared.what, declared.frequency, measured.what, measured.frequency
        ),
    )
    .seen(
        format!("{:.6} MHz", declared.frequency.mhz()),
        format!("{} ({})", declared.source, declared.what),
    )
    .seen(
        format!("{:.6} MHz", measured.frequency.mhz()),
        format!("{} ({})", measured.source, measured.what),
    )
    .because("One of the two does not describe the counter that this machine has. In a guest it is usually a declared value of the host (CPUID 0x15, 0x16) that was not adapted to a scaled TSC, or a calibration that was disturbed while the vCPU was not run. A clock on the wrong one runs off by the difference, more than time synchronisation can correct.")
    .real("declared_hz", declared.frequency.hz())
    .real("measured_hz", measured.frequency.hz())
    .real("ratio", declared.frequency.hz() / measured.frequency.hz())
}

fn in_log(boot: &BootFacts<'_>) -> Vec<Contradiction> {
    let khz = |what: &'static str, pick: fn(&ClockEvent) -> Option<u64>| -> Option<Declared> {
        let (khz, line) = boot.first(pick)?;
        Some(Declared {
            frequency: Frequency::from_khz(khz)?,
            what: what.to_owned(),
            source: log_line(line),
        })
    };
    let refined = khz("the refined calibration", |event| match event {
        ClockEvent::Refined { khz } => Some(*khz),
        _ => None,
    });
    let detected_tsc = khz("the detected TSC rate", |event| match event {
        ClockEvent::DetectedTsc { khz } => Some(*khz),
        _ => None,
    });
    // The processor's rate is the TSC's only where no line of its own names that.
    let detected = detected_tsc.or_else(|| {
        khz("the detected rate", |event| match event {
            ClockEvent::DetectedProcessor { khz } => Some(*khz),
            _ => None,
        })
    });
    let previous = khz("the rate by CPUID or MSR", |event| match event {
        ClockEvent::PreviousFrequency { khz } => Some(*khz),
        _ => None,
    });
    let recalibrated = khz("the recalibration", |event| match event {
        ClockEvent::Recalibrated { khz } => Some(*khz),
        _ => None,
    });
    let registered = boot
        .tsc
        .iter()
        .find(|rate| rate.what == "the registered rate of tsc")
        .cloned();
    let mut pairs = Vec::new();
    let mut pair = |declared: &Option<Declared>, measured: &Option<Declared>| {
        if let (Some(declared), Some(measured)) = (declared, measured) {
            pairs.push(Contradiction {
                declared: declared.clone(),
                measured: measured.clone(),
            });
        }
    };
    pair(&previous, &recalibrated);
    pair(&detected, &recalibrated);
    pair(&detected, &refined);
    pair(&registered, &refined);
    if refined.is_none() && recalibrated.is_none() {
        pair(&detected, &registered);
    }
    for check in &boot.checks {
        let done = assess(check, boot);
        if let Shown::WrongRate { declared } = &done.shown
            && let Some(implied) = done.implied
            && check.accuses_tsc()
        {
            pairs.push(Contradiction {
                declared: declared.clone(),
                measured: Declared {
                    frequency: implied,
                    what: format!(
                        "the watchdog's reference {} over a check that came in time",
                        check.reference_name().unwrap_or_default()
                    ),
                    source: log_line(check.line),
                },
            });
        }
    }
    pairs
}

/// Channels of a live machine; each has its own error, which is taken off.
fn by_channels(facts: &Facts<'_>) -> Vec<Contradiction> {
    let channels: Vec<(Declared, f64, FrequencyOrigin)> = facts
        .evidence
        .frequencies
        .seen()
        .into_iter()
        .flatten()
        .filter(|channel| channel.counter == "tsc")
        .filter_map(|channel| {
            let frequency = Frequency::from_ratio(
                u128::from(channel.hz.numerator),
                u128::from(channel.hz.denominator),
            )?;
            let declared = Declared {
                frequency,
                what: format!("the channel {}", channel.channel),
                source: "frequency channels".to_owned(),
            };
            Some((
                declared,
                real(i128::from(channel.error_ppb)) / 1000.0,
                channel.origin,
            ))
        })
        .collect();
    let mut pairs = Vec::new();
    for (i, (a, a_error, a_origin)) in channels.iter().enumerate() {
        for (b, b_error, b_origin) in &channels[i + 1..] {
            let apart = a.frequency.ppm_over(b.frequency).abs();
            if apart <= LIMIT_PPM + a_error + b_error {
                continue;
            }
            let (declared, measured) = match (a_origin, b_origin) {
                (FrequencyOrigin::Measured, FrequencyOrigin::Declared) => (b, a),
                _ => (a, b),
            };
            pairs.push(Contradiction {
                declared: declared.clone(),
                measured: measured.clone(),
            });
        }
    }
    pairs
}

/// The rate that the reference page implies against the log's.
fn by_page(facts: &Facts<'_>) -> Option<Contradiction> {
    let page = facts.evidence.reference_page.seen()?.last()?;
    if !reference_page::is_valid(page) {
        return None;
    }
    let by_page = Declared {
        frequency: reference_page::frequency(page.scale?)?,
        what: "the scale of the reference page".to_owned(),
        source: "hyperv/tsc_page".to_owned(),
    };
    let declared = facts
        .current_boot()
        .tsc
        .iter()
        .find(|rate| rate.source != "proc/cpuinfo")?;
    Some(Contradiction {
        declared: declared.clone(),
        measured: by_page,
    })
}

/// The counter against another timer of the guest.
fn by_samples(facts: &Facts<'_>) -> Option<Contradiction> {
    let samples = facts.evidence.samples.seen()?;
    let timers = [
        (Column::HpetNs, "the counter against the HPET"),
        (Column::CounterNs, "the counter against the Hyper-V counter"),
    ];
    let (frequency, what) = timers.into_iter().find_map(|(timer, what)| {
        let (ns, ticks) = super::rates::paired(samples, timer, Column::Tsc)?;
        Some((overall_rate(&ns, &ticks)?, what))
    })?;
    let measured = Declared {
        frequency,
        what: what.to_owned(),
        source: "samples.csv".to_owned(),
    };
    if let Some(declared) = facts.tsc() {
        return Some(Contradiction {
            declared: declared.clone(),
            measured,
        });
    }
    // No declared rate: what the kernel converts with shows in its own clocks.
    let (raw, raw_ticks) = super::rates::paired(samples, Column::MonotonicRawNs, Column::Tsc)
        .or_else(|| super::rates::paired(samples, Column::MonotonicNs, Column::Tsc))?;
    Some(Contradiction {
        declared: Declared {
            frequency: overall_rate(&raw, &raw_ticks)?,
            what: "the rate with which the kernel converts the counter".to_owned(),
            source: "samples.csv".to_owned(),
        },
        measured,
    })
}

/// A clock that the kernel counts from the TSC at the declared rate, against the HPET: where the counter itself was not read.
fn by_clock(facts: &Facts<'_>) -> Option<Contradiction> {
    let samples = facts.evidence.samples.seen()?;
    let (clocksource, _) = facts.clocksource()?;
    if !matches!(clocksource.as_str(), "tsc" | "tsc-early")
        || samples.columns.contains_key(&Column::Tsc)
    {
        return None;
    }
    // The monotonic clock is disciplined, by up to as much as makes a contradiction; the raw one is not.
    let (clock, hpet, readings) = [Column::MonotonicRawNs, Column::MonotonicNs]
        .into_iter()
        .find_map(|clock| {
            let (hpet, readings) = super::rates::paired(samples, Column::HpetNs, clock)?;
            Some((clock, hpet, readings))
        })?;
    let per_second = overall_rate(&hpet, &readings)?;
    let off = per_second
        .ppm_over(Frequency::from_hz(1_000_000_000)?)
        .abs();
    if clock == Column::MonotonicNs && off <= 2.0 * LIMIT_PPM {
        return None;
    }
    let declared = facts.tsc()?;
    let scaled = u128::from(declared.frequency.microhertz())
        .checked_mul(u128::from(per_second.microhertz()))?
        / 1_000_000_000_000_000;
    Some(Contradiction {
        declared: declared.clone(),
        measured: Declared {
            frequency: Frequency::from_microhertz(scaled)?,
            what: format!("{} against the HPET", clock.name()),
            source: "samples.csv".to_owned(),
        },
    })
}

/// Ticks per ns over the whole series, if the two run straight against each other.
fn overall_rate(ns: &[i128], ticks: &[i128]) -> Option<Frequency> {
    let passed = ns.last()?.checked_sub(*ns.first()?)?;
    let counted = ticks.last()?.checked_sub(*ticks.first()?)?;
    let rate = Frequency::from_ticks(
        u64::try_from(counted).ok()?,
        u128::try_from(passed).ok().filter(|ns| *ns > 0)?,
    )?;
    if ns.len() == 2 {
        // Two timers of one guest stop together, if at all.
        return Some(rate);
    }
    let as_ns: Option<Vec<i128>> = ticks
        .iter()
        .map(|tick| {
            let since = u64::try_from(tick - ticks[0]).ok()?;
            i128::try_from(rate.ticks_to_ns(since)).ok()
        })
        .collect();
    let comparison = Comparison::new(ns, &as_ns?, 1e6)?;
    comparison.is_straight().then_some(rate)
}
