//! The evidence put in order, once for all rules.

use super::watchdog::check::{Check, gather};
use crate::evidence::{Boot, ClockEvent, DelayLoopSource, Evidence, LoggedEvent};
use crate::forensics::{Frequency, delay_loop, registration};

/// What the rules look at.
pub(crate) struct Facts<'a> {
    /// The evidence itself.
    pub(crate) evidence: &'a Evidence,
    /// The boots of the log, in order.
    pub(crate) boots: Vec<BootFacts<'a>>,
}

/// A frequency that somebody declared, and where.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Declared {
    /// The frequency.
    pub(crate) frequency: Frequency,
    /// What it is, e.g. `the registered rate of tsc`.
    pub(crate) what: String,
    /// Where it was read.
    pub(crate) source: String,
}

/// One boot, its events in the order of time.
pub(crate) struct BootFacts<'a> {
    /// Its number from 1, where the log has more than one.
    pub(crate) number: Option<u64>,
    /// Its events.
    pub(crate) events: Vec<&'a LoggedEvent>,
    /// Declared TSC frequencies, best first.
    pub(crate) tsc: Vec<Declared>,
    /// The watchdog's verdicts with their numbers.
    pub(crate) checks: Vec<Check<'a>>,
}

/// The source of a log line, as a report names it.
pub(crate) fn log_line(line: u64) -> String {
    format!("kernel log line {line}")
}

impl<'a> Facts<'a> {
    pub(crate) fn new(evidence: &'a Evidence) -> Self {
        let log = evidence.kernel_log.seen();
        let boots = log.map_or(&[][..], |log| &log.boots[..]);
        let several = boots.len() > 1;
        let last = boots.len().saturating_sub(1);
        let mut facts: Vec<BootFacts<'a>> = boots
            .iter()
            .enumerate()
            .map(|(i, boot)| {
                let number = several.then(|| u64::try_from(i + 1).unwrap_or(u64::MAX));
                // Files of the machine belong to the boot that it runs now.
                BootFacts::new(number, boot, (i == last).then_some(evidence))
            })
            .collect();
        if facts.is_empty() {
            facts.push(BootFacts {
                number: None,
                events: Vec::new(),
                tsc: declared_by_files(evidence),
                checks: Vec::new(),
            });
        }
        Self {
            evidence,
            boots: facts,
        }
    }

    /// The boot that the machine's files belong to.
    pub(crate) fn current_boot(&self) -> &BootFacts<'a> {
        self.boots.last().expect("there is always one")
    }

    /// The clock source in use, and where that was read.
    pub(crate) fn clocksource(&self) -> Option<(String, String)> {
        if let Some(name) = self
            .evidence
            .current_clocksource
            .seen()
            .and_then(|captures| captures.last())
        {
            return Some((name.clone(), "current_clocksource".to_owned()));
        }
        let boot = self.current_boot();
        boot.events
            .iter()
            .rev()
            .find_map(|logged| match &logged.event {
                ClockEvent::Switched { name } => Some((name.clone(), log_line(logged.line))),
                _ => None,
            })
    }

    /// The best declared TSC frequency of the current boot.
    pub(crate) fn tsc(&self) -> Option<&Declared> {
        self.current_boot().tsc.first()
    }

    /// Whether `/proc/cpuinfo` of any CPU has the flag; `None` if no flags were seen.
    pub(crate) fn cpu_flag(&self, flag: &str) -> Option<bool> {
        let cpus = self.evidence.cpu_lines.seen()?;
        let mut seen = false;
        for cpu in cpus {
            if cpu.flags.iter().any(|other| other == flag) {
                return Some(true);
            }
            seen |= !cpu.flags.is_empty();
        }
        seen.then_some(false)
    }

    /// Whether anything says that this is a guest.
    pub(crate) fn is_guest(&self) -> bool {
        self.cpu_flag("hypervisor") == Some(true)
            || self
                .evidence
                .identity
                .seen()
                .is_some_and(|identity| !identity.hypervisors.is_empty())
            || self.current_boot().events.iter().any(|logged| {
                matches!(
                    logged.event,
                    ClockEvent::HypervisorDetected { .. } | ClockEvent::KvmClockMsrs
                )
            })
    }

    /// The words of the command line about clocks, from the file or else from the log.
    pub(crate) fn command_line_words(&self) -> Option<(Vec<String>, String)> {
        if let Some(text) = self.evidence.command_line.seen() {
            return Some((
                crate::intake::log::clock_words(text),
                "proc/cmdline".to_owned(),
            ));
        }
        self.current_boot()
            .events
            .iter()
            .find_map(|logged| match &logged.event {
                ClockEvent::CommandLine { words } => Some((words.clone(), log_line(logged.line))),
                _ => None,
            })
    }
}

impl<'a> BootFacts<'a> {
    fn new(number: Option<u64>, boot: &'a Boot, files: Option<&Evidence>) -> Self {
        let mut events: Vec<&'a LoggedEvent> = boot.events.iter().collect();
        sort_by_time(&mut events);
        let mut tsc = declared_by_log(&events);
        if let Some(evidence) = files {
            tsc.extend(declared_by_files(evidence));
        }
        let checks = gather(&events);
        Self {
            number,
            events,
            tsc,
            checks,
        }
    }

    /// The frequency of a clock source, and where it was read.
    pub(crate) fn frequency_of(&self, name: &str) -> Option<Declared> {
        let fixed = registration::fixed_frequency(name).map(|frequency| Declared {
            frequency,
            what: format!("the fixed rate of {name}"),
            source: "by definition".to_owned(),
        });
        // Both count the same tick; a log that was cut may hold the line of either.
        let other = match name {
            "jiffies" => "refined-jiffies",
            "refined-jiffies" => "jiffies",
            _ => name,
        };
        fixed
            .or_else(|| self.registered(name))
            .or_else(|| self.registered(other).filter(|_| other != name))
    }

