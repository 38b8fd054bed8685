//! Location and spread that a few wild values cannot move.

/// The median (the mean of the middle two for an even count); `None` if there are no values or one is not a number.
///
/// ```
/// # use chronovisor_stats::median;
/// assert_eq!(median(&[3.0, 1.0, 100.0]), Some(3.0));
/// assert_eq!(median(&[1.0, 2.0]), Some(1.5));
/// ```
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = sorted[sorted.len() / 2];
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(lower.midpoint(upper))
}

/// The median of the distances from the median; `None` as for [`median`].
///
/// ```
/// # use chronovisor_stats::median_absolute_deviation;
/// assert_eq!(median_absolute_deviation(&[1.0, 2.0, 3.0, 1000.0, 2.0]), Some(1.0));
/// ```
#[must_use]
pub fn median_absolute_deviation(values: &[f64]) -> Option<f64> {
    let centre = median(values)?;
    let distances: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    median(&distances)
}
