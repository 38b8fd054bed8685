//! The pure function that takes a saved state to another host.

use chronovisor_abi::quantity::{Hertz, Nanos, Tsc, TscDelta};
use chronovisor_abi::scale::ScaleError;
use chronovisor_abi::wide;

use super::VmState;
use crate::partition_clock::mutant::{self, Mutant};
use crate::partition_clock::{Counter, ExactNanos};
use crate::reenlightenment::RateChange;
use crate::vmclock::Disruption;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// One instant of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPair {
    /// The host's counter, unscaled.
    pub host_tsc: Tsc,
    /// TAI in ns since 1970.
    pub tai: Nanos,
    /// How far the host's TAI may be off.
    pub error: Nanos,
}

/// A TSC scaling ratio: `guest = host * ratio >> bits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    ratio: u64,
    bits: u8,
}

impl Ratio {
    /// No scaling.
    pub const ONE: Self = Self { ratio: 1, bits: 0 };

    /// `ratio / 2^bits`, or `None` for a ratio of 0 or more than 48 bits of fraction.
    #[must_use]
    pub const fn new(ratio: u64, bits: u8) -> Option<Self> {
        if ratio == 0 || bits > 48 {
            None
        } else {
            Some(Self { ratio, bits })
        }
    }

    /// The multiplier.
    #[must_use]
    pub const fn ratio(self) -> u64 {
        self.ratio
    }

    /// How many of its bits are fraction.
    #[must_use]
    pub const fn fraction_bits(self) -> u8 {
        self.bits
    }

    /// The guest's counter before its offset, as the hardware computes it: rounded down, modulo 2^64.
    #[must_use]
    pub fn scale(self, host: Tsc) -> Tsc {
        let scaled = (u128::from(host.as_ticks()) * u128::from(self.ratio)) >> self.bits;
        // wrapping: the hardware keeps the lower 64 bits.
        Tsc::from_ticks(u64::try_from(scaled & u128::from(u64::MAX)).unwrap_or(0))
    }
}

/// The state's own host, at one instant after the vCPUs were paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The instant.
    pub pair: HostPair,
    /// The guest's scaling ratio there.
    pub scaling: Ratio,
    /// The guest's offset there, modulo 2^64.
    pub offset: TscDelta,
}

/// What the destination's processor can do to the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalingHardware {
    /// Nothing: the guest gets the host's rate.
    None,
    /// AMD: 8 integer and 32 fraction bits.
    Bits32,
    /// Intel: 16 integer and 48 fraction bits.
    Bits48,
}

/// Where the state is to run, at one instant before the vCPUs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The instant.
    pub pair: HostPair,
    /// The rate of the host's counter.
    pub host_rate: Hertz,
    /// Whether it can be scaled.
    pub scaling: ScalingHardware,
    /// Whether the host's counter keeps its rate.
    pub counter: Counter,
    /// Whether the machine was moved or copied, for VMClock.
    pub arrival: Disruption,
}

/// What the guest's clocks do while the guest does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// They stand. The guest's counter does too, so a guest that reads it sees the same. TAI goes on.
    #[default]
    Stop,
    /// They go on: everything moves by the downtime. Every sleeper in the guest wakes at once; reference time moves as well, which TLFS does
    /// not allow.
    Advance,
    /// The guest's counter and pvclock go on, reference time stands.
    PerEncoding,
}

/// Whether the guest was promised a constant rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Not promised, or kept.
    Kept,
    /// Promised through MSR 0x40000118, and the rate changes or may change now.
    InvariantTscBroken,
}

/// What [`adjust`] changed, and what the VMM has to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adjustments {
    /// From the source's instant to the destination's, in TAI.
    pub downtime: Nanos,
    /// By how much the destination's TAI lies before the source's, if it does: the downtime is then 0.
    pub clamped: Nanos,
    /// The guest's counter at the source's instant, as the guest sees it.
    pub tsc_before: Tsc,
    /// The guest's counter at the destination's instant.
    pub tsc: Tsc,
    /// The offset to set on every vCPU (plus its skew, if it has one).
    pub offset: TscDelta,
    /// The scaling ratio to set; [`Ratio::ONE`] without scaling.
    pub ratio: Ratio,
    /// The rate that the guest had.
    pub old_rate: Hertz,
    /// The true rate of the guest's counter from now on.
    pub rate: Hertz,
    /// How far pvclock was moved on.
    pub pvclock_gained: Nanos,
    /// How far reference time was moved on.
    pub reference_gained: Nanos,
    /// Whether the counter has to be emulated, and which interrupt to inject.
    pub rate_change: RateChange,
    /// Whether a promise to the guest is broken.
    pub promise: Promise,
    policy: Policy,
}

