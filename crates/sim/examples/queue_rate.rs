//! Expiries a second of the event queue with a million pending timers, each re-armed at a random time when it expires; beside a binary heap.
//!
//! ```text
//! cargo run --release -p chronovisor-sim --example queue_rate
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use chronovisor_sim::queue::Queue;
use chronovisor_sim::world_time::WorldTime;

fn main() {
    const PENDING: u32 = 1_000_000;
    const EXPIRIES: u32 = 10_000_000;
    let mut state = 1_u64;
    let mut random = move || {
        // wrapping: a linear congruential step modulo 2^64.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 26
    };
    let mut queue = Queue::new();
    for timer in 0..PENDING {
        queue.schedule(WorldTime::from_units(random()), timer);
    }
    let start = Instant::now();
    for _ in 0..EXPIRIES {
        let (time, timer) = queue.take().expect("every timer is re-armed");
        queue.schedule(WorldTime::from_units(time.as_units() + random()), timer);
    }
    let wheel = start.elapsed();
    let mut heap: BinaryHeap<Reverse<(u64, u32)>> =
        (0..PENDING).map(|t| Reverse((random(), t))).collect();
    let start = Instant::now();
    for _ in 0..EXPIRIES / 4 {
        let Reverse((time, timer)) = heap.pop().expect("every timer is re-armed");
        heap.push(Reverse((time + random(), timer)));
    }
    let (wheel, heap) = (wheel.as_secs_f64(), start.elapsed().as_secs_f64() * 4.0);
    let millions = f64::from(EXPIRIES) / 1e6;
    println!(
        "{:.1} million expiries/s; binary heap {:.1}",
        millions / wheel,
        millions / heap
    );
}
