use super::series::{EPOCH, SECOND, at, sampled, series, with_tsc};
use super::{close, figure, finds, real, silent};
use chronovisor_diagnose::Code;

#[test]
fn d81_a_lost_upper_half_jumps_by_multiples_of_2_32() {
    for (n, passed) in [(9_i128, 463_724_i128), (1, 20_000), (250, 9_000_000)] {
        let start = 15_204_184_227_830_i128;
        let later = start - n * (1 << 32) + passed;
        let samples = format!("monotonic_ns\n{start}\n{later}\n{}\n", later + 155_060);
        let diagnosis = sampled(&samples);
        close(
            figure(&diagnosis, Code::TruncatedNanoseconds, "multiple"),
            real(n),
            0.0,
        );
        close(
            figure(&diagnosis, Code::TruncatedNanoseconds, "residual_ns"),
            real(passed),
            0.0,
        );
        close(
            figure(&diagnosis, Code::TruncatedNanoseconds, "jump_ns"),
            real(later - start),
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
            real(ppm),
            1e-2,
        );
        close(
            figure(&diagnosis, Code::LibraryCalibrationDrift, "last_offset_s"),
            real(ppm) * 595.0 / 1e6,
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
