//! How the process's clock goes on when its source changes: never back, and as continuous as the sources allow.
//!
//! # Theory
//!
//! Three clocks can say what the time is at a switch: the *old line* at the present counter, right if the counter went on as before; the *new line*,
//! right if the hypervisor's clock went on; and the operating system's clock since the last check, with what it slept. A healthy switch has all three agree.
//! Otherwise:
//!
//! | what is seen | what happened | the clock |
//! | --- | --- | --- |
//! | new >= old | an update, a pause that the hypervisor counts, or the counter was set back | follows the new line |
//! | new < old, by little, or the operating system agrees with old | the hypervisor's clock stepped back | goes on from the old value, ahead of the hypervisor's from then on |
//! | new < old by much, and the operating system disagrees with old | the counter was set ahead | follows the new line |
//! | no new line | the source is not usable now | goes on with the operating system's clock from the old value |
//! | no new line, and the operating system disagrees with old | the counter moved too | goes on with the operating system's clock since the last check |
//!
//! The line is checked against the operating system's clock after 1 ms, 2 ms, .. 64 s. Three disagreements of more than 1000 ppm in a row, and the source is not
//! trusted until its page changes.

mod on_counter;

use self::on_counter::{Checkpoint, FIRST_CHECK_NS, OnCounter, distance, later};
use super::machine::Pair;
use super::published::Current;
use super::report::Events;
use super::source::{SourceKind, Unusable, Usable};
use chronovisor_abi::quantity::{Hertz, Ppb};

/// The longest span between two checks.
const LAST_CHECK_NS: u64 = 64_000_000_000;
/// Disagreements in a row that end the trust in a source.
const STRIKES: u32 = 3;

/// The clock stands on the operating system's.
#[derive(Clone, Copy, Debug)]
struct OnOperatingSystem {
    offset_ns: u64,
    judged: u32,
    why: Unusable,
    /// The word of a page whose rate was wrong.
    distrusted: Option<u32>,
    guest_was_stopped: bool,
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
                guest_was_stopped: false,
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
                let time_ns = old.go_on_without(pair, &mut self.events);
                self.fall_back(&old, pair, time_ns, why, judged)
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
        self.count_stop(old.guest_was_stopped, new);
        let by_new_line = new.line.at(pair.tsc).wrapping_add(old.bias_ns); // wrapping: times count modulo 2^64.
        let time_ns = old.go_on_with(pair, by_new_line, &mut self.events);
        self.state = State::OnCounter(OnCounter::new(new, pair, time_ns, self.kind));
        time_ns
    }

    /// The source is not usable: the operating system's clock goes on from `time_ns`.
    fn fall_back(
        &mut self,
        old: &OnCounter,
        pair: &Pair,
        time_ns: u64,
        why: Unusable,
        judged: u32,
    ) -> u64 {
        self.events.fall_backs += 1;
        let distrusted = matches!(why, Unusable::RateDisagrees { .. }).then_some(judged);
        self.state = State::OnOperatingSystem(OnOperatingSystem {
            offset_ns: time_ns.wrapping_sub(pair.raw_ns), // wrapping: offsets count modulo 2^64.
            judged,
            why,
            distrusted,
            guest_was_stopped: old.guest_was_stopped,
        });
        time_ns
    }

    /// The host says that it stopped the guest, and did not say so before.
    fn count_stop(&mut self, before: bool, new: &Usable) {
        if new.guest_was_stopped && !before {
            self.events.guest_stops += 1;
        }
    }

    /// The source is usable again.
    fn come_back(&mut self, old: &OnOperatingSystem, new: &Usable, pair: &Pair) -> u64 {
        self.events.returns += 1;
        self.count_stop(old.guest_was_stopped, new);
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
            let slept = old.slept(pair) > 0;
            old.strikes = 0;
            old.check_after_ns = old.check_after_ns.saturating_mul(2).min(LAST_CHECK_NS);
            old.last_check = Checkpoint::at(pair, time_ns, &old.line);
            if slept {
                // The two clocks' rates cannot be compared over a sleep.
                old.start = old.last_check;
                old.check_after_ns = FIRST_CHECK_NS;
            } else if self.kind == SourceKind::KernelTsc {
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
            let new_time_ns = later(expected, old.latest_by_line(pair));
            return self.fall_back(&old, pair, new_time_ns, why, old.tag);
        }
        // A page is the hypervisor's word for a jump forward; a bare counter has no such authority.
        let follows =
            self.kind != SourceKind::KernelTsc && distance(time_ns, old.last_check.time_ns) >= 0;
        let new_time_ns = if follows {
            time_ns
        } else {
            self.events.counter_moves += 1;
            let given = if off > 0 {
                old.latest_by_line(pair)
            } else {
                old.last_check.time_ns
            };
            later(expected, given)
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
