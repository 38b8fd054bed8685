use chronovisor_abi::quantity::{Nanos, Tsc};

use super::*;
use crate::host_machine::{HostLook, HostMachine, HostSpec};
use crate::lapic_timer::{Fired, LapicTimer, Mode, Raised, Wake};
use crate::world_time::{WorldSpan, WorldTime};

const MS: Nanos = Nanos::from_ns(1_000_000);

/// 2 599 999.5 kHz, of which the kernel keeps 2 599 999, and a clock 7 ppm fast.
fn host() -> HostMachine {
    let spec = HostSpec {
        tsc_hz: 2_599_999_500,
        crystal_ppb: 3_000,
        slew_ppb: 7_000,
    };
    HostMachine::new(spec, WorldTime::ZERO, Tsc::from_ticks(12_345)).unwrap()
}

fn at_ns(ns: u64) -> WorldTime {
    WorldTime::ZERO.saturating_add(WorldSpan::from_ns(ns))
}

fn started<T: LapicTimer>(mut timer: T, mode: Mode) -> T {
    let fired = timer.start(mode, MS, host().look(WorldTime::ZERO));
    assert_eq!(fired, Fired::default());
    timer
}

/// Takes every expiry of a halted vCPU's software timer until `end`; returns how many there were.
fn tick_until<T: LapicTimer>(timer: &mut T, end: WorldTime) -> u64 {
    let host = host();
    let mut expiries = 0;
    while let Wake::Monotonic(time) = timer.wake() {
        let wake = host.when_monotonic(time);
        if wake > end {
            break;
        }
        expiries += timer.fire(host.look(wake)).expiries;
    }
    expiries
}

/// An hour of ticks one by one and the same hour in closed form: the same state, the same number of expiries.
fn closed_form_equals_ticking<T: LapicTimer + Clone + PartialEq + std::fmt::Debug>(timer: T) {
    let mut ticking = started(timer, Mode::Periodic);
    let mut leaping = ticking.clone();
    assert_eq!(ticking.halt(host().look(WorldTime::ZERO)), Fired::default());
    let end = at_ns(3_600_000_000_000);
    let ticked = tick_until(&mut ticking, end);
    let leapt = leaping.fast_forward(host().look(end));
    assert_eq!(ticked, leapt);
    assert_eq!(
        ticked,
        3_600_000 + 36,
        "an hour of a clock that is 10.19 ppm fast"
    );
    let last = host().look(end);
    assert_eq!(leaping.halt(last), Fired::default());
    assert_eq!(ticking, leaping);
}

#[test]
fn before_8003c9ae_in_closed_form() {
    closed_form_equals_ticking(Before8003c9ae::default());
}

#[test]
fn two_deadlines_in_closed_form() {
    closed_form_equals_ticking(TwoDeadlines::new(host().believed_khz()));
}

/// The derived copy is made at the last expiry, from one pair of readings; the truth and the count are equal to the bit.
#[test]
fn resynchronised_in_closed_form() {
    for after in [AfterStall::HugeDeadline, AfterStall::StartFromNow] {
        let mut ticking = started(
            Resynchronised::new(after, host().believed_khz()),
            Mode::Periodic,
        );
        let mut leaping = ticking;
        let _ = ticking.halt(host().look(WorldTime::ZERO));
        let end = at_ns(3_600_000_000_000);
        assert_eq!(
            tick_until(&mut ticking, end),
            leaping.fast_forward(host().look(end))
        );
        let _ = leaping.halt(host().look(end));
        assert_eq!(ticking.wake(), leaping.wake());
    }
}

/// 8003c9ae: after 4 h at 7 ppm the copies are 4 h * (7 ppm + what whole kHz and whole cycles cut) apart, and a guest that runs after a
/// halt gets no tick for just that long.
#[test]
fn d41_two_deadlines_drift_apart_and_the_guest_waits_it_out() {
    let host = host();
    let mut timer = started(TwoDeadlines::new(host.believed_khz()), Mode::Periodic);
    let end = at_ns(14_400_000_000_000);
    let expiries = timer.fast_forward(host.look(end));
    // Each period the counter's copy goes 2 599 999 cycles. The clock's 1 ms is 2 599 999 000 / 1.000 007 Hz * 1 ms = 2 599 980.8 cycles.
    let per_period_ps: u64 = 7_000; // 18.2 cycles of 0.3846 ns
    let apart = timer.deadlines_apart(host.look(end));
    let expected = i64::try_from(expiries * per_period_ps / 1000).unwrap();
    assert!(
        (apart - expected).abs() < expected / 1000,
        "{apart} ns apart, {expected} expected"
    );
    timer.enter_guest(host.look(end));
    let Wake::GuestTsc(deadline) = timer.wake() else {
        panic!("the preemption timer is not used: {:?}", timer.wake());
    };
    let gap = host.when_tsc(deadline).saturating_since(end).floor_ns();
    assert!(
        gap > 100_000_000 && gap.abs_diff(apart.unsigned_abs()) < 1_010_000,
        "{gap}"
    );
    // At the next halt everything missed comes at once, as one interrupt.
    let later = at_ns(14_400_050_000_000);
    let _ = timer.halt(host.look(later));
    let fired = timer.fire(host.look(later));
    assert_eq!((fired.expiries, fired.raised), (50, Raised::Interrupt));
}

