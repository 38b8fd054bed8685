//! Evidence of few rows and few lines: what can be told from it, and what not.

use super::series::{EPOCH, SECOND, sampled, series, with_tsc};
use super::{close, figure, finds, has, of, of_log, silent};
use chronovisor_diagnose::{Code, Verdict};

#[test]
fn two_to_four_rows_show_a_step_of_the_wall_clock() {
    for (rows, forward, net) in [
        // Two rows: (realtime gain) - (monotonic gain).
        (vec![(100, 0), (160, 85)], 1.0, 25.0),
        (vec![(100, 0), (101, 1), (102, -8), (103, -7)], 0.0, -10.0),
        (vec![(100, 0), (101, 3601), (102, 3602)], 1.0, 3600.0),
    ] {
        let mut text = String::from("monotonic_ns,realtime_ns\n");
        for (monotonic, realtime) in rows {
            let (monotonic, realtime) = (monotonic * SECOND, EPOCH + realtime * SECOND);
            text.push_str(&format!("{monotonic},{realtime}\n"));
        }
        let diagnosis = sampled(&text);
        let figure = |name| figure(&diagnosis, Code::WallClockStepped, name);
        close(figure("net_s"), net, 1e-9);
        close(figure("steps"), 1.0, 0.0);
        close(figure("forward_steps"), forward, 0.0);
        silent(&diagnosis, Code::GuestPaused);
    }
    let still = format!(
        "monotonic_ns,realtime_ns\n5,{EPOCH}\n{},{}\n",
        SECOND + 5,
        EPOCH + SECOND + 900_000
    );
    silent(&sampled(&still), Code::WallClockStepped);
}

/// A reading that was late is late by no more than the time until the next one.
#[test]
fn out_and_back_is_noise_only_where_a_late_reading_explains_it() {
    let excursion = |size: i128| {
        series(
            40,
            SECOND,
            &[
                ("monotonic_ns", &|t| t),
                ("realtime_ns", &move |t| {
                    EPOCH + t + if t == 20 * SECOND { size } else { 0 }
                }),
            ],
        )
    };
    silent(&sampled(&excursion(SECOND / 2)), Code::WallClockStepped);
    let diagnosis = sampled(&excursion(7200 * SECOND));
    for (name, value) in [
        ("forward_steps", 1.0),
        ("backward_steps", 1.0),
        ("net_s", 0.0),
    ] {
        let found = figure(&diagnosis, Code::WallClockStepped, name);
        assert!((found - value).abs() < 1e-6, "{name} {found}");
    }
}

#[test]
fn three_rows_show_what_a_restore_left_behind() {
    let text = format!(
        "host_realtime_ns,realtime_ns\n{EPOCH},{EPOCH}\n{},{}\n{},{}\n",
        EPOCH + 1210 * SECOND,
        EPOCH + 10 * SECOND,
        EPOCH + 1215 * SECOND,
        EPOCH + 15 * SECOND
    );
    let diagnosis = sampled(&text);
    close(
        figure(&diagnosis, Code::WallClockStaleAfterRestore, "behind_s"),
        1200.0,
        1e-9,
    );
    silent(&diagnosis, Code::WallClockStepped);
}

#[test]
fn seven_rows_show_a_change_of_rate() {
    let bent = |t: i128| t + (t - 3 * SECOND).max(0) * 16 / 100;
    let samples = series(
        7,
        SECOND,
        &[
            ("reference_ns", &|t| t),
            ("monotonic_ns", &|t| 500 * SECOND + bent(t)),
            ("tsc", &|t| 2 * bent(t)),
        ],
    );
    let diagnosis = sampled(&samples);
    let after = figure(&diagnosis, Code::RateStep, "after_ppm");
    close(after, 160_000.0, 1e-6);
    assert!(figure(&diagnosis, Code::RateStep, "before_ppm").abs() < 1.0);
    silent(&diagnosis, Code::GuestPaused);
    silent(&diagnosis, Code::RateErrorBelowGuest);
}

