use super::{close, codes, figure, finds, has, healthy, of, silent};
use chronovisor_diagnose::{Code, Diagnosis, Verdict};
use proptest::prelude::*;

const SECOND: i128 = 1_000_000_000;
const EPOCH: i128 = 1_785_400_000 * SECOND;

/// A series: named columns, each a function of the row's time outside, in ns since the first row.
fn series(rows: i128, step_ns: i128, columns: &[(&str, &dyn Fn(i128) -> i128)]) -> String {
    let mut text = columns
        .iter()
        .map(|(name, _)| *name)
        .collect::<Vec<_>>()
        .join(",");
    for row in 0..rows {
        text.push('\n');
        let t = row * step_ns;
        let cells: Vec<String> = columns.iter().map(|(_, at)| at(t).to_string()).collect();
        text.push_str(&cells.join(","));
    }
    text.push('\n');
    text
}

fn sampled(samples: &str) -> Diagnosis {
    of(&[("samples.csv", samples)])
}

fn with_tsc(samples: &str, log: &str) -> Diagnosis {
    of(&[("samples.csv", samples), ("dmesg", log)])
}

/// The rate `ppm` off.
fn at(ppm: i128) -> impl Fn(i128) -> i128 {
    move |t| t + t * ppm / 1_000_000
}

#[test]
fn clocks_that_agree_are_healthy() {
    for ppm in [0, 40, -90, 300, -450] {
        let samples = series(
            60,
            SECOND,
            &[
                ("reference_ns", &|t| EPOCH + t),
                ("realtime_ns", &|t| EPOCH + at(ppm)(t)),
                ("monotonic_ns", &|t| 77 + at(ppm)(t)),
                ("monotonic_raw_ns", &|t| 99 + at(ppm)(t)),
                ("tsc", &|t| 5 + at(ppm)(t) * 26 / 10),
                ("cpu", &|t| t / SECOND % 2),
            ],
        );
        healthy(&with_tsc(
            &samples,
            "[    0.000000] tsc: Detected 2600.000 MHz processor\n",
        ));
    }
    // The discipline slews the monotonic clock against the raw one.
    let slewed = series(
        60,
        SECOND,
        &[
            ("monotonic_ns", &|t| {
                if t < 30 * SECOND {
                    at(480)(t)
                } else {
                    at(480)(30 * SECOND) + at(-480)(t - 30 * SECOND)
                }
            }),
            ("monotonic_raw_ns", &|t| t),
            ("tsc", &|t| t * 3),
        ],
    );
    healthy(&with_tsc(
        &slewed,
        "[    0.000000] tsc: Detected 3000.000 MHz processor\n",
    ));
}

#[test]
fn one_wrong_rate_on_every_clock_is_below_the_guest() {
    for (ppm, mhz) in [(70_000, 2995), (-30_000, 2100), (1_500, 2600)] {
        let samples = series(
            40,
            SECOND,
            &[
                ("host_realtime_ns", &|t| EPOCH + t),
                ("monotonic_ns", &at(ppm)),
                ("monotonic_raw_ns", &at(ppm)),
                ("tsc", &|t| at(ppm)(t) * mhz / 1000),
            ],
        );
        let diagnosis = with_tsc(
            &samples,
            &format!("[    0.000000] tsc: Detected {mhz}.000 MHz processor\n"),
        );
        close(
            figure(&diagnosis, Code::RateErrorBelowGuest, "rate_error_ppm"),
            ppm as f64,
            1e-3,
        );
        for code in [
            Code::GuestPaused,
            Code::RateStep,
            Code::FrequencySourcesDisagree,
        ] {
            silent(&diagnosis, code);
        }
    }
}

