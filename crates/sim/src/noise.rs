//! Everything random in a world: one pinned generator, integer arithmetic, one seed.
//!
//! # Theory
//!
//! Delays on real hosts have heavy tails: most are small, and the rare large one is what a user notices. Each [`Delay`] is drawn by
//! inverting its distribution at a uniform 64-bit number `u`:
//!
//! ```text
//! exponential   mean * -ln(u / 2^64)                logarithm by a table of 256 steps with straight lines between: within 8 * 10^-6 of 1
//! pareto 1      min * 2^64 / u, at most max         P(x > d) = min / d
//! pareto 2      min * sqrt(2^64 / u), at most max   P(x > d) = (min / d)^2
//! ```
//!
//! No float is involved, so a seed means the same bits on every machine.
//!
//! # Practice
//!
//! Each simulated unit (a virtual machine, a row) gets a generator of its own from the seed and its number, so its fate depends on
//! neither the threads nor the other units.
//!
//! # Migration
//!
//! A generator goes on over a migration: it belongs to the unit, not to a host.
//!
//! # Caveats
//!
//! The generator is not cryptographic and its stream is part of the results: a change of it is a change of every figure.
//!
//! # References
//!
//! M. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random Number Generation",
//! HMC-CS-2014-0905 (generator XSL RR 128/64); S. Vigna, SplitMix64 (seeding).

use std::ops::RangeInclusive;

use rand_core::Rng;
use rand_pcg::Pcg64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::world_time::{UNITS_PER_NS, WorldSpan};

/// A generator for one unit of a simulation.
#[derive(Clone, Debug)]
pub struct Noise(Pcg64);

/// How long something takes, as a distribution; all in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Delay {
    /// Always `ns`.
    Fixed {
        /// The delay.
        ns: u64,
    },
    /// Any whole number of ns from `min_ns` to `max_ns`, all alike.
    Uniform {
        /// The shortest.
        min_ns: u64,
        /// The longest.
        max_ns: u64,
    },
    /// Exponential: memoryless arrivals.
    Exponential {
        /// The mean.
        mean_ns: u64,
    },
    /// Pareto with exponent 1, cut off at `max_ns`: a mean of `min_ns * (1 + ln(max/min))`.
    Pareto1 {
        /// The shortest.
        min_ns: u64,
        /// The longest.
        max_ns: u64,
    },
    /// Pareto with exponent 2, cut off at `max_ns`: a mean just below twice `min_ns`.
    Pareto2 {
        /// The shortest.
        min_ns: u64,
        /// The longest.
        max_ns: u64,
    },
}

impl Noise {
    /// The generator of unit number `unit` under `seed`.
    ///
    /// ```
    /// # use chronovisor_sim::noise::Noise;
    /// assert_eq!(Noise::of_unit(1, 5).next(), Noise::of_unit(1, 5).next());
    /// assert_ne!(Noise::of_unit(1, 5).next(), Noise::of_unit(1, 6).next());
    /// ```
    #[must_use]
    pub fn of_unit(seed: u64, unit: u64) -> Self {
        let (a, b) = (scramble(seed), scramble(seed ^ 0x5851_f42d_4c95_7f2d));
        let (c, d) = (scramble(a ^ unit), scramble(b ^ unit.rotate_left(32)));
        let pair = |high: u64, low: u64| (u128::from(high) << 64) | u128::from(low);
        Self(Pcg64::new(pair(a ^ d, c), pair(b, unit)))
    }

    /// 64 uniform bits.
    #[must_use]
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "an endless source, not an iterator"
    )]
    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `range`, uniform to within 2^-64 of the range's width; the range's start if it is empty.
    #[must_use]
    #[inline]
    pub fn uniform(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = (*range.start(), *range.end());
        let width = u128::from(high.saturating_sub(low)) + 1;
        let offset = (u128::from(self.next()) * width) >> 64;
        low + u64::try_from(offset).unwrap_or(0)
    }

    /// True once in `one_in` times on average; never if it is 0.
    #[must_use]
    #[inline]
    pub fn once_in(&mut self, one_in: u64) -> bool {
        one_in != 0 && self.uniform(0..=one_in - 1) == 0
    }

    /// A delay drawn from `delay`.
    #[must_use]
    #[inline]
    pub fn span(&mut self, delay: Delay) -> WorldSpan {
        match delay {
            Delay::Fixed { ns } => WorldSpan::from_ns(ns),
            Delay::Uniform { min_ns, max_ns } => WorldSpan::from_ns(self.uniform(min_ns..=max_ns)),
            Delay::Exponential { mean_ns } => {
                let nats = u128::from(minus_ln(self.next()));
                let units = (u128::from(mean_ns) * u128::from(UNITS_PER_NS) * nats) >> 32;
                WorldSpan::from_units(u64::try_from(units).unwrap_or(u64::MAX))
            }
            Delay::Pareto1 { min_ns, max_ns } => {
                let u = u128::from(self.next()).max(1);
                let ns = (u128::from(min_ns) << 64) / u;
                WorldSpan::from_ns(u64::try_from(ns).unwrap_or(u64::MAX).min(max_ns))
            }
            Delay::Pareto2 { min_ns, max_ns } => {
                // sqrt(2^64 / u) = 2^32 / sqrt(u), with 8 more bits of the root for small u.
                let root = (u128::from(self.next()) << 16).isqrt().max(1);
                let ns = (u128::from(min_ns) << 40) / root;
                WorldSpan::from_ns(u64::try_from(ns).unwrap_or(u64::MAX).min(max_ns))
            }
        }
    }
}

