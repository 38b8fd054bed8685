//! The straight line through clock readings: offset and drift.
//!
//! # Theory
//!
//! Least squares on distances from the first point, which are exact integers; only their products are floats.
//!
//! ```text
//! slope = Sxy / Sxx        error of the slope = sqrt(sum(residual^2) / ((n - 2) Sxx))
//! ```
//!
//! # Caveats
//!
//! The error is that of independent noise. Readings delayed by preemption all err to one side; filter them by the width of their bracket before.

use crate::float;

/// One reading: `x` on the reference, `y` on the clock that is judged, in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// On the reference.
    pub x: i64,
    /// On the clock that is judged, or its offset from the reference.
    pub y: i64,
}

/// A fitted line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// The line's height at the first point's `x`, above the first point's `y`.
    pub offset: f64,
    /// Rise per unit of `x`.
    pub slope: f64,
    /// Standard error of the slope; 0 for two points, which lie on every line through them.
    pub slope_error: f64,
    /// Largest distance of a point from the line, in y.
    pub worst_residual: f64,
}

impl Line {
    /// The slope in parts per million: the drift, if `y` is an offset.
    #[must_use]
    pub fn ppm(&self) -> f64 {
        self.slope * 1e6
    }
}

/// The line of least squares; `None` with fewer than two distinct `x`.
///
/// ```
/// # use chronovisor_stats::{fit, Point};
/// // An offset that grows by 5 us each second: 5 ppm.
/// let offsets: Vec<Point> = (0..10).map(|s| Point { x: s * 1_000_000_000, y: 70 + s * 5_000 }).collect();
/// let line = fit(&offsets).expect("ten instants");
/// assert!((line.ppm() - 5.0).abs() < 1e-9);
/// assert!(line.worst_residual < 1e-6);
/// ```
#[must_use]
pub fn fit(points: &[Point]) -> Option<Line> {
    let first = points.first()?;
    let from_first = |point: &Point| {
        let dx = i128::from(point.x) - i128::from(first.x);
        let dy = i128::from(point.y) - i128::from(first.y);
        (float::from_i128(dx), float::from_i128(dy))
    };
    let n = float::from_usize(points.len());
    let (sum_x, sum_y) = points
        .iter()
        .map(from_first)
        .fold((0.0, 0.0), |(x, y), (dx, dy)| (x + dx, y + dy));
    let (mean_x, mean_y) = (sum_x / n, sum_y / n);
    let (mut sxx, mut sxy) = (0.0, 0.0);
    for (dx, dy) in points.iter().map(from_first) {
        sxx += (dx - mean_x) * (dx - mean_x);
        sxy += (dx - mean_x) * (dy - mean_y);
    }
    if sxx <= 0.0 {
        return None;
    }
    let slope = sxy / sxx;
    let offset = mean_y - slope * mean_x;
    let (mut squares, mut worst_residual) = (0.0, 0.0_f64);
    for (dx, dy) in points.iter().map(from_first) {
        let residual = dy - (offset + slope * dx);
        squares += residual * residual;
        worst_residual = worst_residual.max(residual.abs());
    }
    let slope_error = if points.len() > 2 {
        (squares / ((n - 2.0) * sxx)).sqrt()
    } else {
        0.0
    };
    Some(Line {
        offset,
        slope,
        slope_error,
        worst_residual,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_line_without_two_instants() {
        assert_eq!(fit(&[]), None);
        assert_eq!(fit(&[Point { x: 1, y: 2 }]), None);
        assert_eq!(fit(&[Point { x: 1, y: 2 }, Point { x: 1, y: 3 }]), None);
    }

    /// Points 0,0 1,1 2,1: slope 1/2, offset 1/6, residuals -1/6, 1/3, -1/6, error sqrt((1/6) / (1 * 2)).
    #[test]
    fn a_line_by_hand() {
        let line = fit(&[
            Point { x: 0, y: 0 },
            Point { x: 1, y: 1 },
            Point { x: 2, y: 1 },
        ])
        .unwrap();
        assert!((line.slope - 0.5).abs() < 1e-15);
        assert!((line.offset - 1.0 / 6.0).abs() < 1e-15);
        assert!((line.worst_residual - 1.0 / 3.0).abs() < 1e-15);
        assert!((line.slope_error - (1.0_f64 / 12.0).sqrt()).abs() < 1e-15);
    }

    proptest! {
        /// Points on a line give that line, wherever on the axes they lie.
        #[test]
        fn an_exact_line_is_found(x0 in -(1_i64 << 60)..1 << 60, y0 in -(1_i64 << 60)..1 << 60, slope in -1000_i64..1000, n in 2_i64..50) {
            let points: Vec<Point> = (0..n).map(|i| Point { x: x0 + i * 1_000_000, y: y0 + i * 1_000_000 * slope }).collect();
            let line = fit(&points).unwrap();
            prop_assert!((line.slope - f64::from(i32::try_from(slope).unwrap())).abs() < 1e-9);
            prop_assert!(line.worst_residual < 1e-3, "{line:?}");
        }
    }
}
