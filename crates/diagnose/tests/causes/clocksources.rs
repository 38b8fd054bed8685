use super::{close, codes, figure, finds, healthy, of, of_log, silent};
use chronovisor_diagnose::{Code, Diagnosis, Verdict};

const CURRENT: &str = "sys/devices/system/clocksource/clocksource0/current_clocksource";
const AVAILABLE: &str = "sys/devices/system/clocksource/clocksource0/available_clocksource";

fn with(current: &str, costs: &str) -> Diagnosis {
    let costs = format!("clock,ns_per_read,path\n{costs}");
    of(&[(CURRENT, current), ("cost.csv", &costs)])
}

#[test]
fn sources_that_only_the_kernel_reads_are_slow() {
    for name in [
        "hpet",
        "acpi_pm",
        "jiffies",
        "refined-jiffies",
        "pit",
        "hyperv_clocksource_msr",
    ] {
        let diagnosis = with(name, "realtime,2000.5,vdso\nrealtime,1990,syscall\n");
        close(
            figure(&diagnosis, Code::SlowReadPath, "ns_per_read"),
            2000.5,
            1e-9,
        );
        silent(&diagnosis, Code::VdsoFallback);
        assert_eq!(diagnosis.verdict, Verdict::Fault);
    }
    for name in ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"] {
        healthy(&with(
            name,
            "realtime,25,vdso\nrealtime,150,syscall\nmonotonic,24,vdso\n",
        ));
    }
}

#[test]
fn d75_a_name_that_contains_tsc_is_not_tsc() {
    // The page is read in user space, the MSR source is not, whatever letters their names share.
    silent(
        &of(&[
            (CURRENT, "hyperv_clocksource_tsc_page\n"),
            (
                AVAILABLE,
                "hyperv_clocksource_tsc_page hyperv_clocksource_msr acpi_pm\n",
            ),
        ]),
        Code::BetterClocksourceAvailable,
    );
    finds(
        &of(&[
            (CURRENT, "hyperv_clocksource_msr\n"),
            (
                AVAILABLE,
                "hyperv_clocksource_tsc_page hyperv_clocksource_msr\n",
            ),
        ]),
        Code::BetterClocksourceAvailable,
    );
    silent(
        &of(&[
            (
                "proc/cmdline",
                "xclocksource=tsc tsc=reliableish notsc=reliable\n",
            ),
            (CURRENT, "tsc"),
        ]),
        Code::ClocksourceForced,
    );
}

#[test]
fn xen_is_slow_only_where_its_reads_enter_the_kernel() {
    let calls = |seen: u32| format!("call,calls_made,syscalls_seen\nclock_gettime,1000,{seen}\n");
    let slow = of(&[(CURRENT, "xen"), ("syscalls.csv", &calls(1000))]);
    close(
        figure(&slow, Code::SlowReadPath, "syscalls_per_call"),
        1.0,
        1e-9,
    );
    healthy(&of(&[(CURRENT, "xen"), ("syscalls.csv", &calls(0))]));
    healthy(&of(&[(CURRENT, "xen")]));
    finds(
        &with("xen", "realtime,210,vdso\nrealtime,200,syscall\n"),
        Code::SlowReadPath,
    );
    healthy(&with("xen", "realtime,50,vdso\nrealtime,200,syscall\n"));
    // The states of one machine: by the name of the clock source in use.
    let states = with(
        "xen",
        "gettimeofday@tsc,22,vdso\ngettimeofday@xen,250,syscall\n",
    );
    close(
        figure(&states, Code::SlowReadPath, "slowdown_ratio"),
        250.0 / 22.0,
        1e-6,
    );
    healthy(&with(
        "tsc",
        "gettimeofday@tsc,22,vdso\ngettimeofday@xen,250,syscall\n",
    ));
}

