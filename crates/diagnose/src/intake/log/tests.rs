use super::{Reading, read};
use crate::evidence::{ClockEvent, UnstableReason, WatchdogBlock};

fn reading(text: &str) -> Reading {
    read(text.as_bytes()).unwrap()
}

fn events(text: &str) -> Vec<ClockEvent> {
    reading(text)
        .log
        .boots
        .iter()
        .flat_map(|boot| boot.events.iter().map(|logged| logged.event.clone()))
        .collect()
}

#[test]
fn every_generation_of_the_watchdog_is_understood() {
    let block = |name: &str, nsec, now, last, mask| WatchdogBlock {
        name: name.to_owned(),
        nsec,
        now,
        last,
        mask,
    };
    for (line, event) in [
        (
            "timekeeping watchdog: Marking clocksource 'tsc' as unstable, because the skew is too large:",
            ClockEvent::WatchdogVerdict { name: "tsc".into() },
        ),
        (
            "clocksource: timekeeping watchdog on CPU2: Marking clocksource 'tsc-early' as unstable because the skew is too large:",
            ClockEvent::WatchdogVerdict {
                name: "tsc-early".into(),
            },
        ),
        (
            "        'xen' wd_now: f6aa707c0c8f wd_last: f6a8d4762faa mask: ffffffffffffffff",
            ClockEvent::WatchdogReference(block(
                "xen",
                None,
                0xf6aa_707c_0c8f,
                0xf6a8_d476_2faa,
                u64::MAX,
            )),
        ),
        (
            "clocksource:                       'hpet' wd_nsec: 503319914 wd_now: 7c1bf0a wd_last: 74f1c5c mask: ffffffff",
            ClockEvent::WatchdogReference(block(
                "hpet",
                Some(503_319_914),
                0x7c1_bf0a,
                0x74f_1c5c,
                0xffff_ffff,
            )),
        ),
        (
            "clocksource:                       'tsc' cs_nsec: 511999999 cs_now: 1c cs_last: a mask: ffffffffffffffff",
            ClockEvent::WatchdogAccused(block("tsc", Some(511_999_999), 0x1c, 0xa, u64::MAX)),
        ),
        (
            "clocksource:                       Clocksource 'tsc' skewed -511 ns (0 ms) over watchdog 'hpet' interval of 503319914 ns (503 ms)",
            ClockEvent::WatchdogSkewed {
                name: "tsc".into(),
                skew_ns: -511,
                watchdog: "hpet".into(),
                interval_ns: 503_319_914,
            },
        ),
        (
            "clocksource: Marking clocksource tsc unstable due to frequency skew",
            ClockEvent::FrequencySkewVerdict { name: "tsc".into() },
        ),
        (
            "clocksource: Watchdog                 hpet interval:        503319914ns",
            ClockEvent::WatchdogInterval {
                name: "hpet".into(),
                interval_ns: 503_319_914,
            },
        ),
        (
            "clocksource: Clocksource                  tsc interval:        511999999ns",
            ClockEvent::AccusedInterval {
                name: "tsc".into(),
                interval_ns: 511_999_999,
            },
        ),
        (
            "clocksource: Marking clocksource tsc unstable due to inter CPU skew",
            ClockEvent::CpuSkewVerdict { name: "tsc".into() },
        ),
        (
            "clocksource: CPU3        123456789 < CPU0        123457009 (cycles)",
            ClockEvent::CpuSkew {
                lower: 123_456_789,
                higher: 123_457_009,
            },
        ),
        (
            "Clocksource tsc unstable (delta = -131624372 ns)",
            ClockEvent::OldVerdict {
                name: "tsc".into(),
                delta_ns: -131_624_372,
            },
        ),
        (
            "clocksource: timekeeping watchdog on CPU1: acpi_pm wd-wd read-back delay of 144431ns",
            ClockEvent::ReadBackReference { delay_ns: 144_431 },
        ),
        (
            "clocksource: wd-tsc-wd read-back delay of 124876ns, clock-skew test skipped!",
            ClockEvent::ReadBackSkipped { delay_ns: 124_876 },
        ),
        (
            "clocksource: timekeeping watchdog on CPU3: wd-tsc-wd excessive read-back delay of 5252000ns vs. limit of 125000ns, wd-wd read-back delay only 1200ns, attempt 3, marking tsc unstable",
            ClockEvent::ReadBackVerdict {
                delay_ns: 5_252_000,
                reference_ns: Some(1200),
            },
        ),
        (
            "clocksource: timekeeping watchdog on CPU6: hpet read-back delay of 525200ns, attempt 4, marking unstable",
            ClockEvent::ReadBackVerdict {
                delay_ns: 525_200,
                reference_ns: None,
            },
        ),
        (
            "[    3.568257] clocksource: Watchdog hpet read timed out. Readout sequence took: 57800ns",
            ClockEvent::ReadTimedOut {
                delay_ns: Some(57_800),
            },
        ),
        (
            "[    9.064695] watchdog_print_freq_timeout: 7 callbacks suppressed",
            ClockEvent::ReadTimeoutsSuppressed { count: 7 },
        ),
        (
            "clocksource: timekeeping watchdog on CPU1: hpet retried 2 times before success",
            ClockEvent::ReadRetried { attempts: 2 },
        ),
        (
            "clocksource: Long readout interval, skipping watchdog check: cs_nsec: 3001 wd_nsec: 3000",
            ClockEvent::LongInterval {
                accused_ns: 3001,
                reference_ns: 3000,
            },
        ),
        (
            "clocksource: CPUs 1-3 ahead of CPU 0 for clocksource tsc.",
            ClockEvent::CpusApart { name: "tsc".into() },
        ),
        (
            "tsc: Marking TSC unstable due to clocksource watchdog",
            ClockEvent::TscUnstable(UnstableReason::ClocksourceWatchdog),
        ),
        (
            "tsc: Marking TSC unstable due to running on Hyper-V",
            ClockEvent::TscUnstable(UnstableReason::RunningOnHyperV),
        ),
        (
            "Switched to clocksource xen",
            ClockEvent::Switched { name: "xen".into() },
        ),
    ] {
        assert_eq!(events(line), [event], "{line}");
    }
}

