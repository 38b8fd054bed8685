//! The synthetic interrupt controller, as far as timers need it: its registers, and messages into the guest's slots.
//!
//! # Theory
//!
//! Each virtual processor has 16 synthetic sources. A message for source n goes into slot n of the page that the guest named in SIMP, and raises the
//! source's vector, unless the source is masked or polled: then the message is there and the interrupt is not.
//!
//! # Practice
//!
//! [`Synic::read`] and [`Synic::write`] serve the registers, [`Synic::post`] delivers. A message that finds its slot taken, or no page, stays with its
//! sender, who tries again when the guest writes EOM, ends an interrupt, or enables the page.
//!
//! # Migration
//!
//! [`Synic::registers`] and [`Synic::restore`]; the page itself is guest memory.
//!
//! # Caveats
//!
//! The event flags page (SIEFP) is a register here and nothing more: timers do not use it.
//!
//! # References
//!
//! Hyper-V TLFS, "Inter-Partition Communication", "SynIC MSRs".

use chronovisor_abi::msr::{self, Msr};
use chronovisor_abi::synthetic_timer::{InterruptSource, Posted, SOURCES, TimerMessage};

use crate::guest_memory::{GuestAddress, GuestMemory};

/// The lowest vector of an unmasked source. TLFS, "SINTx registers".
const LOWEST_VECTOR: u8 = 16;
/// HV_X64_MSR_SVERSION: the version of the SynIC. TLFS, "SVERSION register".
const VERSION: u64 = 1;

/// The access raises a general-protection fault in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The MSR is none of these.
    #[error("msr {msr} is no register of the synthetic interrupt controller or its timers")]
    NoSuchRegister {
        /// The MSR's number.
        msr: Msr,
    },
    /// The MSR can only be read.
    #[error("msr {msr} is read-only")]
    ReadOnly {
        /// The MSR's number.
        msr: Msr,
    },
    /// An unmasked source needs a vector of at least 16.
    #[error("value {value:#x} for msr {msr} unmasks a source with a vector below 16")]
    LowVector {
        /// The MSR's number.
        msr: Msr,
        /// What the guest wrote.
        value: u64,
    },
}

/// How an interrupt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndOfInterrupt {
    /// By the guest.
    ByGuest,
    /// On delivery: clear the in-service bit at once.
    Automatic,
}

/// An interrupt for the VMM to raise: fixed delivery, edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interrupt {
    /// The vector.
    pub vector: u8,
    /// How it ends.
    pub end: EndOfInterrupt,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// In its slot, with this interrupt to raise.
    Delivered(Option<Interrupt>),
    /// Not now: the slot is taken, the page or the controller is off, or the page is outside guest memory.
    Held,
}

/// The registers of one virtual processor's controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynicRegisters {
    /// SCONTROL.
    pub control: u64,
    /// SIEFP.
    pub event_flags_page: u64,
    /// SIMP.
    pub message_page: u64,
    /// SINT0 to SINT15.
    pub sources: [InterruptSource; SOURCES],
}

/// One virtual processor's controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synic {
    registers: SynicRegisters,
}

impl Default for Synic {
    fn default() -> Self {
        Self::new()
    }
}

/// What a register write asks of those who hold messages back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldMessages {
    /// Nothing has changed for them.
    Keep,
    /// Try again: end of message, or the page or the controller was enabled.
    TryAgain,
}

