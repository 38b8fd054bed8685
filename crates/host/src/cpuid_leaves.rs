//! The CPUID leaves that tell a guest which clocks there are and how fast they run.
//!
//! # Theory
//!
//! A guest learns the rate of its counter through up to eight channels: leaves 0x15, 0x16 and 0x40000010, two Hyper-V MSRs, the pvclock
//! multiplier, the VMClock period, and the hypervisor's own interface. It believes whichever it knows, so all must agree with each other and with
//! the counter as it really runs: [`check_channels`] refuses a set that does not. Under TSC scaling the host's own leaves must not be seen.
//!
//! # Practice
//!
//! ```
//! use chronovisor_abi::{cpuid, quantity::Hertz};
//! use chronovisor_host::{cpuid_leaves::Offer, msr_surface::Privileges};
//!
//! let offer = Offer {
//!     privileges: Privileges::EVERYTHING,
//!     tsc: Hertz::from_hz(2_600_000_000).expect("not zero"),
//!     apic: Hertz::from_hz(25_000_000).expect("not zero"),
//!     ..Offer::nothing()
//! };
//! let leaves = offer.leaves()?;
//! // Hyper-V stands first, KVM behind it.
//! let found: Vec<_> = cpuid::interfaces(|number| leaves.get(number)).map(|base| base.interface).collect();
//! assert_eq!(found, [cpuid::Interface::HyperV, cpuid::Interface::Kvm]);
//! // Every leaf that the VMM passes through from the host goes through `amend`.
//! assert_eq!(leaves.amend(1, cpuid::Leaf::ZERO).ecx >> 31, 1);
//! # Ok::<(), chronovisor_host::cpuid_leaves::OfferError>(())
//! ```
//!
//! # Migration
//!
//! The leaves are the same on every host that the partition may move to; a rate that changes is announced through re-enlightenment or a disruption
//! marker, not here.
//!
//! # Caveats
//!
//! Linux takes the interface at the highest base: beside KVM's leaves it does not use Hyper-V's clocks. Windows does, going by "Hv#1". With leaf
//! 0x15 Linux takes the crystal for the local APIC timer's rate and computes in kHz with 32 bits. AMD guests ignore leaf 0x15.
//!
//! # References
//!
//! Hyper-V TLFS, "Feature and Interface Discovery"; Microsoft, "Requirements for Implementing the Microsoft Hypervisor Interface"; Linux
//! `Documentation/virt/kvm/x86/cpuid.rst`, `arch/x86/kernel/tsc.c`; Intel SDM vol. 2A, CPUID; VMware KB 1009458.

mod channels;

use chronovisor_abi::cpuid::{self, Leaf, hyperv, kvm, processor};
use chronovisor_abi::quantity::Hertz;

use crate::msr_surface::Privileges;

pub use channels::{Channel, ChannelError, Source, check_channels};

/// Hyper-V's base.
const HYPERV_BASE: u32 = cpuid::HYPERVISOR_BASE;
/// The last leaf that guests need; beyond 0x40000009 Linux looks for nested features.
const HYPERV_LAST: u32 = HYPERV_BASE + hyperv::HARDWARE_FEATURES;
/// Never notify the hypervisor of spinlock waits.
const NEVER_NOTIFY: u32 = u32::MAX;

/// Which interfaces, clocks and rates to tell the guest of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What the MSR surface serves; the same value as given there.
    pub privileges: Privileges,
    /// The rate at which the guest's counter really runs.
    pub tsc: Hertz,
    /// The rate at which the emulated local APIC timer really counts.
    pub apic: Hertz,
    /// Leaf 0x15.
    pub crystal: Crystal,
    /// Leaf 0x16: the processor's base rate in whole MHz.
    pub processor_mhz: Option<u16>,
    /// Leaf 0x40000010, where KVM's interface stands alone.
    pub hypervisor_frequencies: HypervisorFrequencies,
    /// Whether the counter keeps its rate in all states and over every migration.
    pub invariant_tsc: InvariantTsc,
    /// How many vCPUs there can be.
    pub max_vcpus: u32,
    /// The hypervisor's version as guests log it.
    pub version: Leaf,
}

/// Leaf 0x15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crystal {
    /// The leaf is zero.
    Absent,
    /// The counter's rate as a ratio of the local APIC timer's rate, which guests take for the crystal's.
    FromApicRate,
}

/// Leaf 0x40000010.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HypervisorFrequencies {
    /// Not offered.
    Absent,
    /// In whole kHz, which is all that the leaf can say: guests that use it are off by up to 1 kHz.
    Offered,
}

