//! The loop that measures what one read of a clock costs.
//!
//! # Theory
//!
//! A read takes 7 ns, looking at the counter as much, so many reads are timed at once. The read is a closure of its own type, so each clock gets
//! its own copy of the loop with the read inlined into it: a call through a pointer would cost a quarter of the cheapest clock. The values are
//! summed in a register, which keeps the reads from being dropped and costs every clock the same.
//!
//! # Caveats
//!
//! The loop lets the processor overlap one read with the next, as a program that stamps events does. It measures throughput, not latency.

use std::hint::black_box;

use chronovisor_abi::quantity::TscDelta;
use chronovisor_guest::counter;

/// Something that can be read many times in a row, behind one call through a pointer.
pub trait Reads: Send {
    /// Ticks that `count` reads take.
    fn time(&mut self, count: u32) -> TscDelta;
    /// Fewest reads that make a fair batch.
    fn least(&self) -> u32 {
        1
    }
    /// Fills `values` with what successive reads give.
    fn collect(&mut self, values: &mut [u64]);
}

/// The loop around `read`, made for its type.
pub struct Loop<R>(pub R);

impl<R: FnMut() -> u64 + Send> Reads for Loop<R> {
    fn time(&mut self, count: u32) -> TscDelta {
        time(count, &mut self.0)
    }

    fn collect(&mut self, values: &mut [u64]) {
        for value in values {
            *value = (self.0)();
        }
    }
}

/// Ticks that `count` calls of `read` take.
#[inline]
pub fn time(count: u32, mut read: impl FnMut() -> u64) -> TscDelta {
    let mut sum = 0_u64;
    let start = counter::read_fenced();
    for _ in 0..count {
        sum = sum.wrapping_add(read()); // wrapping: only there to keep the value alive.
    }
    let end = counter::read_fenced();
    black_box(sum);
    end.wrapping_delta(start)
}

/// How many reads fill about `ticks`, found by doubling; at least the fewest that are fair. Each count is timed a few times and the shortest counts, as an interrupted
/// one would make a fast clock look slow.
pub fn reads_for(ticks: u64, reads: &mut dyn Reads) -> u32 {
    let least = reads.least().max(1);
    let mut count = least;
    loop {
        let took = (0..5)
            .map(|_| reads.time(count).as_ticks())
            .min()
            .unwrap_or(0)
            .max(1);
        if took >= ticks || count >= 1 << 20 {
            let wanted = u64::from(count) * ticks / took;
            return u32::try_from(wanted)
                .unwrap_or(u32::MAX)
                .clamp(least, 1 << 20);
        }
        count *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same loop with more reads takes longer, and every read is made.
    #[test]
    fn all_reads_are_made() {
        let mut made = 0_u64;
        let _ = time(1000, || {
            made += 1;
            made
        });
        assert_eq!(made, 1000);
        let mut collected = [0; 3];
        let mut next = 0;
        Loop(|| {
            next += 1;
            next
        })
        .collect(&mut collected);
        assert_eq!(collected, [1, 2, 3]);
    }

    #[test]
    fn a_slow_read_gets_few_and_a_fast_one_many() {
        let mut slow = Loop(|| {
            let start = counter::rdtsc();
            while counter::rdtsc().wrapping_delta(start).as_ticks() < 100_000 {}
            0
        });
        assert_eq!(reads_for(50_000, &mut slow), 1);
        let mut fast = Loop(|| counter::rdtsc().as_ticks());
        assert!(reads_for(50_000, &mut fast) > 10);
    }
}
