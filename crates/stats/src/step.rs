//! Steps in a series of offsets: where a clock jumped instead of drifting.
//!
//! # Theory
//!
//! Between two readings an offset changes by the drift, by noise, or by a step. The drift is the median change per unit of time, which
//! steps cannot move as long as fewer than half of the intervals hold one; the noise is the median distance from it. A change that leaves
//! the drift by more than the larger of a floor and a multiple of the noise is a step.
//!
//! # Caveats
//!
//! A single reading that was delayed looks like a step there and back; both are reported, and their sizes cancel. A step that takes longer than
//! one interval (a slew) is a change of rate and not found here.

use crate::float;
use crate::line::Point;
use crate::robust::{median, median_absolute_deviation};

/// What counts as a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sensitivity {
    /// Nothing smaller is a step, in the unit of `y`.
    pub floor: f64,
    /// Nor anything within this multiple of the noise (the median distance from the drift).
    pub noise_factor: f64,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Index of the reading after it.
    pub index: usize,
    /// `x` of that reading.
    pub at: i64,
    /// How far the clock moved beyond its drift; negative is back.
    pub size: f64,
}

/// The steps of a series of offsets `y` over time `x`. Readings whose `x` does not advance are passed over.
///
/// ```
/// # use chronovisor_stats::{find_steps, Point, Sensitivity};
/// // 1 unit of drift a reading, and a jump of 500 at the sixth.
/// let offsets: Vec<Point> = (0..10).map(|i| Point { x: i * 100, y: i + if i >= 6 { 500 } else { 0 } }).collect();
/// let steps = find_steps(&offsets, Sensitivity { floor: 10.0, noise_factor: 8.0 });
/// assert_eq!(steps.len(), 1);
/// assert_eq!((steps[0].index, steps[0].at), (6, 600));
/// assert!((steps[0].size - 500.0).abs() < 1e-9);
/// ```
#[must_use]
pub fn find_steps(series: &[Point], sensitivity: Sensitivity) -> Vec<Step> {
    let mut changes = Vec::with_capacity(series.len().saturating_sub(1));
    let mut last: Option<&Point> = None;
    for (index, point) in series.iter().enumerate() {
        match last {
            Some(before) if point.x <= before.x => continue,
            Some(before) => changes.push(Interval {
                index,
                at: point.x,
                dx: float::from_i128(i128::from(point.x) - i128::from(before.x)),
                dy: float::from_i128(i128::from(point.y) - i128::from(before.y)),
            }),
            None => {}
        }
        last = Some(point);
    }
    let rates: Vec<f64> = changes.iter().map(|change| change.dy / change.dx).collect();
    let Some(drift) = median(&rates) else {
        return Vec::new();
    };
    let beyond: Vec<f64> = changes
        .iter()
        .map(|change| change.dy - drift * change.dx)
        .collect();
    let noise = median_absolute_deviation(&beyond).unwrap_or(0.0);
    let limit = sensitivity.floor.max(sensitivity.noise_factor * noise);
    changes
        .iter()
        .zip(beyond)
        .filter(|(_, size)| size.abs() > limit)
        .map(|(change, size)| Step {
            index: change.index,
            at: change.at,
            size,
        })
        .collect()
}

struct Interval {
    index: usize,
    at: i64,
    dx: f64,
    dy: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SENSITIVITY: Sensitivity = Sensitivity {
        floor: 1000.0,
        noise_factor: 10.0,
    };

    #[test]
    fn nothing_is_found_in_nothing() {
        assert!(find_steps(&[], SENSITIVITY).is_empty());
        assert!(find_steps(&[Point { x: 0, y: 0 }], SENSITIVITY).is_empty());
        let standing = [Point { x: 5, y: 0 }, Point { x: 5, y: 1 << 40 }];
        assert!(
            find_steps(&standing, SENSITIVITY).is_empty(),
            "no time passed"
        );
    }

    #[test]
    fn a_delayed_reading_is_a_step_there_and_back() {
        let mut series: Vec<Point> = (0..20)
            .map(|i| Point {
                x: i * 1_000_000,
                y: 0,
            })
            .collect();
        series[7].y = 50_000;
        let steps = find_steps(&series, SENSITIVITY);
        assert_eq!(
            steps.iter().map(|step| step.index).collect::<Vec<_>>(),
            [7, 8]
        );
        assert!(steps.iter().map(|step| step.size).sum::<f64>().abs() < 1e-6);
    }

    proptest! {
        /// Drift and noise alone are no step; one step among them is found with its size to within the noise.
        #[test]
        fn one_step_is_found_among_noise(drift in -500_i64..500, noise in prop::collection::vec(-50_i64..50, 60), at in 1_usize..59, size in prop_oneof![-100_000_i64..-3_000, 3_000_i64..100_000]) {
            let series = |step: i64| -> Vec<Point> {
                (0_i64..).zip(&noise).enumerate()
                    .map(|(index, (i, noise))| Point { x: i * 1_000_000_000, y: i * drift + noise + if index >= at { step } else { 0 } })
                    .collect()
            };
            prop_assert!(find_steps(&series(0), SENSITIVITY).is_empty());
            let steps = find_steps(&series(size), SENSITIVITY);
            prop_assert_eq!(steps.len(), 1, "{:?}", steps);
            prop_assert_eq!(steps[0].index, at);
            prop_assert!((steps[0].size - float::from_i128(i128::from(size))).abs() < 300.0);
        }
    }
}
