//! Registers of the local APIC that a timer needs: offsets, MSR numbers, fields, reset values.
//!
//! # Theory
//!
//! One block of registers has two doors. In xAPIC mode each register is 32 bits at an offset of a 4 KiB page; in x2APIC
//! mode it is an MSR:
//!
//! ```text
//! msr = 0x800 + (offset >> 4)
//! ```
//!
//! The TSC deadline is an MSR in both modes and has no offset.
//!
//! # Practice
//!
//! [`Offset`] names a register, [`LvtTimer`] and [`DivideConfiguration`] are the two with fields. All three hold whatever a guest
//! wrote: a value with reserved bits is a value to judge, not a fault of the type.
//!
//! # Migration
//!
//! The layout is architectural; saved values carry over as they are.
//!
//! # Caveats
//!
//! The divide configuration resets to 0, which divides by 2. Models that take a register never written for "divide by 1" run
//! twice too fast until the guest sets it.
//!
//! # References
//!
//! Intel SDM vol. 3A, chapter "Advanced Programmable Interrupt Controller (APIC)": "Local APIC Register Address Map", "APIC Timer",
//! "x2APIC Register Address Space".

use core::fmt;

use crate::msr::Msr;

/// Guest-physical address of the register page after reset. SDM vol. 3A, "Relocating the Local APIC Registers".
pub const DEFAULT_BASE: u64 = 0xfee0_0000;

/// Bit 8 of the spurious-interrupt vector register: the APIC is enabled by software. SDM vol. 3A, "Spurious Interrupt".
pub const SOFTWARE_ENABLE: u32 = 1 << 8;

/// The offset of a register in the xAPIC page, in bytes; any value is possible, a guest chooses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(pub u32);

impl Offset {
    /// End of interrupt. WO.
    pub const EOI: Self = Self(0xb0);
    /// Spurious-interrupt vector; bit 8 enables the APIC. RW.
    pub const SPURIOUS_VECTOR: Self = Self(0xf0);
    /// First of the eight in-service registers. RO.
    pub const IN_SERVICE: Self = Self(0x100);
    /// First of the eight interrupt request registers. RO.
    pub const INTERRUPT_REQUEST: Self = Self(0x200);
    /// Error status. RW.
    pub const ERROR_STATUS: Self = Self(0x280);
    /// Local vector table, timer. RW.
    pub const LVT_TIMER: Self = Self(0x320);
    /// Timer initial count. RW.
    pub const INITIAL_COUNT: Self = Self(0x380);
    /// Timer current count. RO.
    pub const CURRENT_COUNT: Self = Self(0x390);
    /// Timer divide configuration. RW.
    pub const DIVIDE_CONFIGURATION: Self = Self(0x3e0);

    /// The x2APIC MSR of this register, or `None` for an offset that is not on a 16-byte line of the page.
    ///
    /// ```
    /// # use chronovisor_abi::{apic::Offset, msr::Msr};
    /// assert_eq!(Offset::LVT_TIMER.msr(), Some(Msr(0x832)));
    /// assert_eq!(Offset(0x321).msr(), None);
    /// ```
    #[must_use]
    pub const fn msr(self) -> Option<Msr> {
        if self.0 < 0x1000 && self.0.is_multiple_of(16) {
            Some(Msr(Msr::X2APIC_BASE.0 + (self.0 >> 4)))
        } else {
            None
        }
    }

    /// The register behind an x2APIC MSR, or `None` outside 0x800..=0x8ff.
    #[must_use]
    pub const fn from_msr(msr: Msr) -> Option<Self> {
        if msr.0 >> 8 == Msr::X2APIC_BASE.0 >> 8 {
            Some(Self((msr.0 & 0xff) << 4))
        } else {
            None
        }
    }
}

impl fmt::Debug for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Offset({:#x})", self.0)
    }
}

/// What the timer does when its time has come: bits 18:17 of the LVT entry; the guest chooses any of the four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerMode(u8);

