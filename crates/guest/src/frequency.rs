//! The counter's rate, from every channel that states it, with the error that each channel can have.
//!
//! # Theory
//!
//! | channel | states | can be off by |
//! | --- | --- | --- |
//! | CPUID 0x15 | crystal (Hz) and an exact ratio | half a Hz of the crystal |
//! | CPUID 0x16 | nominal MHz | one MHz; it is no measurement |
//! | CPUID 0x40000010 | kHz | one kHz |
//! | Hyper-V MSR 0x40000022 | Hz, made from whole kHz by KVM | one Hz; one kHz where it is whole kHz |
//! | pvclock multiplier and shift | 32 bits, made from whole kHz by KVM | one unit of the multiplier, and one kHz |
//! | reference TSC page | 57 bits and more | one unit of the multiplier, and what its publisher knew |
//! | VMClock page | a period of 64 bits | its own maximum error, where it states one |
//! | the kernel's time data | the multiplier of its vDSO | 500 ppm, by which a time daemon may steer it |
//!
//! All channels of one virtual machine describe one counter. Where two differ by more than both can be off, one of them is wrong: typically a host's CPUID leaf that leaks into a
//! guest whose counter is scaled.
//!
//! # Practice
//!
//! ```
//! use chronovisor_abi::cpuid::Leaf;
//! use chronovisor_guest::frequency::{Estimate, most_exact, disagreement};
//!
//! let crystal = Estimate::from_crystal(Leaf { eax: 2, ebx: 216, ecx: 24_000_000, edx: 0 }).expect("all three are there");
//! let nominal = Estimate::from_nominal(Leaf { eax: 2_600, ..Leaf::ZERO }).expect("not zero");
//! assert_eq!(most_exact(&[nominal, crystal]), Some(crystal));
//! // 2592 MHz against 2600 MHz: 3077 ppm apart, which the nominal rate's own error does not explain.
//! let apart = disagreement(&crystal, &nominal);
//! assert_eq!(apart.difference.as_ppm_f64().round(), -3077.0);
//! assert!(!apart.is_explained());
//! ```
//!
//! # Migration
//!
//! Read the channels again after a migration: leaves and MSR may stay while the rate changed, and then they disagree with the page.
//!
//! # Caveats
//!
//! The bounds cover how a channel is written, not how well its publisher had calibrated: see [`Granularity`].
//!
//! # References
//!
//! Intel SDM vol. 2A, CPUID 0x15 and 0x16; VMware KB 1009458 (0x40000010); Hyper-V TLFS, "Frequency MSRs"; Linux `arch/x86/kvm/x86.c` (multipliers from kHz).

use core::fmt;

use chronovisor_abi::cpuid::{Leaf, tsc_from_crystal};
use chronovisor_abi::pvclock::Contents;
use chronovisor_abi::quantity::{Hertz, Ppb};
use chronovisor_abi::reference_tsc::Parameters;
use chronovisor_abi::scale::ScaleError;
use chronovisor_abi::vmclock;
use chronovisor_abi::wide;

/// Where a rate was stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// CPUID 0x15, with a crystal frequency.
    Crystal,
    /// CPUID 0x16: the processor's nominal rate.
    Nominal,
    /// CPUID 0x40000010.
    HypervisorLeaf,
    /// MSR 0x40000022.
    HypervMsr,
    /// A pvclock record.
    Pvclock,
    /// The reference TSC page.
    ReferencePage,
    /// A VMClock page.
    Vmclock,
    /// The multiplier with which the kernel's vDSO reads the TSC.
    KernelTimeData,
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crystal => "CPUID 0x15",
            Self::Nominal => "CPUID 0x16",
            Self::HypervisorLeaf => "CPUID 0x40000010",
            Self::HypervMsr => "MSR 0x40000022",
            Self::Pvclock => "pvclock",
            Self::ReferencePage => "reference TSC page",
            Self::Vmclock => "VMClock page",
            Self::KernelTimeData => "kernel time data",
        })
    }
}

