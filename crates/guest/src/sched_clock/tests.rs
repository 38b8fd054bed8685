use super::*;
use crate::guard::{GlobalGuard, Guarded};
use crate::reference_tsc::ReferenceClock;
use chronovisor_abi::quantity::{Hertz, Reading, Tsc};
use chronovisor_abi::reference_tsc::{Parameters, ReferenceTscPage};
use core::cell::Cell;
use core::convert::Infallible;
use proptest::prelude::*;

/// A clock that is set by hand.
struct ByHand<T>(Cell<T>);

impl<T: Copy + Ord> GuestClock for ByHand<T> {
    type Time = T;
    type Error = Infallible;

    fn read(&self) -> Result<Reading<T>, Infallible> {
        Ok(Reading::new(self.0.get(), Tsc::from_ticks(0)))
    }
}

fn at<C: GuestClock<Time: WrappingNanos, Error = Infallible>>(clock: &SchedClock<C>) -> u64 {
    let Ok(time) = clock.now();
    time.as_ns()
}

#[test]
fn it_starts_at_zero_whatever_the_clock_says() {
    for boot in [0, 1, 7_000_000_000_000, u64::MAX] {
        let clock = ByHand(Cell::new(RefTime::from_100ns(boot)));
        let sched = SchedClock::start(&clock).unwrap();
        assert_eq!(at(&sched), 0);
        clock
            .0
            .set(RefTime::from_100ns(boot).wrapping_add(RefTime::from_100ns(3)));
        assert_eq!(at(&sched), 300);
    }
}

/// The counter restarts with the new virtual machine; an offset that stays as it was makes the scheduler's clock jump by centuries.
#[test]
fn d73_the_clock_goes_on_after_hibernation() {
    let clock = ByHand(Cell::new(RefTime::from_100ns(50_000_000)));
    let sched = SchedClock::start(&clock).unwrap();
    clock.0.set(RefTime::from_100ns(90_000_000));
    let saved = sched.save().unwrap();
    clock.0.set(RefTime::from_100ns(1_000));
    assert!(at(&sched) > u64::MAX / 2, "without a restore: it jumps");
    sched.restore(saved).unwrap();
    assert_eq!(at(&sched), saved.time.as_ns());
    clock.0.set(RefTime::from_100ns(1_010));
    assert_eq!(at(&sched), saved.time.as_ns() + 1_000);
}

/// A guard that keeps the value from before the resume freezes the scheduler's clock for that long.
#[test]
fn d74_restore_zeroes_the_guard_before_its_first_read() {
    let clock = ByHand(Cell::new(Nanos::from_ns(9_000_000)));
    let guard = GlobalGuard::new();
    let sched = SchedClock::start(Guarded::new(&clock, &guard)).unwrap();
    clock.0.set(Nanos::from_ns(9_500_000));
    let saved = sched.save().unwrap();
    clock.0.set(Nanos::from_ns(100));
    sched.restore(saved).unwrap();
    clock.0.set(Nanos::from_ns(150));
    assert_eq!(at(&sched), 500_050);
}

/// The reference page as scheduler's clock, as a Hyper-V guest runs it: page and counter alternate, and the clock counts every 100 ns once.
#[test]
fn it_runs_on_the_reference_page_and_its_counter() {
    let page = ReferenceTscPage::new();
    let rate = Hertz::from_hz(2_500_000_000).unwrap();
    let line = Parameters::through(Tsc::from_ticks(0), RefTime::from_100ns(40), rate).unwrap();
    let now = Cell::new(0);
    let counter = || Tsc::from_ticks(now.get());
    let clock = ReferenceClock::new(&page, counter, || line.time_at(counter()));
    let sched = SchedClock::start(&clock).unwrap();
    let mut sequence = 0;
    for step in 0..1_000_u64 {
        if step % 3 == 0 {
            page.mark();
        } else {
            page.mark();
            page.store(&line);
            sequence = page.publish(sequence);
        }
        now.set(step * 2_500);
        // 2500 ticks are 1 us; the multiplier is rounded down, by at most one unit.
        let time = at(&sched);
        assert!(
            time == step * 1_000 || time + 100 == step * 1_000,
            "{time} at step {step}"
        );
    }
}

#[derive(Clone, Copy, Debug)]
enum Away {
    /// The clock goes on counting.
    Suspended(u64),
    /// The clock restarts, or stands anywhere.
    Elsewhere(u64),
}

proptest! {
    /// now = run time since init, exactly, over any events: what passes while the machine is away is not counted, nothing is lost, and it never goes back.
    #[test]
    fn run_time_is_counted_exactly(
        boot: u64,
        events in prop::collection::vec(
            (0_u64..1_000_000_000_000, prop_oneof![(0_u64..1 << 50).prop_map(Away::Suspended), any::<u64>().prop_map(Away::Elsewhere)]),
            0..30,
        ),
    ) {
        let clock = ByHand(Cell::new(Nanos::from_ns(boot)));
        let guard = GlobalGuard::new();
        let sched = SchedClock::start(&clock).unwrap();
        // The same over a guard, which holds only what its clock does not exceed: not at the ends of the 64 bits.
        let guarded = SchedClock::start(Guarded::new(&clock, &guard)).unwrap();
        let mut run = 0;
        for (ran, away) in events {
            let before = clock.0.get();
            clock.0.set(before.wrapping_add(Nanos::from_ns(ran)));
            let wrapped = clock.0.get() < before;
            run += ran;
            prop_assert_eq!(at(&sched), run);
            if !wrapped {
                prop_assert_eq!(at(&guarded), run);
            }
            let (saved, saved_guarded) = (sched.save().unwrap(), Saved { time: Nanos::from_ns(run) });
            clock.0.set(match away {
                Away::Suspended(ns) => clock.0.get().wrapping_add(Nanos::from_ns(ns)),
                Away::Elsewhere(ns) => Nanos::from_ns(ns),
            });
            sched.restore(saved).unwrap();
            guarded.restore(saved_guarded).unwrap();
            prop_assert_eq!(at(&sched), run);
            prop_assert_eq!(at(&guarded), run);
        }
    }
}
