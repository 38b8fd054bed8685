//! Which clock a guest should use here, and why.
//!
//! # Theory
//!
//! Linux gives each clock source a rating and takes the highest. Three facts move the ratings: whether the TSC is invariant (then the raw counter beats every
//! page), whether the hypervisor says that the TSC may be relied on (Hyper-V's invariant control), and which hypervisor the guest goes by where several
//! interfaces stand beside each other: the one with the largest base, so KVM at 0x40000100 hides Hyper-V at 0x40000000.
//!
//! | source | rating | read in user space |
//! | --- | --- | --- |
//! | Hyper-V page | 500; 250 if the partition may rely on the TSC | by the page, while its sequence is valid |
//! | Hyper-V counter MSR | 495; 245 likewise | never |
//! | kvm-clock | 400; 299 if the TSC is invariant and trusted | by the page, if the record is stable |
//! | xen | 400; 299 if the TSC is invariant, trusted and never emulated | by the page, if the record is stable |
//! | tsc | 300; 0 once it was marked unstable | by the instruction |
//! | hpet, acpi_pm, pit, jiffies | 250, 200, 110, 1 | never |
//!
//! # Practice
//!
//! ```
//! use chronovisor_abi::cpuid::{self, Leaf};
//! use chronovisor_guest::select::{ClockSource, Machine, TscState};
//!
//! let leaf = |number| match number {
//!     0x4000_0000 => Leaf::from_signature(0x4000_0001, cpuid::SIGNATURE_KVM),
//!     0x4000_0001 => Leaf { eax: cpuid::kvm::CLOCKSOURCE2 | cpuid::kvm::CLOCKSOURCE_STABLE, ..Leaf::ZERO },
//!     0x8000_0000 => Leaf { eax: 0x8000_0008, ..Leaf::ZERO },
//!     0x8000_0007 => Leaf { edx: cpuid::processor::EXTENDED7_EDX_INVARIANT_TSC, ..Leaf::ZERO },
//!     _ => Leaf::ZERO,
//! };
//! let machine = Machine::from_cpuid(leaf);
//! assert_eq!(machine.tsc, TscState::Invariant);
//! let best = machine.ranking().best();
//! assert_eq!((best.source, best.rating), (ClockSource::Tsc, 300));
//! ```
//!
//! # Migration
//!
//! A migration may clear the stable flag or make the kernel mark the TSC unstable: rank again with what is known then.
//!
//! # Caveats
//!
//! CPUID does not tell whether a kernel trusts the TSC, or which legacy timers exist: both are the caller's to fill in.
//!
//! # References
//!
//! Linux `drivers/clocksource/hyperv_timer.c`, `arch/x86/kernel/kvmclock.c`, `arch/x86/xen/time.c`, `arch/x86/kernel/tsc.c`, `arch/x86/kernel/cpu/hypervisor.c` (ratings, choice of
//! the hypervisor); Hyper-V TLFS, "Partition Privilege Flags".

mod machine;

pub use machine::{Hypervisor, LegacyTimers, Machine, TscState, linux_hypervisor};

use core::fmt;

use chronovisor_abi::cpuid::{hyperv, kvm, xen};

use crate::pvclock::StableBit;

/// A clock source, by the name that Linux gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClockSource {
    /// `hyperv_clocksource_tsc_page`.
    HypervPage,
    /// `hyperv_clocksource_msr`.
    HypervMsr,
    /// `kvm-clock`.
    KvmClock,
    /// `xen`.
    Xen,
    /// `tsc`.
    Tsc,
    /// `hpet`.
    Hpet,
    /// `acpi_pm`.
    AcpiPm,
    /// `pit`.
    Pit,
    /// `jiffies`.
    Jiffies,
}

impl fmt::Display for ClockSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HypervPage => "hyperv_clocksource_tsc_page",
            Self::HypervMsr => "hyperv_clocksource_msr",
            Self::KvmClock => "kvm-clock",
            Self::Xen => "xen",
            Self::Tsc => "tsc",
            Self::Hpet => "hpet",
            Self::AcpiPm => "acpi_pm",
            Self::Pit => "pit",
            Self::Jiffies => "jiffies",
        })
    }
}

/// How a clock source is read in user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadPath {
    /// By an instruction.
    Instruction,
    /// By a page that the vDSO reads.
    Page,
    /// By a system call.
    SystemCall,
}

/// A clock source's place in the ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The source.
    pub source: ClockSource,
    /// Its rating; 0 means that it is not to be used.
    pub rating: u16,
    /// How it is read in user space.
    pub path: ReadPath,
    /// Why the rating is what it is, in a clause.
    pub reason: &'static str,
}

/// All clock sources, best first; those that are not there at the end with rating 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranking {
    rows: [Ranked; 9],
}

impl Ranking {
    /// The rows, best first.
    pub fn rows(&self) -> impl Iterator<Item = &Ranked> {
        self.rows.iter()
    }

    /// The best: `jiffies` if there is nothing else.
    #[must_use]
    pub const fn best(&self) -> Ranked {
        self.rows[0]
    }
}