/// How finely a page's publisher knew the counter's rate when it made the multiplier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// Exactly, as far as the multiplier goes: Hyper-V, and this project's host.
    Exact,
    /// In whole kHz, rounded down: KVM.
    Kilohertz,
}

/// A rate that a channel states, and how far the counter's own can be from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The channel.
    pub channel: Channel,
    /// The rate as stated, exact.
    pub rate: Hertz,
    /// The counter's rate is within this of [`Self::rate`], on either side, relative.
    pub bound: Ppb,
}

/// The bound of a rate that is stated in whole `unit_hz`.
fn unit_bound(unit_hz: u64, rate: Hertz) -> Ppb {
    relative(
        u128::from(unit_hz) * u128::from(rate.denominator()),
        u128::from(rate.numerator()),
    )
}

/// `part / whole`, rounded up, in 10^-15; held at the end of the range.
fn relative(part: u128, whole: u128) -> Ppb {
    let femto = part
        .saturating_mul(1_000_000_000_000_000)
        .div_ceil(whole.max(1));
    Ppb::from_femto(i64::try_from(femto).unwrap_or(i64::MAX))
}

fn sum(a: Ppb, b: Ppb) -> Ppb {
    Ppb::from_femto(a.as_femto().saturating_add(b.as_femto()))
}

impl Estimate {
    /// From leaf 0x15: `ECX * EBX / EAX`. `None` if one of the three is 0; for a crystal of 0 see [`Self::from_nominal`], which is what
    /// the processor's manual computes the crystal from.
    #[must_use]
    pub fn from_crystal(leaf: Leaf) -> Option<Self> {
        Some(Self {
            channel: Channel::Crystal,
            rate: tsc_from_crystal(leaf)?,
            bound: relative(1, 2 * u128::from(leaf.ecx)),
        })
    }

    /// From leaf 0x16: EAX in MHz. `None` if it is 0.
    #[must_use]
    pub fn from_nominal(leaf: Leaf) -> Option<Self> {
        let rate = Hertz::from_hz(u64::from(leaf.eax & 0xffff) * 1_000_000)?;
        Some(Self {
            channel: Channel::Nominal,
            rate,
            bound: unit_bound(1_000_000, rate),
        })
    }

    /// From leaf 0x40000010: EAX in kHz. `None` if it is 0. The caller has checked that the base at 0x40000000 reaches it.
    #[must_use]
    pub fn from_hypervisor_leaf(leaf: Leaf) -> Option<Self> {
        let rate = Hertz::from_khz(leaf.eax)?;
        Some(Self {
            channel: Channel::HypervisorLeaf,
            rate,
            bound: unit_bound(1_000, rate),
        })
    }

    /// From the value of MSR 0x40000022, in Hz. `None` if it is 0. A value of whole kHz may be one that was cut down to them, as KVM does.
    #[must_use]
    pub fn from_hyperv_msr(hz: u64) -> Option<Self> {
        let rate = Hertz::from_hz(hz)?;
        let unit_hz = if hz.is_multiple_of(1_000) { 1_000 } else { 1 };
        Some(Self {
            channel: Channel::HypervMsr,
            rate,
            bound: unit_bound(unit_hz, rate),
        })
    }

    /// From a pvclock record's multiplier and shift.
    ///
    /// # Errors
    ///
    /// [`ScaleError`] if they stand for no rate.
    pub fn from_pvclock(record: &Contents, granularity: Granularity) -> Result<Self, ScaleError> {
        let rate = record.scale()?.frequency()?;
        Ok(Self {
            channel: Channel::Pvclock,
            rate,
            bound: sum(relative(1, u128::from(record.mul)), granularity.bound(rate)),
        })
    }

