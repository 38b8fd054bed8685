//! The clock events of a log in order, each with its line.

use crate::evidence::{
    Calibration, ClockEvent, DelayLoopSource, Evidence, Interruption, LoggedEvent, Outcome,
    UnstableReason, WatchdogBlock,
};
use crate::forensics::registration;
use crate::rules::BootFacts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One boot's events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BootTimeline {
    /// Line of the log with which the boot starts.
    pub first_line: u64,
    /// Events, in the order of the log.
    pub events: Vec<TimelineEvent>,
    /// Events between the first and the last 1000 that are not told.
    pub left_out: u64,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TimelineEvent {
    /// Line of the log.
    pub line: u64,
    /// Microseconds since boot, if the line has a stamp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us: Option<u64>,
    /// Kind of event.
    pub kind: String,
    /// What the line says, in a few words.
    pub text: String,
}

/// The timeline of every boot that was kept.
#[must_use]
pub fn timeline(evidence: &Evidence) -> Vec<BootTimeline> {
    let Some(log) = evidence.kernel_log.seen() else {
        return Vec::new();
    };
    log.boots
        .iter()
        .map(|boot| BootTimeline {
            first_line: boot.first_line,
            events: boot.events.iter().map(told).collect(),
            left_out: boot.events.count_left_out(),
        })
        .collect()
}

fn told(logged: &LoggedEvent) -> TimelineEvent {
    TimelineEvent {
        line: logged.line,
        us: logged.stamp.map(|stamp| stamp.us),
        kind: logged.event.kind().to_owned(),
        text: words(&logged.event),
    }
}

/// The hypervisor that a boot's log names.
pub(super) fn hypervisor(boot: &BootFacts<'_>) -> Option<String> {
    boot.first(|event| match event {
        ClockEvent::HypervisorDetected { name } => Some(name.clone()),
        ClockEvent::KvmClockMsrs | ClockEvent::KvmClockSchedOffset { .. } => Some("KVM".to_owned()),
        ClockEvent::HyperVHostBuild | ClockEvent::HyperVPrivileges { .. } => {
            Some("Microsoft Hyper-V".to_owned())
        }
        _ => None,
    })
    .map(|(name, _)| name)
}

/// The kernel release that a boot's log names.
pub(super) fn release(boot: &BootFacts<'_>) -> Option<String> {
    boot.first(|event| match event {
        ClockEvent::BootStarted { release } => Some(release.clone()),
        _ => None,
    })
    .map(|(release, _)| release)
}

fn mhz(khz: u64) -> String {
    format!("{}.{:03} MHz", khz / 1000, khz % 1000)
}

fn block(block: &WatchdogBlock) -> String {
    format!(
        "{} {:#x} -> {:#x}{}",
        block.name,
        block.last,
        block.now,
        block.nsec.map_or(String::new(), |ns| format!(", {ns} ns"))
    )
}

/// An event in a few words.
fn words(event: &ClockEvent) -> String {
    match event {
        ClockEvent::BootStarted { release } => format!("boot, Linux {release}"),
        ClockEvent::CommandLine { words } if words.is_empty() => {
            "command line says nothing about clocks".to_owned()
        }
        ClockEvent::CommandLine { words } => format!("command line: {}", words.join(" ")),
        ClockEvent::HypervisorDetected { name } => format!("hypervisor {name}"),
        ClockEvent::HyperVPrivileges { low, misc, .. } => {
            format!("Hyper-V privileges {low:#x}, features {misc:#x}")
        }
        ClockEvent::HyperVHostBuild => "Hyper-V host".to_owned(),
        ClockEvent::HyperVApicFrequency { hz } => format!("local timer declared at {hz} Hz"),
        ClockEvent::Registered {
            name,
            max_cycles,
            max_idle_ns,
            ..
        } => format!(
            "{name} registered{}",
            registration::frequency(*max_cycles, *max_idle_ns)
                .map_or(String::new(), |rate| format!(" at {:.6} MHz", rate.mhz()))
        ),
        ClockEvent::Switched { name } => format!("switched to {name}"),
        ClockEvent::DetectedProcessor { khz } => format!("detected {} processor", mhz(*khz)),
        ClockEvent::DetectedTsc { khz } => format!("detected {} TSC", mhz(*khz)),
        ClockEvent::Refined { khz } => format!("TSC refined to {}", mhz(*khz)),
        ClockEvent::PreviousFrequency { khz } => format!("TSC by CPUID or MSR: {}", mhz(*khz)),
        ClockEvent::Recalibrated { khz } => format!("TSC recalibrated to {}", mhz(*khz)),
        ClockEvent::CalibrationsDiffer => "TSC calibrations differ".to_owned(),
        ClockEvent::Calibrated { method, outcome } => calibration(*method, *outcome).to_owned(),
        ClockEvent::HpetFrequency { hz } => format!("HPET at {hz} Hz"),
        ClockEvent::DelayLoop {
            source,
            bogomips_hundredths,
            ..
        } => format!(
            "delay loop {}: {}.{:02} BogoMIPS",
            match source {
                DelayLoopSource::Preset => "preset",
                DelayLoopSource::TimerFrequency => "from the TSC",
                DelayLoopSource::Measured => "measured",
                DelayLoopSource::Kept => "kept",
            },
            bogomips_hundredths / 100,
            bogomips_hundredths % 100
        ),
        ClockEvent::TotalBogomips {
            cpus,
            bogomips_hundredths,
        } => format!(
            "{cpus} CPUs, {}.{:02} BogoMIPS",
            bogomips_hundredths / 100,
            bogomips_hundredths % 100
        ),
        ClockEvent::Interrupted(interruption) => match interruption {
            Interruption::SuspendEntry => "suspend begins",
            Interruption::SuspendExit => "woken from suspend",
            Interruption::HibernationEntry => "hibernation begins",
            Interruption::HibernationExit => "woken from hibernation",
            Interruption::VmFork => "restored from a snapshot or cloned",
        }
        .to_owned(),
        ClockEvent::ClockSetFromRtc { year } => format!("wall clock from the RTC, year {year}"),
        ClockEvent::CpuStalled { seconds } => format!(
            "a CPU did not get on{}",
            seconds.map_or(String::new(), |s| format!(" for {s} s"))
        ),
        ClockEvent::SlowInterrupt { duration_ns } => {
            format!("a timer interrupt took {duration_ns} ns")
        }
        ClockEvent::KvmClockMsrs => "kvm-clock".to_owned(),
        ClockEvent::KvmClockSchedOffset { offset_ns } => {
            format!("kvm-clock as scheduler clock, offset {offset_ns} ns")
        }
        ClockEvent::ApicInconsistent { measured_ms } => {
            format!("APIC calibration: {measured_ms} ms by the PM timer instead of 100 ms")
        }
        ClockEvent::SchedClockStable(_) => "scheduler clock stable".to_owned(),
        ClockEvent::SchedClockUnstable(line) => format!(
            "scheduler clock unstable, offset {} ns",
            line.ticks_offset_ns
        ),
        other => watchdog_words(other),
    }
}