impl Adjustments {
    /// A TSC deadline for the destination: the same distance in time from now as it was from the source's instant, less the downtime if the
    /// counter advances. With an unchanged rate, or an emulated counter, the deadline itself is unchanged.
    #[must_use]
    pub fn deadline(&self, saved: Tsc) -> Tsc {
        if self.rate == self.old_rate || self.rate_change != RateChange::Update {
            return saved;
        }
        let advanced = match self.policy {
            Policy::Stop => TscDelta::ZERO,
            Policy::Advance | Policy::PerEncoding => self.tsc.wrapping_delta(self.tsc_before),
        };
        // wrapping, all: the counter itself wraps. A deadline in the past stays there.
        let target = self.tsc_before.wrapping_add(advanced);
        let scale = |distance: TscDelta| {
            let multiplier =
                u128::from(self.rate.numerator()) * u128::from(self.old_rate.denominator());
            let divisor =
                u128::from(self.rate.denominator()) * u128::from(self.old_rate.numerator());
            let ticks = wide::mul_div_ceil(u128::from(distance.as_ticks()), multiplier, divisor);
            TscDelta::from_ticks(
                ticks
                    .and_then(|ticks| u64::try_from(ticks).ok())
                    .unwrap_or(u64::MAX >> 1)
                    .min(u64::MAX >> 1),
            )
        };
        if saved.is_before(target) {
            self.tsc.wrapping_sub(scale(target.wrapping_delta(saved)))
        } else {
            self.tsc.wrapping_add(scale(saved.wrapping_delta(target)))
        }
    }
}

/// Why a state cannot go to the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdjustError {
    /// The source's instant lies before the save.
    #[error(
        "the guest's counter stood at {} at the source's instant, and at {} when the state was saved: take the pair after the vcpus are paused",
        at_pair.as_ticks(),
        saved.as_ticks()
    )]
    PairBeforeSave {
        /// The counter at the source's instant.
        at_pair: Tsc,
        /// The counter in the state.
        saved: Tsc,
    },
    /// The hardware's ratio cannot express the quotient of the rates.
    #[error(
        "a guest of {guest} on a host of {host} needs a scaling ratio that the hardware does not have"
    )]
    RatioDoesNotFit {
        /// The guest's rate.
        guest: Hertz,
        /// The host's rate.
        host: Hertz,
    },
    /// The guest's new rate cannot be published.
    #[error("the guest's rate on the destination cannot be published")]
    Rate(#[from] ScaleError),
}

