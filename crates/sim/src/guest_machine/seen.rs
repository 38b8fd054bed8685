//! What a guest saw of its timer.

use chronovisor_stats::Histogram;

/// What came out of one run of one vCPU.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The time between two ticks, in ns of the guest's counter at its nominal rate.
    pub intervals: Histogram,
    /// Expiries that the timer took since it was last started, before the window included.
    pub expiries: u64,
    /// Those of them from before the window.
    pub expiries_before: u64,
    /// Expiries of one-shot timers that were started anew since.
    pub expiries_ended: u64,
    /// Interrupts that came before the guest's counter said that they were due.
    pub early: u64,
    /// The largest distance by which one was, in ns.
    pub earliest_ns: u64,
    /// How often the timer was armed and nothing would ever have fired it.
    pub lost_timers: u64,
    /// The most calls of a back-end in a row.
    pub longest_burst: u64,
    /// How often the preemption timer stopped the guest.
    pub preemption_wakes: u64,
    /// How often the software timer fired.
    pub software_wakes: u64,
    /// The largest distance between two copies of the deadline, in ns.
    pub deadlines_apart_ns: u64,
    /// Periods that passed within the window, by the guest's counter.
    pub due: u64,
}

impl Seen {
    /// Expiries within the window.
    #[must_use]
    pub const fn expiries_in_window(&self) -> u64 {
        self.expiries_ended + self.expiries - self.expiries_before
    }
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            // A second in ns: no allocation in an ordinary run.
            intervals: Histogram::preallocated(1_000_000_000),
            expiries: 0,
            expiries_before: 0,
            expiries_ended: 0,
            early: 0,
            earliest_ns: 0,
            lost_timers: 0,
            longest_burst: 0,
            preemption_wakes: 0,
            software_wakes: 0,
            deadlines_apart_ns: 0,
            due: 0,
        }
    }
}
