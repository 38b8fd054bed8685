//! Codes about the kernel's own checks of the TSC.

use super::Entry;
use crate::code::Code;

const WATCHDOG: &str = "Linux kernel/time/clocksource.c, clocksource_watchdog, 2.6.32 to 7.x";

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        code: Code::TscMarkedUnstable,
        meaning: "The kernel withdrew the TSC after a check or a calibration failed. This is the plain observation; a cause code stands beside it where the evidence shows one.",
        detection: "A watchdog verdict on tsc or tsc-early, a failed synchronisation test, or a line `Marking TSC unstable due to ..`. The reason `running on Hyper-V` is a rule of the kernel and does not count, nor does a wish of the command line. sched_clock_drift_ppm comes from `sched_clock: Marking unstable (G, GO)<-(R, RO)`: GO over G, or (GO - GO0) over (G - G0) if the log has the stable line too.",
        remedy: "Act on the cause beside it. If there is none, collect the log from boot on: the lines with wd_now and cs_now and the boot's TSC frequency settle most cases. The remark about a broken BIOS does not apply to a virtual machine.",
        figures: &[
            (
                "interval_s",
                "time between the two checks by the reference, wraps included, in s",
            ),
            ("implied_hz", "rate of the TSC over that interval, in Hz"),
            ("counter_s", "the TSC's own time at its declared rate, in s"),
            (
                "sched_clock_drift_ppm",
                "how far the scheduler clock parted from the ticks, in ppm",
            ),
        ],
        sources: &[
            WATCHDOG,
            "Linux arch/x86/kernel/tsc.c, kernel/sched/clock.c",
        ],
        example: &[(
            "dmesg",
            "[   12.500000] tsc: Marking TSC unstable due to clocksource watchdog\n",
        )],
    },
    Entry {
        code: Code::WatchdogWrapped,
        meaning: "The reference of the watchdog wrapped between two checks, so the accused counter is innocent.",
        detection: "interval_k = (dwd + k (mask + 1)) / f_wd, and the counter's rate is dcs / interval_k. Preferred is the k with which that rate is the declared one to 0.5 %; without a declared rate the k that makes a possible rate and an interval on the check's period of 0.5 s. A PM timer of 24 bits wraps every 4.69 s, an HPET of 32 bits at 100 MHz every 42.9 s.",
        remedy: "The TSC was blamed without cause: boot with tsc=nowatchdog or give the guest an invariant TSC with TSC_ADJUST, which turns the check off. Then find out why the vCPU did not run for that long: a paused VM, a stalled host, a snapshot. A wider reference (HPET at 64 bits) avoids the wrap.",
        figures: &[
            ("wraps", "how often the reference wrapped"),
            ("interval_s", "true interval, in s"),
            (
                "implied_hz",
                "rate of the counter over the true interval, in Hz",
            ),
            ("implied_hz_without_wrap", "rate without the wraps, in Hz"),
        ],
        sources: &[WATCHDOG],
        example: &[(
            "dmesg",
            "[    0.000000] tsc: Detected 2600.000 MHz processor\n[  700.000000] clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc' as unstable because the skew is too large:\n[  700.000010] clocksource:                       'acpi_pm' wd_now: 3c684a wd_last: 100000 mask: ffffff\n[  700.000020] clocksource:                       'tsc' cs_now: 1a7c0741800 cs_last: 1a46c1b6900 mask: ffffffffffffffff\n",
        )],
    },
    Entry {
        code: Code::WatchdogIntervalStretched,
        meaning: "A check came far later than 0.5 s, without a wrap, and the implied rate is right: a false alarm caused by delay.",
        detection: "The interval by the reference is 1 s or more, and dcs / interval is within 0.5 % of a declared rate of the counter, or, where none is declared, of the counter over the uptime. A fixed margin in ns that is generous over 0.5 s becomes a few hundred ppm over seconds: 500 us over 2.98 s are 168 ppm.",
        remedy: "The TSC was blamed without cause: boot with tsc=nowatchdog, use a kernel that skips late checks (late 6.x) or judges in ppm, or give the guest an invariant TSC with TSC_ADJUST. Then look at why the vCPU was late: steal time, an overcommitted host, long pauses.",
        figures: &[
            ("interval_s", "interval by the reference, in s"),
            ("implied_hz", "rate of the counter over it, in Hz"),
        ],
        sources: &[WATCHDOG],
        example: &[(
            "dmesg",
            "[    0.000000] tsc: Detected 2600.000 MHz processor\n[  900.000000] clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc' as unstable because the skew is too large:\n[  900.000010] clocksource:                       'acpi_pm' wd_now: b3f328 wd_last: 1dbf03 mask: ffffff\n[  900.000020] clocksource:                       'tsc' cs_now: 220d2de6800 cs_last: 21f28b21080 mask: ffffffffffffffff\n",
        )],
    },
    Entry {
        code: Code::WatchdogReadbackNoise,
        meaning: "Reading the reference took so long that the kernel skipped the check; this says nothing about the TSC.",
        detection: "Lines `wd-wd read-back delay of N ns` with `wd-tsc-wd read-back delay of M ns, clock-skew test skipped`, or `read timed out. Readout sequence took N ns` in the newest kernels. Counted are the checks that were skipped, with those that the log says it suppressed.",
        remedy: "Nothing is wrong with the TSC because of this. Each read of the reference is a VM exit; a nested or busy host makes it slow. tsc=nowatchdog ends the messages; less steal time makes them rare.",
        figures: &[
            ("skipped", "checks that were skipped"),
            ("max_wd_wd_ns", "longest read of the reference alone, in ns"),
            (
                "max_wd_cs_wd_ns",
                "longest read with the counter in between, in ns",
            ),
        ],
        sources: &[WATCHDOG],
        example: &[(
            "dmesg",
            "[14669.048261] clocksource: timekeeping watchdog on CPU1: acpi_pm wd-wd read-back delay of 144431ns\n[14669.056895] clocksource: wd-tsc-wd read-back delay of 124876ns, clock-skew test skipped!\n",
        )],
    },
    Entry {
        code: Code::CounterReset,
        meaning: "A counter stands at a new base (near zero, or negative): a step, not a drift.",
        detection: "cs_now is below cs_last although the reference went forward, and cs_now is near zero (since_reset = cs_now / f is no longer than the interval and a little) or negative as a signed number. A small step back is no reset. estimated_hz is the last good value over the uptime, which is right only for a counter that started with the machine.",
        remedy: "Find out what wrote the counter at that time: a host that slept and woke, a restore or migration that did not set the guest's TSC offset, firmware at a resume. The VMM has to restore IA32_TSC or the offset of every vCPU before it runs. Until then use a paravirtual clock, which is written anew.",
        figures: &[
            (
                "interval_s",
                "time between the two reads by the reference, in s",
            ),
            ("estimated_hz", "last good value over the uptime, in Hz"),
            ("since_reset_s", "time since the reset, in s"),
            ("cs_now_signed", "the counter's value as a signed number"),
        ],
        sources: &[WATCHDOG, "Linux arch/x86/kvm/x86.c, kvm_synchronize_tsc"],
        example: &[(
            "dmesg",
            "[ 5000.000000] clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc' as unstable because the skew is too large:\n[ 5000.000010] clocksource:                       'kvm-clock' wd_now: 48c27395000 wd_last: 48c096beb00 mask: ffffffffffffffff\n[ 5000.000020] clocksource:                       'tsc' cs_now: 2e7ddb00 cs_last: bd27ee56300 mask: ffffffffffffffff\n",
        )],
    },
    Entry {
        code: Code::ReferenceLostTicks,
        meaning: "The reference counts interrupts and missed some, so the counter looks fast.",
        detection: "The reference is jiffies or refined-jiffies, and the accused counter at its declared rate is ahead of it by more than 0.5 %: lost = counter - reference. In samples: the clock source in use counts interrupts and falls behind the TSC or a clock outside by more than 500 ppm.",
        remedy: "Give the guest a reference that counts by itself (HPET, PM timer, kvm-clock), or boot with tsc=reliable where the TSC is invariant. Lost ticks come from a vCPU that is not run for long stretches: look at steal time and overload.",
        figures: &[
            ("reference_s", "time by the reference, in s"),
            ("counter_s", "time by the counter, in s"),
            ("lost_s", "what the reference missed, in s; positive"),
        ],
        sources: &[WATCHDOG, "Linux kernel/time/jiffies.c"],
        example: &[(
            "dmesg",
            "[    0.000000] clocksource: refined-jiffies: mask: 0xffffffff max_cycles: 0xffffffff, max_idle_ns: 7645519600211568 ns\n[    0.000000] tsc: Detected 2600.000 MHz processor\n[    5.000000] clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc-early' as unstable because the skew is too large:\n[    5.000010] clocksource:                       'refined-jiffies' wd_now: ffff8c00 wd_last: ffff8b83 mask: ffffffff\n[    5.000020] clocksource:                       'tsc-early' cs_now: 27592f5a00 cs_last: 26be368000 mask: ffffffffffffffff\n",
        )],
    },
    Entry {
        code: Code::TscWarp,
        meaning: "The kernel's test of two CPUs saw the TSC go back between them.",
        detection: "`Measured N cycles TSC warp between CPUs`, `TSC warped randomly between CPUs`, or the newer checks across CPUs. In ns the warp is N over the TSC's frequency, from the log or half of the mean BogoMIPS.",
        remedy: "The VMM has to give every vCPU the same TSC offset (on KVM the vCPU attribute KVM_VCPU_TSC_OFFSET, or let KVM synchronise by writing equal values). A constant warp of some hundred cycles is such an offset. Until then kvm-clock or the Hyper-V page with its fall-back keeps time monotonic.",
        figures: &[
            ("warp_cycles", "largest warp, in cycles"),
            ("warp_ns", "the same in ns"),
            ("tsc_mhz", "frequency of the TSC, in MHz"),
        ],
        sources: &["Linux arch/x86/kernel/tsc_sync.c"],
        example: &[(
            "dmesg",
            "[    0.000000] tsc: Detected 2000.000 MHz processor\n[    0.400000] TSC synchronization [CPU#0 -> CPU#1]:\n[    0.400010] Measured 640 cycles TSC warp between CPUs, turning off TSC clock.\n[    0.400020] tsc: Marking TSC unstable due to check_tsc_sync_source failed\n",
        )],
    },
];