impl TimerMode {
    /// Counts down once.
    pub const ONE_SHOT: Self = Self(0);
    /// Counts down, reloads, repeats.
    pub const PERIODIC: Self = Self(1);
    /// Waits until the TSC reaches the deadline MSR. CPUID 1.ECX\[24\].
    pub const TSC_DEADLINE: Self = Self(2);
    /// Not defined.
    pub const RESERVED: Self = Self(3);

    /// Whether this mode counts the initial count down.
    #[must_use]
    pub const fn counts(self) -> bool {
        self.0 < Self::TSC_DEADLINE.0
    }
}

/// The timer's entry in the local vector table.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LvtTimer(pub u32);

impl LvtTimer {
    /// After reset: masked, one-shot, vector 0.
    pub const RESET: Self = Self(Self::MASK);
    /// Bit 16: the interrupt is masked. RW.
    pub const MASK: u32 = 1 << 16;
    /// Bit 12: delivery status. RO; a model that delivers at once always reads 0.
    pub const DELIVERY_STATUS: u32 = 1 << 12;
    /// Bits 18:17, the mode. RW.
    pub const MODE: u32 = 3 << 17;
    /// Bit 18: reserved on a CPU without TSC-deadline mode.
    pub const MODE_HIGH: u32 = 1 << 18;
    /// Bits that may be written: vector, mask, mode.
    pub const WRITABLE: u32 = 0xff | Self::MASK | Self::MODE;
    /// Bits that must be written as 0 where reserved bits are checked: all but the writable ones and the read-only status.
    pub const RESERVED: u32 = !(Self::WRITABLE | Self::DELIVERY_STATUS);

    /// An unmasked entry with this mode and vector.
    ///
    /// ```
    /// # use chronovisor_abi::apic::{LvtTimer, TimerMode};
    /// let lvt = LvtTimer::new(TimerMode::PERIODIC, 0xec);
    /// assert_eq!((lvt.0, lvt.vector(), lvt.mode()), (0x2_00ec, 0xec, TimerMode::PERIODIC));
    /// ```
    #[must_use]
    pub const fn new(mode: TimerMode, vector: u8) -> Self {
        // Widening; From is not const.
        Self(((mode.0 as u32) << 17) | vector as u32)
    }

    /// The same entry, masked.
    #[must_use]
    pub const fn masked(self) -> Self {
        Self(self.0 | Self::MASK)
    }

    /// The vector, bits 7:0.
    #[must_use]
    pub const fn vector(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Whether an expiry raises nothing.
    #[must_use]
    pub const fn is_masked(self) -> bool {
        self.0 & Self::MASK != 0
    }

    /// The mode, bits 18:17.
    #[must_use]
    pub const fn mode(self) -> TimerMode {
        TimerMode((self.0 >> 17).to_le_bytes()[0] & 3)
    }
}

impl fmt::Debug for LvtTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LvtTimer({:#x})", self.0)
    }
}

/// The lowest vector that an interrupt may have; 0 to 15 are an error. SDM vol. 3A, "Valid Interrupt Vectors".
pub const LOWEST_VECTOR: u8 = 16;

/// Bit 6 of the error status register: an illegal vector was to be received. SDM vol. 3A, "Error Status Register (ESR)".
pub const ERROR_RECEIVED_ILLEGAL_VECTOR: u32 = 1 << 6;

/// The register that divides the bus clock before the timer counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DivideConfiguration(pub u32);

impl DivideConfiguration {
    /// After reset: 0, which divides by 2.
    pub const RESET: Self = Self(0);
    /// Divide by 1.
    pub const BY_1: Self = Self(0xb);
    /// Divide by 16, which Linux uses.
    pub const BY_16: Self = Self(3);
    /// Bits that mean something: 0, 1 and 3.
    pub const WRITABLE: u32 = 0xb;