#[test]
fn d88_a_fallback_shows_in_the_ratio_of_costs() {
    for (current, vdso, syscall) in [
        ("tsc", 160.0, 150.0),
        ("kvm-clock", 198.0, 190.0),
        ("hyperv_clocksource_tsc_page", 168.67, 145.65),
        ("tsc", 105.0, 150.0),
    ] {
        let diagnosis = with(
            current,
            &format!("monotonic,{vdso},vdso\nmonotonic,{syscall},syscall\n"),
        );
        close(
            figure(&diagnosis, Code::VdsoFallback, "vdso_over_syscall"),
            vdso / syscall,
            1e-6,
        );
        silent(&diagnosis, Code::SlowReadPath);
    }
    for (current, costs) in [
        ("tsc", "monotonic,104,vdso\nmonotonic,150,syscall\n"),
        // No pair of one clock.
        ("tsc", "monotonic,160,vdso\n"),
        ("tsc", "monotonic,160,syscall\n"),
        // Clocks that always enter the kernel.
        (
            "tsc",
            "process_cputime,160,vdso\nprocess_cputime,150,syscall\nmonotonic,20,vdso\nmonotonic,150,syscall\n",
        ),
        (
            "tsc",
            "monotonic_coarse,5,vdso\nmonotonic_coarse,6,syscall\n",
        ),
        // The pair belongs to another state.
        (
            "tsc",
            "monotonic@before,160,vdso\nmonotonic@before,150,syscall\nmonotonic@after,20,vdso\nmonotonic@after,150,syscall\n",
        ),
    ] {
        silent(&with(current, costs), Code::VdsoFallback);
    }
    finds(
        &with(
            "kvm-clock",
            "monotonic@before,20,vdso\nmonotonic@before,150,syscall\nmonotonic@after,160,vdso\nmonotonic@after,150,syscall\n",
        ),
        Code::VdsoFallback,
    );
    // Without a clock source nothing says which of the two it is.
    silent(
        &of(&[(
            "cost.csv",
            "clock,ns_per_read,path\nrealtime,160,vdso\nrealtime,150,syscall\n",
        )]),
        Code::VdsoFallback,
    );
}

#[test]
fn words_of_the_command_line_count_whole() {
    for line in [
        "ro clocksource=hpet quiet",
        "tsc=reliable",
        "a tsc=nowatchdog b",
        "clock=pit",
    ] {
        let diagnosis = of(&[("proc/cmdline", line), (CURRENT, "tsc")]);
        assert_eq!(codes(&diagnosis), ["clocksource-forced"], "{line}");
        assert_eq!(diagnosis.verdict, Verdict::Inconclusive);
    }
    for line in [
        "ro quiet",
        "clocksource.verify_n_cpus=1",
        "tsc=unstable",
        "ro -- clocksource=hpet",
        "module.clocksource=tsc",
        "clocksource=",
    ] {
        silent(
            &of(&[("proc/cmdline", line), (CURRENT, "tsc")]),
            Code::ClocksourceForced,
        );
    }
    finds(
        &of_log(
            "[    0.0] x\n[    0.000000] Kernel command line: BOOT_IMAGE=/vmlinuz clocksource=tsc tsc=reliable\n",
        ),
        Code::ClocksourceForced,
    );
}

#[test]
fn a_better_source_is_named_where_it_is_one() {
    let flags = "processor\t: 0\nflags\t\t: tsc constant_tsc nonstop_tsc hypervisor\n";
    for (current, available, better) in [
        ("hpet", "tsc hpet acpi_pm", true),
        ("acpi_pm", "kvm-clock acpi_pm", true),
        ("xen", "xen tsc hpet", true),
        ("hpet", "hpet acpi_pm", false),
        ("acpi_pm", "hpet acpi_pm", false),
        ("tsc", "tsc kvm-clock hpet", false),
        ("kvm-clock", "kvm-clock tsc acpi_pm", false),
        ("jiffies", "jiffies acpi_pm", true),
    ] {
        let diagnosis = of(&[(CURRENT, current), (AVAILABLE, available)]);
        assert_eq!(
            codes(&diagnosis).contains(&"better-clocksource-available"),
            better,
            "{current} of {available}"
        );
    }
    // With the flags the TSC is worth naming beside kvm-clock, unless the kernel withdrew it.
    let files = [
        (CURRENT, "kvm-clock"),
        (AVAILABLE, "kvm-clock tsc"),
        ("proc/cpuinfo", flags),
    ];
    finds(&of(&files), Code::BetterClocksourceAvailable);
    let mut withdrawn = files.to_vec();
    withdrawn.push((
        "dmesg",
        "tsc: Marking TSC unstable due to clocksource watchdog\n",
    ));
    silent(&of(&withdrawn), Code::BetterClocksourceAvailable);
}