/// CPUID 0x80000007.EDX\[8\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvariantTsc {
    /// Not promised.
    No,
    /// Promised from the start.
    Yes,
}

/// Why an offer would mislead the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// Guests do not take the interface without these.
    #[error(
        "Hyper-V privileges {eax:#x} lack the hypercall and VP index MSRs (bits 5 and 6): guests then ignore the interface, or read the counter MSR millions of times"
    )]
    MandatoryPrivilegesMissing {
        /// The privileges.
        eax: u32,
    },
    /// A page without its fall-back.
    #[error(
        "Hyper-V privileges {eax:#x} offer the reference TSC page (bit 9) without the reference counter (bit 1) that a guest reads while the page is invalid"
    )]
    PageWithoutCounter {
        /// The privileges.
        eax: u32,
    },
    /// The frequency MSRs need two bits.
    #[error(
        "the frequency MSRs need privilege bit 11 and feature EDX bit 8 together: EAX is {eax:#x}, EDX {edx:#x}"
    )]
    HalfFrequencyMsrs {
        /// The privileges.
        eax: u32,
        /// The features.
        edx: u32,
    },
    /// Re-enlightenment tells the guest to read a rate that it cannot read.
    #[error("re-enlightenment (bit 13) needs the frequency MSRs (bit 11): EAX is {eax:#x}")]
    ReenlightenmentWithoutFrequency {
        /// The privileges.
        eax: u32,
    },
    /// KVM's features say "stable" without a clock.
    #[error("KVM features {eax:#x} offer the stable bit (24) without a clock (bit 0 or 3)")]
    StableWithoutClock {
        /// The features.
        eax: u32,
    },
    /// The ratio of counter and crystal does not fit leaf 0x15, or Linux's arithmetic on it.
    #[error(
        "leaf 0x15 cannot say {tsc} with a crystal of {crystal}: the ratio, or (crystal in kHz) * numerator, needs more than 32 bits; choose another local APIC rate or leave the leaf out"
    )]
    CrystalDoesNotFit {
        /// The counter's rate.
        tsc: Hertz,
        /// The local APIC timer's rate.
        crystal: Hertz,
    },
    /// A rate is too high for the kHz of leaf 0x40000010.
    #[error("leaf 0x40000010 cannot say {rate}: it holds 32 bits of kHz")]
    KhzDoNotFit {
        /// The rate.
        rate: Hertz,
    },
    /// A channel says another rate.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

impl Offer {
    /// No interface at all, with a counter of 1 GHz and a local APIC timer of 1 GHz: to be completed.
    #[must_use]
    pub const fn nothing() -> Self {
        let Some(rate) = Hertz::from_hz(1_000_000_000) else {
            unreachable!()
        };
        Self {
            privileges: Privileges::NONE,
            tsc: rate,
            apic: rate,
            crystal: Crystal::Absent,
            processor_mhz: None,
            hypervisor_frequencies: HypervisorFrequencies::Absent,
            invariant_tsc: InvariantTsc::No,
            max_vcpus: 0,
            version: Leaf::ZERO,
        }
    }

    /// The leaves, checked: guests accept the interfaces, and every rate in them agrees.
    ///
    /// # Errors
    ///
    /// [`OfferError`] if a guest would be misled.
    pub fn leaves(&self) -> Result<Leaves, OfferError> {
        self.check_privileges()?;
        let mut leaves = Leaves {
            entries: [(0, Leaf::ZERO); Leaves::CAPACITY],
            used: 0,
            invariant_tsc: self.invariant_tsc,
            hypervisor: self.privileges != Privileges::NONE,
        };
        leaves.put(cpuid::TSC_AND_CRYSTAL, self.crystal_leaf()?);
        leaves.put(cpuid::PROCESSOR_FREQUENCIES, self.processor_leaf());
        let kvm_base = if self.privileges.hyperv_eax != 0 {
            self.put_hyperv(&mut leaves);
            HYPERV_BASE + cpuid::HYPERVISOR_BASE_STEP
        } else {
            HYPERV_BASE
        };
        if self.privileges.kvm_eax != 0 {
            self.put_kvm(&mut leaves, kvm_base)?;
        }
        check_channels(self.tsc, self.apic, leaves.channels())?;
        Ok(leaves)
    }

