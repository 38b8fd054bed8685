use super::{close, codes, figure, finds, healthy, of, silent};
use chronovisor_diagnose::{Code, Verdict};
use std::fmt::Write;

#[test]
fn offsets_differ_by_their_last_values_modulo_2_64() {
    let trace = |lines: &[(u32, u64, u64)]| -> String {
        lines
            .iter()
            .map(|(vcpu, prev, next)| format!(" CPU 1/KVM-77 [003] d..1. 12.5: kvm_write_tsc_offset: vcpu={vcpu} prev={prev} next={next}\n"))
            .collect()
    };
    for (lines, vcpus, distinct, spread) in [
        (vec![(0, 0, 100), (1, 0, 350)], 2.0, 2.0, 250.0),
        (
            vec![(0, 0, u64::MAX - 9), (1, 0, 40), (2, 0, 40)],
            3.0,
            2.0,
            50.0,
        ),
        (
            vec![(0, 0, 5), (1, 0, 5), (1, 5, 7), (2, 0, 6), (3, 0, 5)],
            4.0,
            3.0,
            2.0,
        ),
    ] {
        let diagnosis = of(&[("kvm/trace", &trace(&lines))]);
        close(
            figure(&diagnosis, Code::VcpuOffsetsDiffer, "vcpus"),
            vcpus,
            0.0,
        );
        close(
            figure(&diagnosis, Code::VcpuOffsetsDiffer, "distinct_offsets"),
            distinct,
            0.0,
        );
        close(
            figure(&diagnosis, Code::VcpuOffsetsDiffer, "spread_cycles"),
            spread,
            0.0,
        );
        assert_eq!(diagnosis.verdict, Verdict::Fault);
    }
    for lines in [
        vec![(0, 0, 9), (1, 0, 4), (1, 4, 9)],
        vec![(0, 0, 9), (0, 9, 400)],
        vec![(0, 0, 0), (1, 0, 0)],
    ] {
        silent(
            &of(&[("kvm/trace", &trace(&lines))]),
            Code::VcpuOffsetsDiffer,
        );
    }
}

#[test]
fn a_page_is_refused_only_where_it_is_offered_and_never_enabled() {
    let files = |privileges: &str, counts: &str| {
        let counts = format!("access,msr,count,window_s\n{counts}");
        of(&[
            ("hyperv/privileges", privileges),
            ("kvm/msr_counts.csv", &counts),
        ])
    };
    let offered =
        "AccessPartitionReferenceCounter=1\nAccessPartitionReferenceTsc=1\nAccessVpIndex=0\n";
    for (counts, per_s) in [
        (
            "read,0x40000020,3249387,90\nwrite,0x400000b1,75070,90\nwrite,0x40000021,0,90\n",
            36_104.3,
        ),
        ("read,0x40000020,1000000,1\nwrite,0x40000021,0,1\n", 1e6),
        ("read,0x40000020,5000,2.5\nwrite,0x400000b1,7,2.5\n", 2000.0),
    ] {
        let diagnosis = files(offered, counts);
        close(
            figure(
                &diagnosis,
                Code::ReferencePageRefused,
                "counter_reads_per_s",
            ),
            per_s,
            1e-5,
        );
        close(
            figure(&diagnosis, Code::ReferencePageRefused, "enable_writes"),
            0.0,
            0.0,
        );
    }
    for (privileges, counts) in [
        (
            offered,
            "read,0x40000020,3249387,90\nwrite,0x40000021,1,90\n",
        ),
        (offered, "read,0x40000020,12,90\nwrite,0x40000021,0,90\n"),
        // Not offered: the guest has nothing to refuse.
        (
            "AccessPartitionReferenceTsc=0\n",
            "read,0x40000020,3249387,90\nwrite,0x40000021,0,90\n",
        ),
        // Writes were not counted: nothing says that there was none.
        (offered, "read,0x40000020,3249387,90\n"),
    ] {
        silent(&files(privileges, counts), Code::ReferencePageRefused);
    }
    // Enabled, and invalid for now: that is another fault.
    let invalid = of(&[
        ("hyperv/tsc_page", "sequence=0x0\n"),
        ("cost.csv", "clock,ns_per_read,path\nqpc,14000,msr\n"),
    ]);
    silent(&invalid, Code::ReferencePageRefused);
    finds(&invalid, Code::SlowReadPath);
}