#[test]
fn a_wrong_rate_of_some_clocks_is_not_below_the_guest() {
    let log = "[    0.000000] tsc: Detected 2000.000 MHz processor\n";
    // The wall clock alone: it is being slewed.
    let realtime = series(
        40,
        SECOND,
        &[
            ("reference_ns", &|t| EPOCH + t),
            ("realtime_ns", &|t| EPOCH + at(5_000)(t)),
            ("monotonic_raw_ns", &|t| t),
        ],
    );
    silent(&with_tsc(&realtime, log), Code::RateErrorBelowGuest);
    // The counter is right and the kernel converts it wrong.
    let converted = series(
        40,
        SECOND,
        &[
            ("reference_ns", &|t| EPOCH + t),
            ("monotonic_raw_ns", &at(70_000)),
            ("tsc", &|t| t * 2),
        ],
    );
    silent(&with_tsc(&converted, log), Code::RateErrorBelowGuest);
    // Another timer of the guest is right: the calibration is wrong.
    let hpet = series(
        40,
        SECOND,
        &[
            ("reference_ns", &|t| EPOCH + t),
            ("monotonic_raw_ns", &at(70_000)),
            ("tsc", &|t| at(70_000)(t) * 2),
            ("hpet_ns", &|t| t),
        ],
    );
    let diagnosis = with_tsc(&hpet, log);
    silent(&diagnosis, Code::RateErrorBelowGuest);
    close(
        figure(&diagnosis, Code::FrequencySourcesDisagree, "measured_hz"),
        2.14e9,
        1e-4,
    );
    close(
        figure(&diagnosis, Code::FrequencySourcesDisagree, "ratio"),
        1.0 / 1.07,
        1e-4,
    );
    // No raw clock was read.
    let monotonic = series(
        40,
        SECOND,
        &[
            ("reference_ns", &|t| EPOCH + t),
            ("monotonic_ns", &at(70_000)),
        ],
    );
    silent(&sampled(&monotonic), Code::RateErrorBelowGuest);
}

#[test]
fn the_counter_against_another_timer_of_the_guest() {
    for (declared, mhz) in [("2800.000", 1000), ("3499.912", 4), ("2995.201", 2994)] {
        let samples = series(
            20,
            SECOND,
            &[("hpet_ns", &|t| t), ("tsc", &|t| t * mhz / 1000)],
        );
        let diagnosis = with_tsc(
            &samples,
            &format!("tsc: Detected {declared} MHz processor\n"),
        );
        let apart = (declared.parse::<f64>().unwrap() / mhz as f64 - 1.0).abs() > 5e-4;
        assert_eq!(
            has(&diagnosis, Code::FrequencySourcesDisagree),
            apart,
            "{declared}"
        );
        if apart {
            close(
                figure(&diagnosis, Code::FrequencySourcesDisagree, "measured_hz"),
                mhz as f64 * 1e6,
                1e-4,
            );
        }
    }
}

#[test]
fn a_rate_that_changes_at_one_moment() {
    let bent = |before: i128, after: i128, at_s: i128| {
        move |t: i128| {
            let corner = at_s * SECOND;
            if t < corner {
                at(before)(t)
            } else {
                at(before)(corner) + at(after)(t - corner)
            }
        }
    };
    for (before, after) in [(0, 238_095), (0, -12_000), (2_000, -2_000), (100, 900)] {
        let samples = series(
            60,
            SECOND,
            &[
                ("reference_ns", &|t| EPOCH + t),
                ("monotonic_ns", &bent(before, after, 30)),
                ("monotonic_raw_ns", &bent(before, after, 30)),
            ],
        );
        let diagnosis = sampled(&samples);
        let (b, a) = (
            figure(&diagnosis, Code::RateStep, "before_ppm"),
            figure(&diagnosis, Code::RateStep, "after_ppm"),
        );
        assert!(
            (b - before as f64).abs() < 20.0 && (a - after as f64).abs() < 20.0,
            "{b} {a}"
        );
        silent(&diagnosis, Code::GuestPaused);
        silent(&diagnosis, Code::RateErrorBelowGuest);
    }
    // Inside the guest: the kernel's clocks against the counter.
    let inside = series(
        60,
        SECOND,
        &[("monotonic_ns", &bent(0, 50_000, 25)), ("tsc", &|t| t * 2)],
    );
    finds(
        &with_tsc(&inside, "tsc: Detected 2000.000 MHz processor\n"),
        Code::RateStep,
    );
    // A pause, a constant error and a slow curve are none.
    for y in [
        &(|t: i128| if t > 30 * SECOND { t - 8 * SECOND } else { t }) as &dyn Fn(i128) -> i128,
        &|t| t + t * 3 / 1000,
        &|t| t + t / SECOND * (t / SECOND) * 1000,
    ] {
        let samples = series(
            60,
            SECOND,
            &[("reference_ns", &|t| EPOCH + t), ("monotonic_raw_ns", y)],
        );
        silent(&sampled(&samples), Code::RateStep);
    }
}

