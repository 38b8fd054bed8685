//! Whether two runs differ, and by how much.
//!
//! # Theory
//!
//! Latencies have long tails, so means and deviations decide nothing. The rank test of Mann and Whitney asks how often a value of the
//! second run exceeds one of the first: half of the time if nothing changed. It is computed from buckets, exact in integers, with the
//! correction for ties.
//!
//! ```text
//! U = sum over pairs of (1 if after > before, 1/2 if in one bucket)      z = (U - n m / 2) / sigma
//! sigma^2 = n m / 12 * ((N + 1) - sum(t^3 - t) / (N (N - 1)))            N = n + m, t = values in a bucket
//! ```
//!
//! # Caveats
//!
//! With a million values each, a shift of a thousandth is significant and still of no interest: [`Comparison::change`] asks for both, significance
//! and a median that moved by more than the caller's threshold.
//!
//! # References
//!
//! H. B. Mann and D. R. Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger than the Other", 1947.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::float;
use crate::histogram::Histogram;

/// Beyond this many standard deviations a difference is no accident (one in 10^6, both sides).
const SIGNIFICANT_Z: f64 = 4.9;

/// The verdict on two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// The second run's values are lower.
    Lower,
    /// No difference beyond the threshold and beyond chance.
    Same,
    /// The second run's values are higher.
    Higher,
}

/// Two runs side by side; each ratio is the second over the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Ratio of the medians.
    pub median_ratio: f64,
    /// Ratio of the means.
    pub mean_ratio: f64,
    /// Ratio of the 99th percentiles, if both runs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ratio: Option<f64>,
    /// Ratio of the largest values.
    pub max_ratio: f64,
    /// How often a value of the second run exceeds one of the first (ties count half): 0.5 is no difference.
    pub exceeds: f64,
    /// The same in standard deviations from no difference.
    pub z: f64,
    /// The verdict.
    pub change: Change,
}

/// Compares two runs; `threshold` is the relative change of the median that is of interest (0.02 for 2 %). `None` if either is empty.
///
/// ```
/// # use chronovisor_stats::{compare, Change, Histogram};
/// let (mut before, mut after) = (Histogram::new(), Histogram::new());
/// for i in 0..1000 {
///     before.record(1000 + i % 10);
///     after.record(1100 + i % 10);
/// }
/// let both = compare(&before, &after, 0.02).expect("both have values");
/// assert_eq!(both.change, Change::Higher);
/// assert_eq!(both.exceeds, 1.0);
/// ```
#[must_use]
pub fn compare(before: &Histogram, after: &Histogram, threshold: f64) -> Option<Comparison> {
    let (first, second) = (before.summary()?, after.summary()?);
    let ratio = |a: u64, b: u64| {
        divide(
            float::from_u128(u128::from(b)),
            float::from_u128(u128::from(a)),
        )
    };
    let median_ratio = ratio(before.median()?, after.median()?);
    let (exceeds, z) = ranks(before, after);
    let change = if z.abs() < SIGNIFICANT_Z || (median_ratio - 1.0).abs() <= threshold {
        Change::Same
    } else if median_ratio > 1.0 {
        Change::Higher
    } else {
        Change::Lower
    };
    Some(Comparison {
        median_ratio,
        mean_ratio: divide(second.mean, first.mean),
        p99_ratio: first
            .percentiles
            .p99
            .zip(second.percentiles.p99)
            .map(|(a, b)| ratio(a, b)),
        max_ratio: ratio(first.max, second.max),
        exceeds,
        z,
        change,
    })
}

/// `b / a` with 0 / 0 = 1: two runs of zeros are the same.
fn divide(b: f64, a: f64) -> f64 {
    if a == b { 1.0 } else { b / a }
}

/// The share of pairs in which the second run's value is higher, and its distance from one half in standard deviations.
fn ranks(before: &Histogram, after: &Histogram) -> (f64, f64) {
    // Both histograms have one layout, so a bucket's lowest value names it in both.
    let mut buckets: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for bucket in before.buckets() {
        buckets.entry(bucket.low).or_default().0 += bucket.count;
    }
    for bucket in after.buckets() {
        buckets.entry(bucket.low).or_default().1 += bucket.count;
    }
    let count = |value: u64| float::from_u128(u128::from(value));
    let (n, m) = (count(before.count()), count(after.count()));
    let (mut below, mut wins, mut ties) = (0.0, 0.0, 0.0);
    for (first, second) in buckets.values() {
        let (first, second) = (count(*first), count(*second));
        wins += second * (below + first / 2.0);
        below += first;
        let tied = first + second;
        ties += tied * tied * tied - tied;
    }
    let (pairs, total) = (n * m, n + m);
    let variance = pairs / 12.0 * ((total + 1.0) - ties / (total * (total - 1.0)));
    let z = if variance > 0.0 {
        (wins - pairs / 2.0) / variance.sqrt()
    } else {
        0.0 // All values in one bucket: no difference can be seen.
    };
    (wins / pairs, z)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        for value in values {
            histogram.record(*value);
        }
        histogram
    }

    #[test]
    fn nothing_compares_with_nothing() {
        assert_eq!(compare(&of(&[]), &of(&[1]), 0.0), None);
        assert_eq!(compare(&of(&[1]), &of(&[]), 0.0), None);
    }

    #[test]
    fn equal_runs_are_the_same() {
        let run = of(&[0, 0, 0]);
        let both = compare(&run, &run, 0.0).unwrap();
        assert_eq!(
            (both.change, both.median_ratio, both.max_ratio),
            (Change::Same, 1.0, 1.0)
        );
        assert_eq!((both.exceeds, both.z), (0.5, 0.0));
    }

    /// U counted by hand over all pairs.
    #[test]
    fn ranks_by_hand() {
        // after > before: (3>1) (3>2) (2>1), tie (2,2): U = 3.5 of 4
        let (exceeds, _) = ranks(&of(&[1, 2]), &of(&[2, 3]));
        assert_eq!(exceeds, 3.5 / 4.0);
    }

    #[test]
    fn a_few_values_prove_nothing() {
        let both = compare(&of(&[100, 101]), &of(&[200, 201]), 0.02).unwrap();
        assert_eq!(
            both.change,
            Change::Same,
            "two values each are no evidence: {both:?}"
        );
    }

    proptest! {
        #[test]
        fn the_rank_share_equals_all_pairs(a in prop::collection::vec(0_u64..1000, 1..40), b in prop::collection::vec(0_u64..1000, 1..40)) {
            let mut halves = 0_u32;
            for x in &a {
                for y in &b {
                    halves += match y.cmp(x) { std::cmp::Ordering::Greater => 2, std::cmp::Ordering::Equal => 1, std::cmp::Ordering::Less => 0 };
                }
            }
            let expected = f64::from(halves) / 2.0 / float::from_usize(a.len() * b.len());
            let (exceeds, z) = ranks(&of(&a), &of(&b));
            prop_assert!((exceeds - expected).abs() < 1e-12);
            prop_assert!(z.is_finite());
            let (back, back_z) = ranks(&of(&b), &of(&a));
            prop_assert!((exceeds + back - 1.0).abs() < 1e-12 && (z + back_z).abs() < 1e-9);
        }
    }
}
