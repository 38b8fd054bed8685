//! The checks that any VMM can run: which clocks this guest was given, and whether they keep their rules. Speaks TAP on the
//! first serial port.
//!
//! Only what CPUID announces is touched. A VMM that offers nothing gets a row of skips.

use chronovisor_abi::cpuid::{self, Base, Interface, Leaf, hyperv, kvm};
use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Hertz, Nanos, Tsc};
use chronovisor_abi::reference_tsc::Parameters;
use chronovisor_abi::scale::ReferenceScale;
use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::sched_clock::SchedClock;

use crate::gate::in_ring0;
use crate::instruction::{self, ordered_tsc, try_rdmsr, try_wrmsr};
use crate::pages::{self, kernel};
use crate::{loops, serial};

const READS: u32 = 2000;
/// Two rates that channels give for one counter agree if they part by less than this.
const RATE_PPM: u64 = 1000;

struct Tap {
    number: u64,
    failed: u64,
}

impl Tap {
    fn check(&mut self, what: &str, holds: bool) {
        self.number += 1;
        if !holds {
            self.failed += 1;
            serial::text("not ");
        }
        self.line(what);
        serial::line("");
    }

    fn skip(&mut self, what: &str, why: &str) {
        self.number += 1;
        self.line(what);
        serial::text(" # SKIP ");
        serial::line(why);
    }

    fn line(&mut self, what: &str) {
        serial::text("ok ");
        serial::decimal(self.number);
        serial::text(" - ");
        serial::text(what);
    }
}

fn note(name: &str, value: u64) {
    serial::text("# ");
    serial::text(name);
    serial::text(" ");
    serial::decimal(value);
    serial::line("");
}

/// From ring 0: a software-only KVM lets ring 3 see the leaves of the machine below.
fn leaf(number: u32) -> Leaf {
    let [eax, ebx, ecx, edx] = in_ring0(|| instruction::cpuid(number, 0));
    Leaf { eax, ebx, ecx, edx }
}

/// Runs every check; says how many failed.
pub fn run() -> u64 {
    serial::line("TAP version 13");
    let mut tap = Tap {
        number: 0,
        failed: 0,
    };
    let present = leaf(1).ecx & cpuid::processor::LEAF1_ECX_HYPERVISOR != 0;
    tap.check("CPUID 1.ECX[31] says that there is a hypervisor", present);
    let (mut hyperv_base, mut kvm_base) = (None, None);
    if present {
        for base in cpuid::interfaces(leaf) {
            match base.interface {
                Interface::HyperV => hyperv_base = hyperv_base.or(Some(base)),
                Interface::Kvm => kvm_base = kvm_base.or(Some(base)),
                _ => {}
            }
        }
    }
    let from_hyperv = hyperv_checks(&mut tap, hyperv_base);
    let from_kvm = kvm_checks(&mut tap, kvm_base);
    match (from_hyperv, from_kvm) {
        (Some(one), Some(other)) => tap.check(
            "Hyper-V's and KVM's channels give one rate",
            close(one, other),
        ),
        _ => tap.skip(
            "Hyper-V's and KVM's channels give one rate",
            "not both are there",
        ),
    }
    serial::text("1..");
    serial::decimal(tap.number);
    serial::line("");
    note("failed", tap.failed);
    tap.failed
}

fn close(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= one / 1_000_000 * RATE_PPM
}

const HYPERV_CHECKS: [&str; 8] = [
    "the reference counter can be read",
    "the reference counter is strictly increasing",
    "a write to the reference counter faults",
    "the reference page's register keeps its reserved bits",
    "the reference page is valid, its sequence neither 0 nor 0xFFFFFFFF",
    "page <= counter <= page",
    "the page's rate is the frequency MSR's",
    "the scheduler's clock on the page starts at 0 and goes on",
];