#[test]
fn a_pause_is_one_gap() {
    for (lost_ms, ppm) in [(4_000_i128, 0_i128), (150, 30), (3_600_000, -200)] {
        // The rows are taken by the guest, so none falls into the gap.
        let real = move |t: i128| t + if t > 20 * SECOND { 3_700 * SECOND } else { 0 };
        let outside = move |t: i128| EPOCH + real(t);
        let guest = move |t: i128| {
            at(ppm)(real(t))
                - if t > 20 * SECOND {
                    lost_ms * 1_000_000
                } else {
                    0
                }
        };
        let samples = series(
            50,
            SECOND,
            &[
                ("host_realtime_ns", &outside),
                ("monotonic_ns", &guest),
                ("monotonic_raw_ns", &guest),
            ],
        );
        let diagnosis = sampled(&samples);
        close(
            figure(&diagnosis, Code::GuestPaused, "lost_s"),
            lost_ms as f64 / 1e3,
            1e-3,
        );
        silent(&diagnosis, Code::RateErrorBelowGuest);
        silent(&diagnosis, Code::RateStep);
    }
    // An orderly suspend is counted by BOOTTIME.
    let slept = |t: i128| t - if t > 20 * SECOND { 9 * SECOND } else { 0 };
    let samples = series(
        50,
        SECOND,
        &[
            ("reference_ns", &|t| EPOCH + t),
            ("monotonic_ns", &slept),
            ("boottime_ns", &|t| t),
        ],
    );
    silent(&sampled(&samples), Code::GuestPaused);
    // A clock that gains, a disturbed reading, noise of the reference.
    let gains = series(
        50,
        SECOND,
        &[
            ("reference_ns", &|t| EPOCH + t),
            ("monotonic_ns", &|t| {
                t + if t > 20 * SECOND { SECOND } else { 0 }
            }),
        ],
    );
    silent(&sampled(&gains), Code::GuestPaused);
    let disturbed = series(
        50,
        SECOND,
        &[
            ("reference_ns", &|t| {
                EPOCH + t + if t == 20 * SECOND { 300_000_000 } else { 0 }
            }),
            ("monotonic_ns", &|t| t),
        ],
    );
    healthy(&sampled(&disturbed));
    let noisy = series(
        50,
        SECOND,
        &[
            ("reference_ns", &|t| {
                EPOCH + t + (t / SECOND * 7919 % 13 - 6) * 2_000_000
            }),
            ("monotonic_ns", &|t| t),
        ],
    );
    healthy(&sampled(&noisy));
}

#[test]
fn a_stepped_wall_clock_is_told_with_its_steps() {
    let steps = |every: i128, size: i128| move |t: i128| EPOCH + t + (t / (every * SECOND)) * size;
    for (every, size_ms, count) in [(45_i128, -3_150_i128, 6.0), (60, 500, 4.0), (100, -20, 2.0)] {
        let samples = series(
            300,
            SECOND,
            &[
                ("monotonic_ns", &|t| t),
                ("realtime_ns", &steps(every, size_ms * 1_000_000)),
            ],
        );
        let diagnosis = sampled(&samples);
        let code = Code::WallClockStepped;
        close(figure(&diagnosis, code, "steps"), count, 0.0);
        close(
            figure(&diagnosis, code, "max_step_s"),
            size_ms.abs() as f64 / 1e3,
            1e-3,
        );
        close(
            figure(&diagnosis, code, "net_s"),
            count * size_ms as f64 / 1e3,
            1e-3,
        );
        close(
            figure(
                &diagnosis,
                code,
                if size_ms > 0 {
                    "forward_steps"
                } else {
                    "backward_steps"
                },
            ),
            count,
            0.0,
        );
        if count > 2.0 {
            close(figure(&diagnosis, code, "period_s"), every as f64, 1e-6);
        }
    }
    // One step forward after a pause: both are told.
    let guest = |t: i128| t - if t > 20 * SECOND { 5 * SECOND } else { 0 };
    let samples = series(
        60,
        SECOND,
        &[
            ("host_realtime_ns", &|t| EPOCH + t),
            ("monotonic_ns", &guest),
            ("realtime_ns", &|t| {
                EPOCH + guest(t) + if t > 40 * SECOND { 5 * SECOND } else { 0 }
            }),
        ],
    );
    let diagnosis = sampled(&samples);
    close(figure(&diagnosis, Code::GuestPaused, "lost_s"), 5.0, 1e-3);
    close(
        figure(&diagnosis, Code::WallClockStepped, "forward_steps"),
        1.0,
        0.0,
    );
    silent(&diagnosis, Code::WallClockStaleAfterRestore);
}