    /// log2 of the divider, 0 to 7; reserved bits are not looked at.
    ///
    /// ```text
    /// bits 3,1,0:   000 001 010 011 100 101 110 111
    /// divide by:      2   4   8  16  32  64 128   1
    /// ```
    ///
    /// ```
    /// # use chronovisor_abi::apic::DivideConfiguration;
    /// assert_eq!(DivideConfiguration::RESET.log2(), 1);
    /// assert_eq!(DivideConfiguration::BY_1.log2(), 0);
    /// ```
    #[must_use]
    pub const fn log2(self) -> u32 {
        (((self.0 & 3) | ((self.0 & 8) >> 1)) + 1) & 7
    }
}

/// What the registers hold after reset: LVT masked, counts 0, divide 0 (by 2), deadline 0. SDM vol. 3A, "Local APIC State After Power-Up or Reset".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerRegisters {
    /// The LVT entry.
    pub lvt: LvtTimer,
    /// The initial count, in divided bus ticks.
    pub initial_count: u32,
    /// The current count, in divided bus ticks.
    pub current_count: u32,
    /// The divider.
    pub divide: DivideConfiguration,
    /// IA32_TSC_DEADLINE, in TSC ticks; 0 is "not armed".
    pub deadline: u64,
}

impl TimerRegisters {
    /// After reset.
    pub const RESET: Self = Self {
        lvt: LvtTimer::RESET,
        initial_count: 0,
        current_count: 0,
        divide: DivideConfiguration::RESET,
        deadline: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// msr = 0x800 + offset / 16
    #[test]
    fn offsets_and_msrs_name_the_same_registers() {
        for (offset, msr) in [
            (Offset::EOI, 0x80b),
            (Offset::SPURIOUS_VECTOR, 0x80f),
            (Offset::IN_SERVICE, 0x810),
            (Offset::INTERRUPT_REQUEST, 0x820),
            (Offset::ERROR_STATUS, 0x828),
            (Offset::LVT_TIMER, 0x832),
            (Offset::INITIAL_COUNT, 0x838),
            (Offset::CURRENT_COUNT, 0x839),
            (Offset::DIVIDE_CONFIGURATION, 0x83e),
        ] {
            assert_eq!(offset.msr(), Some(Msr(msr)), "{offset:?}");
            assert_eq!(Offset::from_msr(Msr(msr)), Some(offset), "{msr:#x}");
        }
        for msr in [0x7ff, 0x900, 0x6e0, 0xffff_ffff] {
            assert_eq!(Offset::from_msr(Msr(msr)), None, "{msr:#x}");
        }
        for offset in [0x38, 0x384, 0x1000, 0xffff_fff0] {
            assert_eq!(Offset(offset).msr(), None, "{offset:#x}");
        }
    }

    #[test]
    fn every_divide_code_has_its_divider() {
        for (code, divider) in [
            (0x0, 2),
            (0x1, 4),
            (0x2, 8),
            (0x3, 16),
            (0x8, 32),
            (0x9, 64),
            (0xa, 128),
            (0xb, 1),
        ] {
            assert_eq!(1 << DivideConfiguration(code).log2(), divider, "{code:#x}");
            // Reserved bits change nothing.
            assert_eq!(1 << DivideConfiguration(code | !0xb).log2(), divider);
        }
    }

    #[test]
    fn lvt_fields_do_not_overlap() {
        for mode in [
            TimerMode::ONE_SHOT,
            TimerMode::PERIODIC,
            TimerMode::TSC_DEADLINE,
            TimerMode::RESERVED,
        ] {
            for vector in [0, 15, 16, 0xff] {
                let lvt = LvtTimer::new(mode, vector);
                assert_eq!(
                    (lvt.mode(), lvt.vector(), lvt.is_masked()),
                    (mode, vector, false)
                );
                let masked = lvt.masked();
                assert_eq!(
                    (masked.mode(), masked.vector(), masked.is_masked()),
                    (mode, vector, true)
                );
                assert_eq!(masked.0 & !LvtTimer::WRITABLE, 0);
            }
        }
    }
}
