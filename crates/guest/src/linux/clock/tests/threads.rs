//! Threads that read one clock while a host's thread re-writes its page without rest: steps, other rates, no stable flag, a version left odd for a while.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::vec::Vec;

use chronovisor_abi::pvclock::{Contents, Flags, Record};
use chronovisor_abi::quantity::{Hertz, Nanos, Tsc};
use chronovisor_abi::scale::PvclockScale;
use chronovisor_abi::seqlock::sync::{Ordering as PageOrdering, fence};

use crate::counter::{Counter, Ordered, read_fenced};
use crate::linux::clock::engine::Engine;
use crate::linux::clock::machine::{Machine, Pair, ThisMachine};
use crate::linux::clock::source::Source;
use crate::pvclock::StableBit;

/// The counter's rate here, against the operating system's clock over 2 ms.
fn measured_rate() -> Hertz {
    let machine = ThisMachine::new();
    let first = Pair::take(&machine);
    while machine.raw().as_ns() < first.raw_ns + 2_000_000 {}
    let second = Pair::take(&machine);
    let ticks = second.tsc.wrapping_delta(first.tsc).as_ticks();
    Hertz::from_ratio(
        u128::from(ticks) * 1_000_000_000,
        u128::from(second.raw_ns - first.raw_ns),
    )
    .expect("positive")
}

/// What the host does in its `n`th update: a step in ns, a change of the rate in ppm, the flags.
fn update(n: u64) -> (i64, i64, Flags) {
    let step =
        [0, 3, 0, -2, 900, 0, -700, 5_000, 0, -4_000][usize::try_from(n % 10).expect("below 10")];
    let ppm = [0, 100, -100, 0, 300, -300, 0][usize::try_from(n % 7).expect("below 7")];
    let flags = if n % 23 > 19 {
        Flags::NONE
    } else {
        Flags::TSC_STABLE
    };
    (step, ppm, flags)
}

fn publish_forever(record: &Record, rate: Hertz, stop: &AtomicBool) {
    let mut contents = record.load();
    let mut last = record.version();
    let mut updates = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let (step, ppm, flags) = update(updates);
        let changed = rate
            .checked_scale(
                1_000_000_u64.checked_add_signed(ppm).expect("positive"),
                1_000_000,
            )
            .unwrap_or(rate);
        record.mark(last);
        fence(PageOrdering::SeqCst);
        let now: Tsc = read_fenced();
        let time = contents.time_at(now).expect("a possible scale").as_ns();
        let scale = PvclockScale::nearest(changed).expect("in range");
        contents = Contents::new(
            now,
            Nanos::from_ns(time.saturating_add_signed(step)),
            scale,
            flags,
        );
        record.store(&contents);
        last = record.publish(last);
        updates += 1;
        let until = now.as_ticks() + 60_000;
        while read_fenced().as_ticks() < until {}
    }
}

/// No reading that was handed over is later than the next one of any thread.
#[test]
fn ordered_readings_never_go_back_while_the_page_is_rewritten() {
    let rate = measured_rate();
    let record: &'static Record = Box::leak(Box::new(Record::new()));
    record.mark(0);
    let scale = PvclockScale::nearest(rate).unwrap();
    record.store(&Contents::new(
        read_fenced(),
        Nanos::from_ns(1_000_000_000),
        scale,
        Flags::TSC_STABLE,
    ));
    record.publish(0);
    let source = Source::Pvclock {
        record,
        stable_bit: StableBit::Advertised,
    };
    let clock = Engine::new(ThisMachine::new(), Vec::from([source]), Vec::new());
    let ordered = Ordered::detect();
    let (stop, handed, worst) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let enough = || {
        let events = clock.report().events;
        events.updates > 100 && events.fall_backs > 10 && events.returns > 10
    };
    std::thread::scope(|scope| {
        scope.spawn(|| publish_forever(record, rate, &stop));
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let before = handed.load(Ordering::Acquire);
                    let time = clock.read(|| ordered.read()).as_ns();
                    worst.fetch_max(before.saturating_sub(time), Ordering::Relaxed);
                    handed.fetch_max(time, Ordering::AcqRel);
                }
            });
        }
        // The threads share the machine with others: until enough has happened, a minute at most.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !enough() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let events = clock.report().events;
    assert!(
        enough() && events.held_ns > 0 && events.forward_ns > 0,
        "{events:?}"
    );
    assert_eq!(worst.into_inner(), 0, "{events:?}");
}
