use super::{close, codes, figure, finds, healthy, of, of_log, silent};
use chronovisor_diagnose::{Code, Verdict};
use proptest::prelude::*;
use std::fmt::Write;

/// A generation of the watchdog's messages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Generation {
    /// With commas, without prefix.
    Oldest,
    First,
    /// With ns.
    Second,
    /// Only ns.
    Third,
}

const GENERATIONS: [Generation; 4] = [
    Generation::Oldest,
    Generation::First,
    Generation::Second,
    Generation::Third,
];

/// A verdict, made from what really happened.
#[derive(Clone, Copy, Debug)]
struct Verdicts {
    generation: Generation,
    reference: &'static str,
    reference_hz: u64,
    mask: u64,
    wd_last: u64,
    /// Time that really passed, in ns.
    passed_ns: u64,
    /// Time that the reference counted, in ns.
    counted_ns: u64,
    tsc_hz: u64,
    cs_last: u64,
    uptime_s: u64,
    stamped: bool,
}

impl Default for Verdicts {
    fn default() -> Self {
        Self {
            generation: Generation::First,
            reference: "acpi_pm",
            reference_hz: 3_579_545,
            mask: 0xff_ffff,
            wd_last: 0x12_3456,
            passed_ns: 500_000_000,
            counted_ns: 500_000_000,
            tsc_hz: 2_600_000_000,
            cs_last: 2_600_000_000 * 1000,
            uptime_s: 1000,
            stamped: true,
        }
    }
}

fn ticks(ns: u64, hz: u64) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(hz) / 1_000_000_000).unwrap()
}

impl Verdicts {
    fn log(&self) -> String {
        let wd = ticks(self.counted_ns, self.reference_hz);
        let wd_now = self.wd_last.wrapping_add(wd) & self.mask;
        let cs_now = self.cs_last + ticks(self.passed_ns, self.tsc_hz);
        let seen_ns = u128::from(wd & self.mask) * 1_000_000_000 / u128::from(self.reference_hz);
        let (reference, mask, wd_last) = (self.reference, self.mask, self.wd_last);
        let cs_last = self.cs_last;
        let passed = self.passed_ns;
        let full = u64::MAX;
        let lines = match self.generation {
            Generation::Oldest => vec![
                "timekeeping watchdog: Marking clocksource 'tsc' as unstable, because the skew is too large:".to_owned(),
                format!("\t'{reference}' wd_now: {wd_now:x} wd_last: {wd_last:x} mask: {mask:x}"),
                format!("\t'tsc' cs_now: {cs_now:x} cs_last: {cs_last:x} mask: {full:x}"),
            ],
            Generation::First => vec![
                "clocksource: timekeeping watchdog on CPU2: Marking clocksource 'tsc' as unstable because the skew is too large:".to_owned(),
                format!("clocksource:                       '{reference}' wd_now: {wd_now:x} wd_last: {wd_last:x} mask: {mask:x}"),
                format!("clocksource:                       'tsc' cs_now: {cs_now:x} cs_last: {cs_last:x} mask: {full:x}"),
            ],
            Generation::Second => vec![
                "clocksource: timekeeping watchdog on CPU2: Marking clocksource 'tsc' as unstable because the skew is too large:".to_owned(),
                format!("clocksource:                       '{reference}' wd_nsec: {seen_ns} wd_now: {wd_now:x} wd_last: {wd_last:x} mask: {mask:x}"),
                format!("clocksource:                       'tsc' cs_nsec: {passed} cs_now: {cs_now:x} cs_last: {cs_last:x} mask: {full:x}"),
                format!("clocksource:                       Clocksource 'tsc' skewed 5 ns (0 ms) over watchdog '{reference}' interval of {seen_ns} ns (0 ms)"),
                "clocksource:                       'tsc' is current clocksource.".to_owned(),
            ],
            Generation::Third => vec![
                "clocksource: Marking clocksource tsc unstable due to frequency skew".to_owned(),
                format!("clocksource: Watchdog    {reference:>20} interval: {seen_ns:>16}ns"),
                format!("clocksource: Clocksource {:>20} interval: {passed:>16}ns", "tsc"),
            ],
        };
        let mut log = String::new();
        for (i, line) in lines.into_iter().enumerate() {
            if self.stamped {
                let _ = writeln!(log, "[{:>5}.{i:06}] {line}", self.uptime_s);
            } else {
                let _ = writeln!(log, "{line}");
            }
        }
        log
    }
}

