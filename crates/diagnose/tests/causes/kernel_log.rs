use super::verdict::{Verdicts, detected};
use super::{close, codes, figure, finds, healthy, of, of_log, real, silent};
use chronovisor_diagnose::{Code, Verdict};
use std::fmt::Write;

#[test]
fn a_warp_is_told_in_cycles_and_time() {
    for (line, cycles, hz) in [
        (
            "Measured 220 cycles TSC warp between CPUs, turning off TSC clock.",
            220.0,
            1_996_166_000,
        ),
        (
            "Measured 3600000000 cycles TSC warp between CPUs, turning off TSC clock.",
            3.6e9,
            3_600_000_000,
        ),
        (
            "clocksource: CPU3        123456789 < CPU0        123457009 (cycles)",
            220.0,
            2_000_000_000,
        ),
    ] {
        let diagnosis = of_log(&format!("{}[    0.800000] {line}\n", detected(hz)));
        close(
            figure(&diagnosis, Code::TscWarp, "warp_cycles"),
            cycles,
            0.0,
        );
        close(
            figure(&diagnosis, Code::TscWarp, "warp_ns"),
            cycles / (real(hz)) * 1e9,
            1e-3,
        );
    }
    finds(&of_log("TSC warped randomly between CPUs\n"), Code::TscWarp);
    let unknown = of_log("Measured 220 cycles TSC warp between CPUs, turning off TSC clock.\n");
    assert_eq!(figure(&unknown, Code::TscWarp, "warp_cycles"), 220.0);
    assert!(!unknown.findings[0].figures.contains_key("warp_ns"));
    // A warp that the kernel compensated, and a synchronisation that passed.
    for line in [
        "[    0.1] x\n[    0.300000] TSC ADJUST compensate: CPU1 observed 220 warp. Adjust: 220\n",
        "[    0.1] x\n[    0.300000] TSC synchronization [CPU#0 -> CPU#1]: passed\n",
    ] {
        silent(&of_log(line), Code::TscWarp);
    }
}

#[test]
fn rules_of_the_kernel_are_no_observation() {
    for reason in [
        "running on Hyper-V",
        "boot parameter",
        "TSC halts in idle states",
    ] {
        healthy(&of_log(&format!(
            "[    0.000000] tsc: Marking TSC unstable due to {reason}\n"
        )));
    }
    for reason in [
        "clocksource watchdog",
        "check_tsc_sync_source failed",
        "TSCs unsynchronized",
    ] {
        let diagnosis = of_log(&format!("tsc: Marking TSC unstable due to {reason}\n"));
        finds(&diagnosis, Code::TscMarkedUnstable);
        assert_eq!(diagnosis.verdict, Verdict::Inconclusive);
    }
    // Another source than the TSC.
    healthy(&of_log(
        "[    1.0] x\nclocksource: timekeeping watchdog on CPU2: Marking clocksource 'hpet' as unstable because the skew is too large:\n",
    ));
}

#[test]
fn drift_of_the_scheduler_clock_takes_the_start_off() {
    let with_start = of_log(
        "sched_clock: Marking stable (1385398995, 152117)->(1500687633, -115136521)\ntsc: Marking TSC unstable due to clocksource watchdog\nsched_clock: Marking unstable (8996101633485, 42749061)<-(8996259532949, -115136521)\n",
    );
    close(
        figure(
            &with_start,
            Code::TscMarkedUnstable,
            "sched_clock_drift_ppm",
        ),
        4.7358,
        1e-3,
    );
    let without = of_log(
        "tsc: Marking TSC unstable due to clocksource watchdog\nsched_clock: Marking unstable (215589163972, -47156905)<-(216119104390, -577097322)\n",
    );
    close(
        figure(&without, Code::TscMarkedUnstable, "sched_clock_drift_ppm"),
        -218.735,
        1e-3,
    );
}

