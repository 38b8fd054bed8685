//! What is kept of a run: the count of its events, the last of them, and the invariant that broke.

use std::fmt;
use std::io::{self, Write};

use crate::world_time::{UNITS_PER_NS, WorldTime};

/// How many of the last events a violation shows.
const LAST_EVENTS: usize = 32;

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// When, in true time.
    pub time: WorldTime,
    /// What, in a word or two.
    pub what: &'static str,
    /// To which machine or CPU.
    pub who: u32,
    /// The figure that says most about it.
    pub value: u64,
}

/// In ns with three decimals, what, who and the figure.
impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let picos = self.time.as_units() % UNITS_PER_NS * 1000 / UNITS_PER_NS;
        let (ns, what, who, value) = (self.time.floor_ns(), self.what, self.who, self.value);
        write!(f, "{ns}.{picos:03} ns\t{what}\t{who}\t{value}")
    }
}

/// An invariant that broke: the run's seed and unit, the number of the event, and what led to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {details} (seed {seed}, unit {unit}, event {event})")]
pub struct Violation {
    /// The invariant, as `docs/simulation.md` names it.
    pub rule: &'static str,
    /// What was seen and what should have been.
    pub details: String,
    /// The seed of the run.
    pub seed: u64,
    /// The unit (a row and run, a virtual machine) in which it broke.
    pub unit: u64,
    /// The number of the event within the unit.
    pub event: u64,
    /// The last events, oldest first.
    pub last_events: Vec<Note>,
}

/// Counts events, keeps the last ones, and writes all of them if a trace was asked for.
pub struct Watch {
    seed: u64,
    unit: u64,
    events: u64,
    total: u64,
    ring: [Note; LAST_EVENTS],
    trace: Option<Box<dyn Write + Send>>,
    trace_error: Option<io::Error>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("seed", &self.seed)
            .field("unit", &self.unit)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

impl Watch {
    /// A watch over units of the run with `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let nothing = Note {
            time: WorldTime::ZERO,
            what: "",
            who: 0,
            value: 0,
        };
        Self {
            seed,
            unit: 0,
            events: 0,
            total: 0,
            ring: [nothing; LAST_EVENTS],
            trace: None,
            trace_error: None,
        }
    }

    /// The same watch that also writes every event to `sink`, a line each.
    #[must_use]
    pub fn with_trace(self, sink: Box<dyn Write + Send>) -> Self {
        Self {
            trace: Some(sink),
            ..self
        }
    }

    /// Begins unit number `unit`.
    pub fn begin(&mut self, unit: u64) {
        self.unit = unit;
        self.events = 0;
        if self.trace.is_some() {
            let seed = self.seed;
            self.write(format_args!("# unit {unit}, seed {seed}"));
        }
    }

    /// Counts and keeps one event.
    #[inline]
    pub fn note(&mut self, note: Note) {
        let at = usize::try_from(self.events % LAST_EVENTS as u64).unwrap_or(0);
        self.ring[at] = note;
        self.events += 1;
        self.total += 1;
        if self.trace.is_some() {
            self.write(format_args!("{note}"));
        }
    }

    /// All events of all units so far.
    #[must_use]
    pub const fn total_events(&self) -> u64 {
        self.total
    }

    /// The violation of `rule` at the last event.
    #[cold]
    #[must_use]
    pub fn violation(&self, rule: &'static str, details: String) -> Violation {
        let kept = self.events.min(LAST_EVENTS as u64);
        let last_events = (self.events - kept..self.events)
            .filter_map(|event| usize::try_from(event % LAST_EVENTS as u64).ok())
            .map(|at| self.ring[at])
            .collect();
        Violation {
            rule,
            details,
            seed: self.seed,
            unit: self.unit,
            event: self.events,
            last_events,
        }
    }

    /// Flushes the trace.
    ///
    /// # Errors
    ///
    /// The first error that writing it met.
    pub fn finish_trace(&mut self) -> io::Result<()> {
        if let Some(error) = self.trace_error.take() {
            return Err(error);
        }
        self.trace.as_mut().map_or(Ok(()), |sink| sink.flush())
    }

    #[cold]
    fn write(&mut self, line: fmt::Arguments<'_>) {
        if let Some(sink) = &mut self.trace
            && self.trace_error.is_none()
            && let Err(error) = writeln!(sink, "{line}")
        {
            self.trace_error = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(value: u64) -> Note {
        Note {
            time: WorldTime::from_units(value * UNITS_PER_NS + 128),
            what: "tick",
            who: 3,
            value,
        }
    }

    #[test]
    fn a_violation_shows_where_and_the_last_events_oldest_first() {
        let mut watch = Watch::new(9);
        watch.begin(4);
        for value in 0..100 {
            watch.note(note(value));
        }
        let violation = watch.violation("never-early", "5 ns early".to_owned());
        assert_eq!(
            (violation.seed, violation.unit, violation.event),
            (9, 4, 100)
        );
        let shown: Vec<u64> = violation
            .last_events
            .iter()
            .map(|note| note.value)
            .collect();
        assert_eq!(shown, (68..100).collect::<Vec<_>>());
        assert_eq!(
            violation.to_string(),
            "never-early: 5 ns early (seed 9, unit 4, event 100)"
        );
    }

    #[test]
    fn a_short_run_shows_what_it_has() {
        let mut watch = Watch::new(1);
        watch.note(note(7));
        assert_eq!(watch.violation("r", String::new()).last_events, [note(7)]);
        assert_eq!(note(7).to_string(), "7.500 ns\ttick\t3\t7");
    }
}
