//! How the process's clock goes on when its source changes: never back, and as continuous as the sources allow.
//!
//! # Theory
//!
//! Three clocks can say what the time is at a switch: the *old line* at the present counter, right if the counter went on as before; the *new line*,
//! right if the hypervisor's clock went on; and the operating system's clock since the last check. A healthy switch has all three agree. Otherwise:
//!
//! | what is seen | what happened | the clock |
//! | --- | --- | --- |
//! | new >= old | an update, a pause that the hypervisor counts, or the counter was set back | follows the new line |
//! | new < old, by little, or the operating system agrees with old | the hypervisor's clock stepped back | goes on from the old value, ahead of the hypervisor's from then on |
//! | new < old by much, and the operating system disagrees with old | the counter was set ahead | follows the new line |
//! | no new line | the source is not usable now | goes on with the operating system's clock from the old value |
//!
//! The line is checked against the operating system's clock after 1 ms, 2 ms, .. 64 s. Three disagreements of more than 1000 ppm in a row, and the source is not
//! trusted until its page changes.

use super::line::Line;
use super::machine::Pair;
use super::published::Current;
use super::report::Events;
use super::source::{SourceKind, Unusable, Usable};
use chronovisor_abi::quantity::{Hertz, Ppb, Tsc};

/// The first span after which a new line is checked.
const FIRST_CHECK_NS: u64 = 1_000_000;
/// The longest span between two checks.
const LAST_CHECK_NS: u64 = 64_000_000_000;
/// Disagreements in a row that end the trust in a source.
const STRIKES: u32 = 3;
/// A new line below the old one by up to this and 100 ppm of the time since the last check is a hypervisor's step, whatever the third clock says.
const SMALL_STEP_NS: u64 = 1_000_000;
/// How far the kernel's multiplier can be off the counter's rate: the time daemon's limit.
const KERNEL_RATE_BOUND: Ppb = Ppb::from_ppb_saturating(500_000);

/// An instant at which all clocks are known.
#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    tsc: Tsc,
    time_ns: u64,
    raw_ns: u64,
    width_ns: u64,
}

/// The clock stands on the counter.
#[derive(Clone, Copy, Debug)]
struct OnCounter {
    /// The process's line: the source's, raised by the bias.
    line: Line,
    tag: u32,
    /// The process's time less the source's, modulo 2^64 ns.
    bias_ns: u64,
    last_check: Checkpoint,
    /// Since when the counter has run unbroken: the baseline of a measured rate.
    start: Checkpoint,
    check_after_ns: u64,
    strikes: u32,
    guest_was_stopped: bool,
    rate_bound: Ppb,
}

/// The clock stands on the operating system's.
#[derive(Clone, Copy, Debug)]
struct OnOperatingSystem {
    offset_ns: u64,
    judged: u32,
    why: Unusable,
    /// The word of a page whose rate was wrong.
    distrusted: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    OnCounter(OnCounter),
    OnOperatingSystem(OnOperatingSystem),
}

/// What the clock stands on and how it got there; one thread at a time has it.
#[derive(Debug)]
pub(crate) struct Steering {
    kind: SourceKind,
    state: State,
    events: Events,
}

/// `later - earlier` of two times modulo 2^64, as a signed distance.
fn distance(later: u64, earlier: u64) -> i64 {
    later.wrapping_sub(earlier).cast_signed() // wrapping: times count modulo 2^64.
}

/// The later of two times less than 2^63 ns apart.
fn later(a: u64, b: u64) -> u64 {
    if distance(a, b) >= 0 { a } else { b }
}

impl OnCounter {
    /// The source's `new` line, raised so that the clock says `time_ns` at `pair`.
    fn new(new: &Usable, pair: &Pair, time_ns: u64, kind: SourceKind) -> Self {
        // wrapping: times count modulo 2^64.
        let bias_ns = time_ns.wrapping_sub(new.line.at(pair.tsc));
        let line = new.line.raised(bias_ns).usable_from(pair.tsc);
        let here = Checkpoint::at(pair, time_ns, &line);
        Self {
            line,
            tag: new.tag,
            bias_ns,
            last_check: here,
            start: here,
            check_after_ns: FIRST_CHECK_NS,
            strikes: 0,
            guest_was_stopped: new.guest_was_stopped,
            rate_bound: match kind {
                SourceKind::KernelTsc => KERNEL_RATE_BOUND,
                _ => Ppb::ZERO,
            },
        }
    }

    /// Ticks behind the anchor at which the next check is due.
    fn limit(&self) -> u64 {
        let so_far = self
            .last_check
            .tsc
            .wrapping_delta(self.line.anchor)
            .as_ticks();
        so_far.saturating_add(self.line.ticks_saturating(self.check_after_ns))
    }

