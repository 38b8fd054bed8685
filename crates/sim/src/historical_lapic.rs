//! Local APIC timers as they were, each behind the trait that drives ours, each with what it gets wrong.
//!
//! # Theory
//!
//! Before Linux 4.10 KVM ran a guest's periodic timer on a host software timer. Commit 8003c9ae204e let the preemption timer serve it while the
//! vCPU runs. The deadline then existed twice, as a time of the host's clock and as a value of the guest's counter, and each expiry
//! advanced both by one period: by so many ns and by so many cycles. The two clocks differ (whole kHz, whole cycles, NTP), so the copies
//! drift apart for as long as the timer runs, and each change of back-end makes the guest wait out, or catch up, all of the
//! difference.
//!
//! # Practice
//!
//! | model | what it gets wrong |
//! | --- | --- |
//! | [`Before8003c9ae`] `linux_before_8003c9ae` | ticks by the host's slewed clock: too fast or slow against the guest's own counter; a late callback is caught up call by call |
//! | [`TwoDeadlines`] `linux_8003c9ae` | two deadlines that drift apart: spikes of the whole drift, growing with uptime |
//! | [`SeedPatch`] `seed_patch` | a halt restarts the full period (the phase is lost, ticks come in extra); a one-shot timer expires at the halt and is never armed |
//! | [`Resynchronised`] `linux_2018_fix` | one truth again, but after a stall the negative distance becomes a huge deadline: every missed period is a callback in a row, and the preemption timer is not used again |
//! | [`Resynchronised`] `linux_2025_fix` | after a stall the next tick counts from now: the phase is lost; and it still ticks by the host's clock |
//!
//! # Migration
//!
//! None of them is migrated here.
//!
//! # Caveats
//!
//! These are models of behaviour, written from commit messages, reports and published analyses, not copies of code. The host's time that
//! callbacks take is not simulated, only their number is told. Products of ns and kHz are exact where the kernel uses 32-bit multipliers (0.2 ppb).
//! TSC-deadline mode is not modelled: none of these changes touched it.
//!
//! # References
//!
//! Linux commits 8003c9ae204e (4.10), d8f2f498d9ed (4.17), 98c25ead5eda, 18ab3fc8e880 (2025); the report and first patch of April 2018 on the
//! KVM mailing list ("spikes" of a Windows guest's 1 ms timer).

mod before_8003c9ae;
mod resynchronised;
mod seed_patch;
mod two_deadlines;

pub use before_8003c9ae::Before8003c9ae;
pub use resynchronised::{AfterStall, Resynchronised};
pub use seed_patch::SeedPatch;
pub use two_deadlines::TwoDeadlines;

use chronovisor_abi::quantity::{Nanos, TscDelta};

/// Which back-end a model has armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Backend {
    /// The host's software timer.
    #[default]
    Software,
    /// The preemption timer.
    Preemption,
}

/// The rate at which KVM converts ns into cycles: whole kHz, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Khz(u64);

impl Khz {
    fn cycles(self, span: Nanos) -> TscDelta {
        let cycles = u128::from(span.as_ns()) * u128::from(self.0) / 1_000_000;
        TscDelta::from_ticks(u64::try_from(cycles).unwrap_or(u64::MAX))
    }

    /// The ns that `ticks` take, signed, for reports.
    fn nanos(self, ticks: i128) -> i64 {
        i64::try_from(ticks * 1_000_000 / i128::from(self.0.max(1))).unwrap_or(i64::MAX)
    }
}

/// How many periods to add to `due` until it lies after `now`: 0 if it does so already.
fn periods_until_after(due: Nanos, now: Nanos, period: Nanos) -> u64 {
    match now.checked_sub(due) {
        Some(late) => late.as_ns() / period.as_ns().max(1) + 1,
        None => 0,
    }
}

/// `count` times `span`, held at 584 years.
fn times(span: Nanos, count: u64) -> Nanos {
    Nanos::from_ns(span.as_ns().saturating_mul(count))
}

#[cfg(test)]
mod tests;
