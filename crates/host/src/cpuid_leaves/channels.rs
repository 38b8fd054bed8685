//! The channels through which a guest learns a rate, and whether they agree.

use chronovisor_abi::quantity::{Hertz, Ppb};
use chronovisor_abi::scale::PvclockScale;
use chronovisor_abi::wide;

/// Where a guest reads a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Leaf 0x15: crystal times ratio. Exact.
    CrystalLeaf,
    /// Leaf 0x15's crystal, which Linux takes for the local APIC timer's rate. Exact.
    CrystalLeafApic,
    /// Leaf 0x16, whole MHz.
    ProcessorLeaf,
    /// Leaf 0x40000010.EAX, whole kHz.
    HypervisorLeaf,
    /// Leaf 0x40000010.EBX, whole kHz: the local APIC timer.
    HypervisorLeafApic,
    /// MSR 0x40000022, whole Hz.
    HypervMsr,
    /// MSR 0x40000023, whole Hz: the local APIC timer.
    HypervMsrApic,
    /// A pvclock record's multiplier, 0.47 ppb.
    Pvclock,
    /// A VMClock page's period, 10^-15.
    Vmclock,
    /// The hypervisor's own interface to its VMM (KVM_GET_TSC_KHZ), whole kHz.
    HostInterface,
}

impl Source {
    /// How far the channel may be off without lying.
    const fn resolution(self) -> Resolution {
        match self {
            Self::CrystalLeaf | Self::CrystalLeafApic => Resolution::Hz(0),
            Self::HypervMsr | Self::HypervMsrApic => Resolution::Hz(1),
            Self::HypervisorLeaf | Self::HypervisorLeafApic | Self::HostInterface => {
                Resolution::Hz(1000)
            }
            Self::ProcessorLeaf => Resolution::Hz(1_000_000),
            Self::Pvclock => Resolution::Relative(PvclockScale::MAX_ERROR_DIRECTED),
            Self::Vmclock => Resolution::Relative(Ppb::from_femto(1)),
        }
    }

    const fn is_apic(self) -> bool {
        matches!(
            self,
            Self::CrystalLeafApic | Self::HypervisorLeafApic | Self::HypervMsrApic
        )
    }
}

#[derive(Clone, Copy)]
enum Resolution {
    /// Less than this many Hz, or exact for 0.
    Hz(u32),
    /// At most this much.
    Relative(Ppb),
}

/// A rate as one channel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Where it is told.
    pub source: Source,
    /// The rate told.
    pub rate: Hertz,
}

/// A channel tells a wrong rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{source_of_rate:?} says {told}, but the rate is {real}: a guest that believes it is off by {}", told.error_against(*real))]
pub struct ChannelError {
    /// The channel.
    pub source_of_rate: Source,
    /// What it says.
    pub told: Hertz,
    /// What is right.
    pub real: Hertz,
}

/// Whether every channel tells the counter's rate `tsc`, or the local APIC timer's rate `apic`, to within its resolution.
///
/// # Errors
///
/// The first channel that does not.
///
/// ```
/// use chronovisor_abi::quantity::Hertz;
/// use chronovisor_host::cpuid_leaves::{Channel, Source, check_channels};
///
/// let hz = |hz| Hertz::from_hz(hz).expect("not zero");
/// // A host's crystal leaf that leaks into a guest whose counter is scaled: its timers would be late by a factor of 2.8.
/// let leaked = Channel { source: Source::CrystalLeaf, rate: hz(2_800_000_000) };
/// assert!(check_channels(hz(1_000_000_000), hz(1_000_000_000), [leaked]).is_err());
/// ```
pub fn check_channels(
    tsc: Hertz,
    apic: Hertz,
    channels: impl IntoIterator<Item = Channel>,
) -> Result<(), ChannelError> {
    for Channel { source, rate } in channels {
        let real = if source.is_apic() { apic } else { tsc };
        let agrees = match source.resolution() {
            Resolution::Hz(0) => rate == real,
            Resolution::Hz(hz) => differs_by_less_than(rate, real, hz),
            Resolution::Relative(bound) => rate.error_against(real).saturating_abs() <= bound,
        };
        if !agrees {
            return Err(ChannelError {
                source_of_rate: source,
                told: rate,
                real,
            });
        }
    }
    Ok(())
}

/// |a/b - c/d| < hz  <=>  |ad - cb| < hz * b * d
fn differs_by_less_than(x: Hertz, y: Hertz, hz: u32) -> bool {
    let (a, b) = (u128::from(x.numerator()), u128::from(x.denominator()));
    let (c, d) = (u128::from(y.numerator()), u128::from(y.denominator()));
    (0, (a * d).abs_diff(c * b)) < wide::mul(b * d, u128::from(hz))
}