    /// What the operating system's clock says the time is, and how far that can be off if both clocks are healthy.
    fn expected(&self, pair: &Pair) -> (u64, u64) {
        let passed = pair.raw_ns.saturating_sub(self.last_check.raw_ns);
        let width = self.line.span(pair.width);
        let tolerance = (passed / 1_000)
            .saturating_add(width)
            .saturating_add(self.last_check.width_ns)
            .saturating_add(2);
        (self.last_check.time_ns.wrapping_add(passed), tolerance) // wrapping: times count modulo 2^64.
    }

    /// The time at which the clock goes on, given the new line's value if there is one.
    fn go_on(&self, pair: &Pair, by_new_line: Option<u64>, events: &mut Events) -> u64 {
        let by_old_line = self.line.at(pair.tsc);
        let (expected, tolerance) = self.expected(pair);
        let counter_went_on = distance(by_old_line, expected).unsigned_abs() <= tolerance;
        let at_least = self.last_check.time_ns;
        match by_new_line {
            None if counter_went_on => by_old_line,
            None => {
                events.counter_moves += 1;
                later(expected, at_least)
            }
            Some(new) if distance(new, by_old_line) >= 0 => {
                events.forward_ns = events
                    .forward_ns
                    .saturating_add(new.wrapping_sub(by_old_line));
                new
            }
            Some(new) => {
                let step = by_old_line.wrapping_sub(new);
                let passed = pair.raw_ns.saturating_sub(self.last_check.raw_ns);
                if counter_went_on || step <= SMALL_STEP_NS.saturating_add(passed / 10_000) {
                    events.held_ns = events.held_ns.saturating_add(step);
                    by_old_line
                } else {
                    events.counter_moves += 1;
                    later(new, at_least)
                }
            }
        }
    }
}

impl Checkpoint {
    fn at(pair: &Pair, time_ns: u64, line: &Line) -> Self {
        Self {
            tsc: pair.tsc,
            time_ns,
            raw_ns: pair.raw_ns,
            width_ns: line.span(pair.width),
        }
    }
}

impl Steering {
    /// A clock that says 0 at `pair`.
    pub(crate) fn start(
        kind: SourceKind,
        pair: &Pair,
        seen: Result<Usable, (Unusable, u32)>,
    ) -> Self {
        let state = match seen {
            Ok(new) => State::OnCounter(OnCounter::new(&new, pair, 0, kind)),
            Err((why, judged)) => State::OnOperatingSystem(OnOperatingSystem {
                offset_ns: 0_u64.wrapping_sub(pair.raw_ns), // wrapping: offsets count modulo 2^64.
                judged,
                why,
                distrusted: None,
            }),
        };
        Self {
            kind,
            state,
            events: Events::default(),
        }
    }

    /// One step: `pair` was taken after `seen`, and the watched word did not change in between. Returns the time at `pair`.
    pub(crate) fn step(&mut self, pair: &Pair, seen: Result<Usable, (Unusable, u32)>) -> u64 {
        match (self.state, seen) {
            (State::OnCounter(old), Ok(new)) if new.tag == old.tag => self.check(old, pair),
            (State::OnCounter(old), Ok(new)) => self.take_new_line(&old, &new, pair),
            (State::OnCounter(old), Err((why, judged))) => {
                self.fall_back(&old, pair, why, judged, None)
            }
            (State::OnOperatingSystem(old), Ok(new)) if old.distrusted != Some(new.tag) => {
                self.come_back(&old, &new, pair)
            }
            (State::OnOperatingSystem(old), seen) => {
                let (why, judged) = seen.map_or_else(|why| why, |new| (old.why, new.tag));
                self.state = State::OnOperatingSystem(OnOperatingSystem { judged, why, ..old });
                pair.raw_ns.wrapping_add(old.offset_ns) // wrapping: offsets count modulo 2^64.
            }
        }
    }

    /// The page changed.
    fn take_new_line(&mut self, old: &OnCounter, new: &Usable, pair: &Pair) -> u64 {
        self.events.updates += 1;
        if new.guest_was_stopped && !old.guest_was_stopped {
            self.events.guest_stops += 1;
        }
        let by_new_line = new.line.at(pair.tsc).wrapping_add(old.bias_ns); // wrapping: times count modulo 2^64.
        let time_ns = old.go_on(pair, Some(by_new_line), &mut self.events);
        self.state = State::OnCounter(OnCounter::new(new, pair, time_ns, self.kind));
        time_ns
    }

    /// The source is not usable.
    fn fall_back(
        &mut self,
        old: &OnCounter,
        pair: &Pair,
        why: Unusable,
        judged: u32,
        distrusted: Option<u32>,
    ) -> u64 {
        self.events.fall_backs += 1;
        let time_ns = old.go_on(pair, None, &mut self.events);
        self.state = State::OnOperatingSystem(OnOperatingSystem {
            offset_ns: time_ns.wrapping_sub(pair.raw_ns), // wrapping: offsets count modulo 2^64.
            judged,
            why,
            distrusted,
        });
        time_ns
    }