#[test]
fn several_causes_in_one_log_are_all_found() {
    let wrap = Verdicts {
        passed_ns: 5_500_000_000,
        counted_ns: 5_500_000_000,
        ..Verdicts::default()
    };
    let log = format!(
        "{}[    0.800000] Measured 220 cycles TSC warp between CPUs, turning off TSC clock.\n{}[ 2000.000000] clocksource: wd-tsc-wd read-back delay of 124876ns, clock-skew test skipped!\n[ 2000.100000] clocksource: Switched to clocksource acpi_pm\n",
        detected(2_600_000_000),
        wrap.log()
    );
    let diagnosis = of_log(&log);
    for code in [
        Code::TscWarp,
        Code::WatchdogWrapped,
        Code::WatchdogReadbackNoise,
        Code::SlowReadPath,
        Code::TscMarkedUnstable,
    ] {
        finds(&diagnosis, code);
    }
    // The order of the lines does not matter.
    let mut lines: Vec<&str> = log.lines().collect();
    lines.reverse();
    let reversed = of_log(&lines.join("\n"));
    let mut a = codes(&diagnosis);
    let mut b = codes(&reversed);
    a.sort_unstable();
    b.sort_unstable();
    assert_eq!(a, b);
    close(figure(&reversed, Code::WatchdogWrapped, "wraps"), 1.0, 0.0);
}

#[test]
fn each_boot_of_a_log_is_judged_by_its_own_lines() {
    let first = format!(
        "[    0.000000] Linux version 5.10.0\n{}{}",
        detected(2_000_000_000),
        Verdicts {
            tsc_hz: 2_000_000_000,
            passed_ns: 5_500_000_000,
            counted_ns: 5_500_000_000,
            ..Verdicts::default()
        }
        .log()
    );
    let second = format!(
        "[    0.000000] Linux version 5.10.0\n{}{}",
        detected(3_000_000_000),
        Verdicts {
            tsc_hz: 3_000_000_000,
            passed_ns: 3_000_000_000,
            counted_ns: 3_000_000_000,
            ..Verdicts::default()
        }
        .log()
    );
    let diagnosis = of_log(&format!("{first}{second}"));
    let wrapped = diagnosis
        .findings
        .iter()
        .find(|f| f.code == Code::WatchdogWrapped)
        .unwrap();
    let late = diagnosis
        .findings
        .iter()
        .find(|f| f.code == Code::WatchdogIntervalStretched)
        .unwrap();
    assert_eq!((wrapped.boot, late.boot), (Some(1), Some(2)));
    close(wrapped.figures["implied_hz"].value(), 2e9, 1e-3);
    close(late.figures["implied_hz"].value(), 3e9, 1e-3);
}

#[test]
fn d83_a_clock_of_counted_interrupts_loses_what_a_counter_keeps() {
    let mut samples = String::from("monotonic_ns,tsc\n");
    for i in 0..20_u64 {
        let mono = i * 1_000_000_000 - if i > 10 { 3_000_000_000 } else { 0 };
        let _ = writeln!(samples, "{mono},{}", i * 2_000_000_000);
    }
    let files = [
        (
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            "refined-jiffies\n",
        ),
        (
            "dmesg",
            "[    0.000000] tsc: Detected 2000.000 MHz processor\n",
        ),
        ("samples.csv", samples.as_str()),
    ];
    let diagnosis = of(&files);
    close(
        figure(&diagnosis, Code::ReferenceLostTicks, "lost_s"),
        3.0,
        1e-6,
    );
    close(
        figure(&diagnosis, Code::ReferenceLostTicks, "counter_s"),
        19.0,
        1e-6,
    );
    // The same readings of a counter are no lost ticks.
    let mut counter = files;
    counter[0].1 = "tsc\n";
    silent(&of(&counter), Code::ReferenceLostTicks);
}

#[test]
fn of_several_captures_of_the_log_the_latest_counts() {
    let early = "[    0.100000] clocksource: Switched to clocksource tsc\n";
    let late = format!("{early}[  900.000000] clocksource: Switched to clocksource hpet\n");
    finds(
        &of(&[("dmesg", early), ("dmesg.1", &late)]),
        Code::SlowReadPath,
    );
    healthy(&of(&[("dmesg", early)]));
}