/// SplitMix64's output function: every bit of the result depends on every bit of `value`. wrapping: as its author defines it.
fn scramble(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// -ln(u / 2^64) in units of 2^-32, for u = 0 that of u = 1.
#[inline]
fn minus_ln(u: u64) -> u64 {
    const LN2: u128 = 2_977_044_472; // ln 2 in 2^-32, rounded to nearest
    let zeros = u.max(1).leading_zeros();
    let mantissa = u.max(1) << zeros; // 2^63 <= mantissa < 2^64
    let (step, rest) = ((mantissa >> 55) & 0xff, (mantissa >> 23) & 0xffff_ffff);
    let at = usize::try_from(step).unwrap_or(0);
    let (low, high) = (LOG2[at], LOG2[at + 1]);
    let fraction = low + (((high - low) * rest) >> 32);
    // -log2(u / 2^64) = 64 - (63 - zeros) - fraction = zeros + 1 - fraction
    let log2 = (u64::from(zeros + 1) << 32) - fraction;
    u64::try_from((u128::from(log2) * LN2) >> 32).unwrap_or(u64::MAX)
}

/// log2(1 + i/256) in units of 2^-32.
static LOG2: [u64; 257] = log2_table();

const fn log2_table() -> [u64; 257] {
    let mut table = [0; 257];
    let mut i = 0;
    while i <= 256 {
        table[i] = log2_bits(((256 + i) as u128) << 54);
        i += 1;
    }
    table
}

/// 32 bits of log2(x / 2^62) for 1 <= x / 2^62 <= 2, one bit a squaring.
const fn log2_bits(mut x: u128) -> u64 {
    if x == 1 << 63 {
        return 1 << 32;
    }
    let (mut bits, mut result) = (0, 0);
    while bits < 32 {
        x = (x * x) >> 62;
        result <<= 1;
        if x >= 1 << 63 {
            x >>= 1;
            result |= 1;
        }
        bits += 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stream is part of every result: it must never change.
    #[test]
    fn the_stream_is_pinned() {
        let mut noise = Noise::of_unit(1, 0);
        let first: Vec<u64> = (0..3).map(|_| noise.next()).collect();
        assert_eq!(first, PINNED, "{first:#x?}");
    }

    const PINNED: [u64; 3] = [
        0x5976_3d23_72e9_58b4,
        0xad93_bc09_3da8_ecd6,
        0x6bdd_b0dc_35bb_a5d0,
    ];

    #[test]
    fn the_logarithm_is_within_its_bound() {
        for u in [
            1,
            2,
            3,
            12_345,
            1 << 40,
            u64::MAX / 3,
            u64::MAX / 2,
            u64::MAX - 7,
        ] {
            #[expect(clippy::cast_precision_loss, reason = "compared to 5 digits")]
            let (exact, ours) = (
                64.0 * std::f64::consts::LN_2 - (u as f64).ln(),
                minus_ln(u) as f64 / 4_294_967_296.0,
            );
            assert!((exact - ours).abs() < 8e-6, "{u}: {ours} for {exact}");
        }
    }

    /// A million draws each: the mean within 1 % (0.3 % is three deviations for the exponential), the bounds never left.
    #[test]
    fn delays_have_their_means_and_bounds() {
        for (delay, low, high, mean) in [
            (Delay::Fixed { ns: 7 }, 7, 7, 7.0),
            (
                Delay::Uniform {
                    min_ns: 100,
                    max_ns: 300,
                },
                100,
                300,
                200.0,
            ),
            (Delay::Exponential { mean_ns: 1000 }, 0, u64::MAX, 1000.0),
            // 100 * (1 + ln 100)
            (
                Delay::Pareto1 {
                    min_ns: 100,
                    max_ns: 10_000,
                },
                100,
                10_000,
                560.517,
            ),
            // 2 * 1000 - 1000^2 / 10^6
            (
                Delay::Pareto2 {
                    min_ns: 1000,
                    max_ns: 1_000_000,
                },
                1000,
                1_000_000,
                1999.0,
            ),
        ] {
            let mut noise = Noise::of_unit(3, 1);
            let mut sum = 0_u64;
            for _ in 0..1_000_000 {
                let ns = noise.span(delay).floor_ns();
                assert!((low..=high).contains(&ns), "{delay:?} gave {ns}");
                sum += ns;
            }
            #[expect(clippy::cast_precision_loss, reason = "compared to 2 digits")]
            let seen = sum as f64 / 1e6;
            assert!(
                (seen / mean - 1.0).abs() < 0.01,
                "{delay:?}: mean {seen}, not {mean}"
            );
        }
    }
}
