//! Figures that others published, to stand beside ours. None of them was measured here.

use schemars::JsonSchema;
use serde::Serialize;

/// A published figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SeedRow {
    /// What was read, in our names.
    pub clock: &'static str,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Where it was measured, and who published it.
    pub source: &'static str,
}

const HYPERV: &str = "guest on Windows Server 2016, 2019 Hyper-V sched_clock patch";
const E6850: &str = "Intel E6850 3 GHz, 2009 pvclock vsyscall thread";
const NEHALEM: &str = "16-vCPU guest on Nehalem-EP, 2012 kvm-clock gettimeofday report";

const fn row(clock: &'static str, value: f64, unit: &'static str, source: &'static str) -> SeedRow {
    SeedRow {
        clock,
        value,
        unit,
        source,
    }
}

/// Costs of one read.
pub(super) const CLOCKS: &[SeedRow] = &[
    row("reference-counter-msr", 3361.0, "cycles, ring 0", HYPERV),
    row("reference-tsc-page", 49.0, "cycles, ring 0", HYPERV),
    row("reference-counter-msr", 5664.0, "cycles, ring 3", HYPERV),
    row("reference-tsc-page", 131.0, "cycles, ring 3", HYPERV),
    row("rdtsc", 72.0, "cycles", E6850),
    row("pvclock-page", 240.0, "cycles, estimated", E6850),
    row("trapped-rdtsc", 1080.0, "cycles", E6850),
    row("hypercall-time", 780.0, "cycles", E6850),
    row("tsc, 1-way", 0.0315, "us per gettimeofday", NEHALEM),
    row("kvm-clock, 1-way", 0.2112, "us per gettimeofday", NEHALEM),
    row("tsc, 16-way", 0.0432, "us per gettimeofday", NEHALEM),
    row("kvm-clock, 16-way", 0.4825, "us per gettimeofday", NEHALEM),
];

const LPJ: &str = "2023 lpj hand-over patch";

/// Bring-up of CPUs.
pub(super) const SMP: &[SeedRow] = &[
    row("each-calibrates, 16 vCPUs", 1300.0, "ms", LPJ),
    row("preset, 16 vCPUs", 130.0, "ms", LPJ),
    row("sibling-copy, 32 vCPUs, 1 node", 26.0, "ms", LPJ),
    row("sibling-copy, 32 vCPUs, 4 nodes", 210.0, "ms", LPJ),
    row("preset, 32 vCPUs, 4 nodes", 32.0, "ms", LPJ),
];

const LAPIC: &str = "2018 LAPIC timer report, 150 000 ticks of 1 ms";

/// Timer intervals: max, mean and deviation.
pub(super) const TIMERS: &[SeedRow] = &[
    row("idle, before: max", 1834.0, "us", LAPIC),
    row("idle, before: mean", 1100.0, "us", LAPIC),
    row("idle, before: deviation", 59.0, "us", LAPIC),
    row("idle, after: max", 86_000.0, "us", LAPIC),
    row("idle, after: mean", 1021.0, "us", LAPIC),
    row("idle, after: deviation", 149.0, "us", LAPIC),
    row("stress, before: max", 32_000.0, "us", LAPIC),
    row("stress, before: mean", 1006.0, "us", LAPIC),
    row("stress, before: deviation", 140.0, "us", LAPIC),
    row("stress, after: max", 140_000.0, "us", LAPIC),
    row("stress, after: mean", 1997.0, "us", LAPIC),
    row("stress, after: deviation", 11_095.0, "us", LAPIC),
];
