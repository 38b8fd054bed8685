//! All of the evidence, in one pass.
//!
//! # Practice
//!
//! Rates need a window, everything else needs time, so the one runs inside the other: samples at both ends, the rest between. What is left of the
//! window is slept.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Hertz, Nanos};
use chronovisor_diagnose::evidence::{CpuOrder, Evidence, Origin, Part};
use chronovisor_diagnose::intake;
use chronovisor_guest::linux::os_clock::ClockId;

use crate::clock_pages::{self, Pages, PvclockSample};
use crate::identity::{self, ThisProcessor};
use crate::proc_captures::{self, Moment};
use crate::rate::{self, Sample, tsc_rate};
use crate::{cpus, frequencies, kernel_log, msr, read_cost, reference, text_file, vmclock, warp};

/// How much time a survey takes.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Window of the rates: a second bounds them to some 50 ppb.
    pub window: Duration,
    /// Time for the order between CPUs, for each of two clocks.
    pub cpu_order: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(1),
            cpu_order: Duration::from_millis(100),
        }
    }
}

/// Everything that can be seen of this machine's clocks; nothing fails, a part that cannot be read says why.
///
/// ```
/// use std::time::Duration;
/// use chronovisor_probe::survey::{Options, survey};
///
/// let evidence = survey(&Options { window: Duration::from_millis(50), cpu_order: Duration::from_millis(5) });
/// assert!(evidence.identity.seen().is_some());
/// ```
#[must_use]
pub fn survey(options: &Options) -> Evidence {
    let started = Instant::now();
    let pages = Pages::find();
    let first = Ends::take(&pages);
    let identity = identity::identity(&ThisProcessor);
    let vmclock = vmclock::first();
    let mut evidence = Evidence {
        origin: Origin::Live,
        current_clocksource: clocksource("current_clocksource"),
        available_clocksources: clocksource("available_clocksource"),
        command_line: Part::from_result(text_file::first_line("/proc/cmdline")),
        privileges: identity::privileges(&identity),
        reference: reference::reference(),
        vdso: pages.vdso.clone(),
        vmclock: Part::from_result(vmclock.as_ref().map(|seen| seen.page.clone())),
        cpu_lines: proc_captures::cpu_lines(),
        ..Evidence::default()
    };
    read_log(&mut evidence);
    let allowed = cpus::allowed().unwrap_or_default();
    let costs = read_cost::measure(
        read_cost::subjects(pages.pvclock.as_ref().ok()),
        allowed.first().copied(),
    );
    let tsc_order = order_of(&allowed, options.cpu_order, warp::ordered_tsc);
    let monotonic_order = order_of(&allowed, options.cpu_order, || {
        ClockId::MONOTONIC.now().map_or(0, Nanos::as_ns)
    });
    if let Some(left) = options.window.checked_sub(started.elapsed()) {
        thread::sleep(left);
    }
    let second = Ends::take(&pages);

    let measured = first
        .rates
        .as_ref()
        .zip(second.rates.as_ref())
        .and_then(|(first, second)| tsc_rate(first.raw(), second.raw()));
    evidence.rates = match (&first.rates, &second.rates) {
        (Some(first), Some(second)) => Part::Seen(rate::rates(first, second)),
        _ => Part::NotReadable("CLOCK_MONOTONIC_RAW is refused here".to_owned()),
    };
    let ticks = measured.map(|rate| rate.hertz);
    let without_rate = "the counter's rate could not be measured: CLOCK_MONOTONIC_RAW is refused or the counter went back";
    evidence.costs = match ticks {
        Some(rate) => Part::Seen(read_cost::costs(&costs, rate)),
        None => Part::NotReadable(without_rate.to_owned()),
    };
    evidence.cpu_time = proc_captures::cpu_time(&first.counters, &second.counters);
    evidence.interrupts = proc_captures::interrupts(&first.counters, &second.counters);
    evidence.cpu_order = orders(tsc_order, monotonic_order, ticks);
    evidence.pvclock = match (first.pvclock, second.pvclock) {
        (Ok(first), Ok(second)) => Part::Seen(clock_pages::pvclock_record(&first, &second)),
        (Err(why), _) | (_, Err(why)) => Part::NotReadable(why),
    };
    evidence.reference_page = match &pages.hyperv {
        Ok(page) => Part::Seen(vec![clock_pages::reference_page(page)]),
        Err(why) => Part::NotReadable(why.clone()),
    };
    evidence.frequencies = Part::Seen(frequencies::channels(frequencies::Sources {
        identity: &identity,
        pvclock: evidence.pvclock.seen(),
        reference_page: evidence
            .reference_page
            .seen()
            .and_then(|pages| pages.first()),
        vmclock: vmclock.ok().and_then(|seen| seen.rate),
        hyperv_msr: hyperv_frequency(&evidence),
        kernel: pages.kernel_rate,
        measured: measured.as_ref(),
    }));
    evidence.identity = Part::Seen(identity);
    evidence
}

/// The frequency register, asked for only where the partition has the privilege.
fn hyperv_frequency(evidence: &Evidence) -> Option<u64> {
    let privileges = evidence.privileges.seen()?;
    privileges
        .get("AccessFrequencyRegs")
        .filter(|granted| **granted)
        .and_then(|_| msr::read(Path::new("/dev/cpu/0/msr"), Msr::HV_TSC_FREQUENCY).ok())
}

