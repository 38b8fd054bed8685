//! A histogram of any 64-bit values, without an overflow bucket, whose merges and sums are exact.
//!
//! # Theory
//!
//! Buckets of equal relative width (hdrhistogram, three significant figures) cover every 64-bit value, so no value falls off the
//! end as it does in a table of 1 us slots. Beside the buckets stand the exact minimum, maximum, count, sum and sum of squares.
//!
//! # Caveats
//!
//! A percentile is that of the bucket: never below the exact one, above it by at most 0.1 %. [`Histogram::record`] may allocate
//! when a value is larger than all before it; a loop that must not allocate starts from [`Histogram::preallocated`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::moments::Moments;
use crate::summary::{Percentiles, Summary};

/// Significant decimal figures of a bucket.
const FIGURES: u8 = 3;

/// A histogram of 64-bit values.
///
/// ```
/// # use chronovisor_stats::Histogram;
/// let (mut all, mut other) = (Histogram::new(), Histogram::new());
/// all.record(3);
/// other.record(u64::MAX);
/// all.merge(&other)?;
/// assert_eq!((all.count(), all.max()), (2, Some(u64::MAX)));
/// # Ok::<(), chronovisor_stats::HistogramError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Saved", into = "Saved")]
#[schemars(with = "Saved")]
pub struct Histogram {
    buckets: hdrhistogram::Histogram<u64>,
    moments: Moments,
    extremes: Option<(u64, u64)>,
}

/// Why histograms cannot be joined or a saved one not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistogramError {
    /// The sum of the counts exceeds 64 bits.
    #[error("{count} and {other} values are more than a histogram can count (2^64)")]
    TooManyValues {
        /// Values here.
        count: u64,
        /// Values to be added.
        other: u64,
    },
    /// A saved histogram contradicts itself.
    #[error("the saved histogram is damaged: {what}")]
    Damaged {
        /// What does not fit.
        what: &'static str,
    },
}

/// One bucket that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bucket {
    /// The smallest value that falls in it.
    pub low: u64,
    /// The largest value that falls in it.
    pub high: u64,
    /// How many did.
    pub count: u64,
}

impl Histogram {
    /// An empty histogram, small until it sees a large value.
    #[must_use]
    pub fn new() -> Self {
        Self::preallocated(1024)
    }

    /// An empty histogram that records values up to `highest` without allocating (and larger ones too, with).
    ///
    /// # Panics
    ///
    /// Never: three figures are within the bounds of the layout.
    #[must_use]
    pub fn preallocated(highest: u64) -> Self {
        let mut buckets = hdrhistogram::Histogram::new_with_bounds(1, highest.max(1024), FIGURES)
            .expect("three figures and a range from 1 to at least 1024 make a valid layout");
        buckets.auto(true);
        Self {
            buckets,
            moments: Moments::default(),
            extremes: None,
        }
    }

    /// Records one value. A histogram of 2^64 - 1 values takes no more.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Records one value `count` times; nothing if the histogram would have more than 2^64 - 1 values.
    pub fn record_n(&mut self, value: u64, count: u64) {
        if count == 0 || !self.moments.add(value, count) {
            return;
        }
        let resized = self.buckets.record_n(value, count);
        debug_assert!(
            resized.is_ok(),
            "every 64-bit value has a bucket: {resized:?}"
        );
        self.widen((value, value));
    }

    /// Adds all values of `other`. The result does not depend on the order of merges.
    ///
    /// # Errors
    ///
    /// [`HistogramError::TooManyValues`]; this histogram is then unchanged.
    pub fn merge(&mut self, other: &Self) -> Result<(), HistogramError> {
        let too_many = HistogramError::TooManyValues {
            count: self.count(),
            other: other.count(),
        };
        if !self.moments.merge(&other.moments) {
            return Err(too_many);
        }
        self.buckets.add(&other.buckets).map_err(|_| too_many)?;
        if let Some(extremes) = other.extremes {
            self.widen(extremes);
        }
        Ok(())
    }

