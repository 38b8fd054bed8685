//! The stable names of findings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// What was found. The names are stable: scripts and alerts may rely on them.
        ///
        /// What each means, how it is told and what to do stands in the [catalogue](crate::catalogue).
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
        )]
        pub enum Code {
            $($(#[doc = $doc])* #[serde(rename = $name)] $variant,)*
        }

        impl Code {
            /// Every code, in the order of the list.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

codes! {
    /// Each read of the clock in use is a system call or a VM exit.
    SlowReadPath = "slow-read-path",
    /// The clock in use could be read in user space, but is not.
    VdsoFallback = "vdso-fallback",
    /// The command line picks a clock source or vouches for one.
    ClocksourceForced = "clocksource-forced",
    /// A faster source is listed and not used.
    BetterClocksourceAvailable = "better-clocksource-available",
    /// The kernel withdrew the TSC.
    TscMarkedUnstable = "tsc-marked-unstable",
    /// The reference of the watchdog wrapped.
    WatchdogWrapped = "watchdog-wrapped",
    /// The watchdog came late.
    WatchdogIntervalStretched = "watchdog-interval-stretched",
    /// The watchdog's reference was too slow to read.
    WatchdogReadbackNoise = "watchdog-readback-noise",
    /// A counter stands at a new base.
    CounterReset = "counter-reset",
    /// The reference counts interrupts and missed some.
    ReferenceLostTicks = "reference-lost-ticks",
    /// The TSC went back between two CPUs in the kernel's test.
    TscWarp = "tsc-warp",
    /// The rate of a clock changed at one moment.
    RateStep = "rate-step",
    /// Every clock of the guest has the same wrong rate.
    RateErrorBelowGuest = "rate-error-below-guest",
    /// The guest did not run for a while.
    GuestPaused = "guest-paused",
    /// The wall clock jumps.
    WallClockStepped = "wall-clock-stepped",
    /// The wall clock stays behind after a restore.
    WallClockStaleAfterRestore = "wall-clock-stale-after-restore",
    /// The delay loop of a CPU does not fit the TSC.
    WrongLpj = "wrong-lpj",
    /// The local timer's tick is off by a fixed ratio.
    ApicTimerMiscalibrated = "apic-timer-miscalibrated",
    /// A time lost its upper bits.
    TruncatedNanoseconds = "truncated-nanoseconds",
    /// The kernel found no reference for the TSC.
    CalibrationFailed = "calibration-failed",
    /// The reference page keeps old values.
    StaleReferencePage = "stale-reference-page",
    /// Page and counter tell different times.
    PageCounterDivergence = "page-counter-divergence",
    /// The guest never enables the page that it is offered.
    ReferencePageRefused = "reference-page-refused",
    /// The TSC offsets of the vCPUs differ.
    VcpuOffsetsDiffer = "vcpu-offsets-differ",
    /// Time goes back between vCPUs.
    CrossVcpuBackwards = "cross-vcpu-backwards",
    /// The local timer of a vCPU is dead.
    DeadlineTimerLost = "deadline-timer-lost",
    /// The host took a large share of the time.
    HostStealSpikes = "host-steal-spikes",
    /// Frequencies contradict each other.
    FrequencySourcesDisagree = "frequency-sources-disagree",
    /// The wall clock started years off.
    EpochMissing = "epoch-missing",
    /// Nothing disciplines the wall clock, or its bound is unknown.
    ClockUnsynchronised = "clock-unsynchronised",
    /// A clock library parts from the system clock.
    LibraryCalibrationDrift = "library-calibration-drift",
}

/// How much a finding weighs in the verdict.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Said beside the verdict, which it does not change.
    Note,
    /// Seen, but by itself it settles nothing.
    Observation,
    /// Something to act on.
    Fault,
}

impl Code {
    /// The code of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.name() == name)
    }

    /// What a finding of this code weighs.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Self::ClockUnsynchronised => Severity::Note,
            Self::TscMarkedUnstable
            | Self::ClocksourceForced
            | Self::BetterClocksourceAvailable
            | Self::WatchdogReadbackNoise => Severity::Observation,
            _ => Severity::Fault,
        }
    }
}

impl core::fmt::Display for Code {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn names_are_unique_and_lead_back() {
        for code in Code::ALL {
            assert_eq!(Code::from_name(code.name()), Some(*code));
            assert_eq!(
                serde_json::to_string(code).unwrap(),
                format!("\"{}\"", code.name())
            );
        }
        assert_eq!(Code::ALL.len(), 31);
        assert_eq!(Code::from_name("tsc"), None);
    }
}