fn detected(hz: u64) -> String {
    format!(
        "[    0.000000] tsc: Detected {}.{:03} MHz processor\n",
        hz / 1_000_000,
        hz / 1000 % 1000
    )
}

const HPET_LINE: &str = "[    0.000000] clocksource: hpet: mask: 0xffffffff max_cycles: 0xffffffff, max_idle_ns: 19112604467 ns\n";

#[test]
fn d86_a_wrap_is_seen_in_every_generation_and_of_every_reference() {
    for generation in GENERATIONS {
        for (reference, reference_hz, mask, passed_s) in [
            ("acpi_pm", 3_579_545, 0xff_ffff_u64, 5_u64),
            ("acpi_pm", 3_579_545, 0xff_ffff, 61),
            ("hpet", 100_000_000, 0xffff_ffff, 44),
            ("hpet", 100_000_000, 0xffff_ffff, 130),
        ] {
            let verdict = Verdicts {
                generation,
                reference,
                reference_hz,
                mask,
                passed_ns: passed_s * 1_000_000_000,
                counted_ns: passed_s * 1_000_000_000,
                ..Verdicts::default()
            };
            let log = format!("{HPET_LINE}{}{}", detected(verdict.tsc_hz), verdict.log());
            let diagnosis = of_log(&log);
            let wraps = ticks(verdict.counted_ns, reference_hz) / (mask + 1);
            assert!(wraps > 0);
            let name = Code::WatchdogWrapped;
            assert_eq!(
                figure(&diagnosis, name, "wraps"),
                f64::from(u32::try_from(wraps).unwrap()),
                "{log}"
            );
            close(figure(&diagnosis, name, "implied_hz"), 2.6e9, 1e-3);
            close(
                figure(&diagnosis, name, "interval_s"),
                f64::from(u32::try_from(passed_s).unwrap()),
                5e-4,
            );
            finds(&diagnosis, Code::TscMarkedUnstable);
            for code in [
                Code::WatchdogIntervalStretched,
                Code::CounterReset,
                Code::ReferenceLostTicks,
                Code::FrequencySourcesDisagree,
                Code::RateErrorBelowGuest,
            ] {
                silent(&diagnosis, code);
            }
        }
    }
}

#[test]
fn a_wrap_needs_no_stamp_and_no_declared_rate() {
    for (tsc_hz, halves) in [
        (3_203_149_000, 11),
        (2_100_000_000, 13),
        (4_200_000_000, 19),
    ] {
        let verdict = Verdicts {
            tsc_hz,
            cs_last: 0x194_0283_c820,
            passed_ns: halves * 500_000_000 + 9_000,
            counted_ns: halves * 500_000_000 + 9_000,
            stamped: false,
            ..Verdicts::default()
        };
        let noisy = verdict.log().replace('\n', "\nusb 1-1: new device\n");
        let diagnosis = of_log(&noisy);
        // At 13 halves another number of wraps may fit as well: then none is told.
        if codes(&diagnosis).contains(&"watchdog-wrapped") {
            close(
                figure(&diagnosis, Code::WatchdogWrapped, "implied_hz"),
                tsc_hz as f64,
                1e-3,
            );
        } else {
            assert_eq!(diagnosis.verdict, Verdict::Inconclusive);
        }
    }
}

#[test]
fn an_hpet_without_a_line_is_taken_at_the_one_usual_rate_that_fits() {
    let verdict = Verdicts {
        reference: "hpet",
        reference_hz: 14_318_180,
        mask: 0xffff_ffff,
        passed_ns: 3_000_000_000,
        counted_ns: 3_000_000_000,
        ..Verdicts::default()
    };
    let diagnosis = of_log(&format!("{}{}", detected(2_600_000_000), verdict.log()));
    finds(&diagnosis, Code::WatchdogIntervalStretched);
    silent(&diagnosis, Code::WatchdogWrapped);
}

