//! The experiments, a file each.

pub mod agreement;
pub mod all;
pub mod beside;
pub mod clocks;
pub mod conformance;
pub mod migrate;
mod seeds;
pub mod smp;
pub mod timers;

use chronovisor_abi::quantity::Hertz;
use schemars::JsonSchema;
use serde::Serialize;

use crate::LabError;
use crate::backend::Backend;
use crate::machine::{self, Machine};

pub use seeds::SeedRow;

/// How an experiment tells how far it is: a message and the share done, from 0 to 1.
pub type Progress<'a> = &'a mut dyn FnMut(&str, f64);

/// The guest's counter: its rate, and guest TSC minus host TSC.
#[derive(Clone, Copy, Debug)]
pub struct GuestCounter {
    /// The rate that KVM gives the guest.
    pub rate: Hertz,
    /// Guest TSC minus host TSC, modulo 2^64.
    pub offset: u64,
}

impl GuestCounter {
    /// Makes all vCPUs count the same and says how.
    ///
    /// # Errors
    ///
    /// [`LabError::Kvm`] if KVM does not tell its rate, or where it stands.
    pub fn of(machine: &Machine) -> Result<Self, LabError> {
        let first = machine.vcpus().first().ok_or(LabError::NoVcpus)?;
        let khz = first
            .get_tsc_khz()
            .map_err(LabError::kvm("KVM_GET_TSC_KHZ"))?;
        let rate = Hertz::from_khz(khz).ok_or(LabError::NoTscRate)?;
        let offset = machine::tsc_offset(first, 0)?;
        for (index, fd) in (0..).zip(machine.vcpus()) {
            if machine::tsc_offset(fd, index)? != offset {
                machine::set_tsc_offset(fd, index, offset)?;
            }
        }
        Ok(Self { rate, offset })
    }
}

/// Which KVM an experiment ran on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Place {
    /// The kernel module behind /dev/kvm.
    pub backend: &'static str,
    /// Whether guest ring 0 ran on the CPU itself or was interpreted.
    pub ring0: &'static str,
    /// Whether KVM ran on an emulated CPU.
    pub cpu: &'static str,
}

impl Place {
    const REAL: &str = "real";

    /// In a few words.
    #[must_use]
    pub fn short(&self) -> String {
        if self.cpu == Self::REAL {
            self.backend.to_owned()
        } else {
            format!("{}, emulated CPU", self.backend)
        }
    }

    /// All that it says.
    #[must_use]
    pub fn long(&self) -> String {
        let cpu = if self.cpu == Self::REAL {
            String::new()
        } else {
            format!(", CPU {}", self.cpu)
        };
        format!(
            "{}, ring 3 native, ring 0 {}{cpu}",
            self.backend, self.ring0
        )
    }

    /// Where `backend` is.
    #[must_use]
    pub fn of(backend: &Backend) -> Self {
        Self {
            backend: backend.kind.name(),
            ring0: if backend.kind.runs_ring0_natively() {
                "native"
            } else {
                "interpreted"
            },
            cpu: if backend.is_emulated {
                "emulated (QEMU TCG)"
            } else {
                Self::REAL
            },
        }
    }
}