/// The counter's rate in Hz, if Hyper-V's side tells it.
fn hyperv_checks(tap: &mut Tap, base: Option<Base>) -> Option<u64> {
    let privileges = base
        .filter(|base| base.last >= base.base + hyperv::FEATURES)
        .map(|base| leaf(base.base + hyperv::FEATURES));
    let Some(privileges) = privileges else {
        for what in HYPERV_CHECKS {
            tap.skip(what, "no Hyper-V interface");
        }
        return None;
    };
    let has = |bit| privileges.eax & bit != 0;
    let counter = || in_ring0(counter_msr);
    let mut readable = Err("no privilege for the reference counter");
    if has(hyperv::ACCESS_REFERENCE_COUNTER) {
        tap.check(HYPERV_CHECKS[0], counter().is_some());
        readable = counter()
            .map(|_| ())
            .ok_or("the reference counter cannot be read");
        let mut last = counter();
        let increasing = (0..READS).all(|_| {
            let next = counter();
            let above = next > last;
            last = next;
            above
        });
        tap.check(HYPERV_CHECKS[1], increasing);
        let refused =
            in_ring0(|| Some(try_wrmsr(Msr::HV_TIME_REF_COUNT.0, 1).is_err())) == Some(true);
        tap.check(HYPERV_CHECKS[2], refused);
    } else {
        for what in &HYPERV_CHECKS[..3] {
            tap.skip(what, "no privilege for the reference counter");
        }
    }
    if !has(hyperv::ACCESS_REFERENCE_TSC) {
        for what in &HYPERV_CHECKS[3..] {
            tap.skip(what, "no privilege for the reference page");
        }
        return None;
    }
    reference_page(
        tap,
        readable,
        has(hyperv::ACCESS_FREQUENCIES) && privileges.edx & hyperv::FREQUENCY_MSRS_AVAILABLE != 0,
    )
}

/// Ring 0. A VMM may announce the counter and refuse it all the same.
fn counter_msr() -> Option<u64> {
    try_rdmsr(Msr::HV_TIME_REF_COUNT.0).ok()
}

/// `counter`: whether the counter can be compared with the page, or why not.
fn reference_page(tap: &mut Tap, counter: Result<(), &str>, has_frequencies: bool) -> Option<u64> {
    in_ring0(|| {
        const RESERVED: u64 = 0xAA2;
        let kept = try_wrmsr(Msr::HV_REFERENCE_TSC.0, RESERVED).is_ok()
            && try_rdmsr(Msr::HV_REFERENCE_TSC.0).ok() == Some(RESERVED);
        tap.check(HYPERV_CHECKS[3], kept);
        pages::register_reference();
    });
    let sequence = pages::REFERENCE.sequence();
    note("sequence", u64::from(sequence));
    let valid = pages::has_reference() && sequence != 0 && sequence != u32::MAX;
    tap.check(HYPERV_CHECKS[4], valid);
    if !valid {
        for what in &HYPERV_CHECKS[5..] {
            tap.skip(what, "the page is not valid");
        }
        return None;
    }
    let page = || {
        kernel::reference()
            .read()
            .map(|reading| reading.time.as_100ns())
            .ok()
    };
    match counter {
        Ok(()) => {
            let holds = in_ring0(|| {
                Some((0..READS).all(|_| {
                    let read = (page(), counter_msr(), page());
                    matches!(read, (Some(before), Some(counter), Some(after)) if before <= counter && counter <= after)
                }))
            });
            tap.check(HYPERV_CHECKS[5], holds == Some(true));
        }
        Err(why) => tap.skip(HYPERV_CHECKS[5], why),
    }
    let parameters: Option<Parameters> = pages::REFERENCE
        .read(100, || ())
        .ok()
        .map(|(parameters, ())| parameters);
    let rate = parameters
        .and_then(|parameters| parameters.scale.frequency().ok())
        .map(Hertz::rounded_hz);
    if let Some(rate) = rate {
        note("rate by the page in Hz", rate);
    }
    if has_frequencies {
        let msr = in_ring0(|| try_rdmsr(Msr::HV_TSC_FREQUENCY.0).ok()).and_then(Hertz::from_hz);
        if let Some(msr) = msr {
            note("rate by MSR 0x40000022 in Hz", msr.rounded_hz());
        }
        let agree = matches!((rate, msr), (Some(page), Some(msr)) if close(page, msr.rounded_hz()));
        tap.check(HYPERV_CHECKS[6], agree);
    } else {
        tap.skip(HYPERV_CHECKS[6], "no frequency MSRs");
    }
    tap.check(
        HYPERV_CHECKS[7],
        parameters.is_some_and(|line| scheduler_goes_with(line.scale)),
    );
    rate
}