#[test]
fn d87_a_late_check_is_told_in_every_generation() {
    for generation in GENERATIONS {
        for (passed_ms, tsc_hz, stamped) in [
            (1_100_u64, 2_600_000_000_u64, true),
            (2_984, 3_493_400_000, true),
            (4_400, 2_095_078_000, false),
        ] {
            let verdict = Verdicts {
                generation,
                passed_ns: passed_ms * 1_000_000,
                counted_ns: passed_ms * 1_000_000,
                tsc_hz,
                stamped,
                ..Verdicts::default()
            };
            let diagnosis = of_log(&format!("{}{}", detected(tsc_hz), verdict.log()));
            let code = Code::WatchdogIntervalStretched;
            close(
                figure(&diagnosis, code, "interval_s"),
                passed_ms as f64 / 1e3,
                1e-3,
            );
            close(figure(&diagnosis, code, "implied_hz"), tsc_hz as f64, 1e-3);
            for code in [
                Code::WatchdogWrapped,
                Code::CounterReset,
                Code::RateStep,
                Code::FrequencySourcesDisagree,
            ] {
                silent(&diagnosis, code);
            }
            assert_eq!(diagnosis.verdict, Verdict::Fault);
        }
    }
}

#[test]
fn a_late_check_without_a_declared_rate_is_measured_against_the_uptime() {
    let verdict = Verdicts {
        passed_ns: 3_000_000_000,
        counted_ns: 3_000_000_000,
        ..Verdicts::default()
    };
    finds(&of_log(&verdict.log()), Code::WatchdogIntervalStretched);
    // The counter did not start with the machine: nothing tells that its rate is right.
    let unknown = Verdicts {
        cs_last: 0x6_8a69_ab6f_74d6,
        ..verdict
    };
    let diagnosis = of_log(&unknown.log());
    assert_eq!(codes(&diagnosis), ["tsc-marked-unstable"]);
    assert_eq!(diagnosis.verdict, Verdict::Inconclusive);
    assert!(!diagnosis.would_settle.is_empty());
}

#[test]
fn a_check_in_time_is_not_stretched() {
    for ns in [400_000_000, 500_000_000, 999_000_000] {
        let verdict = Verdicts {
            passed_ns: ns,
            counted_ns: ns,
            ..Verdicts::default()
        };
        let diagnosis = of_log(&format!("{}{}", detected(2_600_000_000), verdict.log()));
        assert_eq!(codes(&diagnosis), ["tsc-marked-unstable"], "{ns}");
        assert_eq!(diagnosis.verdict, Verdict::Inconclusive);
    }
}

#[test]
fn a_reference_that_stops_is_no_wrap() {
    // 2 s of a PM timer are missing: no whole number of wraps.
    let verdict = Verdicts {
        passed_ns: 2_500_000_000,
        counted_ns: 500_000_000,
        ..Verdicts::default()
    };
    let diagnosis = of_log(&format!("{}{}", detected(2_600_000_000), verdict.log()));
    silent(&diagnosis, Code::WatchdogWrapped);
    silent(&diagnosis, Code::WatchdogIntervalStretched);
}

#[test]
fn a_restarted_counter_is_told_with_its_age() {
    for (generation, uptime_s, since_ms, hz) in [
        (
            Generation::Oldest,
            271_095_u64,
            3_350_u64,
            2_196_000_000_u64,
        ),
        (Generation::First, 90, 200, 2_600_000_000),
        (Generation::Second, 86_400, 45_000, 3_000_000_000),
    ] {
        let verdict = Verdicts {
            generation,
            reference: "kvm-clock",
            reference_hz: 1_000_000_000,
            mask: u64::MAX,
            wd_last: uptime_s * 1_000_000_000,
            passed_ns: since_ms * 1_000_000,
            counted_ns: since_ms * 1_000_000 + 400_000_000,
            cs_last: 0,
            uptime_s,
            tsc_hz: hz,
            ..Verdicts::default()
        };
        let interval_s = verdict.counted_ns as f64 / 1e9;
        let last = ticks((uptime_s * 1000 - since_ms - 400) * 1_000_000, hz);
        let log = verdict
            .log()
            .replace("cs_last: 0 ", &format!("cs_last: {last:x} "));
        let diagnosis = of_log(&log);
        let code = Code::CounterReset;
        close(figure(&diagnosis, code, "interval_s"), interval_s, 1e-3);
        close(figure(&diagnosis, code, "estimated_hz"), hz as f64, 2e-3);
        close(
            figure(&diagnosis, code, "since_reset_s"),
            since_ms as f64 / 1e3,
            5e-3,
        );
        for code in [
            Code::WatchdogWrapped,
            Code::WatchdogIntervalStretched,
            Code::ReferenceLostTicks,
            Code::TscWarp,
        ] {
            silent(&diagnosis, code);
        }
    }
}

