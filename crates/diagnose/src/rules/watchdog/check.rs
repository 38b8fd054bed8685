//! One verdict of the watchdog with its numbers, and what they show.

use crate::evidence::{ClockEvent, LoggedEvent, TimeStamp, WatchdogBlock};
use crate::forensics::watchdog::{
    LATE_NS, PERIOD_NS, ReferenceSide, Reset, SAME_RATE_PPM, Wrapped, implied_rate,
    rate_over_uptime, reset, wrapped,
};
use crate::forensics::{Frequency, registration};
use crate::rules::facts::{BootFacts, Declared};

/// A verdict, put together from its lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Check<'a> {
    /// The accused clock source.
    pub(crate) accused: Option<&'a str>,
    /// Line of the verdict, or of the first number.
    pub(crate) line: u64,
    /// Stamp of the verdict.
    pub(crate) stamp: Option<TimeStamp>,
    /// The reference's numbers and their line.
    pub(crate) reference: Option<(&'a WatchdogBlock, u64)>,
    /// The accused's numbers and their line.
    pub(crate) counter: Option<(&'a WatchdogBlock, u64)>,
    /// Intervals in ns that the newest generation prints: reference's name, its interval.
    pub(crate) reference_ns: Option<(&'a str, u64)>,
    /// The accused's interval in ns, newest generation.
    pub(crate) counter_ns: Option<u64>,
    /// The oldest form: accused minus reference, in ns.
    pub(crate) delta_ns: Option<i64>,
    has_verdict: bool,
}

impl Check<'_> {
    /// Whether the kernel accused the TSC.
    pub(crate) fn accuses_tsc(&self) -> bool {
        matches!(self.accused, Some("tsc" | "tsc-early"))
    }

    /// The reference's name.
    pub(crate) fn reference_name(&self) -> Option<&str> {
        self.reference
            .map(|(block, _)| block.name.as_str())
            .or(self.reference_ns.map(|(name, _)| name))
    }

    /// Ticks of the accused between the checks, if it went forward.
    pub(crate) fn ticks(&self) -> Option<u64> {
        let (block, _) = self.counter?;
        let ticks = block.now.wrapping_sub(block.last) & block.mask;
        (block.mask != u64::MAX || ticks < 1 << 63).then_some(ticks)
    }

    fn is_empty(&self) -> bool {
        self.line == 0
    }
}

/// Puts the lines of verdicts together. A line that repeats what the open verdict has begins the next.
pub(crate) fn gather<'a>(events: &[&'a LoggedEvent]) -> Vec<Check<'a>> {
    let mut done = Vec::new();
    let mut open = Check::default();
    for logged in events {
        let taken = match &logged.event {
            ClockEvent::WatchdogVerdict { .. }
            | ClockEvent::FrequencySkewVerdict { .. }
            | ClockEvent::OldVerdict { .. } => open.has_verdict,
            ClockEvent::WatchdogReference(_) => open.reference.is_some(),
            ClockEvent::WatchdogAccused(_) => open.counter.is_some(),
            ClockEvent::WatchdogInterval { .. } => open.reference_ns.is_some(),
            ClockEvent::AccusedInterval { .. } => open.counter_ns.is_some(),
            _ => continue,
        };
        if taken {
            done.push(core::mem::take(&mut open));
        }
        if open.is_empty() {
            open.line = logged.line;
            open.stamp = logged.stamp;
        }
        match &logged.event {
            ClockEvent::WatchdogVerdict { name }
            | ClockEvent::FrequencySkewVerdict { name }
            | ClockEvent::OldVerdict { name, .. } => {
                open.accused = Some(name);
                open.line = logged.line;
                open.stamp = logged.stamp.or(open.stamp);
                open.has_verdict = true;
                if let ClockEvent::OldVerdict { delta_ns, .. } = &logged.event {
                    open.delta_ns = Some(*delta_ns);
                }
            }
            ClockEvent::WatchdogReference(block) => open.reference = Some((block, logged.line)),
            ClockEvent::WatchdogAccused(block) => {
                open.counter = Some((block, logged.line));
                open.accused = open.accused.or(Some(&block.name));
            }
            ClockEvent::WatchdogInterval { name, interval_ns } => {
                open.reference_ns = Some((name, *interval_ns));
            }
            ClockEvent::AccusedInterval { name, interval_ns } => {
                open.counter_ns = Some(*interval_ns);
                open.accused = open.accused.or(Some(name));
            }
            _ => {}
        }
    }
    if !open.is_empty() {
        done.push(open);
    }
    done
}

