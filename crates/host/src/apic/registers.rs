//! The guest's two doors to the timer: the xAPIC page and the x2APIC MSRs.
//!
//! The page ignores what it does not know. The MSRs raise #GP for reserved bits, for a write to a read-only register, and for a register that
//! does not exist: SDM vol. 3A, "Reserved Bit Checking".

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, Offset};
use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::Tsc;

use super::effects::Effects;
use super::settings::DeadlineMode;
use super::timer::LocalTimer;

/// A register of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerRegister {
    /// The timer's entry in the local vector table.
    LvtTimer,
    /// Initial count.
    InitialCount,
    /// Current count; read only.
    CurrentCount,
    /// Divide configuration.
    DivideConfiguration,
    /// IA32_TSC_DEADLINE; an MSR in either mode of the APIC.
    TscDeadline,
}

impl TimerRegister {
    /// The register at an offset of the xAPIC page, or `None` for one that is not the timer's.
    #[must_use]
    pub const fn from_offset(offset: Offset) -> Option<Self> {
        match offset {
            Offset::LVT_TIMER => Some(Self::LvtTimer),
            Offset::INITIAL_COUNT => Some(Self::InitialCount),
            Offset::CURRENT_COUNT => Some(Self::CurrentCount),
            Offset::DIVIDE_CONFIGURATION => Some(Self::DivideConfiguration),
            _ => None,
        }
    }

    /// The register behind an MSR, or `None` for one that is not the timer's.
    #[must_use]
    pub const fn from_msr(msr: Msr) -> Option<Self> {
        match (msr, Offset::from_msr(msr)) {
            (Msr::TSC_DEADLINE, _) => Some(Self::TscDeadline),
            (_, Some(offset)) => Self::from_offset(offset),
            (_, None) => None,
        }
    }
}

/// The access raises a general-protection fault in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessFault {
    /// The MSR is not one of the timer's, or not offered.
    #[error("msr {msr} is no register of this timer")]
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
    /// The value has a reserved bit set.
    #[error("value {value:#x} for msr {msr} has the reserved bits {reserved:#x} set")]
    ReservedBits {
        /// The MSR's number.
        msr: Msr,
        /// What the guest wrote.
        value: u64,
        /// Which of its bits are reserved.
        reserved: u64,
    },
}

impl LocalTimer {
    /// A 32-bit write into the xAPIC page at guest TSC `now`; `None` if the offset is not the timer's.
    pub fn write_page(&mut self, offset: Offset, value: u32, now: Tsc) -> Option<Effects> {
        let register = TimerRegister::from_offset(offset)?;
        Some(self.write(register, u64::from(value), now))
    }

    /// A 32-bit read from the xAPIC page at guest TSC `now`; `None` if the offset is not the timer's.
    #[must_use]
    pub fn read_page(&self, offset: Offset, now: Tsc) -> Option<u32> {
        let value = self.read(TimerRegister::from_offset(offset)?, now);
        u32::try_from(value).ok()
    }

    /// WRMSR of an x2APIC timer register or of IA32_TSC_DEADLINE at guest TSC `now`.
    ///
    /// # Errors
    ///
    /// [`AccessFault`]: raise #GP in the guest; the timer is as before.
    pub fn write_msr(&mut self, msr: Msr, value: u64, now: Tsc) -> Result<Effects, AccessFault> {
        let register = self.register(msr)?;
        if register == TimerRegister::CurrentCount {
            return Err(AccessFault::ReadOnly { msr });
        }
        let reserved = value & self.reserved_bits(register);
        if reserved != 0 {
            return Err(AccessFault::ReservedBits {
                msr,
                value,
                reserved,
            });
        }
        Ok(self.write(register, value, now))
    }

    /// RDMSR of an x2APIC timer register or of IA32_TSC_DEADLINE at guest TSC `now`.
    ///
    /// # Errors
    ///
    /// [`AccessFault`]: raise #GP in the guest.
    pub fn read_msr(&self, msr: Msr, now: Tsc) -> Result<u64, AccessFault> {
        Ok(self.read(self.register(msr)?, now))
    }

    fn register(&self, msr: Msr) -> Result<TimerRegister, AccessFault> {
        let no_deadline = self.settings.deadline_mode == DeadlineMode::Absent;
        match TimerRegister::from_msr(msr) {
            Some(TimerRegister::TscDeadline) if no_deadline => {
                Err(AccessFault::NoSuchRegister { msr })
            }
            Some(register) => Ok(register),
            None => Err(AccessFault::NoSuchRegister { msr }),
        }
    }

    fn reserved_bits(&self, register: TimerRegister) -> u64 {
        const HIGH_HALF: u64 = !0xffff_ffff;
        match register {
            TimerRegister::LvtTimer => {
                let mode_high = match self.settings.deadline_mode {
                    DeadlineMode::Offered => 0,
                    DeadlineMode::Absent => LvtTimer::MODE_HIGH,
                };
                HIGH_HALF | u64::from(LvtTimer::RESERVED | mode_high)
            }
            TimerRegister::DivideConfiguration => {
                HIGH_HALF | u64::from(!DivideConfiguration::WRITABLE)
            }
            TimerRegister::InitialCount | TimerRegister::CurrentCount => HIGH_HALF,
            TimerRegister::TscDeadline => 0,
        }
    }
}
