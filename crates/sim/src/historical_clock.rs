//! KVM's kvmclock as it has long been updated: by a fresh snapshot of the host's raw clock.
//!
//! # Theory
//!
//! Between two updates a guest's record turns counter ticks into time with a multiplier made from a rate in kHz. The host's
//! CLOCK_MONOTONIC_RAW does the same with a multiplier of its own, of fewer bits. The two differ by tens of ppb. At an update the record is
//! set to what the raw clock says, so the guest's clock steps by the whole difference since the last update:
//!
//! ```text
//! step = time since the last update * (rate of the raw clock - rate of the record)
//! ```
//!
//! # Practice
//!
//! [`Resnapshot`] holds both lines; [`Resnapshot::update`] returns the step.
//!
//! # Migration
//!
//! Not modelled.
//!
//! # Caveats
//!
//! The raw clock's multiplier is the one that Linux derives for a clock source which may go 600 s without a read; the host's counter rate is
//! cut to kHz for it as for the record. How large the step is depends on the rate alone: a fraction of 60 ppb.
//!
//! # References
//!
//! Linux `kernel/time/clocksource.c` (clocks_calc_mult_shift), `arch/x86/kvm/x86.c` (masterclock); the 2024 to 2026 series of kvmclock
//! repairs, which measured 4 502 145 ns at a hot-plug after about 40 h.

use chronovisor_abi::quantity::{Hertz, Nanos, Tsc, TscDelta};
use chronovisor_abi::scale::{PvclockScale, Rounding, ScaleError};

/// A clock source's longest time without a read, in s.
const LONGEST_IDLE_S: u128 = 600;

/// A record that is set to the host's raw clock at each update.
#[derive(Clone, Copy, Debug)]
pub struct Resnapshot {
    scale: PvclockScale,
    timestamp: Tsc,
    system_time: Nanos,
    raw: RawClock,
}

/// CLOCK_MONOTONIC_RAW: `ns = ticks * mult >> shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawClock {
    start: Tsc,
    mult: u64,
    shift: u32,
}

impl RawClock {
    /// The clock of a kernel that believes in `khz`, 0 at `start`.
    ///
    /// ```
    /// # use chronovisor_abi::quantity::Tsc;
    /// # use chronovisor_sim::historical_clock::RawClock;
    /// let raw = RawClock::new(Tsc::from_ticks(0), 2_600_000);
    /// // 40 h at 2.6 GHz: 59.6 ppb slow.
    /// assert_eq!(raw.at(Tsc::from_ticks(2_600_000_000 * 144_000)).as_ns(), 144_000_000_000_000 - 8_583_069);
    /// ```
    #[must_use]
    pub fn new(start: Tsc, khz: u64) -> Self {
        let rate = u128::from(khz.max(1)) * 1000;
        // So many bits must stay free above the multiplier that 600 s of ticks do not overflow 64 bits.
        let mut spare = 32;
        let mut high = (LONGEST_IDLE_S * rate) >> 32;
        while high > 0 {
            high >>= 1;
            spare -= 1;
        }
        let mult = |shift: u32| ((1_000_000_000_u128 << shift) + rate / 2) / rate;
        let shift = (1..=32)
            .rev()
            .find(|shift| mult(*shift) >> spare == 0)
            .unwrap_or(0);
        Self {
            start,
            mult: u64::try_from(mult(shift)).unwrap_or(u64::MAX),
            shift,
        }
    }

    /// The time at `tsc`.
    #[must_use]
    pub fn at(&self, tsc: Tsc) -> Nanos {
        let ticks = u128::from(tsc.wrapping_delta(self.start).as_ticks());
        let ns = (ticks * u128::from(self.mult)) >> self.shift;
        Nanos::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

impl Resnapshot {
    /// A record on a host whose counter is said to run at `rate`, first set at `now`.
    ///
    /// # Errors
    ///
    /// [`ScaleError`] if the rate has no multiplier.
    pub fn new(rate: Hertz, now: Tsc) -> Result<Self, ScaleError> {
        let khz = rate.floor_hz() / 1000;
        let believed = Hertz::from_hz(khz.max(1) * 1000).unwrap_or(rate);
        Ok(Self {
            scale: PvclockScale::from_frequency(believed, Rounding::Floor)?,
            timestamp: now,
            system_time: Nanos::ZERO,
            raw: RawClock::new(now, khz),
        })
    }

    /// What the record shows at `tsc`.
    #[must_use]
    pub fn at(&self, tsc: Tsc) -> Nanos {
        let delta: TscDelta = tsc.wrapping_delta(self.timestamp);
        self.system_time.saturating_add(self.scale.nanos(delta))
    }

    /// A hot-plug: the record is set to the raw clock. Returns the step, positive forwards.
    pub fn update(&mut self, tsc: Tsc) -> i64 {
        let (old, new) = (self.at(tsc), self.raw.at(tsc));
        self.timestamp = tsc;
        self.system_time = new;
        i64::try_from(i128::from(new.as_ns()) - i128::from(old.as_ns())).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record is 0.279 ppb slow at 2.6 GHz (multiplier C4EC4EC4), the raw clock 59.6 ppb: a step back of 8.54 ms after 40 h.
    #[test]
    fn d02_a_resnapshot_steps_by_the_difference_of_two_multipliers() {
        let rate = Hertz::from_hz(2_600_000_000).unwrap();
        let mut record = Resnapshot::new(rate, Tsc::from_ticks(0)).unwrap();
        let step = record.update(Tsc::from_ticks(2_600_000_000 * 144_000));
        // 144 000 s * (59.6046 - 0.2789) ppb
        assert!((step + 8_542_900).abs() < 1_000, "{step}");
        assert_eq!(record.update(Tsc::from_ticks(2_600_000_000 * 144_000)), 0);
    }
}