#[test]
fn a_negative_counter_is_a_reset_and_a_small_step_back_is_none() {
    let log = |last: u64, now: u64| {
        format!(
            "{}[ 1000.000000] clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc' as unstable because the skew is too large:\n[ 1000.000001] clocksource: 'kvm-clock' wd_now: e8d4a51000 wd_last: e8b6d8ae00 mask: ffffffffffffffff\n[ 1000.000002] clocksource: 'tsc' cs_now: {now:x} cs_last: {last:x} mask: ffffffffffffffff\n",
            detected(2_600_000_000)
        )
    };
    let base = 2_600_000_000 * 1000;
    let diagnosis = of_log(&log(base, (-7_000_000_000_i64).cast_unsigned()));
    assert_eq!(
        figure(&diagnosis, Code::CounterReset, "cs_now_signed"),
        -7e9
    );
    for now in [base - 1000, base - 2_000_000, base + 5_200_000_000] {
        silent(&of_log(&log(base, now)), Code::CounterReset);
    }
}

#[test]
fn lost_ticks_are_told_for_every_hz() {
    for (hz, idle_ns, lost_ms) in [
        (250_u64, 7_645_519_600_211_568_u64, 845_u64),
        (1000, 1_910_969_940_391_419, 120),
        (100, 19_112_604_462_750_000, 3_000),
    ] {
        let reference = 500_000_000;
        let verdict = Verdicts {
            reference: "refined-jiffies",
            reference_hz: hz,
            mask: 0xffff_ffff,
            wd_last: 0xfffb_6e9d,
            passed_ns: reference + lost_ms * 1_000_000,
            counted_ns: reference,
            ..Verdicts::default()
        };
        let log = format!(
            "clocksource: refined-jiffies: mask: 0xffffffff max_cycles: 0xffffffff, max_idle_ns: {idle_ns} ns\n{}{}",
            detected(2_600_000_000),
            verdict.log()
        );
        let diagnosis = of_log(&log);
        let code = Code::ReferenceLostTicks;
        close(
            figure(&diagnosis, code, "lost_s"),
            lost_ms as f64 / 1e3,
            0.02,
        );
        close(figure(&diagnosis, code, "reference_s"), 0.5, 2e-3);
        for code in [
            Code::WatchdogWrapped,
            Code::WatchdogIntervalStretched,
            Code::FrequencySourcesDisagree,
        ] {
            silent(&diagnosis, code);
        }
    }
}

#[test]
fn ticks_that_agree_are_not_lost() {
    let verdict = Verdicts {
        reference: "jiffies",
        reference_hz: 250,
        mask: 0xffff_ffff,
        ..Verdicts::default()
    };
    let log = format!(
        "clocksource: jiffies: mask: 0xffffffff max_cycles: 0xffffffff, max_idle_ns: 7645041785100000 ns\n{}{}",
        detected(2_600_000_000),
        verdict.log()
    );
    silent(&of_log(&log), Code::ReferenceLostTicks);
    // Behind the ticks is not ahead of them.
    let behind = Verdicts {
        passed_ns: 300_000_000,
        ..verdict
    };
    let log = log.replace(&verdict.log(), &behind.log());
    silent(&of_log(&log), Code::ReferenceLostTicks);
}

#[test]
fn noise_is_counted_and_settles_nothing() {
    let diagnosis = of_log(
        "[14669.048261] clocksource: timekeeping watchdog on CPU1: acpi_pm wd-wd read-back delay of 144431ns\n\
         [14669.056895] clocksource: wd-tsc-wd read-back delay of 124876ns, clock-skew test skipped!\n\
         [15013.044543] clocksource: timekeeping watchdog on CPU1: acpi_pm wd-wd read-back delay of 371834ns\n\
         [15013.052421] clocksource: wd-tsc-wd read-back delay of 114539ns, clock-skew test skipped!\n",
    );
    let code = Code::WatchdogReadbackNoise;
    assert_eq!(codes(&diagnosis), [code.name()]);
    assert_eq!(figure(&diagnosis, code, "skipped"), 2.0);
    assert_eq!(figure(&diagnosis, code, "max_wd_wd_ns"), 371_834.0);
    assert_eq!(figure(&diagnosis, code, "max_wd_cs_wd_ns"), 124_876.0);
    assert_eq!(diagnosis.verdict, Verdict::Inconclusive);
    let newest = of_log(
        "[    3.568257] clocksource: Watchdog hpet read timed out. Readout sequence took: 57800ns\n\
         [    9.064695] watchdog_print_freq_timeout: 7 callbacks suppressed\n\
         [    9.066802] clocksource: Watchdog hpet read timed out. Readout sequence took: 217500ns\n",
    );
    assert_eq!(figure(&newest, code, "skipped"), 9.0);
    assert_eq!(figure(&newest, code, "max_wd_cs_wd_ns"), 217_500.0);
    // Retries that succeed skip nothing.
    healthy(&of_log(
        "[    3.1] x\n[    3.568257] clocksource: timekeeping watchdog on CPU1: hpet retried 2 times before success\n",
    ));
}

