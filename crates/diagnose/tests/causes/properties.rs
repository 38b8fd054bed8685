use super::series::{EPOCH, SECOND, at, sampled, series, with_tsc};
use super::verdict::{GENERATIONS, Verdicts, detected, ticks};
use super::{figure, of_log, real};
use chronovisor_diagnose::{Code, Verdict};
use proptest::prelude::*;
use std::fmt::Write;

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
            prop_assert_eq!(told.figures["wraps"].value(), real(wraps));
            prop_assert!((told.figures["implied_hz"].value() / real(tsc_hz) - 1.0).abs() < 1e-3);
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
        prop_assert!((figure(&diagnosis, Code::RateErrorBelowGuest, "rate_error_ppm") - real(ppm)).abs() < 20.0);
    }

    #[test]
    fn a_pause_is_recovered(lost_ms in 60_i128..10_000_000, at_row in 5_i128..35, noise in prop::collection::vec(-300_000_i128..300_000, 40)) {
        let samples = series(40, SECOND, &[
            ("reference_ns", &|t| EPOCH + t + noise[usize::try_from(t / SECOND).unwrap()] + if t >= at_row * SECOND { lost_ms * 1_000_000 } else { 0 }),
            ("monotonic_ns", &|t| 5 + t),
        ]);
        let diagnosis = sampled(&samples);
        prop_assert!((figure(&diagnosis, Code::GuestPaused, "lost_s") - real(lost_ms) / 1e3).abs() < 0.002);
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
