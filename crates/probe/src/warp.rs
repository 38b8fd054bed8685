//! Whether time goes back between CPUs: two pinned threads read a clock in turn.
//!
//! # Theory
//!
//! The threads pass a word back and forth. Each waits for its turn, reads the clock, compares with what the other read just before,
//! and hands its own value over. A value depends on the read that gave it and the hand-over is an acquire of a release, so each read comes after
//! the one before it in every possible sense; a lower value is a clock that went back. A clock behind a clamp shows equal values instead, so those
//! are counted too.
//!
//! # Practice
//!
//! [`check`] tries as many pairs as its time allows, each pair of neighbours in the list of CPUs first. A hand-over takes 100 ns to 300 ns, so a pair of 10 ms
//! gives tens of thousands of readings. A thread that loses its CPU only makes the other wait, never longer than the pair's time.
//!
//! # Caveats
//!
//! An offset smaller than the time of a hand-over cannot be seen, by this or by any other program: no two CPUs can observe it.
//!
//! # References
//!
//! Linux `arch/x86/kernel/tsc_sync.c` (the same question at boot, under a lock).

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use chronovisor_abi::quantity::Tsc;
use chronovisor_guest::counter;

use crate::cpus;

/// What the readings of a number of pairs showed, in the unit of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Pairs of CPUs that were tried.
    pub pairs: u64,
    /// Readings compared with one of another CPU.
    pub readings: u64,
    /// Of these, lower than the other.
    pub warps: u64,
    /// The largest step back.
    pub max_backward: u64,
    /// The smallest step back; 0 if there is none.
    pub min_backward: u64,
    /// Readings lower than the same CPU's reading before.
    pub same_cpu_backwards: u64,
    /// Readings equal to one of another CPU.
    pub stalls: u64,
}

impl Order {
    fn add(&mut self, other: &Self) {
        self.pairs += other.pairs;
        self.readings += other.readings;
        self.warps += other.warps;
        self.same_cpu_backwards += other.same_cpu_backwards;
        self.stalls += other.stalls;
        self.max_backward = self.max_backward.max(other.max_backward);
        self.min_backward = match (self.min_backward, other.min_backward) {
            (0, one) | (one, 0) => one,
            (one, other) => one.min(other),
        };
    }

    /// Takes in one reading that came after the other CPU's `theirs` and this CPU's own `mine`.
    fn look(&mut self, value: u64, theirs: u64, mine: Option<u64>) {
        self.readings += 1;
        // wrapping: a counter may pass its end; what is more than half of the range ahead is behind.
        let back = theirs.wrapping_sub(value);
        if back == 0 {
            self.stalls += 1;
        } else if back <= u64::MAX / 2 {
            self.warps += 1;
            self.max_backward = self.max_backward.max(back);
            self.min_backward = match self.min_backward {
                0 => back,
                least => least.min(back),
            };
        }
        if let Some(mine) = mine {
            let back = mine.wrapping_sub(value); // wrapping: as above.
            self.same_cpu_backwards += u64::from(back != 0 && back <= u64::MAX / 2);
        }
    }
}

/// Whose turn it is and what the other one read, on a cache line of their own.
#[repr(align(128))]
struct Table {
    /// The value read last; valid for the thread whose turn it is.
    value: AtomicU64,
    /// Turns taken so far: even is the first thread's turn.
    turn: AtomicU64,
    /// Threads that are there, pinned.
    arrived: AtomicU32,
    stop: AtomicBool,
}

/// Longest wait for the other thread to be there, on a machine that has other things to do.
const ARRIVAL: Duration = Duration::from_millis(500);

impl Table {
    /// Waits until both threads are there; whether they are.
    fn meet(&self) -> bool {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        while self.arrived.load(Ordering::Relaxed) < 2 {
            if self.stop.load(Ordering::Relaxed) || started.elapsed() > ARRIVAL {
                self.stop.store(true, Ordering::Relaxed);
                return false;
            }
            thread::yield_now();
        }
        true
    }
}

/// Reads a clock in turn on pairs of `cpus`, within `budget` in all. `read` must be ordered: not run before the loads that precede it.
///
/// # Errors
///
/// If a thread cannot be started or pinned.
pub fn check<R>(cpus: &[usize], budget: Duration, read: R) -> io::Result<Order>
where
    R: Fn() -> u64 + Copy + Send,
{
    let pairs = pairs(cpus);
    let mut order = Order::default();
    let started = Instant::now();
    for (done, (one, other)) in pairs.iter().enumerate() {
        let Some(left) = budget.checked_sub(started.elapsed()) else {
            break;
        };
        let each = left / u32::try_from(pairs.len() - done).unwrap_or(u32::MAX);
        order.add(&check_pair(
            *one,
            *other,
            each.max(Duration::from_micros(200)),
            read,
        )?);
    }
    Ok(order)
}

/// Neighbours first (each CPU with the next, and the last with the first), then the first CPU with all others.
fn pairs(cpus: &[usize]) -> Vec<(usize, usize)> {
    let Some((first, others)) = cpus.split_first() else {
        return Vec::new();
    };
    let mut pairs: Vec<_> = cpus.iter().copied().zip(others.iter().copied()).collect();
    pairs.extend(others.iter().skip(1).map(|cpu| (*first, *cpu)));
    pairs
}