    /// Whether a guest can learn the counter's rate from what is offered. If not it needs another timer to calibrate against, and one that has
    /// none does not boot.
    #[must_use]
    pub const fn tells_tsc_rate(&self) -> bool {
        let Privileges {
            hyperv_eax,
            kvm_eax,
            ..
        } = self.privileges;
        hyperv_eax & hyperv::ACCESS_FREQUENCIES != 0
            || kvm_eax & (kvm::CLOCKSOURCE | kvm::CLOCKSOURCE2) != 0
            || matches!(self.crystal, Crystal::FromApicRate)
            || (kvm_eax != 0
                && hyperv_eax == 0
                && matches!(self.hypervisor_frequencies, HypervisorFrequencies::Offered))
    }

    fn check_privileges(&self) -> Result<(), OfferError> {
        let Privileges {
            hyperv_eax: eax,
            hyperv_edx: edx,
            kvm_eax,
        } = self.privileges;
        let has = |bits: u32| eax & bits == bits;
        if eax != 0 && !has(hyperv::ACCESS_HYPERCALL | hyperv::ACCESS_VP_INDEX) {
            return Err(OfferError::MandatoryPrivilegesMissing { eax });
        }
        if has(hyperv::ACCESS_REFERENCE_TSC) && !has(hyperv::ACCESS_REFERENCE_COUNTER) {
            return Err(OfferError::PageWithoutCounter { eax });
        }
        if has(hyperv::ACCESS_FREQUENCIES) != (edx & hyperv::FREQUENCY_MSRS_AVAILABLE != 0) {
            return Err(OfferError::HalfFrequencyMsrs { eax, edx });
        }
        if has(hyperv::ACCESS_REENLIGHTENMENT) && !has(hyperv::ACCESS_FREQUENCIES) {
            return Err(OfferError::ReenlightenmentWithoutFrequency { eax });
        }
        if kvm_eax & kvm::CLOCKSOURCE_STABLE != 0
            && kvm_eax & (kvm::CLOCKSOURCE | kvm::CLOCKSOURCE2) == 0
        {
            return Err(OfferError::StableWithoutClock { eax: kvm_eax });
        }
        Ok(())
    }

    fn put_hyperv(&self, leaves: &mut Leaves) {
        let eax = |eax| Leaf { eax, ..Leaf::ZERO };
        for (offset, leaf) in [
            (
                0,
                Leaf::from_signature(HYPERV_LAST, cpuid::SIGNATURE_HYPERV),
            ),
            (hyperv::INTERFACE, eax(hyperv::INTERFACE_HV1)),
            (hyperv::VERSION, self.version),
            (
                hyperv::FEATURES,
                Leaf {
                    eax: self.privileges.hyperv_eax,
                    edx: self.privileges.hyperv_edx,
                    ..Leaf::ZERO
                },
            ),
            (
                hyperv::RECOMMENDATIONS,
                Leaf {
                    eax: hyperv::RELAXED_TIMING,
                    ebx: NEVER_NOTIFY,
                    ..Leaf::ZERO
                },
            ),
            (hyperv::LIMITS, eax(self.max_vcpus)),
            (hyperv::HARDWARE_FEATURES, Leaf::ZERO),
        ] {
            leaves.put(HYPERV_BASE + offset, leaf);
        }
    }

    fn put_kvm(&self, leaves: &mut Leaves, base: u32) -> Result<(), OfferError> {
        let alone = base == HYPERV_BASE;
        let offered = self.hypervisor_frequencies == HypervisorFrequencies::Offered && alone;
        let last = if offered {
            cpuid::HYPERVISOR_FREQUENCIES
        } else {
            base + kvm::FEATURES
        };
        leaves.put(base, Leaf::from_signature(last, cpuid::SIGNATURE_KVM));
        leaves.put(
            base + kvm::FEATURES,
            Leaf {
                eax: self.privileges.kvm_eax,
                ..Leaf::ZERO
            },
        );
        if offered {
            let khz = |rate: Hertz| {
                u32::try_from(rate.floor_hz() / 1000).map_err(|_| OfferError::KhzDoNotFit { rate })
            };
            leaves.put(
                cpuid::HYPERVISOR_FREQUENCIES,
                Leaf {
                    eax: khz(self.tsc)?,
                    ebx: khz(self.apic)?,
                    ..Leaf::ZERO
                },
            );
        }
        Ok(())
    }