/// What a verdict's numbers show.
#[derive(Clone, Debug)]
pub(crate) enum Shown {
    /// The reference wrapped.
    Wrapped(Wrapped),
    /// The check came late and the rate is right.
    Late {
        /// The rate that it agrees with.
        agrees_with: Declared,
    },
    /// The reference counts interrupts and missed some.
    LostTicks {
        /// Time that it missed, in ns.
        lost_ns: u128,
    },
    /// The accused was set to a new base.
    Reset(Reset),
    /// The check was on time and the rate is wrong by more than 0.5 %.
    WrongRate {
        /// The declared rate that it contradicts.
        declared: Declared,
    },
    /// Nothing that explains it.
    Unexplained,
}

/// A verdict with its arithmetic.
#[derive(Clone, Debug)]
pub(crate) struct Assessment {
    /// True interval by the reference, in ns.
    pub(crate) interval_ns: Option<u128>,
    /// Interval by the accused at its declared rate, in ns.
    pub(crate) counter_ns: Option<u128>,
    /// Rate of the accused by the reference.
    pub(crate) implied: Option<Frequency>,
    /// The reference's rate and where it was read.
    pub(crate) reference: Option<Declared>,
    /// The rate of the accused over the uptime.
    pub(crate) over_uptime: Option<Frequency>,
    /// What it shows.
    pub(crate) shown: Shown,
}

/// Works a verdict out.
pub(crate) fn assess(check: &Check<'_>, boot: &BootFacts<'_>) -> Assessment {
    if check.counter.is_none() && check.counter_ns.is_some() {
        return assess_intervals(check, boot);
    }
    let declared = declared(check, boot);
    let reference = reference_rate(check, boot, &declared);
    let unwrapped_ns = check.reference.and_then(|(block, _)| {
        let by_rate = reference
            .as_ref()
            .map(|rate| side(block, rate.frequency).interval_ns(0));
        by_rate.or_else(|| block.nsec.and_then(|ns| u128::try_from(ns).ok()))
    });
    let uptime_us = check.stamp.map(|stamp| stamp.us);
    let over_uptime = check.counter.and_then(|(block, _)| {
        let interval_us = u64::try_from(unwrapped_ns.unwrap_or(PERIOD_NS) / 1000).ok()?;
        rate_over_uptime(block.last, uptime_us?.checked_sub(interval_us)?)
    });
    let ticks = check.ticks();
    let mut done = Assessment {
        interval_ns: unwrapped_ns,
        counter_ns: ticks.and_then(|ticks| {
            declared
                .first()
                .map(|rate| rate.frequency.ticks_to_ns(ticks))
        }),
        implied: ticks
            .zip(unwrapped_ns)
            .and_then(|(t, ns)| implied_rate(t, ns)),
        reference,
        over_uptime,
        shown: Shown::Unexplained,
    };
    done.shown = shown(check, &mut done, &declared);
    done
}

fn side(block: &WatchdogBlock, frequency: Frequency) -> ReferenceSide {
    ReferenceSide {
        last: block.last,
        now: block.now,
        mask: block.mask,
        frequency,
    }
}

