//! Codes that come from clock readings over time.

use super::Entry;
use crate::code::Code;

const SERIES: &str = "This project, forensics::series";

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        code: Code::RateStep,
        meaning: "The rate of a clock changes at one moment and is constant before and after.",
        detection: "Against another clock the readings lie on two straight lines that meet; two lines leave less than a quarter of the spread that one line leaves. A counter counts from 100 ppm of change, a disciplined clock from 500 ppm.",
        remedy: "See what happened at that moment: a live migration, a host that changed its clock, a TSC that is not invariant. The VMM has to scale the TSC or to publish the new frequency (kvm-clock, the Hyper-V page with a new sequence); inside the guest choose a paravirtual clock.",
        figures: &[
            ("before_ppm", "rate before, minus 1, in ppm"),
            ("after_ppm", "rate after, minus 1, in ppm"),
        ],
        sources: &[SERIES],
        example: &[(
            "samples.csv",
            "reference_ns,monotonic_ns\n0,100\n1000000000,1000000100\n2000000000,2000000100\n3000000000,3000000100\n4000000000,4000000100\n5000000000,5000000100\n6000000000,6238000100\n7000000000,7476000100\n8000000000,8714000100\n9000000000,9952000100\n10000000000,11190000100\n",
        )],
    },
    Entry {
        code: Code::RateErrorBelowGuest,
        meaning: "Every clock of the guest, the raw counter included, has the same wrong rate against an outside reference, and the calibration is right.",
        detection: "Against a clock outside, every clock of the guest has one slope, off by more than 500 ppm, with steps taken out; CLOCK_MONOTONIC_RAW or the TSC at its declared frequency is among them; and no frequency of the guest contradicts another.",
        remedy: "Nothing in the guest is at fault, and nothing there can correct it: time synchronisation will step the wall clock again and again. It has to be mended in the hypervisor or the host: TSC scaling or frequency published wrongly, or a host whose own clock runs off. Compare the host's clocks with the same reference.",
        figures: &[(
            "rate_error_ppm",
            "rate of the guest's clocks minus 1, in ppm",
        )],
        sources: &[SERIES],
        example: &[
            (
                "dmesg",
                "[    0.000000] tsc: Detected 2000.000 MHz processor\n",
            ),
            (
                "samples.csv",
                "reference_ns,monotonic_ns,monotonic_raw_ns,tsc\n0,0,0,0\n1000000000,1020000000,1020000000,2040000000\n2000000000,2040000000,2040000000,4080000000\n3000000000,3060000000,3060000000,6120000000\n4000000000,4080000000,4080000000,8160000000\n",
            ),
        ],
    },
    Entry {
        code: Code::GuestPaused,
        meaning: "The guest did not run for a while: its clocks miss one gap and keep their rate otherwise.",
        detection: "Against a clock outside, one interval (or a few) loses more than 10 ms while the rates on both sides agree. An orderly suspend is excluded by CLOCK_BOOTTIME, which counts it.",
        remedy: "Find who paused it: a snapshot, a migration, a debugger, a host that slept. If the time should be caught up, let a time daemon or the hypervisor's time service step the wall clock after the pause.",
        figures: &[(
            "lost_s",
            "time that the guest's clocks miss, in s; positive",
        )],
        sources: &[SERIES],
        example: &[(
            "samples.csv",
            "reference_ns,monotonic_ns\n0,500\n1000000000,1000000500\n2000000000,2000000500\n3000000000,3000000500\n13000000000,4000000500\n14000000000,5000000500\n15000000000,6000000500\n",
        )],
    },
    Entry {
        code: Code::WallClockStepped,
        meaning: "CLOCK_REALTIME jumps against CLOCK_MONOTONIC.",
        detection: "Realtime minus boottime or monotonic changes by more than 1 ms between two rows, more than the noise, and does not change back in the next. A jump that CLOCK_BOOTTIME shares is a suspend. Steps of one size at regular times are corrections of a rate error.",
        remedy: "Look for what sets the clock: a time daemon that steps instead of slewing, two time services that fight (chrony and the hypervisor's), a resume. If the steps are regular, mend the rate. Programs that measure spans have to use CLOCK_MONOTONIC.",
        figures: &[
            ("steps", "number of steps"),
            ("forward_steps", "steps forward"),
            ("backward_steps", "steps back"),
            ("max_step_s", "largest step without sign, in s"),
            ("net_s", "sum of the steps with sign, in s"),
            ("period_s", "time between regular steps, in s"),
        ],
        sources: &[SERIES, "Linux kernel/time/timekeeping.c, do_settimeofday64"],
        example: &[(
            "samples.csv",
            "monotonic_ns,realtime_ns\n1000000000,1700000000000000000\n2000000000,1700000001000000000\n3000000000,1700000002000000000\n4000000000,1700000000500000000\n5000000000,1700000001500000000\n6000000000,1700000002500000000\n",
        )],
    },
    Entry {
        code: Code::WallClockStaleAfterRestore,
        meaning: "After a resume or restore CLOCK_REALTIME stays behind by a constant and nothing corrects it.",
        detection: "Against the host's wall clock, realtime loses a gap and then stays behind by a constant, while it was not set against the guest's own clocks; or it is behind by a constant in every row, the log shows a restore, or it is more than a minute and no whole number of half hours.",
        remedy: "Set the clock on restore: a time daemon with a local reference (/dev/ptp0 of KVM or Hyper-V, VMClock), an agent that is told of the restore, or the hypervisor's time service. A guest on the TSC does not see a kvm-clock that was advanced: advance its TSC, or boot it on kvm-clock.",
        figures: &[(
            "behind_s",
            "how far the wall clock is behind, in s; positive",
        )],
        sources: &[
            SERIES,
            "Linux Documentation/virt/kvm/api.rst, KVM_SET_CLOCK",
        ],
        example: &[(
            "samples.csv",
            "host_realtime_ns,realtime_ns\n1700000000000000000,1700000000000000000\n1700000001000000000,1700000001000000000\n1700000002000000000,1700000002000000000\n1700000065000000000,1700000003000000000\n1700000066000000000,1700000004000000000\n1700000067000000000,1700000005000000000\n",
        )],
    },
    Entry {
        code: Code::TruncatedNanoseconds,
        meaning: "A jump is a multiple of 2^32 ns, less the time that really passed: the upper half of a 64-bit time was lost.",
        detection: "A clock goes back by |jump| = n x 2^32 ns - passed, with passed below 10 ms, or equal to what another clock saw pass to 10 ms.",
        remedy: "Mend the reader or the writer of that clock: the product of a pvclock read needs 96 bits, a 64-bit time must not be read in two halves without the sequence check, and a ns counter must not be kept in 32 bits.",
        figures: &[
            ("jump_ns", "later minus earlier, in ns; negative"),
            ("multiple", "multiples of 2^32 ns"),
            (
                "residual_ns",
                "multiple x 2^32 minus |jump|: the time that passed, in ns",
            ),
        ],
        sources: &[
            "This project, forensics::quantised",
            "Linux arch/x86/kernel/pvclock.c",
        ],
        example: &[(
            "samples.csv",
            "monotonic_ns\n90000000000\n90000100000\n81410265408\n81410365408\n",
        )],
    },
    Entry {
        code: Code::CrossVcpuBackwards,
        meaning: "Time goes back a little, and only between readings on different vCPUs.",
        detection: "Neighbouring readings on different CPUs go back by less than 1 s, and no reading is lower than an earlier one of the same CPU. Live: pinned threads read in turn.",
        remedy: "Give the vCPUs one time: equal TSC offsets and the stable bit for kvm-clock, or a guard that keeps the last value in the reader. A program can pin its readers or tolerate the step.",
        figures: &[
            ("max_backward_ns", "largest step back, in ns"),
            ("min_backward_ns", "smallest step back, in ns"),
            ("same_cpu_backwards", "steps back on one CPU"),
        ],
        sources: &["Linux arch/x86/kernel/pvclock.c, pvclock_clocksource_read"],
        example: &[(
            "samples.csv",
            "cpu,monotonic_ns\n0,1000000\n1,985000\n1,1100000\n0,1140000\n1,1110000\n0,1250000\n",
        )],
    },
    Entry {
        code: Code::EpochMissing,
        meaning: "The wall clock starts years off and then runs at the right rate.",
        detection: "The first reading is off a clock outside by more than 300 days; or, without one, realtime stands before the year 2000; or the kernel took such a year from the real-time clock.",
        remedy: "Give the guest a date at boot: an RTC that the host backs, the wall clock record of kvm-clock or Xen, or a time daemon that may step at start. A monitor has to fill the record before the guest reads it.",
        figures: &[(
            "behind_s",
            "how far the wall clock is behind in the first row, in s",
        )],
        sources: &[
            "Linux arch/x86/kernel/kvmclock.c, kvm_get_wallclock; kernel/time/timekeeping.c, timekeeping_init",
        ],
        example: &[(
            "samples.csv",
            "host_realtime_ns,realtime_ns\n1700000000000000000,12000000000\n1700000001000000000,13000000000\n1700000002000000000,14000000000\n",
        )],
    },
    Entry {
        code: Code::LibraryCalibrationDrift,
        meaning: "A clock library that was calibrated once parts from the system clock along a straight line.",
        detection: "Library minus system clock is a straight line with a slope of more than 1 ppm and more than three times its uncertainty; no step and no corner.",
        remedy: "Calibrate again and again, or read the system clock: through the vDSO it costs little more than the counter. chronovisor_guest::linux::Clock takes the kernel's own frequency instead of measuring one.",
        figures: &[
            ("drift_ppm", "slope of library minus system clock, in ppm"),
            (
                "first_offset_s",
                "library minus system clock in the first row, in s",
            ),
            ("last_offset_s", "the same in the last row, in s"),
        ],
        sources: &[SERIES],
        example: &[(
            "samples.csv",
            "monotonic_ns,library_ns\n1000000000,1000000000\n61000000000,61005000000\n121000000000,121010000000\n181000000000,181015000000\n241000000000,241020000000\n",
        )],
    },
];