    fn crystal_leaf(&self) -> Result<Leaf, OfferError> {
        if self.crystal == Crystal::Absent {
            return Ok(Leaf::ZERO);
        }
        let does_not_fit = OfferError::CrystalDoesNotFit {
            tsc: self.tsc,
            crystal: self.apic,
        };
        // tsc / crystal, reduced.
        let ratio = self
            .tsc
            .checked_scale(self.apic.denominator(), self.apic.numerator())
            .ok_or(does_not_fit)?;
        let word = |value: u64| u32::try_from(value).map_err(|_| does_not_fit);
        let leaf = Leaf {
            eax: word(ratio.denominator())?,
            ebx: word(ratio.numerator())?,
            ecx: match self.apic.denominator() {
                1 => word(self.apic.numerator())?,
                _ => return Err(does_not_fit),
            },
            edx: 0,
        };
        // Linux multiplies the crystal's kHz by the numerator in 32 bits, and drops the crystal's odd Hz.
        let linux = (leaf.ecx / 1000).checked_mul(leaf.ebx);
        if linux.is_none() || !leaf.ecx.is_multiple_of(1000) {
            return Err(does_not_fit);
        }
        Ok(leaf)
    }

    fn processor_leaf(&self) -> Leaf {
        let mhz = u32::from(self.processor_mhz.unwrap_or(0));
        Leaf {
            eax: mhz,
            ebx: mhz,
            ..Leaf::ZERO
        }
    }
}

/// The leaves of one offer; constant for the life of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    entries: [(u32, Leaf); Self::CAPACITY],
    used: usize,
    invariant_tsc: InvariantTsc,
    hypervisor: bool,
}

impl Leaves {
    const CAPACITY: usize = 12;

    /// The leaves by number, for a VMM that fills a table.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Leaf)> + '_ {
        self.entries.iter().take(self.used).copied()
    }

    /// One leaf, zero if it is not among them.
    #[must_use]
    pub fn get(&self, number: u32) -> Leaf {
        self.iter()
            .find_map(|(found, leaf)| (found == number).then_some(leaf))
            .unwrap_or_default()
    }

    /// A leaf that comes from the host's processor, as the guest is to see it: the frequency leaves and every hypervisor leaf are replaced,
    /// the hypervisor and invariant-counter bits set or cleared; others pass.
    #[must_use]
    pub fn amend(&self, number: u32, host: Leaf) -> Leaf {
        match number {
            1 => Leaf {
                ecx: with_bit(host.ecx, processor::LEAF1_ECX_HYPERVISOR, self.hypervisor),
                ..host
            },
            0x8000_0007 => Leaf {
                edx: with_bit(
                    host.edx,
                    processor::EXTENDED7_EDX_INVARIANT_TSC,
                    self.invariant_tsc == InvariantTsc::Yes,
                ),
                ..host
            },
            cpuid::TSC_AND_CRYSTAL | cpuid::PROCESSOR_FREQUENCIES => self.get(number),
            number if (cpuid::HYPERVISOR_BASE..=0x4000_ffff).contains(&number) => self.get(number),
            _ => host,
        }
    }

    /// The rates that the leaves tell, for [`check_channels`].
    pub fn channels(&self) -> impl Iterator<Item = Channel> + '_ {
        let crystal = self.get(cpuid::TSC_AND_CRYSTAL);
        let processor = self.get(cpuid::PROCESSOR_FREQUENCIES);
        let base = self.get(cpuid::HYPERVISOR_BASE);
        let frequencies = if base.eax >= cpuid::HYPERVISOR_FREQUENCIES {
            self.get(cpuid::HYPERVISOR_FREQUENCIES)
        } else {
            Leaf::ZERO
        };
        [
            (Source::CrystalLeaf, cpuid::tsc_from_crystal(crystal)),
            (
                Source::CrystalLeafApic,
                Hertz::from_hz(u64::from(crystal.ecx)),
            ),
            (
                Source::ProcessorLeaf,
                Hertz::from_hz(u64::from(processor.eax) * 1_000_000),
            ),
            (Source::HypervisorLeaf, Hertz::from_khz(frequencies.eax)),
            (Source::HypervisorLeafApic, Hertz::from_khz(frequencies.ebx)),
        ]
        .into_iter()
        .filter_map(|(source, rate)| rate.map(|rate| Channel { source, rate }))
    }

    fn put(&mut self, number: u32, leaf: Leaf) {
        // Twelve entries are the most that an offer makes: two processor leaves, seven of Hyper-V and two of KVM, or three of KVM alone.
        if let Some(entry) = self.entries.get_mut(self.used) {
            *entry = (number, leaf);
            self.used += 1;
        }
    }
}

const fn with_bit(word: u32, bit: u32, set: bool) -> u32 {
    if set { word | bit } else { word & !bit }
}
