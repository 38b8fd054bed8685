//! The micro-VMM: memory, vCPUs, a run with a watchdog.
#![allow(unsafe_code)] // guest memory is handed to KVM by address

mod devices;
mod entry;
mod inject;
mod kick;
mod run;
mod setup;
mod state;
mod vcpu;

use std::sync::Arc;

use kvm_bindings::{
    KVM_MAX_CPUID_ENTRIES, KVM_MP_STATE_RUNNABLE, kvm_mp_state, kvm_userspace_memory_region,
};
use kvm_ioctls::{VcpuFd, VmFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::backend::Backend;
use crate::contract::{JOB_GPA, Job, MAX_VCPUS, MEMORY_BYTES};
use crate::report::{self, VcpuReport};
use crate::{LabError, image};

pub use devices::{Devices, NoDevices, Refused};
pub use kick::Kicker;
pub use run::{Ended, Run, Running};
pub(crate) use setup::divert_reference_msrs;
pub use setup::{Apic, Owner, Secondary, Setup};
pub use state::{VcpuState, set_tsc_offset, tsc_offset};
pub use vcpu::End;

/// A VM that does not run right now.
pub struct Machine {
    // Before the memory, so that KVM lets go of it first.
    vcpus: Vec<VcpuFd>,
    vm: Arc<VmFd>,
    memory: GuestMemoryMmap,
}

impl Machine {
    /// A machine with memory of its own, its guest image loaded and `job` waiting.
    ///
    /// # Errors
    ///
    /// [`LabError`] names the call that failed.
    pub fn new(backend: &Backend, setup: &Setup, job: &Job) -> Result<Self, LabError> {
        let bytes = usize::try_from(MEMORY_BYTES).map_err(|_| LabError::Memory {
            what: "too large".into(),
        })?;
        let memory =
            GuestMemoryMmap::from_ranges(&[(GuestAddress(0), bytes)]).map_err(|error| {
                LabError::Memory {
                    what: format!("mapping {bytes} bytes: {error}"),
                }
            })?;
        let machine = Self::bare(backend, setup, memory)?;
        machine.start_at_image(setup, job)?;
        Ok(machine)
    }

    /// A machine around memory that a guest lives in already; its vCPUs have no state yet.
    ///
    /// # Errors
    ///
    /// [`LabError`] names the call that failed.
    pub fn bare(
        backend: &Backend,
        setup: &Setup,
        memory: GuestMemoryMmap,
    ) -> Result<Self, LabError> {
        let most = u32::try_from(MAX_VCPUS)
            .unwrap_or(u32::MAX)
            .min(backend.max_vcpus);
        if setup.vcpus == 0 || setup.vcpus > most {
            return Err(LabError::TooManyVcpus {
                asked: setup.vcpus,
                most,
            });
        }
        let vm = backend
            .kvm
            .create_vm()
            .map_err(LabError::kvm("KVM_CREATE_VM"))?;
        for (slot, region) in (0..).zip(memory.iter()) {
            let userspace_addr = memory
                .get_host_address(region.start_addr())
                .map_err(|error| LabError::Memory {
                    what: error.to_string(),
                })? as u64;
            let region = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr,
            };
            // SAFETY: the mapping is `memory`'s, which `Self` keeps, and each vCPU's thread as long as it runs the guest, which
            // nobody else can; regions of one `GuestMemoryMmap` do not overlap.
            unsafe { vm.set_user_memory_region(region) }
                .map_err(LabError::kvm("KVM_SET_USER_MEMORY_REGION"))?;
        }
        setup::divert_msrs(&vm, setup)?;
        if setup.apic == Apic::InKernel {
            vm.create_irq_chip()
                .map_err(LabError::kvm("KVM_CREATE_IRQCHIP"))?;
        }
        let supported = backend
            .kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(LabError::kvm("KVM_GET_SUPPORTED_CPUID"))?;
        let vcpus = (0..setup.vcpus)
            .map(|index| {
                let fd = vm
                    .create_vcpu(u64::from(index))
                    .map_err(LabError::vcpu("KVM_CREATE_VCPU", index))?;
                let cpuid = setup::guest_cpuid(&supported, setup, index)?;
                fd.set_cpuid2(&cpuid)
                    .map_err(LabError::vcpu("KVM_SET_CPUID2", index))?;
                Ok(fd)
            })
            .collect::<Result<_, LabError>>()?;
        Ok(Self {
            vcpus,
            vm: Arc::new(vm),
            memory,
        })
    }

    fn start_at_image(&self, setup: &Setup, job: &Job) -> Result<(), LabError> {
        entry::write_page_tables(&self.memory)?;
        let entry = image::load(&self.memory)?;
        self.set_job(job)?;
        for (index, fd) in (0..).zip(&self.vcpus) {
            if index > 0 && setup.secondary == Secondary::Waiting {
                continue;
            }
            let sregs = fd
                .get_sregs()
                .map_err(LabError::vcpu("KVM_GET_SREGS", index))?;
            fd.set_sregs(&entry::system_registers(sregs))
                .map_err(LabError::vcpu("KVM_SET_SREGS", index))?;
            fd.set_regs(&entry::registers(entry, index))
                .map_err(LabError::vcpu("KVM_SET_REGS", index))?;
            if setup.apic == Apic::InKernel {
                fd.set_mp_state(kvm_mp_state {
                    mp_state: KVM_MP_STATE_RUNNABLE,
                })
                .map_err(LabError::vcpu("KVM_SET_MP_STATE", index))?;
            }
        }
        Ok(())
    }

    /// Leaves `job` for the guest, in place of the one that was there.
    ///
    /// # Errors
    ///
    /// [`LabError::Memory`] if the job's page is outside guest memory.
    pub fn set_job(&self, job: &Job) -> Result<(), LabError> {
        let words: Vec<u8> = job
            .to_words()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        self.memory
            .write_slice(&words, GuestAddress(JOB_GPA))
            .map_err(|error| LabError::Memory {
                what: format!("writing the job: {error}"),
            })
    }

    /// Guest memory.
    #[must_use]
    pub const fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// The VM, for calls of an experiment's own. Not for more vCPUs: those would not know how long guest memory lives.
    pub(crate) const fn vm(&self) -> &Arc<VmFd> {
        &self.vm
    }

    /// The vCPUs, for calls of an experiment's own.
    #[must_use]
    pub fn vcpus(&self) -> &[VcpuFd] {
        &self.vcpus
    }

    /// What the guest reported so far.
    ///
    /// # Errors
    ///
    /// [`LabError::Memory`] cannot happen for a machine of [`Machine::new`].
    pub fn reports(&self) -> Result<Vec<VcpuReport>, LabError> {
        (0..)
            .zip(&self.vcpus)
            .map(|(index, _)| report::read(&self.memory, index))
            .collect()
    }
}
