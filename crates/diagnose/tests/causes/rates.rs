use super::series::{EPOCH, SECOND, at, sampled, series, with_tsc};
use super::{close, figure, finds, has, healthy, real, silent};
use chronovisor_diagnose::Code;

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
            real(ppm),
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
        let apart = (declared.parse::<f64>().unwrap() / real(mhz) - 1.0).abs() > 5e-4;
        assert_eq!(
            has(&diagnosis, Code::FrequencySourcesDisagree),
            apart,
            "{declared}"
        );
        if apart {
            close(
                figure(&diagnosis, Code::FrequencySourcesDisagree, "measured_hz"),
                real(mhz) * 1e6,
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
            (b - real(before)).abs() < 20.0 && (a - real(after)).abs() < 20.0,
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
        let truly = move |t: i128| t + if t > 20 * SECOND { 3_700 * SECOND } else { 0 };
        let outside = move |t: i128| EPOCH + truly(t);
        let guest = move |t: i128| {
            at(ppm)(truly(t))
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
            real(lost_ms) / 1e3,
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