#[test]
fn what_only_looks_like_a_step() {
    // A suspend: boottime gains as much.
    let slept = |t: i128| t + if t > 20 * SECOND { 9 * SECOND } else { 0 };
    let suspended = series(
        50,
        SECOND,
        &[
            ("monotonic_ns", &|t| t),
            ("boottime_ns", &slept),
            ("realtime_ns", &|t| EPOCH + slept(t)),
        ],
    );
    silent(&sampled(&suspended), Code::WallClockStepped);
    // The same without boottime, but with the log.
    let suspended = series(
        50,
        SECOND,
        &[
            ("monotonic_ns", &|t| t),
            ("realtime_ns", &|t| EPOCH + slept(t)),
        ],
    );
    silent(
        &with_tsc(
            &suspended,
            "[   20.0] x\n[   20.000000] PM: suspend entry (deep)\n[   20.100000] PM: suspend exit\n",
        ),
        Code::WallClockStepped,
    );
    // A slew.
    let slewed = series(
        50,
        SECOND,
        &[
            ("monotonic_ns", &at(400)),
            ("realtime_ns", &|t| EPOCH + at(400)(t)),
        ],
    );
    healthy(&sampled(&slewed));
    // A preempted reader.
    let preempted = series(
        50,
        SECOND,
        &[
            ("monotonic_ns", &|t| t),
            ("realtime_ns", &|t| {
                EPOCH + t + if t == 9 * SECOND { 12_000_000 } else { 0 }
            }),
        ],
    );
    healthy(&sampled(&preempted));
    // Only a clock outside: a pause is not told from a step back, unless time goes back.
    let lost = series(
        50,
        SECOND,
        &[
            ("reference_ns", &|t| 5 + t),
            ("realtime_ns", &|t| {
                EPOCH + t - if t > 20 * SECOND { 300_000_000 } else { 0 }
            }),
        ],
    );
    silent(&sampled(&lost), Code::WallClockStepped);
    let back = series(
        50,
        SECOND,
        &[
            ("reference_ns", &|t| 5 + t),
            ("realtime_ns", &|t| {
                EPOCH + t - if t > 20 * SECOND { 3 * SECOND } else { 0 }
            }),
        ],
    );
    finds(&sampled(&back), Code::WallClockStepped);
}

#[test]
fn a_wall_clock_that_a_restore_left_behind() {
    for behind in [64_i128, 3, 270_000] {
        let outside = move |t: i128| EPOCH + t + if t > 20 * SECOND { behind * SECOND } else { 0 };
        let samples = series(
            50,
            SECOND,
            &[
                ("host_realtime_ns", &outside),
                ("realtime_ns", &|t| EPOCH + t),
                ("monotonic_ns", &|t| t),
            ],
        );
        let diagnosis = sampled(&samples);
        close(
            figure(&diagnosis, Code::WallClockStaleAfterRestore, "behind_s"),
            behind as f64,
            1e-3,
        );
        silent(&diagnosis, Code::WallClockStepped);
        silent(&diagnosis, Code::EpochMissing);
    }
    // Behind from the first row on, after a restore that the log shows, or by a time that is no time zone.
    let behind = |s: i128| {
        series(
            20,
            SECOND,
            &[
                ("host_realtime_ns", &|t| EPOCH + t),
                ("realtime_ns", &move |t| EPOCH + t - s * SECOND),
            ],
        )
    };
    let forked = "[    9.0] x\n[    9.000000] random: crng reseeded due to virtual machine fork\n";
    finds(
        &with_tsc(&behind(7), forked),
        Code::WallClockStaleAfterRestore,
    );
    finds(&sampled(&behind(53_555)), Code::WallClockStaleAfterRestore);
    for s in [7200, 19_800, 3, -400] {
        silent(&sampled(&behind(s)), Code::WallClockStaleAfterRestore);
    }
    // Corrected again.
    let corrected = series(
        60,
        SECOND,
        &[
            ("host_realtime_ns", &|t| EPOCH + t),
            ("realtime_ns", &|t| {
                EPOCH + t
                    - if t > 20 * SECOND && t < 40 * SECOND {
                        60 * SECOND
                    } else {
                        0
                    }
            }),
        ],
    );
    silent(&sampled(&corrected), Code::WallClockStaleAfterRestore);
    // Set back by somebody: the guest's own clocks went on.
    let set_back = series(
        60,
        SECOND,
        &[
            ("host_realtime_ns", &|t| EPOCH + t),
            ("monotonic_ns", &|t| t),
            ("realtime_ns", &|t| {
                EPOCH + t - if t > 20 * SECOND { 60 * SECOND } else { 0 }
            }),
        ],
    );
    let diagnosis = sampled(&set_back);
    silent(&diagnosis, Code::WallClockStaleAfterRestore);
    finds(&diagnosis, Code::WallClockStepped);
    // Drifting away is not standing behind.
    let drifting = series(
        60,
        3600 * SECOND,
        &[
            ("host_realtime_ns", &|t| EPOCH + t),
            ("realtime_ns", &|t| EPOCH + at(-400)(t)),
        ],
    );
    let diagnosis = sampled(&drifting);
    silent(&diagnosis, Code::WallClockStaleAfterRestore);
    assert_eq!(codes(&diagnosis), ["clock-unsynchronised"]);
    assert_eq!(diagnosis.verdict, Verdict::NoFault);
}

