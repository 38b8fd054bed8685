//! What others published of such reads: for comparison, never mixed with what was measured.

use schemars::JsonSchema;
use serde::Serialize;

/// One published figure; those that the source does not give are absent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct SeedRow {
    /// What was read.
    pub(super) read: &'static str,
    /// Cost in cycles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cycles: Option<f64>,
    /// Cost in ns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ns: Option<f64>,
    /// Threads that read at once.
    pub(super) threads: u16,
    /// The machine.
    pub(super) machine: &'static str,
    /// Who published it.
    pub(super) source: &'static str,
}

const HYPERV: (&str, &str) = (
    "guest on Windows Server 2016, processor not told",
    "Hyper-V sched_clock patch, 2019",
);
const E6850: (&str, &str) = (
    "Intel E6850, 3 GHz",
    "discussion of pvclock in the vsyscall page, 2009",
);
const Q6600: (&str, &str) = ("Intel Q6600, 2.4 GHz", E6850.1);
const E5540: (&str, &str) = (
    "Intel Xeon E5540, 2.53 GHz",
    "measurement of kvm-clock's gettimeofday, 2012",
);
const NEHALEM: (&str, &str) = (
    "16-vCPU guest of a two-socket Nehalem-EP, Linux 3.4",
    E5540.1,
);

/// Every published figure.
pub(super) fn rows() -> Vec<SeedRow> {
    let cycles = |read, cycles, ns, machine: (&'static str, &'static str)| SeedRow {
        read,
        cycles: Some(cycles),
        ns,
        threads: 1,
        machine: machine.0,
        source: machine.1,
    };
    let ns = |read, threads, ns, machine: (&'static str, &'static str)| SeedRow {
        read,
        cycles: None,
        ns: Some(ns),
        threads,
        machine: machine.0,
        source: machine.1,
    };
    vec![
        cycles("reference counter MSR, in the kernel", 3361.0, None, HYPERV),
        cycles("reference TSC page, in the kernel", 49.0, None, HYPERV),
        cycles("clock_gettime, reference counter MSR", 5664.0, None, HYPERV),
        cycles("clock_gettime, reference TSC page", 131.0, None, HYPERV),
        cycles("rdtsc", 72.0, Some(24.0), E6850),
        cycles("rdtsc, trapped and emulated", 1080.0, Some(360.0), E6850),
        cycles("hypercall that returns the time", 780.0, Some(260.0), E6850),
        cycles(
            "pvclock from a vsyscall, estimated",
            240.0,
            Some(80.0),
            E6850,
        ),
        ns("gettimeofday, pvclock from a vsyscall", 1, 100.0, Q6600),
        ns("gettimeofday, host, vsyscall", 1, 45.0, E5540),
        ns(
            "gettimeofday, guest, kvm-clock by system call",
            1,
            198.0,
            E5540,
        ),
        ns("gettimeofday, tsc", 1, 31.5, NEHALEM),
        ns("gettimeofday, kvm-clock", 1, 211.2, NEHALEM),
        ns("gettimeofday, tsc", 16, 43.2, NEHALEM),
        ns("gettimeofday, kvm-clock", 16, 482.5, NEHALEM),
        ns(
            "gettimeofday, kvm-clock, global last value off",
            16,
            462.8,
            NEHALEM,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ratios that the sources state follow from their figures.
    #[test]
    fn published_ratios_follow_from_the_figures() {
        let rows = rows();
        let row = |read: &str, threads: u16| {
            *rows
                .iter()
                .find(|row| row.read == read && row.threads == threads)
                .unwrap()
        };
        let ratio =
            |a: Option<f64>, b: Option<f64>| (a.unwrap() / b.unwrap() * 10.0).round() / 10.0;
        let msr = row("reference counter MSR, in the kernel", 1);
        assert_eq!(
            ratio(
                msr.cycles,
                row("reference TSC page, in the kernel", 1).cycles
            ),
            68.6
        );
        let one = ratio(
            row("gettimeofday, kvm-clock", 1).ns,
            row("gettimeofday, tsc", 1).ns,
        );
        let sixteen = ratio(
            row("gettimeofday, kvm-clock", 16).ns,
            row("gettimeofday, tsc", 16).ns,
        );
        assert_eq!((one, sixteen), (6.7, 11.2));
    }
}