#[test]
fn lines_that_only_quote_a_clock_word_say_nothing() {
    for line in [
        "systemd[1]: Starting clocksource tuner",
        "audit: cmdline=tsc",
        "the TSC is fine",
        "clocksource: ",
        "Marking clocksource 'a name with blanks that is far too long' as unstable because the skew is too large:",
        "PM: Registering ACPI NVS region",
    ] {
        assert_eq!(events(line), [], "{line}");
    }
}

#[test]
fn prefixes_colours_and_line_ends_do_not_matter() {
    let stamped = "[ 8996.146113] clocksource: Switched to clocksource acpi_pm";
    let expected = events(stamped);
    assert_eq!(expected.len(), 1);
    for line in [
        format!("{stamped}\r\n"),
        format!("<5>{stamped}\n"),
        format!("kern  :info  : {stamped}"),
        format!("Sep 23 21:33:08 host kernel: {stamped}"),
        format!("Tue Mar  8 13:19:34 2022 kern.info kernel: {stamped}"),
        "\u{1b}[32m[ 8996.146113] \u{1b}[0m\u{1b}[33mclocksource: \u{1b}[0mSwitched to clocksource acpi_pm"
            .to_owned(),
        "[ 8996.146113][    T1] clocksource: Switched to clocksource acpi_pm".to_owned(),
        "[Tue Mar  8 13:19:34 2022] clocksource: Switched to clocksource acpi_pm".to_owned(),
    ] {
        assert_eq!(events(&line), expected, "{line:?}");
    }
}

#[test]
fn boots_are_told_apart_by_version_marker_or_a_repeated_line() {
    let boot = "[    0.000000] Linux version 6.1.0-13 (someone@host)\n[    1.000000] clocksource: Switched to clocksource tsc\n";
    let cut = "[    0.000000] clocksource: hpet: mask: 0xffffffff max_cycles: 0xffffffff, max_idle_ns: 19112604467 ns\n[  900.000000] clocksource: Switched to clocksource tsc\n";
    for (text, starts) in [
        (format!("{boot}{boot}"), vec![1, 3]),
        (format!("{cut}{cut}"), vec![1, 3]),
        (format!("-- Boot 1 --\n{cut}-- Reboot --\n{cut}"), vec![1, 4]),
        (format!("-- Boot 1 --\n{boot}-- Boot 2 --\n{boot}"), vec![1, 4]),
        (
            "[ 9.000000] clocksource: Switched to clocksource tsc\n[ 0.500000] clocksource: Switched to clocksource hpet\n"
                .to_owned(),
            vec![1],
        ),
    ] {
        let starts_seen: Vec<u64> = reading(&text)
            .log
            .boots
            .iter()
            .map(|boot| boot.first_line)
            .collect();
        assert_eq!(starts_seen, starts, "{text}");
    }
}

#[test]
fn damage_is_named_with_its_line_and_the_rest_is_read() {
    let mut text = b"[    0.1] x\n\0\0\0 junk\n".to_vec();
    text.extend_from_slice(b"clocksource: 'tsc' cs_now: fffffffffffffffff cs_last: 1 mask: ff\n");
    text.extend_from_slice(b"\xff\xfe\xfd clocksource: Switched to clocksource tsc\n");
    let reading = read(text.as_slice()).unwrap();
    assert_eq!(reading.log.lines, 4);
    assert_eq!(reading.log.boots[0].events.iter().count(), 1);
    assert_eq!(reading.log.boots[0].events.first[0].line, 4);
    assert_eq!(
        reading.complaints,
        [
            "kernel log line 2: NUL bytes, passed over",
            "kernel log line 3: a number beyond 64 bits, the line was passed over"
        ]
    );
}

#[test]
fn a_line_without_end_takes_no_memory_and_the_next_is_read() {
    let long = std::iter::repeat_n(b'x', 5 << 20);
    let text: Vec<u8> = long
        .chain(*b"\n[    1.000000] clocksource: Switched to clocksource tsc\n")
        .collect();
    let reading = read(text.as_slice()).unwrap();
    assert_eq!(reading.log.lines, 2);
    assert_eq!(reading.log.boots[0].events.first[0].line, 2);
    assert_eq!(reading.complaints.len(), 1);
}

#[test]
fn a_flood_keeps_both_ends_and_counts_the_rest() {
    let mut text = String::new();
    for i in 0..20_000 {
        text.push_str(&format!("[ {i}.000000] hrtimer: interrupt took 5 ns\n"));
        if i == 10_000 {
            text.push_str(
                "[ 10000.100000] tsc: Marking TSC unstable due to clocksource watchdog\n",
            );
        }
    }
    let reading = reading(&text);
    let events = &reading.log.boots[0].events;
    assert!(
        events
            .iter()
            .any(|logged| logged.event.kind() == "tsc-unstable")
    );
    assert!(events.iter().count() <= 2100);
    let kept = u64::try_from(events.iter().count()).unwrap();
    assert_eq!(kept + events.count_left_out(), 20_001);
}
