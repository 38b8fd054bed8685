//! Every interleaving of a host that changes its page, a thread that renews the process's copy, and a reader, by the model checker: run with
//! `RUSTFLAGS="--cfg loom"`.
//!
//! The counter is a relaxed atomic that each read advances. The value of a line is its base alone (multiplier 0), so it tells which line was used.

use std::cell::Cell;
use std::sync::Arc;

use chronovisor_abi::quantity::Tsc;
use chronovisor_abi::seqlock::sync::{AtomicU32, AtomicU64, Ordering};
use chronovisor_abi::seqlock::{self, OddWhileUpdating};

use super::line::Line;
use super::published::{Current, Published};

const OLD: u64 = 1;
const NEW: u64 = 2;

struct Shared {
    /// The host's version word.
    watched: AtomicU32,
    counter: AtomicU64,
    published: Published,
}

fn current(base_ns: u64, tag: u32) -> Current {
    let line = Line {
        anchor: Tsc::from_ticks(0),
        base_ns,
        mul: 0,
        shift: 0,
    };
    Current::Counter {
        line,
        tag,
        limit: u64::MAX,
    }
}

impl Shared {
    fn tick(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// The counter and the line (its base) that a read of the copy used.
    fn read(&self) -> Option<(u64, u64)> {
        let counter = Cell::new(0);
        let base = self.published.read(&self.watched, || {
            counter.set(self.tick());
            Tsc::from_ticks(counter.get())
        })?;
        Some((counter.get(), base))
    }
}

#[test]
fn each_line_is_used_with_its_own_counter_values_only() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let shared = Arc::new(Shared {
            watched: AtomicU32::new(4),
            counter: AtomicU64::new(0),
            published: Published::new(),
        });
        let last = shared.published.publish(0, &current(OLD, 4));
        let host = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                seqlock::begin::<OddWhileUpdating>(&shared.watched, 4);
                let at = shared.tick();
                seqlock::publish::<OddWhileUpdating>(&shared.watched, 4);
                at
            })
        };
        let reader = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || [shared.read(), shared.read()])
        };
        // The slow path, if the host is done by now.
        let renewed_at = (shared.watched.load(Ordering::Acquire) == 6).then(|| {
            shared.published.begin(last);
            let at = shared.tick();
            shared.published.publish(last, &current(NEW, 6));
            at
        });
        let changed_at = host.join().expect("host");
        for (counter, base) in reader.join().expect("reader").into_iter().flatten() {
            match base {
                OLD => assert!(
                    counter < changed_at,
                    "the old line at {counter}, changed at {changed_at}"
                ),
                _ => assert!(
                    renewed_at.is_some_and(|at| counter > at),
                    "the new line at {counter}, renewed at {renewed_at:?}"
                ),
            }
        }
    });
}
