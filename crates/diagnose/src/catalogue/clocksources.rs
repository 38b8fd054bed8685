//! Codes about the clock source in use and the ways to read it.

use super::Entry;
use crate::code::Code;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        code: Code::SlowReadPath,
        meaning: "The clock in use has no user-space read, so each read is a system call or a VM exit.",
        detection: "The clock source in use is hpet, acpi_pm, jiffies, pit or hyperv_clocksource_msr, which the vDSO cannot read; or it is xen and the measured reads enter the kernel (system calls seen over calls made, or the cost of a normal read over a raw system call, from 0.7 on); or the Hyper-V page has sequence 0 and the reads go to the counter MSR. With costs of two states of the machine the slowdown is slow over fast.",
        remedy: "Find out why a faster source is not used: look for a finding beside this one (a withdrawn TSC, differing vCPU offsets, a forced clock source). On Xen a newer kernel reads the xen clock in user space; otherwise use tsc where it is constant, nonstop and not emulated. On KVM give the guest an invariant TSC or kvm-clock with the stable bit; on Hyper-V interfaces the reference page. To try: echo the name into current_clocksource as root, measure, and watch the kernel log.",
        figures: &[
            ("ns_per_read", "cost of one read, in ns"),
            (
                "syscalls_per_call",
                "system calls seen over clock calls made",
            ),
            ("slowdown_ratio", "cost now over cost in the faster state"),
        ],
        sources: &[
            "Linux lib/vdso/gettimeofday.c, arch/x86/include/asm/vdso/gettimeofday.h",
            "Hypervisor Top Level Functional Specification, Partition reference time enlightenment",
        ],
        example: &[
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "hpet\n",
            ),
            (
                "cost.csv",
                "clock,ns_per_read,path\nrealtime,2150.5,syscall\n",
            ),
            (
                "syscalls.csv",
                "call,calls_made,syscalls_seen\nclock_gettime,5000,5000\n",
            ),
        ],
    },
    Entry {
        code: Code::VdsoFallback,
        meaning: "The clock in use can be read in user space, yet a normal read costs as much as a raw system call.",
        detection: "The clock source in use is tsc, kvm-clock or the Hyper-V page. The cost of a read through the vDSO over that of the raw system call is 0.1 to 0.3 where the vDSO works, and about 1 where it passes the call on; from 0.7 on it is taken as passed on. Counts of calls and system calls tell the same without a measurement.",
        remedy: "On kvm-clock look at the stable bit (check prints the live record): the host's own clock source must be the TSC and the vCPUs' TSC offsets equal. On the Hyper-V page look at its sequence, and compare with another kernel version: a build can lack the read. On tsc look for vdso=0, a sandbox that replaces the vDSO, and static programs.",
        figures: &[(
            "vdso_over_syscall",
            "cost through the vDSO over cost of the raw system call",
        )],
        sources: &[
            "Linux lib/vdso/gettimeofday.c, arch/x86/kernel/kvmclock.c, drivers/clocksource/hyperv_timer.c",
        ],
        example: &[
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "kvm-clock\n",
            ),
            (
                "cost.csv",
                "clock,ns_per_read,path\nmonotonic,198.0,vdso\nmonotonic,190.0,syscall\n",
            ),
        ],
    },
    Entry {
        code: Code::ClocksourceForced,
        meaning: "The command line picks a clock source or vouches for one.",
        detection: "A whole word of the command line is clocksource=NAME, clock=NAME, tsc=reliable or tsc=nowatchdog. Words behind a lone -- belong to the first program and do not count.",
        remedy: "Find out why it was set. Boot once without it: if the kernel picks the same source and its watchdog stays quiet, take it out. If it has to stay, write down the fault that it works around.",
        figures: &[],
        sources: &["Linux Documentation/admin-guide/kernel-parameters.txt"],
        example: &[(
            "proc/cmdline",
            "BOOT_IMAGE=/vmlinuz root=/dev/vda1 ro clocksource=tsc tsc=reliable\n",
        )],
    },
    Entry {
        code: Code::BetterClocksourceAvailable,
        meaning: "A faster clock source is listed but not used; the finding says under which conditions it is safe.",
        detection: "The list of available sources holds one that is read faster than the one in use: tsc before kvm-clock and the Hyper-V page, these before xen, all before those that only the kernel reads. The TSC beside a paravirtual clock that is read in user space is only named where the CPU flags say constant_tsc and nonstop_tsc and the kernel did not withdraw it.",
        remedy: "Check the condition that the finding names, try the source at run time (echo tsc > current_clocksource as root), measure with chronovisor bench, and make it permanent with clocksource= only after the kernel log stayed quiet for a day.",
        figures: &[],
        sources: &[
            "Linux kernel/time/clocksource.c (ratings), arch/x86/kernel/kvmclock.c, arch/x86/xen/time.c",
        ],
        example: &[
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "acpi_pm\n",
            ),
            (
                "sys/devices/system/clocksource/clocksource0/available_clocksource",
                "tsc acpi_pm \n",
            ),
        ],
    },
    Entry {
        code: Code::CalibrationFailed,
        meaning: "The kernel got the TSC's frequency from no reference at all; a method that fails before another succeeds does not count.",
        detection: "The log says that no reference was available or that the frequency could not be calculated, and no line shows a success: no detected or refined rate, no registered tsc, no calibration that worked.",
        remedy: "Give the guest one channel that tells the frequency: CPUID 0x15 with a crystal (Intel), the hypervisor leaf 0x40000010, kvm-clock, the Hyper-V frequency register, or a PIT, HPET or PM timer that works. lpj= on the command line only mends the delay loop.",
        figures: &[("lpj", "loops a tick that the delay loop measured instead")],
        sources: &[
            "Linux arch/x86/kernel/tsc.c, native_calibrate_tsc and pit_hpet_ptimer_calibrate_cpu",
        ],
        example: &[(
            "dmesg",
            "[    0.000000] tsc: Unable to calibrate against PIT\n[    0.000000] tsc: No reference (HPET/PMTIMER) available\n[    0.000000] tsc: Marking TSC unstable due to could not calculate TSC khz\n[    0.012000] Calibrating delay loop... 3984.38 BogoMIPS (lpj=7968768)\n",
        )],
    },
    Entry {
        code: Code::FrequencySourcesDisagree,
        meaning: "Declared frequencies contradict each other, or the counter contradicts another timer of the same guest.",
        detection: "Two frequencies of one counter differ by more than 500 ppm, beyond the errors of their own units: the detected and the refined rate, the registered one, the scale of the Hyper-V page, pvclock, CPUID leaves, the counter against the HPET in samples, or against the watchdog's reference in a check that came in time. A refinement below 500 ppm is normal.",
        remedy: "Find the channel that does not describe this machine's counter. In a guest it is usually a leaf of the host (CPUID 0x15, 0x16) that leaks under TSC scaling, or a timer whose frequency the hypervisor declares wrongly. Until it is right, choose a clock that does not depend on it (kvm-clock, the Hyper-V page).",
        figures: &[
            ("declared_hz", "the declared frequency, in Hz"),
            (
                "measured_hz",
                "the measured one, or the other declared one, in Hz",
            ),
            ("ratio", "declared over measured"),
        ],
        sources: &[
            "Linux arch/x86/kernel/tsc.c, tsc_refine_calibration_work",
            "Intel SDM volume 2A, CPUID leaves 15H and 16H",
        ],
        example: &[
            (
                "dmesg",
                "[    0.000000] tsc: Detected 2800.000 MHz processor\n",
            ),
            (
                "samples.csv",
                "hpet_ns,tsc\n1000000000,2000000000\n2000000000,3000000000\n3000000000,4000000000\n4000000000,5000000000\n5000000000,6000000000\n",
            ),
        ],
    },
    Entry {
        code: Code::WrongLpj,
        meaning: "The delay loop of a CPU (BogoMIPS) does not fit the TSC: it is off by more than 1 % from CPU 0 or from twice the TSC in MHz.",
        detection: "BogoMIPS = loops per tick x HZ / 500000, which is twice the TSC in MHz on every CPU. The ratio is wrong over right, averaged over the wrong CPUs.",
        remedy: "Hand the value over instead of measuring it: kvm-clock and VMware guests get it from the hypervisor; elsewhere lpj= on the command line (TSC frequency over HZ). If several CPUs are wrong by one ratio, mend the local timer's frequency first.",
        figures: &[
            ("wrong_cpus", "CPUs whose delay loop is wrong"),
            ("ratio", "wrong over right"),
        ],
        sources: &["Linux init/calibrate.c, arch/x86/kernel/smpboot.c"],
        example: &[(
            "proc/cpuinfo",
            "processor\t: 0\nbogomips\t: 5200.00\n\nprocessor\t: 1\nbogomips\t: 4780.12\n",
        )],
    },
    Entry {
        code: Code::ApicTimerMiscalibrated,
        meaning: "Everything that was measured against the local timer's tick is off by one fixed ratio.",
        detection: "At least two CPUs measured a wrong delay loop and agree with each other to 1 %: a disturbed measurement would scatter, a wrong tick does not. Or the kernel itself found that 100 ms of ticks took another time by the PM timer.",
        remedy: "Make the frequency that the guest takes for the local timer the one at which the hypervisor runs it: CPUID 0x15 (crystal), the Hyper-V APIC frequency register, or KVM's APIC bus cycle; or offer the TSC-deadline mode, which needs none.",
        figures: &[("ratio", "wrong over right")],
        sources: &[
            "Linux arch/x86/kernel/apic/apic.c, calibrate_APIC_clock",
            "Intel SDM volume 3A, APIC timer",
        ],
        example: &[(
            "proc/cpuinfo",
            "processor\t: 0\nbogomips\t: 5200.00\n\nprocessor\t: 1\nbogomips\t: 975.31\n\nprocessor\t: 2\nbogomips\t: 976.02\n",
        )],
    },
];