impl Machine {
    /// All clock sources, best first, by the [module's table](self).
    #[must_use]
    pub fn ranking(&self) -> Ranking {
        let mut rows = [
            self.hyperv_page(),
            self.hyperv_msr(),
            self.kvm_clock(),
            self.xen(),
            self.tsc(),
            legacy(ClockSource::Hpet, self.legacy.hpet, 250),
            legacy(ClockSource::AcpiPm, self.legacy.acpi_pm, 200),
            legacy(ClockSource::Pit, self.legacy.pit, 110),
            legacy(ClockSource::Jiffies, true, 1),
        ];
        // Nine rows: insertion sort, so that equals keep their order without an allocator.
        for at in 1..rows.len() {
            let mut place = at;
            while place > 0 && rows[place - 1].rating < rows[place].rating {
                rows.swap(place - 1, place);
                place -= 1;
            }
        }
        Ranking { rows }
    }

    fn hyperv_page(&self) -> Ranked {
        let row = |rating, reason| Ranked {
            source: ClockSource::HypervPage,
            rating,
            path: ReadPath::Page,
            reason,
        };
        match self.hypervisor {
            Hypervisor::HyperV { privileges } if privileges & hyperv::ACCESS_REFERENCE_TSC == 0 => {
                row(0, "the partition has no access to the reference TSC page")
            }
            Hypervisor::HyperV { privileges } if privileges & hyperv::ACCESS_TSC_INVARIANT != 0 => {
                row(
                    250,
                    "the partition may rely on the TSC itself, which is cheaper",
                )
            }
            Hypervisor::HyperV { .. } => row(
                500,
                "the hypervisor keeps it right over migrations, and it is read without an exit",
            ),
            _ => row(0, NOT_THIS_HYPERVISOR),
        }
    }

    fn hyperv_msr(&self) -> Ranked {
        let row = |rating, reason| Ranked {
            source: ClockSource::HypervMsr,
            rating,
            path: ReadPath::SystemCall,
            reason,
        };
        match self.hypervisor {
            Hypervisor::HyperV { privileges }
                if privileges & hyperv::ACCESS_REFERENCE_COUNTER == 0 =>
            {
                row(0, "the partition has no access to the reference counter")
            }
            Hypervisor::HyperV { privileges } if privileges & hyperv::ACCESS_TSC_INVARIANT != 0 => {
                row(245, "the partition may rely on the TSC itself")
            }
            Hypervisor::HyperV { .. } => row(
                495,
                "right over migrations, at the price of an exit for each read",
            ),
            _ => row(0, NOT_THIS_HYPERVISOR),
        }
    }

    fn kvm_clock(&self) -> Ranked {
        let row = |rating, reason| Ranked {
            source: ClockSource::KvmClock,
            rating,
            path: self.record_path(),
            reason,
        };
        match self.hypervisor {
            Hypervisor::Kvm { features }
                if features & (kvm::CLOCKSOURCE | kvm::CLOCKSOURCE2) == 0 =>
            {
                row(0, "the host offers no clock registers")
            }
            Hypervisor::Kvm { .. } if self.tsc == TscState::Invariant => {
                row(299, INVARIANT_IS_CHEAPER)
            }
            Hypervisor::Kvm { .. } => {
                row(400, "the host keeps it right where the TSC alone is not")
            }
            _ => row(0, NOT_THIS_HYPERVISOR),
        }
    }

    fn xen(&self) -> Ranked {
        let row = |rating, reason| Ranked {
            source: ClockSource::Xen,
            rating,
            path: self.record_path(),
            reason,
        };
        match self.hypervisor {
            Hypervisor::Xen { tsc_mode }
                if self.tsc == TscState::Invariant && tsc_mode == xen::TSC_MODE_NEVER_EMULATE =>
            {
                row(299, INVARIANT_IS_CHEAPER)
            }
            Hypervisor::Xen { .. } => {
                row(400, "the host keeps it right where the TSC alone is not")
            }
            _ => row(0, NOT_THIS_HYPERVISOR),
        }
    }

    fn tsc(&self) -> Ranked {
        let row = |rating, reason| Ranked {
            source: ClockSource::Tsc,
            rating,
            path: ReadPath::Instruction,
            reason,
        };
        match self.tsc {
            TscState::Invariant => row(
                300,
                "invariant: one rate in all states, read by an instruction",
            ),
            TscState::Varying => row(
                300,
                "its rate may change: to be used only once a watchdog agrees with it",
            ),
            TscState::MarkedUnstable => row(0, "the kernel marked it unstable"),
        }
    }

    const fn record_path(&self) -> ReadPath {
        if self.record_is_stable && matches!(self.stable_bit(), StableBit::Advertised) {
            ReadPath::Page
        } else {
            ReadPath::SystemCall
        }
    }
}

const NOT_THIS_HYPERVISOR: &str =
    "this hypervisor does not offer it, or another interface hides it";
const INVARIANT_IS_CHEAPER: &str =
    "the TSC is invariant, so the counter alone is right and cheaper";

fn legacy(source: ClockSource, is_there: bool, rating: u16) -> Ranked {
    let (rating, reason) = if is_there {
        (rating, "always there, slow or coarse")
    } else {
        (0, "not there, as far as is known")
    };
    Ranked {
        source,
        rating,
        path: ReadPath::SystemCall,
        reason,
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