fn shown(check: &Check<'_>, done: &mut Assessment, declared: &[Declared]) -> Shown {
    if let Some((block, _)) = check.counter
        && block.mask == u64::MAX
    {
        let rate = declared
            .first()
            .map(|rate| rate.frequency)
            .or(done.over_uptime);
        if let Some(found) = reset(block.last, block.now, done.interval_ns, rate) {
            done.implied = None;
            done.counter_ns = None;
            return Shown::Reset(found);
        }
    }
    let (Some(ticks), Some(interval)) = (check.ticks(), done.interval_ns) else {
        return Shown::Unexplained;
    };
    let counts_interrupts = check
        .reference_name()
        .is_some_and(registration::counts_interrupts);
    if counts_interrupts
        && let Some(counter) = done.counter_ns
        && let Some(lost_ns) = counter.checked_sub(interval)
        && lost_ns * 1_000_000 > counter * u128::from(SAME_RATE_PPM)
    {
        return Shown::LostTicks { lost_ns };
    }
    let rates: Vec<Frequency> = declared.iter().map(|rate| rate.frequency).collect();
    if let Some((block, _)) = check.reference
        && let Some(reference) = &done.reference
        && !counts_interrupts
        && let Some(found) = wrapped(
            side(block, reference.frequency),
            ticks,
            &rates,
            done.over_uptime,
        )
    {
        done.interval_ns = Some(found.interval_ns);
        done.implied = Some(found.implied);
        return Shown::Wrapped(found);
    }
    let Some(implied) = done.implied else {
        return Shown::Unexplained;
    };
    let by_uptime = done.over_uptime.map(|frequency| Declared {
        frequency,
        what: "the counter over the uptime".to_owned(),
        source: "computed".to_owned(),
    });
    let known = if declared.is_empty() {
        by_uptime.as_slice()
    } else {
        declared
    };
    let agrees = known
        .iter()
        .find(|rate| implied.within(rate.frequency, SAME_RATE_PPM));
    match agrees {
        Some(rate) if interval >= LATE_NS => Shown::Late {
            agrees_with: rate.clone(),
        },
        Some(_) => Shown::Unexplained,
        None => match declared.first() {
            Some(rate) if interval < LATE_NS && !counts_interrupts => Shown::WrongRate {
                declared: rate.clone(),
            },
            _ => Shown::Unexplained,
        },
    }
}

/// Rates that the accused is declared to have, best first.
fn declared(check: &Check<'_>, boot: &BootFacts<'_>) -> Vec<Declared> {
    let mut declared = if check.accuses_tsc() {
        boot.tsc.clone()
    } else {
        check
            .accused
            .and_then(|name| boot.frequency_of(name))
            .into_iter()
            .collect()
    };
    // What the kernel itself converted with.
    if let Some((block, line)) = check.counter
        && let Some(ticks) = check.ticks()
        && let Some(frequency) = block
            .nsec
            .and_then(|ns| u128::try_from(ns).ok())
            .and_then(|ns| implied_rate(ticks, ns))
    {
        declared.push(Declared {
            frequency,
            what: "the rate with which the kernel converted it to ns".to_owned(),
            source: super::super::facts::log_line(line),
        });
    }
    declared
}

