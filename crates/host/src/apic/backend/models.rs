//! The two kinds of timer that a host offers, as state without a clock.

use chronovisor_abi::quantity::{Hertz, Nanos, Ppb, Reading, Tsc, TscDelta};
use chronovisor_abi::wide;

use super::super::effects::Deadline;
use super::super::mutant::{Mutant, is};
use super::Backend;

/// The deadline is further away than the back-end counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the deadline is {} ticks away, this back-end counts {} at most: use the software timer", remaining.as_ticks(), range.as_ticks())]
pub struct OutOfRange {
    /// The distance to the deadline.
    pub remaining: TscDelta,
    /// The longest distance.
    pub range: TscDelta,
}

/// A timer of the host's monotonic clock, in ns (a timerfd, an hrtimer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftwareTimer {
    tsc: Hertz,
    slew: Ppb,
    expires: Option<Nanos>,
}

impl SoftwareTimer {
    /// A timer that is not set, for a guest TSC of `tsc`.
    #[must_use]
    pub const fn new(tsc: Hertz) -> Self {
        Self {
            tsc,
            slew: Ppb::ZERO,
            expires: None,
        }
    }

    /// The same on a host whose clock a time daemon may run fast by up to `slew`: each wake-up is set later by that share of its distance, which saves
    /// the one that would come just before the deadline and have to be set again. Linux allows a daemon 500 ppm.
    ///
    /// ```
    /// # use chronovisor_abi::quantity::{Hertz, Nanos, Ppb, Reading, Tsc};
    /// # use chronovisor_host::apic::{Backend, Deadline, SoftwareTimer};
    /// let mut timer = SoftwareTimer::new(Hertz::from_hz(1_000_000_000).expect("positive")).with_slew(Ppb::from_ppb_saturating(7_000));
    /// let (now, in_1_ms) = (Reading::default(), Deadline::at_distance(Tsc::from_ticks(1_000_000)));
    /// timer.set(in_1_ms, now).expect("never out of range");
    /// // 7 ns for the slew, 1 ns for the reading, which is rounded down.
    /// assert_eq!(timer.expires(), Some(Nanos::from_ns(1_000_008)));
    /// ```
    #[must_use]
    pub const fn with_slew(mut self, slew: Ppb) -> Self {
        self.slew = slew.saturating_abs();
        self
    }

    /// The host time at which it wakes, or `None` if it is not set.
    #[must_use]
    pub const fn expires(&self) -> Option<Nanos> {
        self.expires
    }

    /// The guest TSC goes at another rate from now on; set the wake-up again.
    pub fn set_tsc_rate(&mut self, tsc: Hertz) {
        self.tsc = tsc;
    }
}

impl Backend for SoftwareTimer {
    /// Never out of range: a time beyond 2^64 ns is held there, and a wake-up that comes too early sets it again.
    fn set(&mut self, deadline: Deadline, now: Reading<Nanos>) -> Result<(), OutOfRange> {
        if is(Mutant::BackendOwnsDeadline) && self.expires.is_some_and(|old| old <= now.time) {
            // The fault of 2018: the period is added to the back-end's own, rounded deadline.
            let period = ceil_nanos(deadline.remaining(now.tsc), self.tsc);
            let old = self.expires.unwrap_or(now.time);
            self.expires = Some(old.saturating_add(period));
            return Ok(());
        }
        let wait = ceil_nanos(deadline.remaining(now.tsc), self.tsc);
        // The reading is rounded down to a nanosecond: without one more the wake-up would often come just before the deadline.
        let rounding = Nanos::from_ns(u64::from(wait != Nanos::ZERO));
        let wait = wait
            .saturating_add(rounding)
            .saturating_add(share_ceil(wait, self.slew));
        self.expires = Some(now.time.saturating_add(wait));
        Ok(())
    }

    fn clear(&mut self) {
        self.expires = None;
    }
}

/// `ticks` at `rate` in ns, rounded up; held at 2^64.
fn ceil_nanos(ticks: TscDelta, rate: Hertz) -> Nanos {
    let per_tick = u128::from(rate.denominator()) * 1_000_000_000;
    let ns = wide::mul_div_ceil(
        u128::from(ticks.as_ticks()),
        per_tick,
        u128::from(rate.numerator()),
    );
    ns.and_then(|ns| u64::try_from(ns).ok())
        .map_or(Nanos::MAX, Nanos::from_ns)
}

/// `share` of `span`, rounded up.
fn share_ceil(span: Nanos, share: Ppb) -> Nanos {
    let femto = u128::from(share.as_femto().unsigned_abs());
    let ns = (u128::from(span.as_ns()) * femto).div_ceil(1_000_000_000_000_000);
    u64::try_from(ns).map_or(Nanos::MAX, Nanos::from_ns)
}

/// A timer of the virtual processor that counts the guest's TSC in steps of 2^n while the guest runs (the VMX preemption timer).
///
/// It counts the steps of the counter's bit n, so a value loaded between two steps reaches zero on a step: the deadline's, or the next one after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptionTimer {
    granularity_log2: u32,
    load: Option<Load>,
}

/// A value in the timer and where it was put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    value: u32,
    step: u64,
}

impl PreemptionTimer {
    /// A timer with steps of 2^`granularity_log2` ticks that is not set; `None` above 31. Processors have 5 (32 ticks).
    #[must_use]
    pub const fn new(granularity_log2: u32) -> Option<Self> {
        if granularity_log2 > 31 {
            return None;
        }
        Some(Self {
            granularity_log2,
            load: None,
        })
    }

    /// The value for the timer's field, or `None` if it is not set.
    #[must_use]
    pub fn value(&self) -> Option<u32> {
        self.load.map(|load| load.value)
    }

    /// The guest TSC at which a guest that runs all the time is interrupted, or `None` if it is not set.
    #[must_use]
    pub fn expires(&self) -> Option<Tsc> {
        self.load.map(|load| {
            // wrapping: the counter itself wraps.
            let step = load.step.wrapping_add(u64::from(load.value));
            Tsc::from_ticks(step << self.granularity_log2)
        })
    }

    /// The longest distance that it counts.
    #[must_use]
    pub const fn range(&self) -> TscDelta {
        TscDelta::from_ticks((u32::MAX as u64) << self.granularity_log2)
    }
}

impl Backend for PreemptionTimer {
    fn set(&mut self, deadline: Deadline, now: Reading<Nanos>) -> Result<(), OutOfRange> {
        let remaining = deadline.remaining(now.tsc);
        let n = self.granularity_log2;
        let into_step = now.tsc.as_ticks() & ((1 << n) - 1);
        let steps = u128::from(remaining.as_ticks()) + u128::from(into_step);
        let steps = if is(Mutant::EarlyWakeExpires) {
            steps >> n
        } else {
            steps.div_ceil(1 << n)
        };
        // A deadline that is reached already must not wait for the end of the step.
        let steps = if remaining == TscDelta::ZERO {
            0
        } else {
            steps
        };
        let Ok(value) = u32::try_from(steps) else {
            self.load = None;
            let range = self.range();
            return Err(OutOfRange { remaining, range });
        };
        let step = now.tsc.as_ticks() >> n;
        self.load = Some(Load { value, step });
        Ok(())
    }

    fn clear(&mut self) {
        self.load = None;
    }
}
