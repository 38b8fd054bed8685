//! The lines of a kernel's log that speak of clocks, each as a value.
//!
//! # References
//!
//! The printing code: Linux `kernel/time/clocksource.c`, `arch/x86/kernel/{tsc.c,tsc_sync.c,kvmclock.c}`,
//! `arch/x86/kernel/apic/apic.c`, `arch/x86/kernel/cpu/mshyperv.c`, `init/calibrate.c`, `kernel/sched/clock.c`, over the releases
//! from 2.6.32 on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why the kernel withdrew the TSC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UnstableReason {
    /// `clocksource watchdog`.
    ClocksourceWatchdog,
    /// `check_tsc_sync_source failed`.
    SyncCheckFailed,
    /// `running on Hyper-V`: a rule of the kernel, no observation.
    RunningOnHyperV,
    /// `could not calculate TSC khz`.
    NoFrequency,
    /// `TSCs unsynchronized`.
    Unsynchronised,
    /// `cpufreq changes`: a rule of the kernel.
    CpufreqChanges,
    /// The TSC halts in idle: a rule of the kernel.
    HaltsInIdle,
    /// The command line says so.
    CommandLine,
    /// Any other.
    Other(String),
}

/// One of the two counters of a watchdog verdict, as printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WatchdogBlock {
    /// Clock source.
    pub name: String,
    /// Interval that the kernel computed, in ns, in the generations that print it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsec: Option<i64>,
    /// Value at the check.
    pub now: u64,
    /// Value at the check before.
    pub last: u64,
    /// Mask of the counter.
    pub mask: u64,
}

/// The four numbers of a `sched_clock: Marking ..` line, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SchedClockLine {
    /// Clock by ticks.
    pub ticks_ns: i64,
    /// Its offset.
    pub ticks_offset_ns: i64,
    /// Raw clock.
    pub raw_ns: i64,
    /// Its offset.
    pub raw_offset_ns: i64,
}

/// A way to learn the TSC's frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Calibration {
    /// `Fast TSC calibration using PIT`.
    FastPit,
    /// Against PIT, in three rounds.
    Pit,
    /// Against HPET or the PM timer.
    HpetOrPmTimer,
    /// `could not calculate TSC khz`, `No reference (HPET/PMTIMER) available` and the like: nothing was left.
    NothingLeft,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It gave a frequency.
    Worked,
    /// It gave none.
    Failed,
}

/// How a CPU came to its delay loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DelayLoopSource {
    /// `(skipped) preset value`.
    Preset,
    /// `(skipped), value calculated using timer frequency`: from the TSC.
    TimerFrequency,
    /// `using timer specific routine`, or the plain loop: measured against ticks.
    Measured,
    /// `(skipped) already calibrated this CPU`.
    Kept,
}

/// What the clocks of a machine go through when it sleeps or is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Interruption {
    /// Going to sleep.
    SuspendEntry,
    /// Woken up.
    SuspendExit,
    /// Hibernation begins.
    HibernationEntry,
    /// Hibernation over.
    HibernationExit,
    /// `crng reseeded due to virtual machine fork`: restored from a snapshot or cloned.
    VmFork,
}

