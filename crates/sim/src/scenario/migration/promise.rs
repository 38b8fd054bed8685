//! What a policy promises, worked out from the hosts alone.

use chronovisor_abi::quantity::{Hertz, Tsc};
use chronovisor_host::migration::{Adjustments, Destination, ScalingHardware, Source};
use chronovisor_host::partition_clock::Counter;

use super::Policy;
use crate::watch::{Violation, Watch};

/// Where the guest's counter stands on the destination, and how fast it runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promised {
    /// The guest's counter at the destination's instant.
    pub(super) tsc: Tsc,
    /// Its rate from then on.
    pub(super) rate: Hertz,
    pub(super) counter: Counter,
}

impl Promised {
    /// `None` if the destination cannot run the guest at all.
    pub(super) fn of(
        source: &Source,
        destination: &Destination,
        guest_rate: Hertz,
        policy: Policy,
    ) -> Option<Self> {
        // wrapping: the counter itself wraps.
        let tsc = source
            .scaling
            .scale(source.pair.host_tsc)
            .wrapping_add(source.offset);
        let downtime = destination.pair.tai.saturating_sub(source.pair.tai);
        let ticks = u128::from(downtime.as_ns()) * u128::from(guest_rate.numerator())
            / (1_000_000_000 * u128::from(guest_rate.denominator()));
        let tsc = match policy {
            Policy::Stop => tsc.as_ticks(),
            // wrapping: the counter itself wraps.
            Policy::Advance => tsc.as_ticks().wrapping_add(u64::try_from(ticks).ok()?),
        };
        let host = destination.host_rate;
        let bits = match destination.scaling {
            ScalingHardware::None => None,
            ScalingHardware::Bits32 => Some(32),
            ScalingHardware::Bits48 => Some(48),
        };
        let rate = match bits {
            Some(bits) if guest_rate != host => {
                // The nearest ratio: guest / host * 2^bits, both whole Hz or fractions of the same kind.
                let numerator = u128::from(guest_rate.numerator()) * u128::from(host.denominator());
                let denominator =
                    u128::from(guest_rate.denominator()) * u128::from(host.numerator());
                let ratio = ((numerator << bits) + denominator / 2) / denominator;
                Hertz::from_ratio_floor(
                    u128::from(host.numerator()) * ratio,
                    u128::from(host.denominator()) << bits,
                )?
            }
            _ => host,
        };
        Some(Self {
            tsc: Tsc::from_ticks(tsc),
            rate,
            counter: destination.counter,
        })
    }

    /// The code under test must say the same.
    pub(super) fn compare(
        &self,
        adjustments: &Adjustments,
        watch: &Watch,
    ) -> Result<(), Violation> {
        if adjustments.tsc == self.tsc && adjustments.rate == self.rate {
            return Ok(());
        }
        let details = format!(
            "counter {:?} at {}, promised {:?} at {}",
            adjustments.tsc, adjustments.rate, self.tsc, self.rate
        );
        Err(watch.violation("adjust", details))
    }
}
