//! What a cache line costs that many CPUs want: the stated cost model of a contended line.
//!
//! # Theory
//!
//! A CPU that holds a copy of a line reads it at once. If another CPU has written it since, a copy must be fetched; to write it, a CPU must have it
//! alone, and all copies elsewhere are dropped.
//!
//! ```text
//! load:   copy here -> hit               else wait for the line, transfer, hit; the next one waits only for `busy`
//! write:  alone here -> atomic           else wait for the line, transfer, atomic; the next one waits for all of it
//! ```
//!
//! Copies can be handed out one after the other while the first is still on its way; a line that is to be written cannot be had by another CPU before that
//! is done. A transfer between two sockets takes longer than one within.
//!
//! # Practice
//!
//! [`Line::load`] and [`Line::write`] return when the CPU goes on.
//!
//! # Migration
//!
//! Does not apply.
//!
//! # Caveats
//!
//! Hyper-threads that share a cache, adaptive prefetching, and the directory's own cost are left out. Requests are served in the order of their
//! time, which real interconnects do not promise.
//!
//! # References
//!
//! Any text on MESI, such as J. Hennessy, D. Patterson, "Computer Architecture", chapter on cache coherence.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::world_time::{WorldSpan, WorldTime};

/// The costs, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// A load of a line that is here.
    pub hit_ns: u64,
    /// An atomic read-modify-write of a line that is alone here.
    pub atomic_ns: u64,
    /// A transfer from a CPU of the same socket.
    pub near_ns: u64,
    /// A transfer from another socket.
    pub far_ns: u64,
    /// How long the line is busy with handing out one copy.
    pub busy_ns: u64,
    /// CPUs of a socket.
    pub cpus_per_socket: u32,
}

/// A cache line that up to 64 CPUs share.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    costs: Costs,
    /// Bit n: CPU n has a copy.
    copies: u64,
    /// The CPU that wrote it last.
    owner: u32,
    free_from: WorldTime,
    transfers: u64,
}

impl Line {
    /// A line that CPU 0 has alone.
    #[must_use]
    pub const fn new(costs: Costs) -> Self {
        Self {
            costs,
            copies: 1,
            owner: 0,
            free_from: WorldTime::ZERO,
            transfers: 0,
        }
    }

    /// CPU `cpu` (below 64) loads it at `now`; returns when it has the value.
    pub fn load(&mut self, cpu: u32, now: WorldTime) -> WorldTime {
        let mut now = now;
        if self.copies >> (cpu & 63) & 1 == 0 {
            let from = self.free_from.max(now);
            self.free_from = from.saturating_add(WorldSpan::from_ns(self.costs.busy_ns));
            now = from.saturating_add(self.transfer(cpu));
            self.copies |= 1 << (cpu & 63);
        }
        now.saturating_add(WorldSpan::from_ns(self.costs.hit_ns))
    }

    /// CPU `cpu` (below 64) changes it by an atomic instruction at `now`; returns when that is done.
    pub fn write(&mut self, cpu: u32, now: WorldTime) -> WorldTime {
        let mut now = now;
        if self.copies != 1 << (cpu & 63) {
            now = self.free_from.max(now).saturating_add(self.transfer(cpu));
        }
        self.copies = 1 << (cpu & 63);
        self.owner = cpu;
        let done = now.saturating_add(WorldSpan::from_ns(self.costs.atomic_ns));
        self.free_from = self.free_from.max(done);
        done
    }

    /// How often the line was moved.
    #[must_use]
    pub const fn transfers(&self) -> u64 {
        self.transfers
    }

    fn transfer(&mut self, cpu: u32) -> WorldSpan {
        let socket = |cpu: u32| cpu / self.costs.cpus_per_socket.max(1);
        self.transfers += 1;
        WorldSpan::from_ns(if socket(cpu) == socket(self.owner) {
            self.costs.near_ns
        } else {
            self.costs.far_ns
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> WorldTime {
        WorldTime::ZERO.saturating_add(WorldSpan::from_ns(ns))
    }

    #[test]
    fn a_line_costs_what_the_model_says() {
        let mut line = Line::new(Costs {
            hit_ns: 1,
            atomic_ns: 6,
            near_ns: 50,
            far_ns: 120,
            busy_ns: 5,
            cpus_per_socket: 2,
        });
        assert_eq!(line.load(0, at(0)), at(1), "here");
        assert_eq!(line.write(0, at(1)), at(7), "alone");
        assert_eq!(line.load(1, at(7)), at(58), "fetched from the neighbour");
        assert_eq!(line.load(1, at(60)), at(61), "here now");
        assert_eq!(line.write(1, at(61)), at(117), "alone after a transfer");
        assert_eq!(line.write(3, at(117)), at(243), "from the other socket");
        // Two copies at once: the second is on its way 5 ns after the first.
        assert_eq!(line.load(0, at(300)), at(421));
        assert_eq!(line.load(1, at(300)), at(426));
        // Two writes at once: the second waits for the first.
        assert_eq!(line.write(0, at(500)), at(626));
        assert_eq!(line.write(1, at(500)), at(682));
        assert_eq!(line.transfers(), 7);
    }
}
