use super::series::{EPOCH, SECOND, at, sampled, series, with_tsc};
use super::{close, codes, figure, finds, healthy, of, real, silent};
use chronovisor_diagnose::{Code, Verdict};

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
            real(size_ms.abs()) / 1e3,
            1e-3,
        );
        close(
            figure(&diagnosis, code, "net_s"),
            count * real(size_ms) / 1e3,
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
            close(figure(&diagnosis, code, "period_s"), real(every), 1e-6);
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
            real(behind),
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
            real(EPOCH - start) / 1e9,
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