/// The posted patch: a one-shot of 1 ms that halts after 0.1 ms expires there and then, and nothing is armed.
#[test]
fn d42_the_posted_patch_expires_a_one_shot_at_the_halt_and_never_arms_it() {
    let host = host();
    let mut timer = started(SeedPatch::new(host.believed_khz()), Mode::OneShot);
    let early = host.look(at_ns(100_000));
    assert_eq!(timer.halt(early), Fired::merged(1));
    assert_eq!(timer.wake(), Wake::Never);
}

/// The posted patch: each halt starts a full period, so a tick comes one period after the halt, not after the last tick.
#[test]
fn the_posted_patch_loses_the_phase_at_each_halt() {
    let host = host();
    let mut timer = started(SeedPatch::new(host.believed_khz()), Mode::Periodic);
    let halted = host.look(at_ns(400_000));
    assert_eq!(timer.halt(halted), Fired::default());
    assert_eq!(
        timer.wake(),
        Wake::Monotonic(halted.monotonic.saturating_add(MS))
    );
}

/// The 2018 repair after a stall of 5 s: all 5000 periods in a row, and the preemption timer is given up.
#[test]
fn d44_a_negative_distance_becomes_a_storm_and_the_preemption_timer_is_lost() {
    let host = host();
    let mut timer = started(
        Resynchronised::new(AfterStall::HugeDeadline, host.believed_khz()),
        Mode::Periodic,
    );
    let resumed = host.look(at_ns(5_000_000_000));
    timer.enter_guest(resumed);
    let fired = timer.fire(resumed);
    assert_eq!((fired.expiries, fired.callbacks), (5000, 5000));
    timer.enter_guest(resumed);
    assert!(
        matches!(timer.wake(), Wake::Monotonic(_)),
        "{:?}",
        timer.wake()
    );
    // Until the guest programs it again.
    let _ = timer.start(Mode::Periodic, MS, resumed);
    assert!(matches!(timer.wake(), Wake::GuestTsc(_)));
}

/// The 2025 repair after a stall of 10.35 ms: the next tick is due now, and the ones after it count from there: off the grid by 0.35 ms.
#[test]
fn d45_starting_from_now_loses_the_phase() {
    let host = host();
    let mut timer = started(
        Resynchronised::new(AfterStall::StartFromNow, host.believed_khz()),
        Mode::Periodic,
    );
    let HostLook { tsc, .. } = host.look(WorldTime::ZERO);
    let resumed = host.look(at_ns(10_350_000));
    timer.enter_guest(resumed);
    assert_eq!(timer.fire(resumed).expiries, 1);
    assert_eq!(timer.wake(), Wake::GuestTsc(resumed.tsc));
    assert_eq!(timer.fire(resumed).expiries, 1);
    let Wake::GuestTsc(next) = timer.wake() else {
        panic!("the preemption timer is not used");
    };
    let due = host.when_tsc(next).floor_ns();
    assert!(
        due.abs_diff(11_350_000) < 100,
        "{due} ns, counter at the start {tsc:?}"
    );
}

/// KVM before 4.10: an hour of ticks of a clock that is fast by 10.19 ppm against true time, of the guest's counter by 7.19.
#[test]
fn ticks_by_the_hosts_clock_are_fast_by_its_slew() {
    let host = host();
    let mut timer = started(Before8003c9ae::default(), Mode::Periodic);
    let end = at_ns(3_600_000_000_000);
    let ticks = timer.fast_forward(host.look(end));
    let counter = host.tsc(end).as_ticks() - 12_345;
    let periods = counter / 2_599_999;
    assert_eq!(ticks - periods, 25, "3.6 million * 7.0 ppm = 25.2");
    // The tick that is due first by the clock is not due yet by the counter: early.
    let Wake::Monotonic(first) = started(Before8003c9ae::default(), Mode::Periodic).wake() else {
        panic!("no software timer");
    };
    let early = host.tsc(host.when_monotonic(first)).as_ticks() - 12_345;
    assert!(early < 2_599_999, "{early} ticks");
}