/// What one line of the kernel's log says about clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClockEvent {
    /// `Linux version ..`: a boot begins. Only the numbers of the release are kept.
    BootStarted {
        /// Release, numbers only.
        release: String,
    },
    /// The command line, only the words about clocks.
    CommandLine {
        /// Words.
        words: Vec<String>,
    },
    /// `Hypervisor detected: ..`.
    HypervisorDetected {
        /// Name.
        name: String,
    },
    /// `Hyper-V: privilege flags low .., high .., hints .., misc ..`.
    HyperVPrivileges {
        /// CPUID 0x40000003 EAX.
        low: u64,
        /// CPUID 0x40000003 EBX.
        high: u64,
        /// CPUID 0x40000004 EAX.
        hints: u64,
        /// CPUID 0x40000003 EDX.
        misc: u64,
    },
    /// `Hyper-V Host Build: ..`.
    HyperVHostBuild,
    /// `Hyper-V: LAPIC Timer Frequency: ..`, in Hz.
    HyperVApicFrequency {
        /// Frequency, in Hz.
        hz: u64,
    },
    /// `clocksource: NAME: mask: ..`.
    Registered {
        /// Clock source.
        name: String,
        /// Mask.
        mask: u64,
        /// Longest span without a read, in cycles.
        max_cycles: u64,
        /// The same span in ns, after the kernel's margins.
        max_idle_ns: u64,
    },
    /// `Switched to clocksource NAME`.
    Switched {
        /// Clock source.
        name: String,
    },
    /// `tsc: Detected .. MHz processor`.
    DetectedProcessor {
        /// Frequency, in kHz.
        khz: u64,
    },
    /// `tsc: Detected .. MHz TSC`.
    DetectedTsc {
        /// Frequency, in kHz.
        khz: u64,
    },
    /// `tsc: Refined TSC clocksource calibration: .. MHz`.
    Refined {
        /// Frequency, in kHz.
        khz: u64,
    },
    /// `Previous calibrated TSC freq: .. MHz`.
    PreviousFrequency {
        /// Frequency, in kHz.
        khz: u64,
    },
    /// `TSC freq recalibrated by [..]: .. MHz`.
    Recalibrated {
        /// Frequency, in kHz.
        khz: u64,
    },
    /// `Warning: TSC freq calibrated by CPUID/MSR differs ..`.
    CalibrationsDiffer,
    /// A way to the TSC's frequency, and what became of it.
    Calibrated {
        /// The way.
        method: Calibration,
        /// What became of it.
        outcome: Outcome,
    },
    /// `hpet0: .. MHz counter`.
    HpetFrequency {
        /// Frequency, in Hz.
        hz: u64,
    },
    /// `Calibrating delay loop ..`.
    DelayLoop {
        /// How.
        source: DelayLoopSource,
        /// BogoMIPS in hundredths.
        bogomips_hundredths: u64,
        /// Loops per tick, if printed.
        lpj: Option<u64>,
    },
    /// `Total of N processors activated (.. BogoMIPS)`.
    TotalBogomips {
        /// CPUs.
        cpus: u64,
        /// Sum in hundredths.
        bogomips_hundredths: u64,
    },
    /// `Measured N cycles TSC warp between CPUs`.
    Warp {
        /// Cycles.
        cycles: u64,
    },
    /// `TSC warped randomly between CPUs`.
    RandomWarp,
    /// `TSC ADJUST compensate: CPU.. observed .. warp. Adjust: ..`.
    WarpCompensated {
        /// CPU.
        cpu: u64,
        /// Warp in cycles.
        cycles: i64,
    },
    /// `TSC ADJUST differs: CPU.. .. --> ..`.
    AdjustDiffers {
        /// CPU.
        cpu: u64,
    },
    /// `Marking clocksource 'NAME' as unstable because the skew is too large`.
    WatchdogVerdict {
        /// The accused.
        name: String,
    },
    /// The reference's numbers of a verdict.
    WatchdogReference(WatchdogBlock),
    /// The accused's numbers of a verdict.
    WatchdogAccused(WatchdogBlock),
    /// `Clocksource 'NAME' skewed N ns (..) over watchdog 'WD' interval of M ns (..)`.
    WatchdogSkewed {
        /// The accused.
        name: String,
        /// Skew, in ns.
        skew_ns: i64,
        /// Reference.
        watchdog: String,
        /// Interval by the reference, in ns.
        interval_ns: i64,
    },
    /// `Marking clocksource NAME unstable due to frequency skew`.
    FrequencySkewVerdict {
        /// The accused.
        name: String,
    },
    /// `Watchdog NAME interval: N ns` of the newest generation.
    WatchdogInterval {
        /// Reference.
        name: String,
        /// Interval, in ns.
        interval_ns: u64,
    },
    /// `Clocksource NAME interval: N ns` of the newest generation.
    AccusedInterval {
        /// The accused.
        name: String,
        /// Interval, in ns.
        interval_ns: u64,
    },
    /// `Marking clocksource NAME unstable due to inter CPU skew`.
    CpuSkewVerdict {
        /// The accused.
        name: String,
    },
    /// `CPUa N < CPUb M (cycles)`.
    CpuSkew {
        /// The lower reading.
        lower: u64,
        /// The higher reading, taken earlier.
        higher: u64,
    },
    /// `CPUs .. ahead of CPU .. for clocksource NAME` or `behind`.
    CpusApart {
        /// The accused.
        name: String,
    },
    /// `Clocksource NAME unstable (delta = N ns)`: the oldest form.
    OldVerdict {
        /// The accused.
        name: String,
        /// Accused minus reference, in ns.
        delta_ns: i64,
    },
    /// `NAME wd-wd read-back delay of N ns`.
    ReadBackReference {
        /// Delay, in ns.
        delay_ns: u64,
    },
    /// `wd-NAME-wd read-back delay of N ns, clock-skew test skipped!`.
    ReadBackSkipped {
        /// Delay, in ns.
        delay_ns: u64,
    },
    /// `read-back delay of N ns, .. attempt .., marking .. unstable`.
    ReadBackVerdict {
        /// Delay with the accused in between, in ns.
        delay_ns: u64,
        /// Delay of the reference alone, in ns, if printed.
        reference_ns: Option<u64>,
    },
    /// `Watchdog NAME read timed out. Readout sequence took: N ns`.
    ReadTimedOut {
        /// Delay, in ns; none if a remote CPU did not answer.
        delay_ns: Option<u64>,
    },
    /// `watchdog_print_freq_timeout: N callbacks suppressed`.
    ReadTimeoutsSuppressed {
        /// Messages that were not printed.
        count: u64,
    },
    /// `retried N times before success`.
    ReadRetried {
        /// Tries.
        attempts: u64,
    },
    /// `Long readout interval, skipping watchdog check: cs_nsec: .. wd_nsec: ..`.
    LongInterval {
        /// Interval by the accused, in ns.
        accused_ns: i64,
        /// Interval by the reference, in ns.
        reference_ns: i64,
    },
    /// `Marking TSC unstable due to ..`.
    TscUnstable(UnstableReason),
    /// `TSC found unstable after boot, most likely due to broken BIOS`.
    BrokenBiosRemark,
    /// `sched_clock: Marking stable`.
    SchedClockStable(SchedClockLine),
    /// `sched_clock: Marking unstable`.
    SchedClockUnstable(SchedClockLine),
    /// `kvm-clock: Using msrs ..`.
    KvmClockMsrs,
    /// `kvm-clock: using sched offset of N cycles`: a value in ns, whatever the line says.
    KvmClockSchedOffset {
        /// Offset, in ns.
        offset_ns: u64,
    },
    /// `APIC calibration not consistent with PM-Timer: Xms instead of 100ms`.
    ApicInconsistent {
        /// What the PM timer measured for 100 ms of ticks.
        measured_ms: u64,
    },
    /// Suspend, hibernation, restore.
    Interrupted(Interruption),
    /// `setting system clock to YYYY-..` or `RTC time: .., date: YYYY-..`.
    ClockSetFromRtc {
        /// Year.
        year: u64,
    },
    /// A soft lockup or a stall of read-copy-update: a CPU did not get on for a while.
    CpuStalled {
        /// Seconds, where told.
        seconds: Option<u64>,
    },
    /// `hrtimer: interrupt took N ns`.
    SlowInterrupt {
        /// Duration, in ns.
        duration_ns: u64,
    },
}