#[test]
fn a_late_check_that_was_skipped_is_a_late_check() {
    let diagnosis = of_log(
        "[  900.000000] clocksource: Long readout interval, skipping watchdog check: cs_nsec: 5200010000 wd_nsec: 5200000000\n",
    );
    close(
        figure(&diagnosis, Code::WatchdogIntervalStretched, "interval_s"),
        5.2,
        1e-6,
    );
    silent(&diagnosis, Code::TscMarkedUnstable);
}

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
            cycles / (hz as f64) * 1e9,
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A stalled vCPU, a PM timer, any rate and interval: the wraps come back, in any generation, with noise between.
    #[test]
    fn a_wrap_is_recovered(
        which in 0_usize..4,
        khz in 1_000_000_u64..5_000_000,
        halves in 10_u64..200,
        wd_last in 0_u64..0xff_ffff,
        uptime_s in 200_u64..10_000_000,
        stamped: bool,
    ) {
        let tsc_hz = khz * 1000;
        let passed_ns = halves * 500_000_000;
        let verdict = Verdicts {
            generation: GENERATIONS[which],
            wd_last,
            passed_ns,
            counted_ns: passed_ns,
            tsc_hz,
            cs_last: tsc_hz * uptime_s,
            uptime_s,
            stamped,
            ..Verdicts::default()
        };
        let diagnosis = of_log(&format!("{}{}", detected(tsc_hz), verdict.log()));
        let wraps = ticks(passed_ns, 3_579_545) >> 24;
        let told = diagnosis.findings.iter().find(|f| f.code == Code::WatchdogWrapped);
        if wraps > 0 {
            let told = told.expect("it wrapped");
            prop_assert_eq!(told.figures["wraps"].value(), wraps as f64);
            prop_assert!((told.figures["implied_hz"].value() / tsc_hz as f64 - 1.0).abs() < 1e-3);
        } else {
            prop_assert!(told.is_none());
        }
    }

    /// A healthy boot of any hypervisor, with any frequency, stays without fault.
    #[test]
    fn a_healthy_boot_stays_healthy(
        hypervisor in 0_usize..5,
        khz in 800_000_u64..5_500_000,
        refined_ppm in -300_i64..300,
        cpus in 1_u64..256,
        hz in prop::sample::select(vec![100_u64, 250, 300, 1000]),
        stamps in prop::collection::vec(0_u64..30_000_000, 12),
    ) {
        let log = healthy_boot(hypervisor, khz, refined_ppm, cpus, hz, &stamps);
        let diagnosis = of_log(&log);
        prop_assert!(diagnosis.findings.is_empty(), "{:?}\n{}", diagnosis.findings, log);
        prop_assert_eq!(diagnosis.verdict, Verdict::NoFault);
    }
}

/// The two limits of a registration line for a frequency.
fn limits(hz: u64) -> (u64, u64) {
    let idle = 440_795_200_000_u64;
    let cycles = u128::from(hz) * 2 * u128::from(idle) / 890_000_000;
    (u64::try_from(cycles).unwrap(), idle)
}

