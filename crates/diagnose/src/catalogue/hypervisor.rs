//! Codes about what the hypervisor and the host do.

use super::Entry;
use crate::code::Code;

const TLFS: &str =
    "Hypervisor Top Level Functional Specification, Partition reference time enlightenment";

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        code: Code::StaleReferencePage,
        meaning: "The Hyper-V reference page keeps an old scale or offset with a valid sequence.",
        detection: "The page's sequence is valid (not 0, not all ones) and its time, from the samples or evaluated at the counter, parts from the counter register; or two captures hold the same values although the scale no longer fits the TSC's frequency.",
        remedy: "The VMM has to write sequence 0 before the guest runs after a restore or migration, set the clock, and publish new values under a new sequence. On KVM set the clock before the first KVM_RUN and keep the TSC offsets of the vCPUs equal.",
        figures: &[(
            "divergence_s",
            "page time minus counter time in the last row, in s",
        )],
        sources: &[TLFS, "Linux arch/x86/kvm/hyperv.c, kvm_hv_setup_tsc_page"],
        example: &[
            (
                "hyperv/tsc_page",
                "sequence=0x1\nscale=0xfc0fc0fc0fc0fc\noffset=0x0\n",
            ),
            (
                "samples.csv",
                "tsc,page_ns,counter_ns\n26000000000,9999999900,245999999900\n28600000000,10999999900,246999999900\n31200000000,11999999900,247999999900\n",
            ),
        ],
    },
    Entry {
        code: Code::PageCounterDivergence,
        meaning: "Hyper-V page time and counter time of one instant differ.",
        detection: "Page and counter register are one clock; read together they agree within microseconds. Beyond 1 ms in several rows they have parted. Timers that are armed by one and expire by the other then fire early or late by the difference.",
        remedy: "Both have to come from one relation of the hypervisor: report it there. In the guest, reading the counter register (or another clock source) avoids the difference at the price of a VM exit a read.",
        figures: &[(
            "divergence_s",
            "page time minus counter time in the last row, in s",
        )],
        sources: &[TLFS],
        example: &[(
            "samples.csv",
            "page_ns,counter_ns\n10000000000,10000020000\n20000000000,20004000000\n30000000000,30008000000\n40000000000,40012000000\n50000000000,50016000000\n",
        )],
    },
    Entry {
        code: Code::ReferencePageRefused,
        meaning: "A Hyper-V reference page is offered, but the guest never enables it and reads the counter MSR.",
        detection: "The host counted writes of MSRs and saw none of 0x40000021, but more than 100 reads a second of 0x40000020, and no valid page was seen. Where the privileges were read, the page has to be among those granted.",
        remedy: "Grant the privileges that the interface makes mandatory beside the page: the hypercall MSRs and the VP index (CPUID 0x40000003 EAX bits 5 and 6). Windows takes the page only with them.",
        figures: &[
            ("enable_writes", "writes of MSR 0x40000021 that were seen"),
            ("counter_reads_per_s", "reads of MSR 0x40000020 a second"),
        ],
        sources: &[
            TLFS,
            "Requirements for Implementing the Microsoft Hypervisor Interface",
        ],
        example: &[
            (
                "hyperv/privileges",
                "AccessPartitionReferenceTsc=1\nAccessHypercallMsrs=0\nAccessVpIndex=0\n",
            ),
            (
                "kvm/msr_counts.csv",
                "access,msr,count,window_s\nread,0x40000020,900000,30\nwrite,0x40000021,0,30\n",
            ),
        ],
    },
    Entry {
        code: Code::VcpuOffsetsDiffer,
        meaning: "The TSC offsets of the vCPUs are not all the same.",
        detection: "The last offset that the trace shows for each vCPU; offsets are numbers modulo 2^64, and the spread is the largest distance between them. Offsets that differ in between and end equal are no finding.",
        remedy: "Set one offset on every vCPU before any of them runs: KVM_VCPU_TSC_OFFSET on each, or leave IA32_TSC alone and let KVM synchronise. Then the master clock comes on, and with it the stable bit and the Hyper-V page.",
        figures: &[
            ("vcpus", "vCPUs whose offset was seen"),
            ("distinct_offsets", "different values among them"),
            ("spread_cycles", "largest distance between two, in cycles"),
        ],
        sources: &[
            "Linux arch/x86/kvm/x86.c, kvm_write_tsc_offset and pvclock_update_vm_gtod_copy",
        ],
        example: &[(
            "kvm/trace",
            "kvm_write_tsc_offset: vcpu=0 prev=0 next=18446744073709000000\nkvm_write_tsc_offset: vcpu=1 prev=0 next=18446744073709003000\n",
        )],
    },
    Entry {
        code: Code::DeadlineTimerLost,
        meaning: "The local timer of one vCPU never fires again while the others go on.",
        detection: "Between two captures of /proc/interrupts the timer row (LOC, or HVS on Hyper-V) of a CPU that had fired before does not move, while others gain at least 20. A CPU that the command line makes tickless does not count.",
        remedy: "In the VMM restore, in this order: the TSC, the APIC with its timer mode, then the TSC deadline; and fire once where the saved deadline is 0 but the timer was in use. In the running guest any reprogramming of the timer revives it (taking the CPU offline and online).",
        figures: &[("cpu", "the CPU whose timer is silent")],
        sources: &[
            "Intel SDM volume 3A, TSC-deadline mode",
            "Linux arch/x86/kvm/lapic.c, kvm_set_lapic_tscdeadline_msr",
        ],
        example: &[
            (
                "proc/interrupts",
                "           CPU0       CPU1\nLOC:      51000      48000   Local timer interrupts\n",
            ),
            (
                "proc/interrupts.1",
                "           CPU0       CPU1\nLOC:      53500      48000   Local timer interrupts\n",
            ),
        ],
    },
    Entry {
        code: Code::HostStealSpikes,
        meaning: "A large share of the time was taken by the host.",
        detection: "Steal over all ticks of /proc/stat, between two captures or since boot, from 10 % on.",
        remedy: "Give the VM the CPU time that it needs: less overcommitment, dedicated or pinned CPUs, a higher share. Measure latencies only without steal.",
        figures: &[
            ("steal_ratio", "steal over all ticks"),
            ("irq_ratio", "interrupt time over all ticks"),
        ],
        sources: &["Linux Documentation/filesystems/proc.rst, /proc/stat"],
        example: &[
            ("proc/stat", "cpu  1000 0 500 8000 0 10 20 100 0 0\n"),
            ("proc/stat.1", "cpu  1300 0 600 8300 0 20 30 400 0 0\n"),
        ],
    },
    Entry {
        code: Code::ClockUnsynchronised,
        meaning: "Nothing disciplines the wall clock, or its bound is unknown: its rightness cannot be judged.",
        detection: "adjtimex says unsynchronised, or its error bound has grown to 16 s or more, as it does when nobody tends it. Where a PTP clock device is there, the offset to it and its bound are told all the same.",
        remedy: "Run a time daemon (chrony) with a reference: /dev/ptp0 where the hypervisor offers one, else NTP. Then check prints the offset and its bound.",
        figures: &[
            ("offset_s", "wall clock minus reference, in s"),
            ("bound_s", "largest error of that, in s"),
        ],
        sources: &["Linux kernel/time/ntp.c, man page adjtimex(2)"],
        example: &[(
            "bundle.json",
            "{\"schema\":\"chronovisor/bundle/1\",\"evidence\":{\"origin\":\"live\",\"reference\":{\"seen\":{\"adjtimex\":{\"state\":5,\"status\":64,\"freq_ppm_scaled\":0,\"offset_ns\":0,\"maxerror_us\":16000000,\"esterror_us\":16000000,\"tick_us\":10000,\"tai_s\":0},\"ptp\":[],\"daemons\":[]}}}}\n",
        )],
    },
];
