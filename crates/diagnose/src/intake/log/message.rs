//! From the text of a kernel line to what it says.
//!
//! A line is looked at only where one of [`ANCHORS`] stands in it, and then only the templates of that anchor's family are
//! tried, so that a log of any size costs little more than the search for the anchors.

use super::calibration::{calibration, delay_loop, hpet, sched_clock, tsc};
use super::fields::{after, leading_number, number};
use super::machine::{boot, command_line, hyper_v, hypervisor, kvm_clock, power, rtc, stall};
use super::watchdog::{clocksource, read_back, watchdog_numbers, watchdog_verdict};
use crate::evidence::{ClockEvent, Interruption};

/// A group of templates that share an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Clocksource,
    WatchdogNumbers,
    ReadBack,
    Tsc,
    Calibration,
    SchedClock,
    KvmClock,
    HyperV,
    Boot,
    CommandLine,
    Hypervisor,
    DelayLoop,
    Apic,
    Power,
    Fork,
    Rtc,
    Stall,
    Interrupt,
    Hpet,
}

/// Texts that a line about clocks cannot do without, and the family that each leads to.
pub(super) const ANCHORS: [(&str, Family); 29] = [
    ("locksource", Family::Clocksource),
    ("wd_now: ", Family::WatchdogNumbers),
    ("cs_now: ", Family::WatchdogNumbers),
    ("timekeeping watchdog", Family::ReadBack),
    ("read-back delay", Family::ReadBack),
    ("print_freq_timeout", Family::ReadBack),
    ("tsc: ", Family::Tsc),
    ("TSC", Family::Tsc),
    ("PMTIMER", Family::Calibration),
    ("PIT calibration", Family::Calibration),
    ("sched_clock: Mark", Family::SchedClock),
    ("kvm-clock: ", Family::KvmClock),
    ("Hyper-V", Family::HyperV),
    ("Linux version ", Family::Boot),
    ("ommand line: ", Family::CommandLine),
    ("ypervisor detected: ", Family::Hypervisor),
    ("BogoMIPS", Family::DelayLoop),
    ("APIC calibration", Family::Apic),
    ("PM: ", Family::Power),
    ("irtual machine fork", Family::Fork),
    ("system clock to ", Family::Rtc),
    ("RTC time: ", Family::Rtc),
    ("soft lockup", Family::Stall),
    ("detected stall", Family::Stall),
    ("self-detected stall", Family::Stall),
    ("interrupt took ", Family::Interrupt),
    ("hpet0: ", Family::Hpet),
    ("TIME: hpet", Family::Hpet),
    ("HPET calib", Family::Calibration),
];

/// What the line says, if it fits a template of the family. `line` is the whole line; `at` is where the anchor stands.
pub(super) fn parse(family: Family, line: &str, at: usize) -> Option<ClockEvent> {
    let from_anchor = line.get(at..)?;
    match family {
        Family::Clocksource => clocksource(line, from_anchor),
        Family::WatchdogNumbers => watchdog_numbers(line),
        Family::ReadBack => read_back(line).or_else(|| watchdog_verdict(line)),
        Family::Tsc => tsc(line),
        Family::Calibration => calibration(line),
        Family::SchedClock => sched_clock(from_anchor),
        Family::KvmClock => kvm_clock(from_anchor),
        Family::HyperV => hyper_v(line),
        Family::Boot => boot(from_anchor),
        Family::CommandLine => command_line(from_anchor),
        Family::Hypervisor => hypervisor(from_anchor),
        Family::DelayLoop => delay_loop(line),
        Family::Apic => number(line, "not consistent with PM-Timer: ")
            .map(|measured_ms| ClockEvent::ApicInconsistent { measured_ms }),
        Family::Power => power(from_anchor),
        Family::Fork => Some(ClockEvent::Interrupted(Interruption::VmFork)),
        Family::Rtc => rtc(from_anchor),
        Family::Stall => stall(line),
        Family::Interrupt => after(line, "hrtimer: interrupt took ")
            .and_then(leading_number)
            .map(|(duration_ns, _)| ClockEvent::SlowInterrupt { duration_ns }),
        Family::Hpet => hpet(line),
    }
}
