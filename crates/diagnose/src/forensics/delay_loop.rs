//! BogoMIPS, loops per tick, and the TSC behind them.
//!
//! # Theory
//!
//! A delay loop that counts TSC ticks has `lpj = f / HZ` and shows `BogoMIPS = lpj * HZ / 500000`, which is twice the TSC in
//! MHz, on every CPU. A CPU whose BogoMIPS differs by more than 1 % from that was calibrated against something else. If
//! several such CPUs agree with each other, the tick they were measured against is off by one ratio; if they scatter, the
//! measurement was disturbed.
//!
//! # References
//!
//! Linux `init/calibrate.c`, `arch/x86/kernel/tsc.c` (`calibrate_delay_is_known`).

use super::{Frequency, real};

/// A CPU's delay loop counts as wrong from here on: 1 %.
pub const LIMIT_PPM: u64 = 10_000;

/// BogoMIPS in hundredths that a TSC of this frequency gives, rounded down.
#[must_use]
pub fn bogomips_hundredths(tsc: Frequency) -> u64 {
    // 2 * f / 10^6 in hundredths, from microhertz.
    u64::try_from(u128::from(tsc.microhertz()) * 200 / 1_000_000_000_000).unwrap_or(u64::MAX)
}

/// The TSC frequency that BogoMIPS in hundredths imply; good to half a hundredth, so 5 kHz / 2.
#[must_use]
pub fn frequency(bogomips_hundredths: u64) -> Option<Frequency> {
    Frequency::from_microhertz(u128::from(bogomips_hundredths) * 5_000_000_000)
}

/// The TSC frequency that loops per tick imply, exact to `hz` Hz.
#[must_use]
pub fn frequency_from_lpj(lpj: u64, hz: u64) -> Option<Frequency> {
    Frequency::from_hz(lpj.checked_mul(hz)?)
}

/// Wrong over right, or `None` if the two are within 1 %.
#[must_use]
pub fn wrong_ratio(seen_hundredths: u64, right_hundredths: u64) -> Option<f64> {
    if right_hundredths == 0 {
        return None;
    }
    let off = seen_hundredths.abs_diff(right_hundredths);
    let wrong = u128::from(off) * 1_000_000 > u128::from(right_hundredths) * u128::from(LIMIT_PPM);
    wrong.then(|| real(i128::from(seen_hundredths)) / real(i128::from(right_hundredths)))
}

#[cfg(test)]
mod tests {
    use super::{bogomips_hundredths, frequency, frequency_from_lpj, wrong_ratio};
    use crate::forensics::Frequency;

    /// BogoMIPS = 2 * MHz; lpj = f / HZ.
    #[test]
    fn known_machines_fit() {
        let tsc = Frequency::from_hz(2_593_906_000).unwrap();
        assert_eq!(bogomips_hundredths(tsc), 518_781);
        assert_eq!(frequency(518_781).unwrap().to_string(), "2593.905 MHz");
        assert_eq!(frequency_from_lpj(2_593_906, 1000), Some(tsc));
    }

    #[test]
    fn one_percent_is_the_line() {
        assert_eq!(wrong_ratio(101_000, 100_000), None);
        assert_eq!(wrong_ratio(99_000, 100_000), None);
        assert!(wrong_ratio(101_001, 100_000).is_some());
        assert!((wrong_ratio(142_975, 799_996).unwrap() - 0.178_72).abs() < 1e-4);
        assert_eq!(wrong_ratio(1, 0), None);
    }
}
