use super::verdict::{GENERATIONS, Generation, HPET_LINE, Verdicts, detected, ticks};
use super::{close, codes, figure, finds, healthy, of_log, real, silent};
use chronovisor_diagnose::{Code, Verdict};

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
                real(tsc_hz),
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
                real(passed_ms) / 1e3,
                1e-3,
            );
            close(figure(&diagnosis, code, "implied_hz"), real(tsc_hz), 1e-3);
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
        let interval_s = real(verdict.counted_ns) / 1e9;
        let last = ticks((uptime_s * 1000 - since_ms - 400) * 1_000_000, hz);
        let log = verdict
            .log()
            .replace("cs_last: 0 ", &format!("cs_last: {last:x} "));
        let diagnosis = of_log(&log);
        let code = Code::CounterReset;
        close(figure(&diagnosis, code, "interval_s"), interval_s, 1e-3);
        close(figure(&diagnosis, code, "estimated_hz"), real(hz), 2e-3);
        close(
            figure(&diagnosis, code, "since_reset_s"),
            real(since_ms) / 1e3,
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
            real(lost_ms) / 1e3,
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
