//! The clock while it stands on the counter: its line, its last check, and what the three clocks say at a switch.

use super::super::line::Line;
use super::super::machine::Pair;
use super::super::report::Events;
use super::super::source::{SourceKind, Usable};
use chronovisor_abi::quantity::{Hertz, Ppb, Tsc};
use chronovisor_abi::wide;

/// The first span after which a new line is checked.
pub(super) const FIRST_CHECK_NS: u64 = 1_000_000;
/// A new line below the old one by up to this and 100 ppm of the time since the last check is a hypervisor's step, whatever the third clock says.
const SMALL_STEP_NS: u64 = 1_000_000;
/// A shorter sleep is not told from a delay between two readings.
const SHORTEST_SLEEP_NS: u64 = 10_000_000;
/// How far the kernel's count of a sleep can be off, where it takes it from a clock of whole seconds.
const SLEEP_ERROR_NS: u64 = 2_000_000_000;
/// How far the kernel's multiplier can be off the counter's rate: the time daemon's limit.
const KERNEL_RATE_BOUND: Ppb = Ppb::from_ppb_saturating(500_000);

/// An instant at which all clocks are known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checkpoint {
    pub(super) tsc: Tsc,
    pub(super) time_ns: u64,
    pub(super) raw_ns: u64,
    pub(super) width_ns: u64,
    pub(super) suspended_ns: u64,
}

/// The clock stands on the counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnCounter {
    /// The process's line: the source's, raised by the bias.
    pub(super) line: Line,
    pub(super) tag: u32,
    /// The process's time less the source's, modulo 2^64 ns.
    pub(super) bias_ns: u64,
    pub(super) last_check: Checkpoint,
    /// Since when the counter has run unbroken: the baseline of a measured rate.
    pub(super) start: Checkpoint,
    pub(super) check_after_ns: u64,
    pub(super) strikes: u32,
    pub(super) guest_was_stopped: bool,
    pub(super) rate_bound: Ppb,
}

/// `later - earlier` of two times modulo 2^64, as a signed distance.
pub(super) fn distance(later: u64, earlier: u64) -> i64 {
    later.wrapping_sub(earlier).cast_signed() // wrapping: times count modulo 2^64.
}

/// The later of two times less than 2^63 ns apart.
pub(super) fn later(a: u64, b: u64) -> u64 {
    if distance(a, b) >= 0 { a } else { b }
}