/// The state as it is to be restored at the destination, and what was changed to get there. Nothing is read and nothing is kept: the same arguments
/// give the same answer.
///
/// # Errors
///
/// [`AdjustError`] if the pairs contradict the state, or the destination cannot run it.
pub fn adjust(
    state: &VmState,
    source: &Source,
    destination: &Destination,
    policy: Policy,
) -> Result<(VmState, Adjustments), AdjustError> {
    let mut after = *state;
    let guest_rate = state.clock.master.rate();
    let raw = source
        .scaling
        .scale(source.pair.host_tsc)
        .wrapping_add(source.offset); // wrapping: the counter itself wraps.
    let tsc_before = state
        .reenlightenment
        .emulation()
        .map_or(raw, |emulation| emulation.tsc(raw));
    if tsc_before.is_before(state.clock.saved_at) {
        return Err(AdjustError::PairBeforeSave {
            at_pair: tsc_before,
            saved: state.clock.saved_at,
        });
    }
    let downtime = destination.pair.tai.saturating_sub(source.pair.tai);
    let clamped = source.pair.tai.saturating_sub(destination.pair.tai);
    let (ratio, rate) = ratio_for(guest_rate, destination)?;
    let tsc = match policy {
        Policy::Stop => tsc_before,
        // wrapping: the counter itself wraps.
        Policy::Advance | Policy::PerEncoding => tsc_before.wrapping_add(ticks_in(
            downtime,
            if mutant::is(Mutant::AdvanceAtNewRate) {
                rate
            } else {
                guest_rate
            },
        )),
    };
    let host_tsc = destination.pair.host_tsc;
    let offset = if mutant::is(Mutant::OffsetWithoutRatio) {
        tsc.wrapping_delta(host_tsc)
    } else {
        tsc.wrapping_delta(ratio.scale(host_tsc))
    };
    let followed = rate.rounded_hz() != guest_rate.rounded_hz();
    let rate_change = if followed || state.reenlightenment.emulation().is_some() {
        after
            .reenlightenment
            .rate_changes(tsc, tsc, guest_rate, rate)
    } else {
        RateChange::Update
    };

    let clock = &mut after.clock;
    let (pvclock, reference) = (
        clock.pvclock.at(tsc_before),
        clock.reference.at(tsc_before, &clock.master),
    );
    let exact = clock.master.at(tsc_before);
    if policy == Policy::Stop && !mutant::is(Mutant::TaiStops) {
        let stood = ExactNanos::from_nanos(downtime);
        clock.wall = clock.wall.map(|wall| wall.stopped_for(stood));
    }
    clock.wall = clock
        .wall
        .map(|wall| wall.less_certain(source.pair.error.saturating_add(destination.pair.error)));
    if policy == Policy::PerEncoding {
        let advanced = clock.master.at(tsc).saturating_sub(exact);
        clock.reference = clock.reference.stopped_for(advanced);
    }
    clock.go_on_at(tsc, rate, rate_change, policy, (pvclock, reference))?;
    clock.counter = destination.counter;
    clock.saved_at = tsc;
    clock.vmclock.disrupt(destination.arrival);

    let promised = state.invariant_control != 0;
    let broken = followed || destination.counter == Counter::Varying;
    let adjustments = Adjustments {
        downtime,
        clamped,
        tsc_before,
        tsc,
        offset,
        ratio,
        old_rate: guest_rate,
        rate,
        pvclock_gained: clock.pvclock.at(tsc).saturating_sub(pvclock),
        reference_gained: clock
            .reference
            .at(tsc, &clock.master)
            .saturating_sub(reference)
            .checked_nanos()
            .unwrap_or(Nanos::MAX),
        rate_change,
        promise: if promised && broken {
            Promise::InvariantTscBroken
        } else {
            Promise::Kept
        },
        policy,
    };
    Ok((after, adjustments))
}

/// The ratio nearest to what the guest needs, and the rate that it then truly has.
fn ratio_for(guest: Hertz, destination: &Destination) -> Result<(Ratio, Hertz), AdjustError> {
    let host = destination.host_rate;
    let (bits, integer_bits) = match destination.scaling {
        _ if guest == host => return Ok((Ratio::ONE, host)),
        ScalingHardware::None => return Ok((Ratio::ONE, host)),
        ScalingHardware::Bits32 => (32_u8, 8),
        ScalingHardware::Bits48 => (48_u8, 16),
    };
    let does_not_fit = AdjustError::RatioDoesNotFit { guest, host };
    // ratio = guest / host * 2^bits, to nearest
    let numerator = u128::from(guest.numerator()) * u128::from(host.denominator());
    let denominator = u128::from(guest.denominator()) * u128::from(host.numerator());
    let doubled = wide::mul_div_floor(numerator, 2 << bits, denominator).ok_or(does_not_fit)?;
    let ratio = u64::try_from(doubled.div_ceil(2))
        .ok()
        .filter(|ratio| *ratio != 0 && u128::from(*ratio) < 1 << (bits + integer_bits))
        .ok_or(does_not_fit)?;
    let rate = Hertz::from_ratio_floor(
        u128::from(host.numerator()) * u128::from(ratio),
        u128::from(host.denominator()) << bits,
    )
    .ok_or(does_not_fit)?;
    Ok((Ratio { ratio, bits }, rate))
}

/// The ticks of `rate` in `time`, rounded down, modulo 2^64.
fn ticks_in(time: Nanos, rate: Hertz) -> TscDelta {
    let divisor = NANOS_PER_SECOND * u128::from(rate.denominator());
    let ticks = wide::mul_div_floor(
        u128::from(time.as_ns()),
        u128::from(rate.numerator()),
        divisor,
    );
    // wrapping: the counter itself wraps. The product has 128 bits, so there is a quotient.
    let ticks = ticks.unwrap_or(0) & u128::from(u64::MAX);
    TscDelta::from_ticks(u64::try_from(ticks).unwrap_or(0))
}