#[test]
fn one_row_is_one_instant_of_page_and_counter() {
    let diagnosis = sampled("page_ns,counter_ns\n5036000000000,5024000000000\n");
    close(
        figure(&diagnosis, Code::PageCounterDivergence, "divergence_s"),
        12.0,
        1e-9,
    );
    silent(
        &sampled("page_ns,counter_ns\n5024000001000,5024000000000\n"),
        Code::PageCounterDivergence,
    );
}

#[test]
fn a_truncated_time_did_not_stop() {
    let samples = series(
        8,
        10 * SECOND,
        &[
            ("reference_ns", &|t| t),
            ("monotonic_ns", &|t| {
                500 * SECOND + t - if t >= 40 * SECOND { 7 << 32 } else { 0 }
            }),
        ],
    );
    let diagnosis = sampled(&samples);
    close(
        figure(&diagnosis, Code::TruncatedNanoseconds, "multiple"),
        7.0,
        0.0,
    );
    silent(&diagnosis, Code::GuestPaused);
}

#[test]
fn counters_of_unknown_rate_go_back_between_cpus_without_a_figure_in_ns() {
    let diagnosis = sampled("cpu,tsc\n0,1000000\n1,1002000\n0,1001500\n1,1005000\n");
    let found = |name| {
        diagnosis
            .findings
            .iter()
            .find(|finding| finding.code == Code::CrossVcpuBackwards)
            .is_some_and(|finding| finding.figures.contains_key(name))
    };
    assert!(found("same_cpu_backwards") && !found("max_backward_ns"));
}

#[test]
fn the_hyper_v_counter_is_another_timer_of_the_guest() {
    let samples = |rate: i128| {
        series(
            20,
            SECOND,
            &[("counter_ns", &|t| t), ("tsc", &move |t| t * rate / 10)],
        )
    };
    let log = "tsc: Detected 1000.000 MHz processor\n";
    let diagnosis = with_tsc(&samples(28), log);
    close(
        figure(&diagnosis, Code::FrequencySourcesDisagree, "measured_hz"),
        2.8e9,
        1e-9,
    );
    silent(&with_tsc(&samples(10), log), Code::FrequencySourcesDisagree);
}

#[test]
fn a_clock_that_is_counted_from_the_tsc_stands_for_it_against_the_hpet() {
    let source = "sys/devices/system/clocksource/clocksource0/current_clocksource";
    let log = "tsc: Detected 1000.000 MHz processor\n";
    let diagnose = |samples: &str, clocksource: &str| {
        of(&[
            ("samples.csv", samples),
            ("dmesg", log),
            (source, clocksource),
        ])
    };
    for samples in [
        series(
            20,
            SECOND,
            &[("hpet_ns", &|t| t), ("monotonic_ns", &|t| t * 28 / 10)],
        ),
        "hpet_ns,tsc\n0,0\n10000000000,28000000000\n".to_owned(),
    ] {
        let diagnosis = diagnose(&samples, "tsc\n");
        for (name, value) in [
            ("declared_hz", 1e9),
            ("measured_hz", 2.8e9),
            ("ratio", 1.0 / 2.8),
        ] {
            close(
                figure(&diagnosis, Code::FrequencySourcesDisagree, name),
                value,
                1e-6,
            );
        }
    }
    // A discipline of 500 ppm, and a clock that is not counted from the TSC.
    let slewed = series(
        20,
        SECOND,
        &[("hpet_ns", &|t| t), ("monotonic_ns", &|t| t + t / 2000)],
    );
    silent(&diagnose(&slewed, "tsc\n"), Code::FrequencySourcesDisagree);
    let other = series(
        20,
        SECOND,
        &[("hpet_ns", &|t| t), ("monotonic_ns", &|t| t * 28 / 10)],
    );
    silent(
        &diagnose(&other, "kvm-clock\n"),
        Code::FrequencySourcesDisagree,
    );
}

