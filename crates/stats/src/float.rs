//! The one place where an exact integer becomes a float.

/// `value` as the nearest float: relative error at most 2^-53.
#[expect(
    clippy::cast_precision_loss,
    reason = "statistics need no more than 53 bits"
)]
pub(crate) const fn from_u128(value: u128) -> f64 {
    value as f64
}

/// `value` as the nearest float: relative error at most 2^-53.
#[expect(
    clippy::cast_precision_loss,
    reason = "statistics need no more than 53 bits"
)]
pub(crate) const fn from_i128(value: i128) -> f64 {
    value as f64
}

/// `count` as the nearest float: relative error at most 2^-53.
#[expect(
    clippy::cast_precision_loss,
    reason = "statistics need no more than 53 bits"
)]
pub(crate) const fn from_usize(count: usize) -> f64 {
    count as f64
}
