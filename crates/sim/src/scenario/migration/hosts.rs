//! Hosts of this scenario: a counter, a TAI, and what they can do.

use chronovisor_abi::quantity::{Hertz, Nanos, Ppb, Tsc, TscDelta};
use chronovisor_host::migration::{HostPair, Ratio};
use chronovisor_host::partition_clock::Counter;

use super::parameters::{HostKind, Parameters};
use crate::clock_checks::true_tai_ns;
use crate::line::{Line, Slope};
use crate::noise::Noise;
use crate::world_time::WorldTime;

/// The longest uptime of a host: 30 days.
const HOST_UPTIME_S: u64 = 30 * 86_400;

/// A host.
pub(super) struct Host<'a> {
    pub(super) kind: &'a HostKind,
    pub(super) rate: Hertz,
    tsc: Line,
    /// TAI as this host has it, less the true one, in ns.
    tai_error_ns: i64,
    tai_bound: Nanos,
}

impl<'a> Host<'a> {
    /// A host of any kind, up for any time; `None` for a kind that cannot be.
    pub(super) fn draw(parameters: &'a Parameters, noise: &mut Noise) -> Option<Self> {
        let last = u64::try_from(parameters.hosts.len()).ok()? - 1;
        let kind = &parameters.hosts[usize::try_from(noise.uniform(0..=last)).ok()?];
        let either_way = |bound: u64, noise: &mut Noise| {
            let drawn = i64::try_from(noise.uniform(0..=2 * bound)).unwrap_or(0);
            drawn - i64::try_from(bound).unwrap_or(0)
        };
        let crystal = either_way(u64::from(parameters.crystal_ppb), noise);
        let rate = Hertz::from_hz(kind.tsc_hz)?;
        let slope = Slope::of_counter(rate, Ppb::from_ppb_saturating(crystal))?;
        let up = noise.uniform(0..=HOST_UPTIME_S.saturating_mul(kind.tsc_hz));
        Some(Self {
            kind,
            rate,
            tsc: Line::new(WorldTime::ZERO, up, slope),
            tai_error_ns: either_way(parameters.tai_error_ns, noise),
            tai_bound: Nanos::from_ns(parameters.tai_error_ns),
        })
    }

    /// The host's counter.
    pub(super) const fn tsc(&self, now: WorldTime) -> Tsc {
        Tsc::from_ticks(self.tsc.at(now))
    }

    /// The first instant at which the host's counter is `tsc` or more.
    pub(super) fn when(&self, tsc: Tsc) -> WorldTime {
        self.tsc.first_reaching(tsc.as_ticks())
    }

    /// Counter and TAI at one instant, as the VMM reads them.
    pub(super) fn pair(&self, now: WorldTime) -> HostPair {
        let tai = true_tai_ns(now).saturating_add_signed(self.tai_error_ns);
        HostPair {
            host_tsc: self.tsc(now),
            tai: Nanos::from_ns(tai),
            error: self.tai_bound,
        }
    }

    pub(super) const fn counter(&self) -> Counter {
        if self.kind.invariant {
            Counter::Invariant
        } else {
            Counter::Varying
        }
    }
}

/// A guest's counter on a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestCounter {
    pub(super) ratio: Ratio,
    pub(super) offset: TscDelta,
}

impl GuestCounter {
    /// The guest's counter where the host's is `host`.
    pub(super) fn at(&self, host: Tsc) -> Tsc {
        self.ratio.scale(host).wrapping_add(self.offset) // wrapping: the counter itself wraps.
    }

    /// The first value of the host's counter, now at `now`, at which the guest's is `tsc` or more; `now` if it is already.
    pub(super) fn first_host(&self, tsc: Tsc, now: Tsc) -> Tsc {
        if !self.at(now).is_before(tsc) {
            return now;
        }
        // wrapping: the counter itself wraps.
        let scaled = u128::from(tsc.wrapping_sub(self.offset).as_ticks());
        let host = (scaled << self.ratio.fraction_bits()).div_ceil(u128::from(self.ratio.ratio()));
        Tsc::from_ticks(u64::try_from(host).unwrap_or(u64::MAX))
    }
}