#[test]
fn a_counter_below_zero_may_count_through_it() {
    let check = |last: &str, now: &str| {
        of_log(&format!(
            "[ 9000.000000] clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc' as unstable because the skew is too large:\n\
             [ 9000.000001] clocksource: 'kvm-clock' wd_now: 3465b9fc700 wd_last: 34640200a00 mask: ffffffffffffffff\n\
             [ 9000.000002] clocksource: 'tsc' cs_now: {now} cs_last: {last} mask: ffffffffffffffff\n"
        ))
    };
    // 10^9 cycles in 0.46 s.
    silent(&check("ffffffffe2329b00", "1dcd6500"), Code::CounterReset);
    // From 5000 s below zero, and from above it, to 10^9.
    finds(&check("fffff6e7b18c3000", "3b9aca00"), Code::CounterReset);
    finds(&check("9184e72a000", "3b9aca00"), Code::CounterReset);
}

#[test]
fn the_line_of_jiffies_tells_the_rate_of_refined_jiffies() {
    let log = "tsc: Detected 2900.000 MHz processor\n\
        clocksource: jiffies: mask: 0xffffffff max_cycles: 0xffffffff, max_idle_ns: 7645041785100000 ns\n\
        clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc-early' as unstable because the skew is too large:\n\
        clocksource: 'refined-jiffies' wd_now: fffedba4 wd_last: fffedb40 mask: ffffffff\n\
        clocksource: 'tsc-early' cs_now: e969c9e380 cs_last: e8ce3b7800 mask: ffffffffffffffff\n";
    let diagnosis = of_log(log);
    // 100 ticks at 250 Hz; 2 609 802 112 cycles at 2.9 GHz.
    close(
        figure(&diagnosis, Code::ReferenceLostTicks, "reference_s"),
        0.4,
        1e-6,
    );
    close(
        figure(&diagnosis, Code::ReferenceLostTicks, "counter_s"),
        2_609_802_112.0 / 2.9e9,
        1e-6,
    );
}

#[test]
fn a_measured_loop_shows_that_no_method_worked() {
    let failed = "tsc: Fast TSC calibration failed\ntsc: Unable to calibrate against PIT\n";
    let measured = "Calibrating delay loop... 4980.73 BogoMIPS (lpj=9961472)\n";
    let diagnosis = of_log(&format!("{failed}{measured}"));
    close(
        figure(&diagnosis, Code::CalibrationFailed, "lpj"),
        9_961_472.0,
        0.0,
    );
    for log in [
        failed.to_owned(),
        format!("{failed}tsc: using PMTIMER reference calibration\n{measured}"),
        format!("{failed}tsc: Detected 2500.000 MHz processor\n{measured}"),
    ] {
        assert!(!has(&of_log(&log), Code::CalibrationFailed), "{log}");
    }
}

#[test]
fn the_dear_state_of_a_clock_is_the_slow_one_in_any_order() {
    let source = "sys/devices/system/clocksource/clocksource0/current_clocksource";
    for rows in [
        "realtime,1888,vdso\nrealtime@page,43.7,vdso\n",
        "realtime@page,43.7,vdso\nrealtime@msr,1888,vdso\n",
        "realtime@msr,1888,vdso\nrealtime@page,43.7,vdso\n",
    ] {
        let costs = format!("clock,ns_per_read,path\n{rows}");
        let diagnosis = of(&[(source, "hyperv_clocksource_msr\n"), ("cost.csv", &costs)]);
        close(
            figure(&diagnosis, Code::SlowReadPath, "ns_per_read"),
            1888.0,
            1e-9,
        );
        close(
            figure(&diagnosis, Code::SlowReadPath, "slowdown_ratio"),
            1888.0 / 43.7,
            1e-9,
        );
        assert_eq!(diagnosis.verdict, Verdict::Fault);
    }
}

#[test]
fn a_clock_that_old_kernels_never_read_in_user_space_is_no_witness_in_any_spelling() {
    let source = "sys/devices/system/clocksource/clocksource0/current_clocksource";
    let verdict = |clock: &str| {
        let costs = format!("clock,ns_per_read,path\n{clock},150,vdso\n{clock},150,syscall\n");
        has(
            &of(&[(source, "tsc\n"), ("cost.csv", &costs)]),
            Code::VdsoFallback,
        )
    };
    assert!(verdict("CLOCK_MONOTONIC") && verdict("monotonic"));
    for clock in ["CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME", "monotonic_raw"] {
        assert!(!verdict(clock), "{clock}");
    }
}
