//! What a set of measurements says in a few numbers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A few numbers that stand for many values, in the values' unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// How many values.
    pub count: u64,
    /// The smallest, exact.
    pub min: u64,
    /// The largest, exact.
    pub max: u64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation of the whole (divided by n, not n - 1).
    pub deviation: f64,
    /// Percentiles.
    pub percentiles: Percentiles,
}

/// Percentiles, never below the exact one and above it by at most 0.1 %. One that so few values cannot tell (p99.9 of less than 1000) is
/// `None`: it would be the maximum under another name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Percentiles {
    /// The median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<u64>,
    /// 90 % of the values are at or below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<u64>,
    /// 99 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<u64>,
    /// 99.9 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_9: Option<u64>,
    /// 99.99 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_99: Option<u64>,
    /// 99.999 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_999: Option<u64>,
}
