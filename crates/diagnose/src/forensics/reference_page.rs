//! The Hyper-V reference TSC page, evaluated.
//!
//! # Theory
//!
//! `time = hi64(tsc * scale) + offset` in units of 100 ns, with `scale = 10^7 * 2^64 / f`. So the page tells the frequency that
//! its writer believed, and its time for any counter value. Read on one machine, page and counter register are one clock: a
//! counter read between two page reads lies between them.
//!
//! # References
//!
//! TLFS, "Partition reference time enlightenment".

use super::Frequency;
use crate::evidence::ReferencePage;

/// Whether the sequence says that the page holds valid values. Zero means "use the counter register for now"; all ones was
/// named so by early texts.
#[must_use]
pub fn is_valid(page: &ReferencePage) -> bool {
    !matches!(page.sequence, None | Some(0 | u32::MAX))
}

/// The frequency that a scale implies: `10^7 * 2^64 / scale`.
#[must_use]
pub fn frequency(scale: u64) -> Option<Frequency> {
    // 10^13 * 2^64 in microhertz exceeds 128 bits by none: 2^44 * 2^64.
    Frequency::from_microhertz((10_000_000_000_000_u128 << 64).checked_div(u128::from(scale))?)
}

/// The page's time for a counter value, in ns.
#[must_use]
pub fn time_ns(page: &ReferencePage, tsc: u64) -> Option<i128> {
    let ticks = (u128::from(tsc) * u128::from(page.scale?)) >> 64;
    let ticks = i128::try_from(ticks).ok()?;
    Some((ticks + i128::from(page.offset_100ns?)) * 100)
}

#[cfg(test)]
mod tests {
    use super::{frequency, time_ns};
    use crate::evidence::ReferencePage;

    /// scale(2.6 GHz) at 26e9 ticks is 10 s less one unit.
    #[test]
    fn known_vectors() {
        let page = ReferencePage {
            sequence: Some(1),
            scale: Some(0x00FC_0FC0_FC0F_C0FC),
            offset_100ns: Some(0),
        };
        assert_eq!(time_ns(&page, 26_000_000_000), Some(9_999_999_900));
        assert_eq!(
            frequency(0x00FC_0FC0_FC0F_C0FC).unwrap().to_string(),
            "2600.000 MHz"
        );
        assert_eq!(frequency(0), None);
    }
}
