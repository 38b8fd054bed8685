//! The arithmetic of clock trouble: each formula a function of its inputs, with its error bound.
//!
//! | file | formula |
//! |---|---|
//! | [`registration`] | frequency and HZ from a registration line |
//! | [`watchdog`] | implied rate, wrapped reference, late check, restarted counter, lost ticks |
//! | [`sched_clock`] | how far the scheduler clock parted from its reference |
//! | [`delay_loop`] | BogoMIPS, loops per tick and TSC frequency |
//! | [`quantised`] | jumps by multiples of 2^32 ns |
//! | [`reference_page`] | Hyper-V page: frequency from scale, time from a counter value |
//! | [`pvclock`] | pvclock: frequency from multiplier and shift, skew between records |
//! | [`read_path`] | user-space read or system call, told by cost; granularity |
//! | [`series`] | steps, pauses and rates in a series of readings; repeated readings |
//!
//! Counts and times are integers; a frequency is a whole number of microhertz, so that nothing is lost that a line could
//! tell. Floats appear where a figure is printed and in the statistics of a series.

pub mod delay_loop;
pub mod pvclock;
pub mod quantised;
pub mod read_path;
pub mod reference_page;
pub mod registration;
pub mod sched_clock;
pub mod series;
pub mod watchdog;

use serde::{Deserialize, Serialize};

/// A frequency in whole microhertz, never zero.
///
/// Finer than any line can tell (the best channel, a registration line, is good to 3e-7), and small enough that a product
/// with a 64-bit count fits 128 bits. Rounding costs at most 0.5 uHz.
///
/// # Examples
///
/// ```
/// use chronovisor_diagnose::forensics::Frequency;
///
/// let pm_timer = Frequency::from_hz(3_579_545).expect("not zero");
/// assert_eq!(pm_timer.ticks_to_ns(3_579_545), 1_000_000_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frequency {
    microhertz: u64,
}

impl Frequency {
    /// From whole hertz; `None` for zero and above 1.8e13 Hz.
    #[must_use]
    pub fn from_hz(hz: u64) -> Option<Self> {
        Self::from_microhertz(u128::from(hz) * 1_000_000)
    }

    /// From whole kilohertz.
    #[must_use]
    pub fn from_khz(khz: u64) -> Option<Self> {
        Self::from_microhertz(u128::from(khz) * 1_000_000_000)
    }

    /// From microhertz; `None` for zero and beyond 64 bits.
    #[must_use]
    pub fn from_microhertz(microhertz: u128) -> Option<Self> {
        u64::try_from(microhertz)
            .ok()
            .filter(|value| *value > 0)
            .map(|microhertz| Self { microhertz })
    }

    /// `numerator / denominator` hertz, rounded down to a microhertz.
    #[must_use]
    pub fn from_ratio(numerator: u128, denominator: u128) -> Option<Self> {
        let scaled = numerator.checked_mul(1_000_000)?;
        Self::from_microhertz(scaled.checked_div(denominator)?)
    }

    /// The rate at which `ticks` pass in `ns`, rounded down to a microhertz.
    #[must_use]
    pub fn from_ticks(ticks: u64, ns: u128) -> Option<Self> {
        let scaled = u128::from(ticks).checked_mul(1_000_000_000_000_000)?;
        Self::from_microhertz(scaled.checked_div(ns)?)
    }

    /// Microhertz.
    #[must_use]
    pub const fn microhertz(self) -> u64 {
        self.microhertz
    }

    /// Hertz, for a figure.
    #[must_use]
    pub fn hz(self) -> f64 {
        real(i128::from(self.microhertz)) / 1e6
    }

    /// Megahertz, for a figure.
    #[must_use]
    pub fn mhz(self) -> f64 {
        self.hz() / 1e6
    }

    /// How long `ticks` take, in ns, rounded down.
    #[must_use]
    pub fn ticks_to_ns(self, ticks: u64) -> u128 {
        u128::from(ticks) * 1_000_000_000_000_000 / u128::from(self.microhertz)
    }

    /// This frequency over `other`, minus 1, in ppm.
    #[must_use]
    pub fn ppm_over(self, other: Self) -> f64 {
        let difference = i128::from(self.microhertz) - i128::from(other.microhertz);
        real(difference) / real(i128::from(other.microhertz)) * 1e6
    }

    /// Whether the two differ by at most `limit_ppm`.
    #[must_use]
    pub fn within(self, other: Self, limit_ppm: u64) -> bool {
        let difference = self.microhertz.abs_diff(other.microhertz);
        u128::from(difference) * 1_000_000 <= u128::from(other.microhertz) * u128::from(limit_ppm)
    }
}

impl core::fmt::Display for Frequency {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let khz = self.microhertz / 1_000_000_000;
        write!(f, "{}.{:03} MHz", khz / 1000, khz % 1000)
    }
}

/// An integer as a float, for figures and statistics. Exact up to 2^53, then good to 1e-16 of the value.
#[expect(
    clippy::cast_precision_loss,
    reason = "the one place where an integer becomes a figure; the loss is documented"
)]
#[must_use]
pub const fn real(value: i128) -> f64 {
    value as f64
}

/// Nanoseconds as seconds, for figures.
#[must_use]
pub fn seconds(ns: i128) -> f64 {
    real(ns) / 1e9
}