    /// How many values.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.moments.count
    }

    /// The smallest value, exact.
    #[must_use]
    pub fn min(&self) -> Option<u64> {
        self.extremes.map(|(min, _)| min)
    }

    /// The largest value, exact.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        self.extremes.map(|(_, max)| max)
    }

    /// The value at or below which `1 - 1/one_in` of all values lie: `one_in` 2 is the median, 100 is p99, 100 000 is p99.999.
    /// `None` with fewer than `one_in` values.
    #[must_use]
    pub fn all_but_one_in(&self, one_in: u32) -> Option<u64> {
        let one_in = u64::from(one_in.max(1));
        let (min, max) = self.extremes?;
        if self.count() < one_in {
            return None;
        }
        // Rank ceil(n * (1 - 1/k)) = n - floor(n / k), counted from 1, exact.
        let rank = (self.count() - self.count() / one_in).max(1);
        let mut seen = 0_u64;
        for bucket in self.buckets() {
            seen = seen.saturating_add(bucket.count);
            if seen >= rank {
                return Some(bucket.high.clamp(min, max));
            }
        }
        Some(max)
    }

    /// The median; `None` if empty.
    #[must_use]
    pub fn median(&self) -> Option<u64> {
        match self.count() {
            1 => self.max(),
            _ => self.all_but_one_in(2),
        }
    }

    /// The summary; `None` if empty.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        let (min, max) = self.extremes?;
        Some(Summary {
            count: self.count(),
            min,
            max,
            mean: self.moments.mean()?,
            deviation: self.moments.deviation()?,
            percentiles: Percentiles {
                p50: self.median(),
                p90: self.all_but_one_in(10),
                p99: self.all_but_one_in(100),
                p99_9: self.all_but_one_in(1000),
                p99_99: self.all_but_one_in(10_000),
                p99_999: self.all_but_one_in(100_000),
            },
        })
    }

    /// The buckets that are not empty, lowest first.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> {
        self.buckets.iter_recorded().map(|step| {
            let value = step.value_iterated_to();
            Bucket {
                low: self.buckets.lowest_equivalent(value),
                high: match self.buckets.next_non_equivalent(value) {
                    // The last bucket has no next one; the layout saturates there.
                    u64::MAX => u64::MAX,
                    next => next - 1,
                },
                count: step.count_at_value(),
            }
        })
    }

    fn widen(&mut self, (low, high): (u64, u64)) {
        self.extremes = Some(match self.extremes {
            Some((min, max)) => (min.min(low), max.max(high)),
            None => (low, high),
        });
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// Two histograms are equal if they hold the same buckets and the same exact sums, whatever they allocated.
impl PartialEq for Histogram {
    fn eq(&self, other: &Self) -> bool {
        self.moments == other.moments
            && self.extremes == other.extremes
            && self.buckets().eq(other.buckets())
    }
}

/// A histogram as it is saved. The sums need more than 64 bits and are written as decimal text, which every JSON reader keeps whole.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Histogram")]
struct Saved {
    /// How many values.
    count: u64,
    /// The smallest value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min: Option<u64>,
    /// The largest value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max: Option<u64>,
    /// The sum of all values, in decimal.
    sum: String,
    /// The sum of all squares: the upper and the lower 128 bits, in decimal.
    squares: (String, String),
    /// The buckets that are not empty, each the smallest value that falls in it and how many did.
    buckets: Vec<(u64, u64)>,
}

impl From<Histogram> for Saved {
    fn from(histogram: Histogram) -> Self {
        Self {
            count: histogram.count(),
            min: histogram.min(),
            max: histogram.max(),
            sum: histogram.moments.sum.to_string(),
            squares: (
                histogram.moments.squares_high.to_string(),
                histogram.moments.squares_low.to_string(),
            ),
            buckets: histogram
                .buckets()
                .map(|bucket| (bucket.low, bucket.count))
                .collect(),
        }
    }
}

impl TryFrom<Saved> for Histogram {
    type Error = HistogramError;

    fn try_from(saved: Saved) -> Result<Self, HistogramError> {
        let damaged = |what| HistogramError::Damaged { what };
        let number = |text: &str, what| text.parse::<u128>().map_err(|_| damaged(what));
        let mut histogram = Self::new();
        for (value, count) in &saved.buckets {
            histogram.record_n(*value, *count);
        }
        let extremes = match (saved.min, saved.max) {
            (Some(min), Some(max)) if min <= max => Some((min, max)),
            (None, None) if saved.count == 0 => None,
            _ => return Err(damaged("min and max do not fit each other or the count")),
        };
        if histogram.count() != saved.count {
            return Err(damaged("the buckets do not add up to the count"));
        }
        // Both ends must lie in the outermost buckets, which also bounds the sums.
        let same_bucket = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => histogram.buckets.equivalent(a, b),
            (None, None) => true,
            _ => false,
        };
        if !same_bucket(histogram.min(), saved.min) || !same_bucket(histogram.max(), saved.max) {
            return Err(damaged("min or max lies outside the buckets"));
        }
        let sum = number(&saved.sum, "the sum is no number")?;
        if let Some((min, max)) = extremes {
            let count = u128::from(saved.count);
            if !(u128::from(min) * count..=u128::from(max) * count).contains(&sum) {
                return Err(damaged("the sum lies outside count times min and max"));
            }
        } else if sum != 0 {
            return Err(damaged("an empty histogram has a sum"));
        }
        histogram.extremes = extremes;
        histogram.moments = Moments {
            count: saved.count,
            sum,
            squares_high: u64::try_from(number(&saved.squares.0, "the squares are no number")?)
                .map_err(|_| damaged("the squares are too large"))?,
            squares_low: number(&saved.squares.1, "the squares are no number")?,
        };
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests;