#[test]
fn years_off_is_a_missing_date() {
    for start in [12 * SECOND, 943_920_000 * SECOND, 315_532_800 * SECOND] {
        let samples = series(
            20,
            SECOND,
            &[
                ("reference_ns", &|t| EPOCH + t),
                ("realtime_ns", &move |t| start + t),
            ],
        );
        let diagnosis = sampled(&samples);
        close(
            figure(&diagnosis, Code::EpochMissing, "behind_s"),
            (EPOCH - start) as f64 / 1e9,
            1e-9,
        );
        silent(&diagnosis, Code::WallClockStaleAfterRestore);
        silent(&diagnosis, Code::WallClockStepped);
    }
    // One row is enough for that.
    finds(
        &sampled("reference_ns,realtime_ns\n1783697396421537000,943920000015268000\n"),
        Code::EpochMissing,
    );
    finds(
        &sampled("realtime_ns\n12000000000\n13000000000\n"),
        Code::EpochMissing,
    );
    finds(
        &of(&[(
            "dmesg",
            "[    1.0] x\nrtc_cmos 00:00: setting system clock to 1970-01-01T00:00:05 UTC (5)\n",
        )]),
        Code::EpochMissing,
    );
    healthy(&of(&[(
        "dmesg",
        "[    1.0] x\n[    0.902054] PM: RTC time: 22:17:07, date: 2023-06-03\n",
    )]));
    // A reference without a date tells no date.
    let samples = series(
        20,
        SECOND,
        &[
            ("reference_ns", &|t| 5 + t),
            ("realtime_ns", &|t| EPOCH + t),
        ],
    );
    healthy(&sampled(&samples));
}

#[test]
fn d81_a_lost_upper_half_jumps_by_multiples_of_2_32() {
    for (n, passed) in [(9_i128, 463_724_i128), (1, 20_000), (250, 9_000_000)] {
        let start = 15_204_184_227_830_i128;
        let later = start - n * (1 << 32) + passed;
        let samples = format!("monotonic_ns\n{start}\n{later}\n{}\n", later + 155_060);
        let diagnosis = sampled(&samples);
        close(
            figure(&diagnosis, Code::TruncatedNanoseconds, "multiple"),
            n as f64,
            0.0,
        );
        close(
            figure(&diagnosis, Code::TruncatedNanoseconds, "residual_ns"),
            passed as f64,
            0.0,
        );
        close(
            figure(&diagnosis, Code::TruncatedNanoseconds, "jump_ns"),
            (later - start) as f64,
            0.0,
        );
        for code in [
            Code::CrossVcpuBackwards,
            Code::CounterReset,
            Code::GuestPaused,
            Code::WallClockStepped,
        ] {
            silent(&diagnosis, code);
        }
    }
    // With another clock the time between the rows may be long.
    let far = series(
        10,
        SECOND,
        &[
            ("reference_ns", &|t| t),
            ("monotonic_ns", &|t| {
                90 * SECOND + t - if t > 4 * SECOND { 3 << 32 } else { 0 }
            }),
        ],
    );
    close(
        figure(&sampled(&far), Code::TruncatedNanoseconds, "multiple"),
        3.0,
        0.0,
    );
    for samples in [
        "monotonic_ns\n90000000000\n52000000000\n52000100000\n",
        "monotonic_ns\n90000000000\n89999999000\n",
        "monotonic_ns\n1000\n4294968296\n",
    ] {
        silent(&sampled(samples), Code::TruncatedNanoseconds);
    }
}