    fn registered(&self, name: &str) -> Option<Declared> {
        self.events.iter().find_map(|logged| match &logged.event {
            ClockEvent::Registered {
                name: registered,
                max_cycles,
                max_idle_ns,
                ..
            } if registered == name => Some(Declared {
                frequency: registration::frequency(*max_cycles, *max_idle_ns)?,
                what: format!("the registered rate of {name}"),
                source: log_line(logged.line),
            }),
            ClockEvent::HpetFrequency { hz } if name == "hpet" => Some(Declared {
                frequency: Frequency::from_hz(*hz)?,
                what: "the HPET's own line".to_owned(),
                source: log_line(logged.line),
            }),
            _ => None,
        })
    }

    /// The first event for which `pick` gives something, with its line.
    pub(crate) fn first<T>(&self, pick: impl Fn(&ClockEvent) -> Option<T>) -> Option<(T, u64)> {
        self.events
            .iter()
            .find_map(|logged| Some((pick(&logged.event)?, logged.line)))
    }

    /// Every event for which `pick` gives something, with its line.
    pub(crate) fn all<T>(&self, pick: impl Fn(&ClockEvent) -> Option<T>) -> Vec<(T, u64)> {
        self.events
            .iter()
            .filter_map(|logged| Some((pick(&logged.event)?, logged.line)))
            .collect()
    }
}

/// By stamp; a line without one stays with the line before it. A log without stamps stays as it is.
fn sort_by_time(events: &mut Vec<&LoggedEvent>) {
    let mut last = None;
    let mut keyed: Vec<(Option<u64>, &LoggedEvent)> = events
        .iter()
        .map(|logged| {
            last = logged.stamp.map(|stamp| stamp.us).or(last);
            (last, *logged)
        })
        .collect();
    keyed.sort_by_key(|(us, _)| *us);
    *events = keyed.into_iter().map(|(_, logged)| logged).collect();
}

/// TSC frequencies that the log declares, best first.
fn declared_by_log(events: &[&LoggedEvent]) -> Vec<Declared> {
    let mut ranked: Vec<(u8, Declared)> = Vec::new();
    for logged in events {
        let (rank, frequency, what) = match &logged.event {
            ClockEvent::Refined { khz } => (0, Frequency::from_khz(*khz), "the refined rate"),
            ClockEvent::Recalibrated { khz } => {
                (0, Frequency::from_khz(*khz), "the recalibrated rate")
            }
            ClockEvent::Registered {
                name,
                max_cycles,
                max_idle_ns,
                ..
            } if name == "tsc" => (
                1,
                registration::frequency(*max_cycles, *max_idle_ns),
                "the registered rate of tsc",
            ),
            ClockEvent::DetectedTsc { khz } => (2, Frequency::from_khz(*khz), "the detected rate"),
            ClockEvent::Registered {
                name,
                max_cycles,
                max_idle_ns,
                ..
            } if name == "tsc-early" => (
                3,
                registration::frequency(*max_cycles, *max_idle_ns),
                "the registered rate of tsc-early",
            ),
            ClockEvent::DetectedProcessor { khz } => {
                (4, Frequency::from_khz(*khz), "the detected processor rate")
            }
            ClockEvent::DelayLoop {
                source: DelayLoopSource::TimerFrequency,
                bogomips_hundredths,
                ..
            } => (
                5,
                delay_loop::frequency(*bogomips_hundredths),
                "half of the BogoMIPS that were taken from the TSC",
            ),
            ClockEvent::TotalBogomips {
                cpus,
                bogomips_hundredths,
            } => (
                6,
                bogomips_hundredths
                    .checked_div(*cpus)
                    .and_then(delay_loop::frequency),
                "half of the mean BogoMIPS",
            ),
            _ => continue,
        };
        if let Some(frequency) = frequency {
            ranked.push((
                rank,
                Declared {
                    frequency,
                    what: what.to_owned(),
                    source: log_line(logged.line),
                },
            ));
        }
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, declared)| declared).collect()
}

/// TSC frequencies that files or a probe declare, best first.
fn declared_by_files(evidence: &Evidence) -> Vec<Declared> {
    use crate::evidence::FrequencyOrigin;
    let mut declared = Vec::new();
    for channel in evidence.frequencies.seen().into_iter().flatten() {
        if channel.counter == "tsc"
            && channel.origin == FrequencyOrigin::Declared
            && let Some(frequency) = Frequency::from_ratio(
                u128::from(channel.hz.numerator),
                u128::from(channel.hz.denominator),
            )
        {
            declared.push((
                channel.error_ppb,
                Declared {
                    frequency,
                    what: format!("the channel {}", channel.channel),
                    source: "frequency channels".to_owned(),
                },
            ));
        }
    }
    declared.sort_by_key(|(error, _)| *error);
    let mut declared: Vec<Declared> = declared.into_iter().map(|(_, d)| d).collect();
    let khz = evidence
        .cpu_lines
        .seen()
        .and_then(|cpus| cpus.first())
        .and_then(|cpu| cpu.khz);
    if let Some(frequency) = khz.and_then(Frequency::from_khz) {
        declared.push(Declared {
            frequency,
            what: "cpu MHz of the first CPU".to_owned(),
            source: "proc/cpuinfo".to_owned(),
        });
    }
    declared
}