fn pages(differences_ns: impl Iterator<Item = i64>) -> String {
    let mut text = String::from("page_ns,counter_ns\n");
    for (i, difference) in differences_ns.enumerate() {
        let counter = 10_000_000_000 + 1_000_000_000 * i64::try_from(i).unwrap();
        let _ = writeln!(text, "{},{counter}", counter + difference);
    }
    text
}

#[test]
fn page_and_counter_part() {
    for (samples, divergence) in [
        (
            pages((0..20).map(|i| if i < 8 { 20_000 } else { -236_000_000_000 })),
            -236.0,
        ),
        (pages((0..20).map(|i| i * 4_000_000)), 0.076),
        (pages((0..5).map(|_| 12_500_000)), 0.0125),
    ] {
        let diagnosis = of(&[("samples.csv", &samples)]);
        close(
            figure(&diagnosis, Code::PageCounterDivergence, "divergence_s"),
            divergence,
            1e-6,
        );
        silent(&diagnosis, Code::StaleReferencePage);
        // With a page whose sequence is valid the page is what is wrong.
        let stale = of(&[
            ("samples.csv", &samples),
            (
                "hyperv/tsc_page",
                "sequence=0x1\nscale=0xfc0fc0fc0fc0fc\noffset=0x0\n",
            ),
        ]);
        close(
            figure(&stale, Code::StaleReferencePage, "divergence_s"),
            divergence,
            1e-6,
        );
    }
    for samples in [
        pages((0..20).map(|i| 20_000 + i * 100)),
        pages((0..20).map(|_| -40_000)),
        // One disturbed pair.
        pages((0..20).map(|i| if i == 9 { -30_000_000 } else { -20_000 })),
    ] {
        healthy(&of(&[("samples.csv", &samples)]));
        healthy(&of(&[
            ("samples.csv", &samples),
            (
                "hyperv/tsc_page",
                "sequence=0x1\nscale=0xfc0fc0fc0fc0fc\noffset=0x0\n",
            ),
        ]));
    }
}

#[test]
fn a_page_that_kept_its_values_is_evaluated_at_the_counter() {
    let mut samples = String::from("tsc,counter_ns\n");
    for i in 0..10_u64 {
        let _ = writeln!(
            samples,
            "{},{}",
            26_000_000_000 + i * 2_600_000_000,
            250_000_000_000 + i * 1_000_000_000
        );
    }
    let page = "sequence=0x5\nscale=0xfc0fc0fc0fc0fc\noffset=0x0\n";
    let diagnosis = of(&[
        ("samples.csv", &samples),
        ("hyperv/tsc_page", page),
        ("hyperv/tsc_page.1", page),
    ]);
    close(
        figure(&diagnosis, Code::StaleReferencePage, "divergence_s"),
        -240.0,
        1e-6,
    );
    // Under sequence 0 nobody reads it.
    let off = page.replace("0x5", "0x0");
    silent(
        &of(&[("samples.csv", &samples), ("hyperv/tsc_page", &off)]),
        Code::StaleReferencePage,
    );
    // An old scale in two captures.
    let diagnosis = of(&[
        ("hyperv/tsc_page", page),
        ("hyperv/tsc_page.1", page),
        ("dmesg", "tsc: Detected 2100.000 MHz processor\n"),
    ]);
    finds(&diagnosis, Code::StaleReferencePage);
}