#[test]
fn the_last_switch_of_the_log_tells_the_source_in_use() {
    let log = "[    0.100000] clocksource: Switched to clocksource hpet\n[    1.500000] clocksource: Switched to clocksource tsc\n";
    healthy(&of_log(log));
    finds(
        &of_log(&format!(
            "{log}[  900.000000] clocksource: Switched to clocksource hpet\n"
        )),
        Code::SlowReadPath,
    );
    // What sysfs says counts more.
    silent(
        &of(&[
            (
                "dmesg",
                "[    0.100000] clocksource: Switched to clocksource hpet\n",
            ),
            (CURRENT, "tsc"),
        ]),
        Code::SlowReadPath,
    );
    // A later capture counts more than the first.
    let later = format!("{CURRENT}.1");
    finds(
        &of(&[(CURRENT, "tsc"), (&later, "hpet")]),
        Code::SlowReadPath,
    );
}

#[test]
fn a_calibration_fails_only_when_nothing_is_left() {
    let give_up = "tsc: Unable to calibrate against PIT\ntsc: No reference (HPET/PMTIMER) available\ntsc: Marking TSC unstable due to could not calculate TSC khz\n";
    let measured = "Calibrating delay loop... 3984.38 BogoMIPS (lpj=7968768)\n";
    for (log, lpj) in [
        (format!("{give_up}{measured}"), Some(7_968_768.0)),
        (give_up.to_owned(), None),
        (
            format!(
                "tsc: Fast TSC calibration failed\n{give_up}Calibrating delay using timer specific routine.. 5200.00 BogoMIPS (lpj=2600000)\n"
            ),
            Some(2_600_000.0),
        ),
    ] {
        let diagnosis = of_log(&log);
        finds(&diagnosis, Code::CalibrationFailed);
        if let Some(lpj) = lpj {
            close(figure(&diagnosis, Code::CalibrationFailed, "lpj"), lpj, 0.0);
        }
        finds(&diagnosis, Code::TscMarkedUnstable);
    }
    for log in [
        "tsc: Fast TSC calibration failed\ntsc: PIT calibration matches HPET. 1 loops\ntsc: Detected 2600.000 MHz processor\n",
        "tsc: Unable to calibrate against PIT\ntsc: using HPET reference calibration\n",
        "tsc: Fast TSC calibration failed\ntsc: Unable to calibrate against PIT\ntsc: HPET/PMTIMER calibration failed\ntsc: Detected 2600.000 MHz processor\n",
        "tsc: Fast TSC calibration using PIT\n",
        "tsc: Fast TSC calibration failed\n",
    ] {
        silent(&of_log(log), Code::CalibrationFailed);
    }
}

fn bogomips(values: &[f64]) -> String {
    values
        .iter()
        .enumerate()
        .map(|(i, value)| format!("processor\t: {i}\nbogomips\t: {value:.2}\n\n"))
        .collect()
}

#[test]
fn wrong_delay_loops_are_told_from_a_wrong_tick() {
    // One fixed ratio: the tick.
    for (right, ratio) in [(7999.96, 0.179), (5200.0, 0.1875), (4190.0, 1.5)] {
        let diagnosis = of(&[(
            "proc/cpuinfo",
            &bogomips(&[
                right,
                right * ratio,
                right * ratio * 1.003,
                right * ratio * 0.999,
            ]),
        )]);
        close(figure(&diagnosis, Code::WrongLpj, "wrong_cpus"), 3.0, 0.0);
        close(figure(&diagnosis, Code::WrongLpj, "ratio"), ratio, 0.01);
        close(
            figure(&diagnosis, Code::ApicTimerMiscalibrated, "ratio"),
            ratio,
            0.01,
        );
    }
    // Scattered: a disturbed measurement.
    let diagnosis = of(&[("proc/cpuinfo", &bogomips(&[5200.0, 4780.0, 5010.0, 5200.0]))]);
    close(figure(&diagnosis, Code::WrongLpj, "wrong_cpus"), 2.0, 0.0);
    silent(&diagnosis, Code::ApicTimerMiscalibrated);
    // One CPU cannot tell a tick from a disturbance.
    let diagnosis = of(&[("proc/cpuinfo", &bogomips(&[5200.0, 975.0]))]);
    finds(&diagnosis, Code::WrongLpj);
    silent(&diagnosis, Code::ApicTimerMiscalibrated);
    // All wrong against the declared TSC.
    let diagnosis = of(&[
        ("proc/cpuinfo", &bogomips(&[975.0, 976.0])),
        ("dmesg", "tsc: Detected 2600.000 MHz processor\n"),
    ]);
    close(figure(&diagnosis, Code::WrongLpj, "wrong_cpus"), 2.0, 0.0);
    close(figure(&diagnosis, Code::WrongLpj, "ratio"), 0.1876, 0.01);
    for files in [
        vec![(
            "proc/cpuinfo",
            bogomips(&[8000.0, 7999.99, 7999.89, 7986.02]),
        )],
        vec![("proc/cpuinfo", bogomips(&[5200.0, 5248.0]))],
        // The core's speed now is not the TSC's rate, outside a guest.
        vec![(
            "proc/cpuinfo",
            "processor: 0\ncpu MHz: 800.000\nbogomips: 5200.00\n".to_owned(),
        )],
    ] {
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(path, text)| (*path, text.as_str()))
            .collect();
        healthy(&of(&files));
    }
}