fn check_pair<R>(one: usize, other: usize, time: Duration, read: R) -> io::Result<Order>
where
    R: Fn() -> u64 + Copy + Send,
{
    let table = Table {
        value: AtomicU64::new(read()),
        turn: AtomicU64::new(0),
        arrived: AtomicU32::new(0),
        stop: AtomicBool::new(false),
    };
    let table = &table;
    let player = move |cpu: usize, parity: u64| {
        move || {
            let pinned = cpus::pin_to(cpu);
            if pinned.is_err() {
                table.stop.store(true, Ordering::Relaxed);
            }
            pinned.map(|()| {
                if table.meet() {
                    play(table, parity, time, read)
                } else {
                    Order::default()
                }
            })
        }
    };
    let (first, second) = thread::scope(|scope| {
        let first = thread::Builder::new().spawn_scoped(scope, player(one, 0))?;
        let second = thread::Builder::new()
            .spawn_scoped(scope, player(other, 1))
            .inspect_err(|_| table.stop.store(true, Ordering::Relaxed))?;
        let join = |thread: thread::ScopedJoinHandle<'_, io::Result<Order>>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the reading thread panicked")))
        };
        io::Result::Ok((join(first)?, join(second)?))
    })?;
    let mut order = Order {
        pairs: 1,
        ..Order::default()
    };
    order.add(&first);
    order.add(&second);
    Ok(order)
}

/// Takes every other turn until the time is up.
fn play<R: Fn() -> u64>(table: &Table, parity: u64, time: Duration, read: R) -> Order {
    let mut order = Order::default();
    let mut mine = None;
    let started = Instant::now();
    loop {
        let mut waited = 0_u32;
        let turn = loop {
            // Acquire: pairs with the other's release of the turn, so its value is visible and its read is over.
            let turn = table.turn.load(Ordering::Acquire);
            if turn % 2 == parity {
                break turn;
            }
            waited += 1;
            // Asking for the time is a clock read of its own: seldom.
            if table.stop.load(Ordering::Relaxed)
                || (waited.is_multiple_of(256) && started.elapsed() > time)
            {
                table.stop.store(true, Ordering::Relaxed);
                return order;
            }
            std::hint::spin_loop();
        };
        let theirs = table.value.load(Ordering::Relaxed);
        let value = read();
        table.value.store(value, Ordering::Relaxed);
        // Release: pairs with the other's acquire. The stored value depends on the read, so the read is over as well.
        table.turn.store(turn + 1, Ordering::Release);
        // The first turn finds the value that a third thread has put there.
        if turn > 0 {
            order.look(value, theirs, mine);
        }
        mine = Some(value);
        if turn % 1024 < 2 && started.elapsed() > time {
            table.stop.store(true, Ordering::Relaxed);
            return order;
        }
    }
}

/// The counter for [`check`]: not read before the turn was taken.
#[must_use]
#[inline]
pub fn ordered_tsc() -> u64 {
    Tsc::as_ticks(counter::lfence_rdtsc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_cover_neighbours_and_the_first_with_all() {
        assert_eq!(pairs(&[]), []);
        assert_eq!(pairs(&[3]), []);
        assert_eq!(pairs(&[0, 1]), [(0, 1)]);
        assert_eq!(
            pairs(&[0, 2, 5, 7]),
            [(0, 2), (2, 5), (5, 7), (0, 5), (0, 7)]
        );
    }

    #[test]
    fn readings_are_judged_against_both_cpus() {
        let mut order = Order::default();
        order.look(10, 9, None);
        order.look(10, 10, Some(9));
        order.look(7, 10, Some(8));
        order.look(5, 20, Some(5));
        order.look(3, u64::MAX, Some(2)); // the counter wrapped
        assert_eq!(
            order,
            Order {
                pairs: 0,
                readings: 5,
                warps: 2,
                max_backward: 15,
                min_backward: 3,
                same_cpu_backwards: 1,
                stalls: 1
            }
        );
    }

    /// Readings enough to judge by, however busy the machine is.
    fn many_readings(cpus: &[usize], read: impl Fn() -> u64 + Copy + Send) -> Order {
        for ms in [20, 100, 500, 2_000, 5_000] {
            let order = check(cpus, Duration::from_millis(ms), read).unwrap();
            if order.readings > 1_000 {
                return order;
            }
        }
        panic!("no two CPUs had 5 s for this test");
    }

    /// A clock with one offset a thread is caught; a clock that is one counter for both is not.
    #[test]
    fn a_clock_with_an_offset_between_cpus_is_caught() {
        let cpus = cpus::allowed().unwrap();
        if cpus.len() < 2 {
            eprintln!("skipped: one CPU");
            return;
        }
        static TICKS: AtomicU64 = AtomicU64::new(1 << 32);
        static THREADS: AtomicU32 = AtomicU32::new(0);
        thread_local!(static OFFSET: u64 = u64::from(THREADS.fetch_add(1, Ordering::Relaxed)) % 2 * 1000);
        let fair = || TICKS.fetch_add(1, Ordering::Relaxed);
        let skewed = || fair() + OFFSET.with(|offset| *offset);
        let good = many_readings(&cpus[..2], fair);
        assert_eq!(
            (good.warps, good.stalls, good.same_cpu_backwards),
            (0, 0, 0)
        );
        let bad = many_readings(&cpus[..2], skewed);
        assert!(bad.warps * 3 > bad.readings, "{bad:?}");
        assert!((990..=1000).contains(&bad.max_backward), "{bad:?}");
        assert_eq!(bad.same_cpu_backwards, 0);
    }

    #[test]
    fn one_cpu_makes_no_pair() {
        let order = check(&[0], Duration::from_millis(1), ordered_tsc).unwrap();
        assert_eq!(order, Order::default());
    }
}