/// What is read at both ends of the window.
struct Ends {
    counters: Moment,
    rates: Option<Sample>,
    pvclock: Result<PvclockSample, String>,
}

impl Ends {
    fn take(pages: &Pages) -> Self {
        let pvclock = match &pages.pvclock {
            Ok(page) => PvclockSample::take(page).map_err(|why| why.to_string()),
            Err(why) => Err(why.clone()),
        };
        Self {
            counters: Moment::take(),
            rates: Sample::take(),
            pvclock,
        }
    }
}

fn clocksource(file: &str) -> Part<Vec<String>> {
    let path = format!("/sys/devices/system/clocksource/clocksource0/{file}");
    Part::from_result(
        text_file::first_line(path)
            .map(|line| line.split_whitespace().map(str::to_owned).collect()),
    )
}

fn read_log(evidence: &mut Evidence) {
    let reading = kernel_log::open()
        .map_err(|why| why.to_string())
        .and_then(|log| intake::log::read(log).map_err(|why| why.to_string()));
    evidence.kernel_log = Part::from_result(reading.map(|reading| {
        evidence.complaints.extend(reading.complaints);
        reading.log
    }));
}

fn order_of<R: Fn() -> u64 + Copy + Send>(
    allowed: &[usize],
    budget: Duration,
    read: R,
) -> Result<warp::Order, String> {
    if allowed.len() < 2 {
        return Err("this process may use only one CPU".to_owned());
    }
    warp::check(allowed, budget, read)
        .map_err(|why: io::Error| format!("two pinned threads could not be started: {why}"))
}

fn orders(
    tsc: Result<warp::Order, String>,
    monotonic: Result<warp::Order, String>,
    rate: Option<Hertz>,
) -> Part<Vec<CpuOrder>> {
    let one_ns = Hertz::from_hz(1_000_000_000);
    let found = |clock: &str, order: &Result<warp::Order, String>, rate: Option<Hertz>| {
        Some(as_evidence(clock, order.as_ref().ok()?, rate?))
    };
    let seen: Vec<_> = [
        found("tsc", &tsc, rate),
        found("monotonic", &monotonic, one_ns),
    ]
    .into_iter()
    .flatten()
    .collect();
    match (seen.is_empty(), tsc, monotonic) {
        (true, Err(why), _) | (true, _, Err(why)) => Part::NotReadable(why),
        (true, ..) => Part::NotReadable("the counter's rate could not be measured".to_owned()),
        _ => Part::Seen(seen),
    }
}

fn as_evidence(clock: &str, order: &warp::Order, unit: Hertz) -> CpuOrder {
    // Rounded up: a step back of one tick is not 0 ns.
    let ns = |units: u64| {
        let ns = (u128::from(units) * 1_000_000_000 * u128::from(unit.denominator()))
            .div_ceil(u128::from(unit.numerator()));
        u64::try_from(ns).unwrap_or(u64::MAX)
    };
    CpuOrder {
        clock: clock.to_owned(),
        pairs: order.pairs,
        readings: order.readings,
        warps: order.warps,
        max_backward_ns: ns(order.max_backward),
        min_backward_ns: ns(order.min_backward),
        same_cpu_backwards: order.same_cpu_backwards,
        stalls: order.stalls,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_seen_or_says_why() {
        let evidence = survey(&Options {
            window: Duration::from_millis(100),
            cpu_order: Duration::from_millis(10),
        });
        let document = serde_json::to_value(&evidence).unwrap();
        for part in [
            "identity",
            "current_clocksource",
            "available_clocksources",
            "command_line",
            "kernel_log",
            "frequencies",
            "pvclock",
            "vdso",
            "reference_page",
            "privileges",
            "costs",
            "cpu_order",
            "rates",
            "reference",
            "vmclock",
            "cpu_lines",
            "cpu_time",
            "interrupts",
        ] {
            let seen = &document[part]["seen"];
            let why = document[part]["not_readable"].as_str();
            assert!(
                !seen.is_null() || why.is_some_and(|why| !why.is_empty()),
                "{part}: {}",
                document[part]
            );
        }
        // The file of a live machine is read back as it was.
        assert_eq!(
            serde_json::from_value::<Evidence>(document).unwrap(),
            evidence
        );
    }

    #[test]
    fn a_step_back_of_a_tick_is_not_nothing() {
        let order = warp::Order {
            max_backward: 2_600,
            min_backward: 1,
            ..warp::Order::default()
        };
        let evidence = as_evidence("tsc", &order, Hertz::from_hz(2_600_000_000).unwrap());
        assert_eq!(
            (evidence.max_backward_ns, evidence.min_backward_ns),
            (1_000, 1)
        );
    }

    #[test]
    fn one_cpu_is_a_reason_and_no_fault() {
        let order = order_of(&[0], Duration::ZERO, warp::ordered_tsc);
        let part = orders(order.clone(), order, None);
        assert_eq!(part.why_not(), Some("this process may use only one CPU"));
    }
}