impl OnCounter {
    /// The source's `new` line, raised so that the clock says `time_ns` at `pair`.
    pub(super) fn new(new: &Usable, pair: &Pair, time_ns: u64, kind: SourceKind) -> Self {
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
    pub(super) fn limit(&self) -> u64 {
        let so_far = self
            .last_check
            .tsc
            .wrapping_delta(self.line.anchor)
            .as_ticks();
        so_far.saturating_add(self.line.ticks_saturating(self.check_after_ns))
    }

    /// What the operating system's clock says the time is, and how far that can be off if both clocks are healthy.
    pub(super) fn expected(&self, pair: &Pair) -> (u64, u64) {
        let awake = self.awake(pair);
        let slept = self.slept(pair);
        let tolerance = (awake / 1_000)
            .saturating_add(self.line.span(pair.width))
            .saturating_add(self.last_check.width_ns)
            .saturating_add(if slept > 0 { SLEEP_ERROR_NS } else { 0 })
            .saturating_add(2);
        // wrapping: times count modulo 2^64.
        let time_ns = self
            .last_check
            .time_ns
            .wrapping_add(awake.wrapping_add(slept));
        (time_ns, tolerance)
    }

    /// The time since the last check by the operating system's clock.
    fn awake(&self, pair: &Pair) -> u64 {
        pair.raw_ns.saturating_sub(self.last_check.raw_ns)
    }

    /// The time since the last check that the operating system's clock does not count.
    pub(super) fn slept(&self, pair: &Pair) -> u64 {
        let slept = distance(pair.suspended_ns, self.last_check.suspended_ns);
        u64::try_from(slept)
            .ok()
            .filter(|ns| *ns >= SHORTEST_SLEEP_NS)
            .unwrap_or(0)
    }

    /// The time if nothing but the operating system's clock is to be believed: since the last check, at the rate at which the line has run against it so far;
    /// and how far the brackets leave that open.
    fn by_operating_system(&self, pair: &Pair) -> (u64, u64) {
        let (awake, slept) = (self.awake(pair), self.slept(pair));
        let (start, last) = (&self.start, &self.last_check);
        let line_ran = u64::try_from(distance(last.time_ns, start.time_ns)).unwrap_or(0);
        let raw_ran = last.raw_ns.saturating_sub(start.raw_ns);
        let at_its_rate = wide::mul_div_floor(awake.into(), line_ran.into(), raw_ran.into())
            .filter(|_| line_ran > 0 && raw_ran >= awake / 2)
            .and_then(|ns| u64::try_from(ns).ok());
        let passed = at_its_rate.unwrap_or(awake).wrapping_add(slept);
        // A bracket's error counts up to twice for the rate and once for the instant.
        let widths = start
            .width_ns
            .saturating_add(last.width_ns)
            .saturating_add(self.line.span(pair.width));
        let uncertain = widths.saturating_mul(3).saturating_add(3);
        (last.time_ns.wrapping_add(passed), uncertain) // wrapping: times count modulo 2^64.
    }

    /// The latest time that any reader can have been given by a counter that only went forward.
    pub(super) fn latest_by_line(&self, pair: &Pair) -> u64 {
        let passed = pair.tsc.wrapping_delta(self.line.anchor).as_ticks();
        let in_reach = self.line.span(passed.min(self.limit()));
        self.line.base_ns.wrapping_add(in_reach) // wrapping: times count modulo 2^64.
    }

    /// The time at which the clock goes on without the source.
    pub(super) fn go_on_without(&self, pair: &Pair, events: &mut Events) -> u64 {
        let by_line = self.line.at(pair.tsc);
        let (expected, tolerance) = self.expected(pair);
        let (by_operating_system, uncertain) = self.by_operating_system(pair);
        // wrapping: times count modulo 2^64.
        let latest = by_operating_system.wrapping_add(uncertain);
        let went_on = distance(by_line, expected).unsigned_abs() <= tolerance;
        // Back by less than the tolerance: readers were given what lies ahead of the line now.
        let behind = distance(by_operating_system, by_line);
        let set_back =
            self.slept(pair) == 0 && u64::try_from(behind).is_ok_and(|ns| ns > uncertain);
        if went_on && !set_back {
            by_line
        } else {
            events.counter_moves += 1;
            later(latest, self.last_check.time_ns)
        }
    }

    /// The time at which the clock goes on, given the new line's value.
    pub(super) fn go_on_with(&self, pair: &Pair, new: u64, events: &mut Events) -> u64 {
        let by_line = self.line.at(pair.tsc);
        if distance(new, by_line) >= 0 {
            // wrapping: times count modulo 2^64.
            let step = new.wrapping_sub(by_line);
            events.forward_ns = events.forward_ns.saturating_add(step);
            return new;
        }
        let (expected, tolerance) = self.expected(pair);
        let went_on = distance(by_line, expected).unsigned_abs() <= tolerance;
        let step = by_line.wrapping_sub(new);
        if went_on || step <= SMALL_STEP_NS.saturating_add(self.awake(pair) / 10_000) {
            events.held_ns = events.held_ns.saturating_add(step);
            by_line
        } else {
            events.counter_moves += 1;
            later(new, self.last_check.time_ns)
        }
    }
}

impl Checkpoint {
    pub(super) fn at(pair: &Pair, time_ns: u64, line: &Line) -> Self {
        Self {
            tsc: pair.tsc,
            time_ns,
            raw_ns: pair.raw_ns,
            width_ns: line.span(pair.width),
            suspended_ns: pair.suspended_ns,
        }
    }
}

impl OnCounter {
    /// The rate since the start, against the operating system's clock, if that is better known than the present one; the line bends where it is.
    pub(super) fn measure_rate(&mut self, pair: &Pair) {
        let passed = pair.raw_ns.saturating_sub(self.start.raw_ns);
        let counted = pair.tsc.wrapping_delta(self.start.tsc).as_ticks();
        let uncertain = u128::from(self.start.width_ns + self.last_check.width_ns + 2);
        // 10^-15 units of the relative error, rounded up, and one for the line's own last digit.
        let bound = wide::mul_div_ceil(uncertain, 1_000_000_000_000_000, passed.into());
        let bound = bound
            .and_then(|femto| i64::try_from(femto + 1).ok())
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