fn calibration(method: Calibration, outcome: Outcome) -> &'static str {
    match (method, outcome) {
        (Calibration::FastPit, Outcome::Worked) => "fast calibration against the PIT",
        (Calibration::FastPit, Outcome::Failed) => "fast calibration against the PIT failed",
        (Calibration::Pit, Outcome::Worked) => "calibration against the PIT",
        (Calibration::Pit, Outcome::Failed) => "calibration against the PIT failed",
        (Calibration::HpetOrPmTimer, Outcome::Worked) => "calibration against HPET or PM timer",
        (Calibration::HpetOrPmTimer, Outcome::Failed) => {
            "calibration against HPET or PM timer failed"
        }
        (Calibration::NothingLeft, _) => "nothing left to calibrate against",
    }
}

fn watchdog_words(event: &ClockEvent) -> String {
    match event {
        ClockEvent::WatchdogVerdict { name } => format!("watchdog marks {name} unstable"),
        ClockEvent::WatchdogReference(numbers) => format!("reference {}", block(numbers)),
        ClockEvent::WatchdogAccused(numbers) => format!("accused {}", block(numbers)),
        ClockEvent::WatchdogSkewed {
            name,
            skew_ns,
            watchdog,
            interval_ns,
        } => format!("{name} skewed {skew_ns} ns over {interval_ns} ns of {watchdog}"),
        ClockEvent::FrequencySkewVerdict { name } => {
            format!("watchdog marks {name} unstable: frequency")
        }
        ClockEvent::WatchdogInterval { name, interval_ns } => {
            format!("reference {name}: {interval_ns} ns")
        }
        ClockEvent::AccusedInterval { name, interval_ns } => {
            format!("accused {name}: {interval_ns} ns")
        }
        ClockEvent::CpuSkewVerdict { name } => {
            format!("watchdog marks {name} unstable: skew between CPUs")
        }
        ClockEvent::CpuSkew { lower, higher } => format!("later reading {lower} < {higher}"),
        ClockEvent::CpusApart { name } => format!("CPUs apart in {name}"),
        ClockEvent::OldVerdict { name, delta_ns } => format!("{name} unstable by {delta_ns} ns"),
        ClockEvent::ReadBackReference { delay_ns } => {
            format!("reading the reference took {delay_ns} ns")
        }
        ClockEvent::ReadBackSkipped { delay_ns } => {
            format!("check skipped, read took {delay_ns} ns")
        }
        ClockEvent::ReadBackVerdict { delay_ns, .. } => {
            format!("marked unstable because a read took {delay_ns} ns")
        }
        ClockEvent::ReadTimedOut { delay_ns } => format!(
            "check skipped{}",
            delay_ns.map_or(String::new(), |ns| format!(", read took {ns} ns"))
        ),
        ClockEvent::ReadTimeoutsSuppressed { count } => format!("{count} more skipped checks"),
        ClockEvent::ReadRetried { attempts } => format!("reference read after {attempts} tries"),
        ClockEvent::LongInterval { reference_ns, .. } => {
            format!("check skipped, it came after {reference_ns} ns")
        }
        ClockEvent::Warp { cycles } => format!("TSC warp of {cycles} cycles"),
        ClockEvent::RandomWarp => "TSC warps at random".to_owned(),
        ClockEvent::WarpCompensated { cpu, cycles } => {
            format!("TSC of CPU {cpu} adjusted by {cycles} cycles")
        }
        ClockEvent::AdjustDiffers { cpu } => format!("TSC_ADJUST of CPU {cpu} differs"),
        ClockEvent::TscUnstable(reason) => format!(
            "TSC marked unstable: {}",
            match reason {
                UnstableReason::ClocksourceWatchdog => "clocksource watchdog",
                UnstableReason::SyncCheckFailed => "synchronisation test failed",
                UnstableReason::RunningOnHyperV => "running on Hyper-V (a rule)",
                UnstableReason::NoFrequency => "no frequency",
                UnstableReason::Unsynchronised => "not synchronised",
                UnstableReason::CpufreqChanges => "CPU frequency changes (a rule)",
                UnstableReason::HaltsInIdle => "halts in idle (a rule)",
                UnstableReason::CommandLine => "command line",
                UnstableReason::Other(text) => text,
            }
        ),
        ClockEvent::BrokenBiosRemark => "the kernel's remark about a broken BIOS".to_owned(),
        _ => event.kind().to_owned(),
    }
}