fn interrupts(row: &str, counts: &[u64], others: &[u64]) -> String {
    let mut text = String::from("          ");
    for i in 0..counts.len() {
        let _ = write!(text, "  CPU{i}");
    }
    let list = |counts: &[u64]| {
        counts
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let _ = write!(
        text,
        "\n {row}: {}  Local timer interrupts\n RES: {}  Rescheduling interrupts\n",
        list(counts),
        list(others)
    );
    text
}

#[test]
fn a_silent_timer_stands_out_among_the_others() {
    for (row, before, after, cpu) in [
        ("LOC", vec![5000, 4000], vec![7500, 4000], 1.0),
        (
            "LOC",
            vec![5000, 4000, 3000, 9000],
            vec![5000, 6500, 5500, 11_400],
            0.0,
        ),
        ("HVS", vec![100, 100, 100], vec![400, 100, 390], 1.0),
    ] {
        let others = vec![10; before.len()];
        let diagnosis = of(&[
            ("proc/interrupts", &interrupts(row, &before, &others)),
            ("proc/interrupts.1", &interrupts(row, &after, &others)),
        ]);
        close(figure(&diagnosis, Code::DeadlineTimerLost, "cpu"), cpu, 0.0);
        assert_eq!(diagnosis.verdict, Verdict::Fault);
    }
    let pair = |before: &[u64], after: &[u64], cmdline: &str| {
        let others = vec![10; before.len()];
        of(&[
            ("proc/interrupts", &interrupts("LOC", before, &others)),
            ("proc/interrupts.1", &interrupts("LOC", after, &others)),
            ("proc/cmdline", cmdline),
        ])
    };
    for (before, after, cmdline) in [
        // Idle, but alive.
        (vec![5000, 4000], vec![7500, 4003], ""),
        // The whole guest stood still, or the two captures are one.
        (vec![5000, 4000], vec![5000, 4000], ""),
        (vec![5000, 4000], vec![5003, 4000], ""),
        // Never in use, as on Hyper-V.
        (vec![5000, 0], vec![7500, 0], ""),
        (vec![5000, 4000], vec![7500, 4000], "nohz_full=1"),
    ] {
        silent(&pair(&before, &after, cmdline), Code::DeadlineTimerLost);
    }
    // One capture tells nothing.
    silent(
        &of(&[("proc/interrupts", &interrupts("LOC", &[1, 2], &[1, 1]))]),
        Code::DeadlineTimerLost,
    );
}

#[test]
fn steal_counts_from_ten_percent_between_captures() {
    for (before, after, steal, irq) in [
        (
            "0 0 0 0 0 0 0 0 0 0",
            "9 0 4 102 0 448 0 436 0 0",
            0.436_436,
            0.448_448,
        ),
        (
            "1000 0 500 8000 0 10 20 100 0 0",
            "1300 0 600 8300 0 20 30 400 0 0",
            0.294_117,
            0.009_803,
        ),
        ("500 0 0 500 0 0 0 0", "950 0 0 950 0 0 0 100", 0.1, 0.0),
    ] {
        let diagnosis = of(&[
            (
                "proc/stat",
                &format!("cpu  {before}\ncpu0 1 1 1 1\n") as &str,
            ),
            ("proc/stat.1", &format!("cpu  {after}\ncpu0 1 1 1 1\n")),
        ]);
        close(
            figure(&diagnosis, Code::HostStealSpikes, "steal_ratio"),
            steal,
            1e-5,
        );
        let found = figure(&diagnosis, Code::HostStealSpikes, "irq_ratio");
        assert!((found - irq).abs() < 1e-5, "{found}");
    }
    for (before, after) in [
        (
            "1000 0 500 8000 0 10 20 100 0 0",
            "1300 0 600 8600 0 20 30 190 0 0",
        ),
        // Much since boot, none now.
        (
            "1000 0 500 8000 0 10 20 90000 0 0",
            "1300 0 600 8600 0 20 30 90000 0 0",
        ),
        // Too short to measure.
        ("0 0 0 0 0 0 0 0", "1 0 0 1 0 0 0 5"),
    ] {
        silent(
            &of(&[
                ("proc/stat", &format!("cpu  {before}\n") as &str),
                ("proc/stat.1", &format!("cpu  {after}\n")),
            ]),
            Code::HostStealSpikes,
        );
    }
    // Since boot, from one capture; without the sum line from the CPUs.
    let once = of(&[(
        "proc/stat",
        "cpu0 100 0 0 100 0 0 0 100\ncpu1 100 0 0 100 0 0 0 0\n",
    )]);
    close(
        figure(&once, Code::HostStealSpikes, "steal_ratio"),
        0.2,
        1e-9,
    );
}

#[test]
fn a_file_of_nonsense_is_named_and_finds_nothing() {
    let evidence = chronovisor_diagnose::intake::files(&[
        ("kvm/trace", "hello\n"),
        ("hyperv/tsc_page", "sequence=0x1ffffffff\n"),
        ("cost.csv", "clock,ns_per_read,path\n"),
        ("proc/stat", "cpu  1 2 3\n"),
    ])
    .unwrap();
    let diagnosis = chronovisor_diagnose::diagnose(&evidence);
    assert_eq!(codes(&diagnosis), Vec::<&str>::new());
    assert_eq!(diagnosis.verdict, Verdict::Inconclusive);
    assert_eq!(
        diagnosis.not_readable.len(),
        3,
        "{:?}",
        diagnosis.not_readable
    );
}