#[test]
fn d82_time_that_goes_back_between_cpus_only() {
    for (skew, largest) in [
        (68_000_i128, 48_000.0),
        (22_600, 2_600.0),
        (900_000, 880_000.0),
    ] {
        let samples = series(
            100,
            20_000,
            &[
                ("cpu", &|t| t / 20_000 % 2),
                ("monotonic_ns", &move |t| {
                    10_000_000 + t + if t / 20_000 % 2 == 0 { skew } else { 0 }
                }),
            ],
        );
        let diagnosis = sampled(&samples);
        close(
            figure(&diagnosis, Code::CrossVcpuBackwards, "max_backward_ns"),
            largest,
            1e-9,
        );
        close(
            figure(&diagnosis, Code::CrossVcpuBackwards, "min_backward_ns"),
            largest,
            1e-9,
        );
        close(
            figure(&diagnosis, Code::CrossVcpuBackwards, "same_cpu_backwards"),
            0.0,
            0.0,
        );
    }
    // The counter, in its own time.
    let samples = series(
        100,
        20_000,
        &[
            ("cpu", &|t| t / 20_000 % 2),
            ("tsc", &|t| {
                10_000_000 + t * 2 + if t / 20_000 % 2 == 0 { 60_000 } else { 0 }
            }),
        ],
    );
    close(
        figure(
            &with_tsc(&samples, "tsc: Detected 2000.000 MHz processor\n"),
            Code::CrossVcpuBackwards,
            "max_backward_ns",
        ),
        10_000.0,
        1e-9,
    );
    for samples in [
        // On one CPU too: not an order between CPUs.
        "cpu,monotonic_ns\n0,1000\n1,900\n1,800\n0,700\n",
        "cpu,monotonic_ns\n0,1000\n0,900\n0,1100\n",
        // Equal is not back.
        "cpu,monotonic_ns\n0,1000\n1,1000\n0,1000\n1,1001\n",
        // Without CPU numbers nobody knows.
        "monotonic_ns\n1000\n900\n1100\n",
    ] {
        silent(&sampled(samples), Code::CrossVcpuBackwards);
    }
}

#[test]
fn d84_a_small_step_back_of_a_counter_is_no_reset() {
    let counter = |t: i128| 2_000_000_000_000 + t * 2 - if t > 20 * SECOND { 5_000 } else { 0 };
    let small = series(
        40,
        SECOND,
        &[("monotonic_ns", &|t| 1000 * SECOND + t), ("tsc", &counter)],
    );
    silent(
        &with_tsc(&small, "tsc: Detected 2000.000 MHz processor\n"),
        Code::CounterReset,
    );
    let zero = |t: i128| {
        if t > 20 * SECOND {
            (t - 20 * SECOND) * 2
        } else {
            2_000_000_000_000 + t * 2
        }
    };
    let reset = series(
        40,
        SECOND,
        &[("monotonic_ns", &|t| 1000 * SECOND + t), ("tsc", &zero)],
    );
    let diagnosis = with_tsc(&reset, "tsc: Detected 2000.000 MHz processor\n");
    close(
        figure(&diagnosis, Code::CounterReset, "since_reset_s"),
        1.0,
        1e-6,
    );
    close(
        figure(&diagnosis, Code::CounterReset, "interval_s"),
        1.0,
        1e-6,
    );
    close(
        figure(&diagnosis, Code::CounterReset, "estimated_hz"),
        2e9,
        1e-6,
    );
    // Without a declared rate the rows before tell it.
    close(
        figure(&sampled(&reset), Code::CounterReset, "since_reset_s"),
        1.0,
        1e-6,
    );
    // The reference counter after a hibernation.
    let hibernated = series(
        40,
        SECOND,
        &[
            ("realtime_ns", &|t| EPOCH + t),
            ("counter_ns", &|t| {
                if t > 20 * SECOND {
                    t - 20 * SECOND
                } else {
                    500 * SECOND + t
                }
            }),
        ],
    );
    finds(&sampled(&hibernated), Code::CounterReset);
}