    /// The source is usable again.
    fn come_back(&mut self, old: &OnOperatingSystem, new: &Usable, pair: &Pair) -> u64 {
        self.events.returns += 1;
        let time_ns = pair.raw_ns.wrapping_add(old.offset_ns); // wrapping: offsets count modulo 2^64.
        self.state = State::OnCounter(OnCounter::new(new, pair, time_ns, self.kind));
        time_ns
    }

    /// The same line as before, due for a check; or the counter left the span in which it was checked.
    fn check(&mut self, mut old: OnCounter, pair: &Pair) -> u64 {
        self.events.checks += 1;
        let time_ns = old.line.at(pair.tsc);
        let (expected, tolerance) = old.expected(pair);
        let off = distance(time_ns, expected);
        if off.unsigned_abs() <= tolerance {
            old.strikes = 0;
            old.check_after_ns = old.check_after_ns.saturating_mul(2).min(LAST_CHECK_NS);
            old.last_check = Checkpoint::at(pair, time_ns, &old.line);
            if self.kind == SourceKind::KernelTsc {
                old.measure_rate(pair);
            }
            self.state = State::OnCounter(old);
            return time_ns;
        }
        self.events.disagreements += 1;
        old.strikes += 1;
        if old.strikes >= STRIKES {
            let passed = distance(expected, old.last_check.time_ns).max(1);
            let ppm =
                i64::try_from(i128::from(off) * 1_000_000 / i128::from(passed)).unwrap_or(i64::MAX);
            let why = Unusable::RateDisagrees {
                ppm,
                checks: STRIKES,
            };
            let tag = old.tag;
            return self.fall_back(&old, pair, why, tag, Some(tag));
        }
        // A page is the hypervisor's word for a jump forward; a bare counter has no such authority.
        let follows =
            self.kind != SourceKind::KernelTsc && distance(time_ns, old.last_check.time_ns) >= 0;
        let new_time_ns = if follows {
            time_ns
        } else {
            self.events.counter_moves += 1;
            later(expected, old.last_check.time_ns)
        };
        let raise_ns = new_time_ns.wrapping_sub(time_ns); // wrapping: times count modulo 2^64.
        old.line = old.line.raised(raise_ns).usable_from(pair.tsc);
        old.bias_ns = old.bias_ns.wrapping_add(raise_ns);
        old.last_check = Checkpoint::at(pair, new_time_ns, &old.line);
        old.start = old.last_check;
        old.check_after_ns = FIRST_CHECK_NS;
        self.state = State::OnCounter(old);
        new_time_ns
    }

    /// What all threads are to read.
    pub(crate) fn current(&self) -> Current {
        match &self.state {
            State::OnCounter(now) => Current::Counter {
                line: now.line,
                tag: now.tag,
                limit: now.limit(),
            },
            State::OnOperatingSystem(now) => Current::OperatingSystem {
                offset_ns: now.offset_ns,
                judged: now.judged,
            },
        }
    }

    pub(crate) fn events(&self) -> Events {
        self.events
    }

    /// Why the operating system's clock is in use, if it is.
    pub(crate) fn why_not(&self) -> Option<Unusable> {
        match &self.state {
            State::OnCounter(_) => None,
            State::OnOperatingSystem(now) => Some(now.why),
        }
    }

    /// The clock's time less that of what it stands on, modulo 2^64 ns.
    pub(crate) fn offset_ns(&self) -> u64 {
        match &self.state {
            State::OnCounter(now) => now.bias_ns,
            State::OnOperatingSystem(now) => now.offset_ns,
        }
    }

    /// The counter's rate, and how far it can be off the source's own.
    pub(crate) fn rate(&self) -> Option<(Hertz, Ppb)> {
        match &self.state {
            State::OnCounter(now) => now.line.frequency().map(|rate| (rate, now.rate_bound)),
            State::OnOperatingSystem(_) => None,
        }
    }
}

impl OnCounter {
    /// The rate since the start, against the operating system's clock, if that is better known than the present one; the line bends where it is.
    fn measure_rate(&mut self, pair: &Pair) {
        let passed = pair.raw_ns.saturating_sub(self.start.raw_ns);
        let counted = pair.tsc.wrapping_delta(self.start.tsc).as_ticks();
        let uncertain = u128::from(self.start.width_ns + self.last_check.width_ns + 2);
        // 10^-15 units of the relative error.
        let bound = (uncertain * 1_000_000_000_000_000).checked_div(u128::from(passed));
        let bound = bound
            .and_then(|femto| i64::try_from(femto).ok())
            .map(Ppb::from_femto);
        let rate = Hertz::from_ratio_floor(u128::from(counted) * 1_000_000_000, u128::from(passed));
        let (Some(bound), Some(rate)) = (bound, rate) else {
            return;
        };
        if bound >= self.rate_bound {
            return;
        }
        if let Some(line) = Line::from_rate(pair.tsc, self.last_check.time_ns, rate) {
            self.line = line;
            self.bias_ns = 0;
            self.rate_bound = bound;
        }
    }
}