    /// From the reference TSC page's multiplier.
    ///
    /// # Errors
    ///
    /// [`ScaleError`] if it is 0.
    pub fn from_reference_page(
        page: &Parameters,
        granularity: Granularity,
    ) -> Result<Self, ScaleError> {
        let rate = page.scale.frequency()?;
        let own = match granularity {
            Granularity::Exact => page.scale.max_error(),
            // KVM makes it from the pvclock multiplier of 31 bits and more.
            Granularity::Kilohertz => sum(page.scale.max_error(), relative(1, 1 << 31)),
        };
        Ok(Self {
            channel: Channel::ReferencePage,
            rate,
            bound: sum(own, granularity.bound(rate)),
        })
    }

    /// From a VMClock page's period. A page without a maximum error of the period promises nothing: its bound is that of the period's form.
    /// `None` for a period of 0 or a rate that no counter has.
    #[must_use]
    pub fn from_vmclock(page: &vmclock::Contents) -> Option<Self> {
        let shift = u32::from(page.period_shift);
        let period = u128::from(page.period_frac_sec);
        // f = 2^(64 + shift) / period
        let rate = Hertz::from_ratio_floor(1_u128.checked_shl(64 + shift)?, period)?;
        let stated = page.flags.contains(vmclock::Flags::PERIOD_MAXERROR_VALID);
        let off = if stated {
            u128::from(page.period_maxerror)
        } else {
            0
        };
        // The true period may be the shorter one, period - off: the rate is then above this one by off / (period - off).
        let off = off + 1;
        let bound = match period.checked_sub(off) {
            Some(shortest) if shortest > 0 => relative(off, shortest),
            _ => Ppb::MAX,
        };
        Some(Self {
            channel: Channel::Vmclock,
            rate,
            bound,
        })
    }
}

impl Granularity {
    fn bound(self, rate: Hertz) -> Ppb {
        match self {
            Self::Exact => Ppb::ZERO,
            Self::Kilohertz => unit_bound(1_000, rate),
        }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {} (+-{})", self.rate, self.channel, self.bound)
    }
}

/// How far two channels are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// How far the first lies above (positive) or below the second, in parts of the second.
    pub difference: Ppb,
    /// What the bounds of both allow, likewise.
    pub allowed: Ppb,
}

impl Disagreement {
    /// Whether the channels' own errors explain the difference. If not, at least one states the rate of another counter.
    #[must_use]
    pub fn is_explained(&self) -> bool {
        self.difference.saturating_abs() <= self.allowed
    }
}

/// How far `first` lies from `second`.
#[must_use]
pub fn disagreement(first: &Estimate, second: &Estimate) -> Disagreement {
    // The difference is in parts of the second rate, so the first one's bound must be, too; one unit for the rounding of the difference itself.
    let first_bound = in_parts_of(second.rate, first.bound, first.rate);
    Disagreement {
        difference: first.rate.error_against(second.rate),
        allowed: sum(sum(first_bound, second.bound), Ppb::from_femto(1)),
    }
}

/// `bound` of `rate` as a part of `whole`, rounded up; held at the end of the range.
fn in_parts_of(whole: Hertz, bound: Ppb, rate: Hertz) -> Ppb {
    let part = u128::from(rate.numerator()) * u128::from(whole.denominator());
    let whole = u128::from(whole.numerator()) * u128::from(rate.denominator());
    let femto = wide::mul_div_ceil(u128::from(bound.as_femto().unsigned_abs()), part, whole);
    Ppb::from_femto(
        femto
            .and_then(|femto| i64::try_from(femto).ok())
            .unwrap_or(i64::MAX),
    )
}

/// Every two of `estimates` with their disagreement, in order.
pub fn disagreements(
    estimates: &[Estimate],
) -> impl Iterator<Item = (&Estimate, &Estimate, Disagreement)> {
    estimates.iter().enumerate().flat_map(move |(n, first)| {
        estimates[n + 1..]
            .iter()
            .map(move |second| (first, second, disagreement(first, second)))
    })
}

/// The estimate with the smallest bound; the first of equals.
#[must_use]
pub fn most_exact(estimates: &[Estimate]) -> Option<Estimate> {
    estimates
        .iter()
        .copied()
        .min_by_key(|estimate| estimate.bound)
}

#[cfg(all(test, not(loom)))]
mod tests;