/// The reference's rate: known by name, from its registration, from the kernel's own conversion, or, for an HPET without any
/// of these, one of the usual rates if exactly one makes sense of the numbers.
fn reference_rate(
    check: &Check<'_>,
    boot: &BootFacts<'_>,
    declared: &[Declared],
) -> Option<Declared> {
    let (block, line) = check.reference?;
    if let Some(known) = boot.frequency_of(&block.name) {
        return Some(known);
    }
    let ticks = block.now.wrapping_sub(block.last) & block.mask;
    if let Some(frequency) = block
        .nsec
        .and_then(|ns| u128::try_from(ns).ok())
        .and_then(|ns| implied_rate(ticks, ns))
    {
        return Some(Declared {
            frequency,
            what: format!("the rate with which the kernel converted {}", block.name),
            source: super::super::facts::log_line(line),
        });
    }
    if block.name != "hpet" {
        return None;
    }
    let ticks = check.ticks()?;
    let rate = declared.first()?.frequency;
    let mut fitting = [
        100_000_000,
        14_318_180,
        24_000_000,
        25_000_000,
        19_200_000,
        10_000_000,
    ]
    .into_iter()
    .filter_map(Frequency::from_hz)
    .filter(|frequency| {
        let side = side(block, *frequency);
        implied_rate(ticks, side.interval_ns(0))
            .is_some_and(|implied| implied.within(rate, SAME_RATE_PPM))
            || wrapped(side, ticks, &[rate], None).is_some()
    });
    let frequency = fitting.next()?;
    fitting.next().is_none().then(|| Declared {
        frequency,
        what: "the one usual HPET rate that fits; no line names it".to_owned(),
        source: "assumed".to_owned(),
    })
}

/// The newest generation prints intervals only.
fn assess_intervals(check: &Check<'_>, boot: &BootFacts<'_>) -> Assessment {
    let declared = declared(check, boot);
    let rate = declared.first().cloned();
    let reference = check
        .reference_ns
        .and_then(|(name, _)| boot.frequency_of(name));
    let mut done = Assessment {
        interval_ns: check.reference_ns.map(|(_, ns)| u128::from(ns)),
        counter_ns: check.counter_ns.map(u128::from),
        implied: None,
        reference,
        over_uptime: None,
        shown: Shown::Unexplained,
    };
    let (Some(interval), Some(counter)) = (done.interval_ns, done.counter_ns) else {
        return done;
    };
    if interval == 0 {
        return done;
    }
    let scale = |frequency: Frequency, interval: u128| {
        Frequency::from_microhertz(
            (u128::from(frequency.microhertz()) * counter).checked_div(interval)?,
        )
    };
    let implied = rate
        .as_ref()
        .and_then(|rate| scale(rate.frequency, interval));
    done.implied = implied;
    let name = check.reference_name().unwrap_or_default();
    let off = counter.abs_diff(interval);
    let same = off * 1_000_000 <= interval * u128::from(SAME_RATE_PPM);
    if same {
        if interval >= LATE_NS {
            done.shown = Shown::Late {
                agrees_with: rate.unwrap_or(Declared {
                    frequency: Frequency::from_hz(1_000_000_000).expect("not zero"),
                    what: "the accused's own ns".to_owned(),
                    source: super::super::facts::log_line(check.line),
                }),
            };
        }
        return done;
    }
    if registration::counts_interrupts(name) && counter > interval {
        done.shown = Shown::LostTicks {
            lost_ns: counter - interval,
        };
        return done;
    }
    let mask = match name {
        "acpi_pm" => 0xff_ffff,
        "hpet" => 0xffff_ffff,
        _ => return done,
    };
    let (Some(reference), Some(rate)) = (&done.reference, rate) else {
        return done;
    };
    // In ns the reference's ticks are only good to one tick; enough to count whole wraps.
    let ticks = u64::try_from(
        interval * u128::from(reference.frequency.microhertz()) / 1_000_000_000_000_000,
    );
    let accused =
        u64::try_from(counter * u128::from(rate.frequency.microhertz()) / 1_000_000_000_000_000);
    if let (Ok(ticks), Ok(accused)) = (ticks, accused) {
        let side = ReferenceSide {
            last: 0,
            now: ticks,
            mask,
            frequency: reference.frequency,
        };
        if let Some(found) = wrapped(side, accused, &[rate.frequency], None) {
            done.interval_ns = Some(found.interval_ns);
            done.implied = Some(found.implied);
            done.shown = Shown::Wrapped(found);
            return done;
        }
    }
    if interval < LATE_NS {
        done.shown = Shown::WrongRate { declared: rate };
    }
    done
}