#[test]
fn d76_a_library_that_was_calibrated_once_drifts_along_a_line() {
    for (ppm, system) in [
        (83_i128, "realtime_ns"),
        (-250, "monotonic_ns"),
        (349, "realtime_ns"),
    ] {
        let base = if system == "realtime_ns" { EPOCH } else { 0 };
        let samples = series(
            120,
            5 * SECOND,
            &[
                (system, &move |t| base + t),
                ("library_ns", &move |t| {
                    base + at(ppm)(t) + (t / SECOND * 31 % 7) * 1000
                }),
            ],
        );
        let diagnosis = sampled(&samples);
        close(
            figure(&diagnosis, Code::LibraryCalibrationDrift, "drift_ppm"),
            ppm as f64,
            1e-2,
        );
        close(
            figure(&diagnosis, Code::LibraryCalibrationDrift, "last_offset_s"),
            ppm as f64 * 595.0 / 1e6,
            1e-2,
        );
        assert!(figure(&diagnosis, Code::LibraryCalibrationDrift, "first_offset_s").abs() < 1e-4);
    }
    for library in [
        &(|t: i128| t) as &dyn Fn(i128) -> i128,
        &|t| t + (t / SECOND * 31 % 7) * 100_000,
        // A step is not a line.
        &|t| t + if t > 300 * SECOND { 40_000_000 } else { 0 },
        &|t| t + t / 2_000_000,
    ] {
        let samples = series(
            120,
            5 * SECOND,
            &[("monotonic_ns", &|t| t), ("library_ns", library)],
        );
        silent(&sampled(&samples), Code::LibraryCalibrationDrift);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_rate_error_is_recovered(ppm in prop_oneof![-90_000_i128..-700, 700_i128..90_000], mhz in 800_i128..5000, noise in prop::collection::vec(-50_000_i128..50_000, 40)) {
        let samples = series(40, SECOND, &[
            ("reference_ns", &|t| EPOCH + t),
            ("monotonic_raw_ns", &|t| at(ppm)(t) + noise[usize::try_from(t / SECOND).unwrap()]),
            ("tsc", &|t| at(ppm)(t) * mhz / 1000),
        ]);
        let diagnosis = with_tsc(&samples, &format!("tsc: Detected {mhz}.000 MHz processor\n"));
        prop_assert!((figure(&diagnosis, Code::RateErrorBelowGuest, "rate_error_ppm") - ppm as f64).abs() < 20.0);
    }

    #[test]
    fn a_pause_is_recovered(lost_ms in 60_i128..10_000_000, at_row in 5_i128..35, noise in prop::collection::vec(-300_000_i128..300_000, 40)) {
        let samples = series(40, SECOND, &[
            ("reference_ns", &|t| EPOCH + t + noise[usize::try_from(t / SECOND).unwrap()] + if t >= at_row * SECOND { lost_ms * 1_000_000 } else { 0 }),
            ("monotonic_ns", &|t| 5 + t),
        ]);
        let diagnosis = sampled(&samples);
        prop_assert!((figure(&diagnosis, Code::GuestPaused, "lost_s") - lost_ms as f64 / 1e3).abs() < 0.002);
    }

    /// Whatever integers stand in the cells, nothing panics.
    #[test]
    fn any_numbers_are_survived(cells in prop::collection::vec((any::<i64>(), any::<u64>(), 0_u8..4, any::<i64>(), any::<i64>()), 0..30)) {
        let mut text = String::from("monotonic_ns,tsc,cpu,reference_ns,library_ns,realtime_ns,page_ns,counter_ns,hpet_ns,boottime_ns\n");
        for (a, b, c, d, e) in cells {
            text.push_str(&format!("{a},{b},{c},{d},{e},{a},{e},{d},{b},{a}\n"));
        }
        text.push_str("1,1,1,1,1,1,1,1,1,1\n");
        let _ = with_tsc(&text, "tsc: Detected 2000.000 MHz processor\n");
    }
}