#[test]
fn delay_loops_in_the_log_count_too() {
    let boot = "Calibrating delay loop (skipped), value calculated using timer frequency.. 5199.96 BogoMIPS (lpj=10399924)\n";
    let diagnosis = of_log(&format!(
        "{boot}Calibrating delay using timer specific routine.. 930.10 BogoMIPS (lpj=1860200)\nCalibrating delay using timer specific routine.. 931.00 BogoMIPS (lpj=1862000)\n"
    ));
    close(figure(&diagnosis, Code::WrongLpj, "ratio"), 0.179, 0.01);
    finds(&diagnosis, Code::ApicTimerMiscalibrated);
    let sum = of_log(
        "tsc: Detected 2600.000 MHz processor\nsmpboot: Total of 4 processors activated (12000.00 BogoMIPS)\n",
    );
    finds(&sum, Code::WrongLpj);
    healthy(&of_log(
        "[    0.0] x\ntsc: Detected 2600.000 MHz processor\nsmpboot: Total of 4 processors activated (20800.00 BogoMIPS)\n",
    ));
    let apic =
        of_log("..... APIC calibration not consistent with PM-Timer: 533ms instead of 100ms\n");
    close(
        figure(&apic, Code::ApicTimerMiscalibrated, "ratio"),
        5.33,
        1e-9,
    );
}

#[test]
fn frequencies_disagree_beyond_what_a_refinement_moves() {
    let pair = |detected: &str, refined: &str| {
        of_log(&format!(
            "tsc: Detected {detected} MHz processor\ntsc: Refined TSC clocksource calibration: {refined} MHz\n"
        ))
    };
    for (detected, refined) in [
        ("2300.000", "2303.998"),
        ("3000.000", "2400.000"),
        ("2000.000", "2001.100"),
    ] {
        let diagnosis = pair(detected, refined);
        let (a, b): (f64, f64) = (detected.parse().unwrap(), refined.parse().unwrap());
        close(
            figure(&diagnosis, Code::FrequencySourcesDisagree, "declared_hz"),
            a * 1e6,
            1e-6,
        );
        close(
            figure(&diagnosis, Code::FrequencySourcesDisagree, "measured_hz"),
            b * 1e6,
            1e-6,
        );
        close(
            figure(&diagnosis, Code::FrequencySourcesDisagree, "ratio"),
            a / b,
            1e-6,
        );
    }
    for (detected, refined) in [
        ("2095.078", "2094.959"),
        ("2600.000", "2601.200"),
        ("2600.000", "2598.800"),
    ] {
        silent(&pair(detected, refined), Code::FrequencySourcesDisagree);
    }
    // The processor's rate is not the TSC's where a line of its own names that.
    silent(
        &of_log(
            "tsc: Detected 3600.000 MHz processor\ntsc: Detected 3312.000 MHz TSC\ntsc: Refined TSC clocksource calibration: 3311.998 MHz\n",
        ),
        Code::FrequencySourcesDisagree,
    );
    finds(
        &of_log(
            "tsc: Warning: TSC freq calibrated by CPUID/MSR differs from what is calculated by HW timer, please check with vendor!!\ntsc: Previous calibrated TSC freq:\t 1996.800 MHz\ntsc: TSC freq recalibrated by [HPET]:\t 1900.000 MHz\n",
        ),
        Code::FrequencySourcesDisagree,
    );
    // The scale of the page against the detected rate.
    let page = |scale: &str| {
        of(&[
            (
                "hyperv/tsc_page",
                &format!("sequence=0x2\nscale={scale}\noffset=0x0\n") as &str,
            ),
            ("dmesg", "tsc: Detected 2100.000 MHz processor\n"),
        ])
    };
    close(
        figure(
            &page("0xfc0fc0fc0fc0fc"),
            Code::FrequencySourcesDisagree,
            "ratio",
        ),
        2.1 / 2.6,
        1e-6,
    );
    silent(&page("0x138138138138138"), Code::FrequencySourcesDisagree);
}
