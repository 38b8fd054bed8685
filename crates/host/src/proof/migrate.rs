//! Migrations: saved, encoded, decoded, adjusted, restored, resumed.

use std::format;
use std::vec::Vec;

use chronovisor_abi::quantity::{Hertz, Nanos, Tsc, TscDelta};
use chronovisor_abi::wide;

use super::oracle::Rate;
use super::readers::Snapshot;
use super::tally::{Failure, Rule, Step};
use super::world::{VCPUS, World, hertz, random_rate, tsc, vcpu};
use crate::migration::{
    Adjustments, Destination, HostPair, Policy, Ratio, ScalingHardware, Source, VcpuState, VmState,
    adjust,
};
use crate::msr_surface::{MsrSurface, Privileges};
use crate::partition_clock::{Change, Counter, CounterRead};
use crate::vmclock::Disruption;

impl World<'_> {
    pub(super) fn migrate(&mut self, step: Step) -> Result<(), Failure> {
        let policy = match step {
            Step::MigrateStop => Policy::Stop,
            Step::MigrateAdvance => Policy::Advance,
            _ => Policy::PerEncoding,
        };
        // The guest still reads until it is paused, and the source's instant comes a little later.
        let before = self.snapshot();
        let saved_at = self.now;
        self.now += self.random.magnitude(10);
        let state = self.through_bytes(saved_at)?;
        let vcpus: Vec<_> = (0..VCPUS)
            .map(|at| {
                self.surface
                    .save_vcpu(vcpu(at), self.memory)
                    .expect("four vcpus")
            })
            .collect();

        let (source, destination, downtime) = self.hosts();
        let (state, adjustments) = match adjust(&state, &source, &destination, policy) {
            Ok(done) => done,
            Err(error) => panic!("seed {}: {error}", self.seed),
        };
        self.check_adjustments(&adjustments, &source, &destination, policy, downtime)?;

        let mut surface = MsrSurface::restore(
            self.config,
            Privileges::EVERYTHING,
            hertz(self.oracle.rate),
            &state,
        )
        .expect("a state that was saved");
        for (at, (clock, timers)) in vcpus.iter().enumerate() {
            let mut buffer = [0; VcpuState::MAX_BYTES];
            let bytes = clock.encode(&mut buffer).expect("room");
            let clock = VcpuState::decode(&buffer[..bytes]).expect("what was saved");
            surface
                .restore_vcpu(vcpu(at), &clock, timers)
                .expect("what was saved");
        }
        surface.clock_mut().hold(self.memory);
        self.surface = surface;
        self.check_held()?;
        self.arrive(&adjustments, policy, downtime);

        // Before the first run some time passes on the destination's counter.
        self.now += self.random.magnitude(20);
        let memory = self.memory;
        let open = self
            .surface
            .clock_mut()
            .begin_update(Change::Resume, memory)
            .expect("no new rate");
        open.publish(tsc(self.now)).expect("a later reading");
        self.check_sequences(&before)?;
        self.read_everything()
    }

    fn through_bytes(&mut self, saved_at: u64) -> Result<VmState, Failure> {
        let state = self.surface.save(tsc(saved_at));
        let mut buffer = [0; VmState::MAX_BYTES];
        let bytes = state.encode(&mut buffer).expect("MAX_BYTES is enough");
        let back = VmState::decode(&buffer[..bytes]);
        self.check(Rule::PolicyKept, back == Ok(state), |_| {
            format!("{state:?} came back as {back:?}")
        })?;
        Ok(state)
    }

    /// Two hosts, and the time between their instants in ns (negative if their clocks disagree).
    fn hosts(&mut self) -> (Source, Destination, i64) {
        let random = &mut self.random;
        let downtime = i64::try_from(random.magnitude(34)).expect("small")
            * if random.one_in(8) { -1 } else { 1 };
        let tai_s = 1_800_000_000_000_000_000_u64;
        // The source: any scaling that gives the guest's counter.
        let bits = random.pick(&[0_u8, 32, 48]);
        let ratio = if bits == 0 {
            1
        } else {
            (1 << (bits - 1)) + random.below(1 << bits)
        };
        let scaling = Ratio::new(ratio, bits).expect("not zero");
        let host_tsc_s = random.magnitude(56);
        let offset = tsc(self.now).wrapping_delta(scaling.scale(tsc(host_tsc_s)));
        let source = Source {
            pair: HostPair {
                host_tsc: tsc(host_tsc_s),
                tai: Nanos::from_ns(tai_s),
                error: Nanos::ZERO,
            },
            scaling,
            offset,
        };
        let host_rate = if random.one_in(2) {
            hertz(self.oracle.rate)
        } else {
            hertz(random_rate(random))
        };
        let scaling = random.pick(&[
            ScalingHardware::None,
            ScalingHardware::Bits32,
            ScalingHardware::Bits48,
        ]);
        // A ratio that the hardware has.
        let quotient = u128::from(host_rate.numerator()) * u128::from(self.oracle.rate.d) * 200
            > u128::from(self.oracle.rate.n) * u128::from(host_rate.denominator());
        let destination = Destination {
            pair: HostPair {
                host_tsc: tsc(random.magnitude(56)),
                tai: Nanos::from_ns(tai_s.wrapping_add_signed(downtime)),
                error: Nanos::ZERO,
            },
            host_rate,
            scaling: if quotient {
                scaling
            } else {
                ScalingHardware::None
            },
            counter: Counter::Invariant,
            arrival: random.pick(&[Disruption::Moved, Disruption::Copied]),
        };
        (source, destination, downtime)
    }

    fn check_adjustments(
        &mut self,
        done: &Adjustments,
        source: &Source,
        destination: &Destination,
        policy: Policy,
        downtime: i64,
    ) -> Result<(), Failure> {
        let passed = u64::try_from(downtime).unwrap_or(0);
        let clamped = u64::try_from(-downtime).unwrap_or(0);
        let rate = self.oracle.rate;
        let advanced = if policy == Policy::Stop {
            0
        } else {
            rate.ticks(passed)
        };
        // The clocks move by what the counter moved, to the rounding of the encoding.
        let moved = u64::try_from(rate.time(advanced) >> 64).expect("small");
        let near = |gained: Nanos, expected: u64, granularity: u64| {
            gained.as_ns().abs_diff(expected) <= granularity + 1 + expected / 1_000_000_000
        };
        let reference = if policy == Policy::Advance { moved } else { 0 };
        // A line that was due to be re-based may come back from the far end of its budget.
        let straight = if policy == Policy::Stop {
            0
        } else {
            2 + self.config.drift_budget.as_ns()
        };
        let bent = 100 + self.config.drift_budget.as_ns() + reference / 10_000;
        let holds = done.downtime.as_ns() == passed
            && done.clamped.as_ns() == clamped
            && done.tsc == tsc(self.now + advanced)
            && near(done.pvclock_gained, moved, straight)
            && near(
                done.reference_gained,
                reference,
                if policy == Policy::Advance { bent } else { 0 },
            )
            && moved.abs_diff(if policy == Policy::Stop { 0 } else { passed })
                <= rate_granularity(rate);
        self.check(Rule::PolicyKept, holds, |world| {
            format!(
                "{policy:?} of {downtime} ns from {} expected {advanced} ticks: {done:?}",
                world.now
            )
        })?;
        // guest = (host * ratio >> bits) + offset, as the hardware computes it, on both sides
        let guest = |host: Tsc, ratio: u64, bits: u8, offset: TscDelta| {
            let scaled = (u128::from(host.as_ticks()) * u128::from(ratio)) >> bits;
            let scaled = u64::try_from(scaled & u128::from(u64::MAX)).expect("64 bits");
            scaled.wrapping_add(offset.as_ticks())
        };
        let source_tsc = guest(
            source.pair.host_tsc,
            source.scaling.ratio(),
            source.scaling.fraction_bits(),
            source.offset,
        );
        let (ratio, bits) = (done.ratio.ratio(), done.ratio.fraction_bits());
        let there = guest(destination.pair.host_tsc, ratio, bits, done.offset);
        let holds = source_tsc == self.now
            && tsc(there) == done.tsc
            && true_rate(destination.host_rate, ratio, bits, done.rate);
        self.check(Rule::OffsetExact, holds, |_| {
            format!("{there}, {source:?}, {destination:?}, {done:?}")
        })
    }

    fn check_held(&mut self) -> Result<(), Failure> {
        let shown = (0..VCPUS)
            .any(|at| self.registered[at] && self.memory.records[at].version() & 1 == 0)
            || self.page_memory().is_some_and(|page| page.sequence() != 0)
            || self.memory.vmclock.sequence() & 1 == 0;
        let now = tsc(self.now);
        let msr = self
            .surface
            .clock_mut()
            .read_reference_counter(vcpu(0), now);
        self.check(
            Rule::HeldShowsNothing,
            !shown && msr == CounterRead::Held,
            |_| format!("a page is valid: {shown}, msr {msr:?}"),
        )
    }

    /// The true machine at the destination.
    fn arrive(&mut self, done: &Adjustments, policy: Policy, downtime: i64) {
        let passed = u128::from(u64::try_from(downtime).unwrap_or(0)) << 64;
        let before = self.oracle.at(self.now);
        self.now = done.tsc.as_ticks();
        let gained = self.oracle.at(self.now) - before;
        match policy {
            Policy::Stop => self.oracle.tai_origin += passed,
            Policy::Advance => {}
            Policy::PerEncoding => self.oracle.behind += gained,
        }
        self.seen.reference = self.seen.reference.max(self.seen.msr.unwrap_or(0));
        if done.rate != hertz(self.oracle.rate) {
            let rate = Rate {
                n: done.rate.numerator(),
                d: done.rate.denominator(),
            };
            self.oracle.change_rate(self.now, rate);
            self.doubt_ns = if self.equal() {
                0
            } else {
                self.doubt_ns.max(self.skew_ns())
            };
        }
    }

    fn check_sequences(&mut self, before: &Snapshot) -> Result<(), Failure> {
        let after = self.snapshot();
        for at in 0..VCPUS {
            if self.registered[at] {
                let versions = (before.versions[at], after.versions[at]);
                let on = versions.1.wrapping_sub(versions.0) == 2;
                self.check(Rule::SequenceChanges, on, |_| {
                    format!("record {at}: {versions:?}")
                })?;
            }
        }
        if before.page.is_some() && after.page.is_some() {
            let sequences = (before.sequence, after.sequence);
            let on = sequences.1 == sequences.0 + 1;
            self.check(Rule::SequenceChanges, on, |_| {
                format!("page: {sequences:?}")
            })?;
        }
        Ok(())
    }
}

/// The counter's own tick, in ns, rounded up: nothing that is told in ticks can be nearer.
fn rate_granularity(rate: Rate) -> u64 {
    u64::try_from(rate.time(1) >> 64).expect("a slow tick is 1 us") + 2
}

/// Whether `rate` is `host * ratio / 2^bits` to within 2^-60 of it, cross-multiplied in 256 bits.
fn true_rate(host: Hertz, ratio: u64, bits: u8, rate: Hertz) -> bool {
    let ours = wide::mul(
        u128::from(rate.numerator()),
        u128::from(host.denominator()) << bits,
    );
    let exact = wide::mul(
        u128::from(host.numerator()) * u128::from(ratio),
        u128::from(rate.denominator()),
    );
    let bound = (exact.0 >> 60, (exact.0 << 68) | (exact.1 >> 60));
    wide::abs_diff(ours, exact) <= bound
}