/// Whether a scheduler's clock that starts now counts what the counter counts: from 0, and between its first read and a later one.
///
/// Each read lies between two readings of the counter, so what passed by the clock lies between what passed by the counter inside and
/// outside, at the page's own rate. Both round down to units of 100 ns: one unit of doubt, however long the host looked away.
fn scheduler_goes_with(scale: ReferenceScale) -> bool {
    const UNIT_NS: u64 = 100;
    let passed = |from: u64, to: u64| scale.ticks(Tsc::from_ticks(to - from)) * UNIT_NS;
    let before = ordered_tsc();
    let Ok(scheduler) = SchedClock::start(kernel::reference()) else {
        return false;
    };
    let started = ordered_tsc();
    let first = scheduler.now();
    let seen = ordered_tsc();
    for _ in 0..READS {
        loops::keep(ordered_tsc());
    }
    let waited = ordered_tsc();
    let later = scheduler.now();
    let end = ordered_tsc();
    let (Ok(first), Ok(later)) = (first.map(Nanos::as_ns), later.map(Nanos::as_ns)) else {
        return false;
    };
    note("scheduler's clock at its first read in ns", first);
    note("and at a later one", later);
    let between = later.wrapping_sub(first);
    first <= passed(before, seen) + UNIT_NS
        && between + UNIT_NS >= passed(seen, waited)
        && between <= passed(started, end) + UNIT_NS
}

const KVM_CHECKS: [&str; 5] = [
    "the system-time record is filled when it is registered",
    "its version is even and its multiplier normal",
    "its time goes on and never back",
    "its stable flag is set only if CPUID offers it",
    "the wall-clock record is filled",
];

/// The counter's rate in Hz, if KVM's side tells it.
fn kvm_checks(tap: &mut Tap, base: Option<Base>) -> Option<u64> {
    let features = base
        .map(|base| leaf(base.base + kvm::FEATURES).eax)
        .filter(|eax| eax & kvm::CLOCKSOURCE2 != 0);
    let Some(features) = features else {
        for what in KVM_CHECKS {
            tap.skip(what, "no KVM clock interface");
        }
        return None;
    };
    let record = pages::kvm_record();
    let registered = in_ring0(|| Some(pages::register_kvm_pvclock().is_ok())) == Some(true);
    tap.check(KVM_CHECKS[0], registered && record.version() != 0);
    let contents = record.load();
    tap.check(
        KVM_CHECKS[1],
        record.version() & 1 == 0 && contents.mul >> 31 == 1,
    );
    let clock = kernel::pvclock(record);
    let time = || clock.observe().map(|seen| seen.reading.time).ok();
    let mut last = time();
    let start = last;
    let mut back = 0_u32;
    for _ in 0..READS {
        let next = time();
        back += u32::from(next < last);
        last = next;
    }
    tap.check(KVM_CHECKS[2], back == 0 && last > start);
    let stable = contents
        .flags
        .contains(chronovisor_abi::pvclock::Flags::TSC_STABLE);
    note("stable flag", u64::from(stable));
    tap.check(
        KVM_CHECKS[3],
        !stable || features & kvm::CLOCKSOURCE_STABLE != 0,
    );
    let wall = in_ring0(pages::register_wall_clock);
    tap.check(KVM_CHECKS[4], wall.is_some_and(|sec| sec > 0));
    let rate = contents
        .scale()
        .and_then(|scale| scale.frequency())
        .ok()
        .map(Hertz::rounded_hz);
    if let Some(rate) = rate {
        note("rate by the record in Hz", rate);
    }
    rate
}