fn healthy_boot(
    hypervisor: usize,
    khz: u64,
    refined_ppm: i64,
    cpus: u64,
    hz: u64,
    stamps: &[u64],
) -> String {
    let mhz = |khz: u64| format!("{}.{:03}", khz / 1000, khz % 1000);
    let refined = khz
        .checked_add_signed(i64::try_from(khz).unwrap() * refined_ppm / 1_000_000)
        .unwrap();
    let (cycles, idle) = limits(refined * 1000);
    let lpj = khz * 1000 / hz;
    let bogomips = khz * 2 / 10;
    let mut lines = vec![
        "Linux version 6.1.0 (builder@host)".to_owned(),
        "Command line: root=/dev/vda1 ro quiet".to_owned(),
    ];
    match hypervisor {
        0 => lines.extend([
            "Hypervisor detected: KVM".to_owned(),
            "kvm-clock: Using msrs 4b564d01 and 4b564d00".to_owned(),
            "kvm-clock: using sched offset of 52333608 cycles".to_owned(),
            "clocksource: kvm-clock: mask: 0xffffffffffffffff max_cycles: 0x1cd42e4dffb, max_idle_ns: 881590591483 ns".to_owned(),
            format!("tsc: Detected {} MHz processor", mhz(khz)),
            format!("Calibrating delay loop (skipped) preset value.. {}.{:02} BogoMIPS (lpj={lpj})", bogomips / 100, bogomips % 100),
            "clocksource: Switched to clocksource kvm-clock".to_owned(),
        ]),
        1 => lines.extend([
            "Hypervisor detected: Microsoft Hyper-V".to_owned(),
            "Hyper-V: privilege flags low 0xae7f, high 0x3b8030, hints 0x64e24, misc 0xbed7b2".to_owned(),
            "Hyper-V: Host Build 10.0.20348.1075-1-0".to_owned(),
            "Hyper-V: LAPIC Timer Frequency: 0xc3500".to_owned(),
            "tsc: Marking TSC unstable due to running on Hyper-V".to_owned(),
            format!("tsc: Detected {} MHz processor", mhz(khz)),
            "clocksource: hyperv_clocksource_tsc_page: mask: 0xffffffffffffffff max_cycles: 0x24e6a1710, max_idle_ns: 440795202120 ns".to_owned(),
            "clocksource: Switched to clocksource hyperv_clocksource_tsc_page".to_owned(),
        ]),
        2 => lines.extend([
            "Hypervisor detected: Xen HVM".to_owned(),
            "clocksource: xen: mask: 0xffffffffffffffff max_cycles: 0x1cd42e4dffb, max_idle_ns: 881590591483 ns".to_owned(),
            format!("tsc: Detected {} MHz processor", mhz(khz)),
            "clocksource: Switched to clocksource xen".to_owned(),
        ]),
        3 => lines.extend([
            "Hypervisor detected: VMware".to_owned(),
            format!("vmware: TSC freq read from hypervisor : {} MHz", mhz(khz)),
            format!("tsc: Detected {} MHz processor", mhz(khz)),
            format!("clocksource: tsc-early: mask: 0xffffffffffffffff max_cycles: {cycles:#x}, max_idle_ns: {idle} ns"),
            "clocksource: Switched to clocksource tsc-early".to_owned(),
            format!("clocksource: tsc: mask: 0xffffffffffffffff max_cycles: {cycles:#x}, max_idle_ns: {idle} ns"),
            "clocksource: Switched to clocksource tsc".to_owned(),
        ]),
        _ => lines.extend([
            "tsc: Fast TSC calibration failed".to_owned(),
            "tsc: PIT calibration matches HPET. 1 loops".to_owned(),
            format!("tsc: Detected {} MHz processor", mhz(khz)),
            "clocksource: hpet: mask: 0xffffffff max_cycles: 0xffffffff, max_idle_ns: 133484882848 ns".to_owned(),
            "hpet0: 3 comparators, 64-bit 14.318180 MHz counter".to_owned(),
            "clocksource: Switched to clocksource hpet".to_owned(),
            format!("tsc: Refined TSC clocksource calibration: {} MHz", mhz(refined)),
            format!("clocksource: tsc: mask: 0xffffffffffffffff max_cycles: {cycles:#x}, max_idle_ns: {idle} ns"),
            "clocksource: Switched to clocksource tsc".to_owned(),
        ]),
    }
    lines.push(format!(
        "smpboot: Total of {cpus} processors activated ({}.{:02} BogoMIPS)",
        bogomips * cpus / 100,
        bogomips * cpus % 100
    ));
    lines.push(
        "rtc_cmos 00:05: setting system clock to 2026-05-01T10:00:00 UTC (1777629600)".to_owned(),
    );
    lines.push("hrtimer: interrupt took 11082175 ns".to_owned());
    let mut sorted = stamps.to_vec();
    sorted.sort_unstable();
    let mut log = String::new();
    for (i, line) in lines.iter().enumerate() {
        let us = sorted[i.min(sorted.len() - 1)];
        let _ = writeln!(log, "[{:>5}.{:06}] {line}", us / 1_000_000, us % 1_000_000);
    }
    log
}
