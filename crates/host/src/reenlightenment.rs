//! Re-enlightenment: how a guest hypervisor learns that the counter's rate has changed under it.
//!
//! # Theory
//!
//! A guest that runs guests of its own has copied the counter's rate into their clock pages. When the partition moves to a host with
//! another rate, the hypervisor keeps the old world alive until the guest has followed:
//!
//! 1. The guest names a vector and a target vCPU in MSR 0x40000106, and asks for emulation in 0x40000107.
//! 2. At the change the host sets the status 0x40000108, keeps the reference page as it is and emulates every access to the counter at
//!    the old rate: `tsc = start + (raw - raw_start) * old / new`. It injects the vector.
//! 3. The guest stops its guests' clocks, clears the status, reads the new rate and rebuilds its pages.
//! 4. On that write the emulation ends, and an update takes the partition's clock to the new rate.
//!
//! # Practice
//!
//! [`Reenlightenment::rate_changes`] begins step 2 and says which interrupt to inject; the write of step 3 comes through the MSR surface as
//! [`crate::msr_surface::Effect::TscEmulationEnds`], which the VMM answers with an update of the clock by
//! [`Change::Counter`](crate::partition_clock::Change::Counter).
//!
//! # Migration
//!
//! The three registers and an emulation in progress are part of the saved state: a second move during it goes on from the emulated
//! counter.
//!
//! # Caveats
//!
//! The specification leaves open what the counter shows when the emulation ends. Here it goes on from the emulated value if the VMM sets its
//! offset so, and [`Emulation::raw_ahead`] says by how much; a VMM that cannot passes that distance to the update instead. KVM has no exit for
//! RDTSC, so on KVM a VMM must not advertise re-enlightenment (the privilege is then missing and the registers raise #GP).
//! While the emulation lasts the frequency MSR shows the new rate, as the guest reads it after its acknowledgement.
//!
//! # References
//!
//! Hyper-V TLFS, "TSC frequency change", HV_X64_MSR_REENLIGHTENMENT_CONTROL; Linux `arch/x86/hyperv/hv_init.c`.

use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Hertz, Tsc, TscDelta};
use chronovisor_abi::wide;

use crate::partition_clock::VcpuIndex;

/// A fixed interrupt that the VMM is to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuInterrupt {
    /// The vCPU.
    pub vcpu: VcpuIndex,
    /// The vector, 16 to 255.
    pub vector: u8,
}

/// A counter emulated at the rate that the guest still believes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulation {
    /// The hardware's counter, offset included, at the change.
    pub raw: Tsc,
    /// What the guest saw at that instant.
    pub seen: Tsc,
    /// The rate that the guest sees.
    pub old: Hertz,
    /// The rate of the hardware's counter.
    pub new: Hertz,
}

impl Emulation {
    /// What the guest sees when the hardware's counter stands at `raw`: rounded down, so never ahead of the exact line.
    ///
    /// ```
    /// # use chronovisor_abi::quantity::{Hertz, Tsc};
    /// # use chronovisor_host::reenlightenment::Emulation;
    /// let hz = |hz| Hertz::from_hz(hz).expect("not zero");
    /// let start = Tsc::from_ticks(1000);
    /// let emulation = Emulation { raw: start, seen: start, old: hz(2_600_000_000), new: hz(2_100_000_000) };
    /// assert_eq!(emulation.tsc(Tsc::from_ticks(1000 + 2_100_000_000)), Tsc::from_ticks(1000 + 2_600_000_000));
    /// ```
    #[must_use]
    pub fn tsc(&self, raw: Tsc) -> Tsc {
        let elapsed = u128::from(raw.wrapping_delta(self.raw).as_ticks());
        let multiplier = u128::from(self.old.numerator()) * u128::from(self.new.denominator());
        let divisor = u128::from(self.old.denominator()) * u128::from(self.new.numerator());
        // wrapping: the counter wraps, so the lower 64 bits are the answer.
        let ticks = wide::mul_div_floor(elapsed, multiplier, divisor).unwrap_or(u128::MAX);
        let ticks = u64::try_from(ticks & u128::from(u64::MAX)).unwrap_or(u64::MAX);
        self.seen.wrapping_add(TscDelta::from_ticks(ticks))
    }

