use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

/// What the queue has to equal: a binary heap over (time, order of scheduling).
#[derive(Default)]
struct Model {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    scheduled: u32,
}

impl Model {
    fn schedule(&mut self, time: u64) -> u32 {
        self.scheduled += 1;
        self.heap.push(Reverse((time, self.scheduled)));
        self.scheduled
    }

    fn take(&mut self) -> Option<(WorldTime, u32)> {
        self.heap
            .pop()
            .map(|Reverse((time, order))| (WorldTime::from_units(time), order))
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Schedule so many events `offset >> shift` after the last one taken (the same time for all).
    Schedule {
        offset: u64,
        shift: u32,
        count: u8,
    },
    Take(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<u64>(), 0_u32..=64, 1_u8..8).prop_map(|(offset, shift, count)| Step::Schedule {
            offset,
            shift,
            count
        }),
        (1_u8..8).prop_map(Step::Take),
        // Floods of near events, so that the sorted part splits.
        (any::<u64>(), 50_u32..=64, 60_u8..=255).prop_map(|(offset, shift, count)| {
            Step::Schedule {
                offset,
                shift,
                count,
            }
        }),
    ]
}

fn run(steps: &[Step], spread: u64) {
    let (mut queue, mut model) = (Queue::new(), Model::default());
    let mut now = 0_u64;
    for step in steps {
        match *step {
            Step::Schedule {
                offset,
                shift,
                count,
            } => {
                for i in 0..u64::from(count) {
                    let time = now
                        .saturating_add(offset.checked_shr(shift).unwrap_or(0))
                        .saturating_add(i.saturating_mul(spread));
                    let order = model.schedule(time);
                    queue.schedule(WorldTime::from_units(time), order);
                }
            }
            Step::Take(count) => {
                for _ in 0..count {
                    let expected = model.take();
                    assert_eq!(
                        queue.next_time(),
                        expected.map(|(time, _)| time),
                        "next time"
                    );
                    assert_eq!(queue.take(), expected);
                    if let Some((time, _)) = expected {
                        now = time.as_units();
                    }
                }
            }
        }
        assert_eq!(queue.len(), model.heap.len());
    }
    while let Some(expected) = model.take() {
        assert_eq!(queue.take(), Some(expected));
    }
    assert_eq!(queue.take(), None);
    assert!(queue.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_order_is_that_of_a_binary_heap(steps in prop::collection::vec(step(), 1..40), spread in prop_oneof![Just(0_u64), 0_u64..300, any::<u64>()]) {
        run(&steps, spread);
    }
}

#[test]
fn a_cleared_queue_is_a_new_one() {
    let mut queue = Queue::new();
    for time in [5, 1 << 20, 1 << 50, u64::MAX] {
        queue.schedule(WorldTime::from_units(time), time);
    }
    assert_eq!(queue.take(), Some((WorldTime::from_units(5), 5)));
    queue.clear();
    assert_eq!((queue.take(), queue.len()), (None, 0));
    queue.schedule(WorldTime::from_units(1), 9);
    assert_eq!(queue.take(), Some((WorldTime::from_units(1), 9)));
}

/// The last slot of time has no end: what is scheduled there is neither lost nor looped over.
#[test]
fn the_end_of_time_is_an_ordinary_time() {
    let mut queue = Queue::new();
    for event in 0..400_u32 {
        queue.schedule(WorldTime::MAX, event);
    }
    for event in 0..400_u32 {
        assert_eq!(queue.take(), Some((WorldTime::MAX, event)));
        if event == 10 {
            queue.schedule(WorldTime::MAX, 400);
        }
    }
    assert_eq!(queue.take(), Some((WorldTime::MAX, 400)));
    assert_eq!(queue.take(), None);
}