impl ClockEvent {
    /// A short name of the kind of event.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::BootStarted { .. } => "boot",
            Self::CommandLine { .. } => "command-line",
            Self::HypervisorDetected { .. }
            | Self::HyperVPrivileges { .. }
            | Self::HyperVHostBuild
            | Self::HyperVApicFrequency { .. } => "hypervisor",
            Self::Registered { .. } => "registration",
            Self::Switched { .. } => "switch",
            Self::DetectedProcessor { .. }
            | Self::DetectedTsc { .. }
            | Self::Refined { .. }
            | Self::PreviousFrequency { .. }
            | Self::Recalibrated { .. }
            | Self::CalibrationsDiffer
            | Self::Calibrated { .. }
            | Self::HpetFrequency { .. } => "calibration",
            Self::DelayLoop { .. } | Self::TotalBogomips { .. } => "delay-loop",
            Self::Warp { .. }
            | Self::RandomWarp
            | Self::WarpCompensated { .. }
            | Self::AdjustDiffers { .. } => "synchronisation",
            Self::WatchdogVerdict { .. }
            | Self::WatchdogReference(_)
            | Self::WatchdogAccused(_)
            | Self::WatchdogSkewed { .. }
            | Self::FrequencySkewVerdict { .. }
            | Self::WatchdogInterval { .. }
            | Self::AccusedInterval { .. }
            | Self::CpuSkewVerdict { .. }
            | Self::CpuSkew { .. }
            | Self::CpusApart { .. }
            | Self::OldVerdict { .. }
            | Self::LongInterval { .. } => "watchdog",
            Self::ReadBackReference { .. }
            | Self::ReadBackSkipped { .. }
            | Self::ReadBackVerdict { .. }
            | Self::ReadTimedOut { .. }
            | Self::ReadTimeoutsSuppressed { .. }
            | Self::ReadRetried { .. } => "watchdog-read-back",
            Self::TscUnstable(_) | Self::BrokenBiosRemark => "tsc-unstable",
            Self::SchedClockStable(_) | Self::SchedClockUnstable(_) => "sched-clock",
            Self::KvmClockMsrs | Self::KvmClockSchedOffset { .. } => "kvm-clock",
            Self::ApicInconsistent { .. } => "apic",
            Self::Interrupted(_) => "interruption",
            Self::ClockSetFromRtc { .. } => "wall-clock",
            Self::CpuStalled { .. } | Self::SlowInterrupt { .. } => "stall",
        }
    }
}
