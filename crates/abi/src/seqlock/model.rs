//! Every interleaving of a writer and readers, by the model checker: run with `RUSTFLAGS="--cfg loom"`.
//!
//! The counter is a relaxed atomic that each read advances, so the model checks tearing and the order of readings together.

use std::sync::Arc;
use std::vec::Vec;

use super::sync::{AtomicU32, AtomicU64, Ordering};
use super::{Flavour, OddWhileUpdating, ZeroIsInvalid, begin, publish, try_read};

/// A page of two fields, of which the second is always ten times the first, and a counter.
struct Page {
    sequence: AtomicU32,
    base: AtomicU64,
    tenfold: AtomicU64,
    counter: AtomicU64,
}

/// What a reader got: the counter, and the epoch (base) whose fields it used.
#[derive(Clone, Copy, Debug)]
struct Seen {
    counter: u64,
    epoch: u64,
}

impl Page {
    fn new(sequence: u32) -> Self {
        Self {
            sequence: AtomicU32::new(sequence),
            base: AtomicU64::new(1),
            tenfold: AtomicU64::new(10),
            counter: AtomicU64::new(0),
        }
    }

    fn tick(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// One update; returns the writer's counter reading.
    fn update<F: Flavour>(&self, last: u32) -> u64 {
        begin::<F>(&self.sequence, last);
        let at = self.tick();
        self.base.store(2, Ordering::Relaxed);
        self.tenfold.store(20, Ordering::Relaxed);
        publish::<F>(&self.sequence, last);
        at
    }

    /// One look; `None` if the page was invalid or changed.
    fn look<F: Flavour>(&self) -> Option<Seen> {
        let look = try_read::<F, _>(&self.sequence, || {
            (
                self.base.load(Ordering::Relaxed),
                self.tick(),
                self.tenfold.load(Ordering::Relaxed),
            )
        });
        let ((base, counter, tenfold), _) = look.ok()?;
        assert_eq!(base * 10, tenfold, "torn read");
        Some(Seen {
            counter,
            epoch: base,
        })
    }
}

/// Old fields were read before the writer's counter reading, new fields after it.
fn assert_ordered(seen: impl IntoIterator<Item = Seen>, update_at: u64) {
    for seen in seen {
        match seen.epoch {
            1 => assert!(
                seen.counter < update_at,
                "{seen:?} is later than the update at {update_at}"
            ),
            _ => assert!(
                seen.counter > update_at,
                "{seen:?} is earlier than the update at {update_at}"
            ),
        }
    }
}

fn model<F: Flavour + 'static>(
    readers: usize,
    looks: usize,
    preemption_bound: Option<usize>,
    last: u32,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemption_bound;
    builder.check(move || {
        let page = Arc::new(Page::new(last));
        let readers: Vec<_> = (0..readers)
            .map(|_| {
                let page = Arc::clone(&page);
                loom::thread::spawn(move || {
                    (0..looks)
                        .filter_map(|_| page.look::<F>())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let update_at = page.update::<F>(last);
        for reader in readers {
            assert_ordered(reader.join().expect("reader"), update_at);
        }
        assert_ordered(page.look::<F>(), update_at);
    });
}

#[test]
fn one_reader_every_interleaving_odd_while_updating() {
    model::<OddWhileUpdating>(1, 2, None, 4);
}

#[test]
fn one_reader_every_interleaving_zero_is_invalid() {
    model::<ZeroIsInvalid>(1, 2, None, u32::MAX - 1);
}

#[test]
fn two_readers_within_three_preemptions_odd_while_updating() {
    model::<OddWhileUpdating>(2, 1, Some(3), 4);
}

#[test]
fn two_readers_within_three_preemptions_zero_is_invalid() {
    model::<ZeroIsInvalid>(2, 1, Some(3), 1);
}

/// The model can fail: without the writer's fence a late reading of the old fields passes.
#[test]
#[should_panic(expected = "later than the update")]
fn the_model_sees_a_missing_fence() {
    loom::model(|| {
        let page = Arc::new(Page::new(4));
        let reader = {
            let page = Arc::clone(&page);
            loom::thread::spawn(move || page.look::<OddWhileUpdating>())
        };
        super::mark::<OddWhileUpdating>(&page.sequence, 4);
        let update_at = page.tick();
        page.base.store(2, Ordering::Relaxed);
        page.tenfold.store(20, Ordering::Relaxed);
        publish::<OddWhileUpdating>(&page.sequence, 4);
        assert_ordered(reader.join().expect("reader"), update_at);
    });
}