    /// How far the hardware's counter stands ahead of what the guest sees, modulo 2^64: the jump if the emulation ends at `raw` and the
    /// VMM does not take it into its offset.
    #[must_use]
    pub fn raw_ahead(&self, raw: Tsc) -> TscDelta {
        raw.wrapping_delta(self.tsc(raw))
    }
}

/// What follows from a change of the counter's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateChange {
    /// The guest did not ask for emulation: update the clock now.
    Update,
    /// The counter is emulated from now on and the clock stays as it is; inject the interrupt if there is one.
    Emulate(Option<VcpuInterrupt>),
}

/// What a guest's write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Stored,
    /// The guest has followed: the emulation is over.
    Acknowledged(Emulation),
    /// #GP.
    Refused,
}

/// The three registers, and the emulation if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reenlightenment {
    control: u64,
    emulation_control: u64,
    emulation: Option<Emulation>,
}

/// Vector 7:0, enabled 16, target 63:32; the rest is reserved and must be zero.
const CONTROL_RESERVED: u64 = 0xfffe_ff00;
const CONTROL_ENABLED: u64 = 1 << 16;
/// The lowest vector of a fixed interrupt.
const LOWEST_VECTOR: u8 = 16;

impl Reenlightenment {
    /// The registers as they were saved.
    #[must_use]
    pub const fn restored(
        control: u64,
        emulation_control: u64,
        emulation: Option<Emulation>,
    ) -> Self {
        Self {
            control,
            emulation_control,
            emulation,
        }
    }

    /// MSR 0x40000106.
    #[must_use]
    pub const fn control(&self) -> u64 {
        self.control
    }

    /// MSR 0x40000107.
    #[must_use]
    pub const fn emulation_control(&self) -> u64 {
        self.emulation_control
    }

    /// The emulation in progress.
    #[must_use]
    pub const fn emulation(&self) -> Option<Emulation> {
        self.emulation
    }

    /// The hardware's counter goes on at `new` instead of `old`: when it stands at `raw` the guest sees `seen`. To be called before any
    /// vCPU runs at the new rate.
    pub fn rate_changes(&mut self, raw: Tsc, seen: Tsc, old: Hertz, new: Hertz) -> RateChange {
        if self.emulation_control & 1 == 0 || old == new {
            return RateChange::Update;
        }
        // A change during an emulation: the guest still believes in the first rate.
        let old = self.emulation.map_or(old, |running| running.old);
        self.emulation = Some(Emulation {
            raw,
            seen,
            old,
            new,
        });
        RateChange::Emulate(self.interrupt())
    }

    fn interrupt(&self) -> Option<VcpuInterrupt> {
        let [vector, ..] = self.control.to_le_bytes();
        let vcpu = u32::try_from(self.control >> 32).unwrap_or(u32::MAX);
        (self.control & CONTROL_ENABLED != 0).then_some(VcpuInterrupt {
            vcpu: VcpuIndex(vcpu),
            vector,
        })
    }

    pub(crate) fn read(&self, msr: Msr) -> u64 {
        match msr {
            Msr::HV_REENLIGHTENMENT_CONTROL => self.control,
            Msr::HV_TSC_EMULATION_CONTROL => self.emulation_control,
            _ => u64::from(self.emulation.is_some()),
        }
    }

    pub(crate) fn write(&mut self, msr: Msr, value: u64) -> Written {
        match msr {
            Msr::HV_REENLIGHTENMENT_CONTROL => {
                let [vector, ..] = value.to_le_bytes();
                let enabled = value & CONTROL_ENABLED != 0;
                if value & CONTROL_RESERVED != 0 || (enabled && vector < LOWEST_VECTOR) {
                    return Written::Refused;
                }
                self.control = value;
                Written::Stored
            }
            Msr::HV_TSC_EMULATION_CONTROL => {
                if value > 1 {
                    return Written::Refused;
                }
                self.emulation_control = value;
                Written::Stored
            }
            // The guest may only clear the status.
            _ if value != 0 => Written::Refused,
            _ => self
                .emulation
                .take()
                .map_or(Written::Stored, Written::Acknowledged),
        }
    }
}