impl Synic {
    /// As after reset: off, every source masked.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            registers: SynicRegisters {
                control: 0,
                event_flags_page: 0,
                message_page: 0,
                sources: [InterruptSource::RESET; SOURCES],
            },
        }
    }

    /// Whether `msr` is one of the controller's.
    #[must_use]
    pub const fn owns(msr: Msr) -> bool {
        let number = msr.0;
        (Msr::HV_SCONTROL.0 <= number && number <= Msr::HV_EOM.0)
            || Self::source_index(msr).is_some()
    }

    /// RDMSR.
    ///
    /// # Errors
    ///
    /// [`Fault`]: raise #GP in the guest.
    pub fn read(&self, msr: Msr) -> Result<u64, Fault> {
        match (msr, Self::source_index(msr)) {
            (Msr::HV_SCONTROL, _) => Ok(self.registers.control),
            (Msr::HV_SVERSION, _) => Ok(VERSION),
            (Msr::HV_SIEFP, _) => Ok(self.registers.event_flags_page),
            (Msr::HV_SIMP, _) => Ok(self.registers.message_page),
            (Msr::HV_EOM, _) => Ok(0),
            (_, Some(source)) => Ok(self.registers.sources[source].0),
            (_, None) => Err(Fault::NoSuchRegister { msr }),
        }
    }

    /// WRMSR. Bits that mean nothing are kept and read back, as the interface asks for its pages.
    ///
    /// # Errors
    ///
    /// [`Fault`]: raise #GP in the guest; the registers are as before.
    pub fn write(&mut self, msr: Msr, value: u64) -> Result<HeldMessages, Fault> {
        match (msr, Self::source_index(msr)) {
            (Msr::HV_SCONTROL, _) => self.registers.control = value,
            (Msr::HV_SVERSION, _) => return Err(Fault::ReadOnly { msr }),
            (Msr::HV_SIEFP, _) => {
                self.registers.event_flags_page = value;
                return Ok(HeldMessages::Keep);
            }
            (Msr::HV_SIMP, _) => self.registers.message_page = value,
            (Msr::HV_EOM, _) => {}
            (_, Some(source)) => {
                let new = InterruptSource(value);
                if new.vector() < LOWEST_VECTOR && !new.has(InterruptSource::MASKED) {
                    return Err(Fault::LowVector { msr, value });
                }
                self.registers.sources[source] = new;
                return Ok(HeldMessages::Keep);
            }
            (_, None) => return Err(Fault::NoSuchRegister { msr }),
        }
        Ok(HeldMessages::TryAgain)
    }

    /// Puts `message` into the slot of `source` (its low four bits) if it can be delivered now.
    pub fn post(
        &self,
        source: u8,
        message: TimerMessage,
        memory: &(impl GuestMemory + ?Sized),
    ) -> Post {
        let on = self.registers.control & self.registers.message_page & msr::ENABLE != 0;
        let address = GuestAddress::new(self.registers.message_page & msr::PAGE_ADDRESS_MASK);
        let Some(page) = on.then(|| memory.message_page(address)).flatten() else {
            return Post::Held;
        };
        if page.slot(source).post(message) == Posted::SlotTaken {
            return Post::Held;
        }
        let source = self.registers.sources[usize::from(source & 0xf)];
        if source.has(InterruptSource::MASKED | InterruptSource::POLLING) {
            return Post::Delivered(None);
        }
        let end = if source.has(InterruptSource::AUTO_EOI) {
            EndOfInterrupt::Automatic
        } else {
            EndOfInterrupt::ByGuest
        };
        let vector = source.vector();
        Post::Delivered(Some(Interrupt { vector, end }))
    }

    /// The registers, to be saved.
    #[must_use]
    pub const fn registers(&self) -> SynicRegisters {
        self.registers
    }

    /// A controller with saved `registers`.
    ///
    /// # Errors
    ///
    /// [`Fault::LowVector`] if a source is one that the guest could not have set.
    pub fn restore(registers: SynicRegisters) -> Result<Self, Fault> {
        let mut synic = Self { registers };
        for (msr, source) in (Msr::HV_SINT0.0..).map(Msr).zip(registers.sources) {
            synic.write(msr, source.0)?;
        }
        Ok(synic)
    }

    const fn source_index(msr: Msr) -> Option<usize> {
        let number = msr.0;
        if number < Msr::HV_SINT0.0 {
            return None;
        }
        match number - Msr::HV_SINT0.0 {
            // Widening; From is not const.
            index @ 0..16 => Some(index as usize),
            _ => None,
        }
    }
}
