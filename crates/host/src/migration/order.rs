//! The order in which a VMM restores what touches time, and why.

/// One step of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreStep {
    /// What to restore.
    pub what: &'static str,
    /// Why here.
    pub because: &'static str,
}

const fn step(what: &'static str, because: &'static str) -> RestoreStep {
    RestoreStep { what, because }
}

/// What to restore, in this order.
pub const RESTORE_ORDER: [RestoreStep; 11] = [
    step(
        "the VM's TSC rate and local APIC bus rate",
        "they must be set before there are vCPUs",
    ),
    step(
        "CPUID",
        "deadline mode and the invariant bit must exist before the local APIC and the MSRs are checked against them",
    ),
    step(
        "the TSC offset of every vCPU, exactly and equal",
        "unequal or calibrated offsets switch the stable bit and the reference page off",
    ),
    step(
        "system registers (APIC base), then the local APIC, then the MSRs",
        "a deadline written before deadline mode is dropped, and restoring the local APIC would clear it",
    ),
    step(
        "the TSC before the TSC deadline",
        "the deadline is compared with the counter",
    ),
    step(
        "a timer interrupt that was pending, or whose deadline reads 0 without its interrupt delivered",
        "the guest would wait for ever",
    ),
    step(
        "the clock: the MSR surface from its adjusted state, then an update with Change::Resume",
        "until it is published every page is invalid, and no vCPU may run with an old line",
    ),
    step(
        "Change::GuestStopped, if the guest is to know that it was stopped",
        "the flag goes into the records as they are published, and survives a save that comes before",
    ),
    step(
        "the synthetic timers, with their wake-ups from the clock",
        "their due times are reference time, which goes on only now",
    ),
    step(
        "the VMClock notification",
        "the guest looks at the markers after they have changed",
    ),
    step(
        "read back: deadline, timer mode, offsets",
        "an interface that dropped one of them did so silently",
    ),
];
