//! Statistics of time measurements: histograms, summaries, drift, steps, and the comparison of two runs.
//!
//! The values are plain unsigned integers in whatever unit the caller counts (ns, cycles, us); the caller's field names carry
//! the unit. Nothing here reads a clock.
//!
//! ```
//! use chronovisor_stats::Histogram;
//!
//! let mut latencies_us = Histogram::new();
//! for latency in [1000, 1001, 999, 1834] {
//!     latencies_us.record(latency);
//! }
//! let summary = latencies_us.summary().expect("four values were recorded");
//! assert_eq!((summary.count, summary.min, summary.max), (4, 999, 1834));
//! assert_eq!(summary.mean, 1208.5);
//! ```

#![forbid(unsafe_code)]

mod compare;
mod float;
mod histogram;
mod line;
mod moments;
mod robust;
mod step;
mod summary;

pub use compare::{Change, Comparison, compare};
pub use histogram::{Bucket, Histogram, HistogramError};
pub use line::{Line, Point, fit};
pub use robust::{median, median_absolute_deviation};
pub use step::{Sensitivity, Step, find_steps};
pub use summary::{Percentiles, Summary};

/// The README's examples, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
