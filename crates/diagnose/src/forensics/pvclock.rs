//! pvclock records, evaluated.
//!
//! # Theory
//!
//! `f = 10^9 * 2^(32 - shift) / mul`. Records of several vCPUs, evaluated at one counter value, differ by the skew that a
//! thread sees when it moves between them.
//!
//! # References
//!
//! Linux `arch/x86/kernel/pvclock.c`, `Documentation/virt/kvm/x86/msr.rst`.

use super::Frequency;

/// The frequency that a multiplier and a shift imply, or `None` where they are no record of a real machine (`mul` 0, shift
/// beyond 31).
///
/// # Examples
///
/// ```
/// use chronovisor_diagnose::forensics::pvclock::frequency;
///
/// assert_eq!(frequency(0xC4EC_4EC4, -1).expect("a record").to_string(), "2600.000 MHz");
/// assert_eq!(frequency(0, -1), None);
/// ```
#[must_use]
pub fn frequency(mul: u32, shift: i8) -> Option<Frequency> {
    if mul == 0 || !(-31..=31).contains(&shift) {
        return None;
    }
    let power = u32::try_from(32 - i32::from(shift)).ok()?;
    // 10^15 * 2^63 is below 2^113.
    Frequency::from_microhertz((1_000_000_000_000_000_u128 << power) / u128::from(mul))
}

/// One record's time at a counter value, in ns: `system_time + ((delta << shift) * mul >> 32)`.
#[must_use]
pub fn time_ns(tsc_timestamp: u64, system_time_ns: u64, mul: u32, shift: i8, tsc: u64) -> i128 {
    // A counter a little before the record's is before it, not 2^64 after it.
    let ahead = tsc.wrapping_sub(tsc_timestamp).cast_signed();
    let delta = i128::from(ahead);
    let shifted = if shift >= 0 {
        delta << shift.clamp(0, 31)
    } else {
        delta >> shift.unsigned_abs().min(63)
    };
    i128::from(system_time_ns) + ((shifted * i128::from(mul)) >> 32)
}

/// Largest difference between the records' times at one counter value, in ns.
#[must_use]
pub fn skew_ns(records: &[(u64, u64, u32, i8)], tsc: u64) -> Option<i128> {
    let times = records
        .iter()
        .map(|&(stamp, time, mul, shift)| time_ns(stamp, time, mul, shift, tsc));
    let (low, high) = times.fold(
        (None, None),
        |(low, high): (Option<i128>, Option<i128>), time| {
            (
                Some(low.map_or(time, |low| low.min(time))),
                Some(high.map_or(time, |high| high.max(time))),
            )
        },
    );
    Some(high? - low?)
}

#[cfg(test)]
mod tests {
    use super::{skew_ns, time_ns};

    /// A live record, 2.6e9 ticks later: one second.
    #[test]
    fn a_live_record_counts_seconds() {
        let (stamp, time) = (0x2DA2_CC4E, 1_347_234_883);
        assert_eq!(
            time_ns(stamp, time, 0xC4EC_4EC4, -1, stamp + 2_600_000_000),
            2_347_234_882
        );
        let other = (stamp, time + 68_000, 0xC4EC_4EC4, -1);
        assert_eq!(
            skew_ns(&[(stamp, time, 0xC4EC_4EC4, -1), other], stamp + 1000),
            Some(68_000)
        );
        assert_eq!(skew_ns(&[], 0), None);
    }
}
