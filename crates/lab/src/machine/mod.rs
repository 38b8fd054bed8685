//! The micro-VMM: memory, vCPUs, a run with a watchdog.
#![allow(unsafe_code)] // guest memory is handed to KVM by address

mod devices;
mod entry;
mod inject;
mod kick;
mod state;
mod vcpu;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kvm_bindings::{
    CpuId, KVM_MAX_CPUID_ENTRIES, KVM_MP_STATE_RUNNABLE, kvm_enable_cap, kvm_mp_state, kvm_regs,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{
    Cap, MsrExitReason, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VcpuFd, VmFd,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::backend::Backend;
use crate::contract::{JOB_GPA, Job, MAX_VCPUS, MEMORY_BYTES};
use crate::report::{self, VcpuReport};
use crate::{LabError, image};

pub use devices::{Devices, NoDevices, Refused};
pub use kick::Kicker;
pub use state::{VcpuState, set_tsc_offset, tsc_offset};
pub use vcpu::End;

/// The Hyper-V MSRs, all of which are ours.
const HYPERV_MSRS: std::ops::Range<u32> = 0x4000_0000..0x4000_0200;
const IA32_TSC_DEADLINE: u32 = 0x6E0;

/// Who owns the local APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apic {
    /// Nobody: interrupts play no part.
    None,
    /// KVM.
    InKernel,
    /// A device of ours; the TSC-deadline MSR is diverted to it.
    UserSpace,
}

/// Who answers Hyper-V's MSRs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HypervMsrs {
    /// A device of ours.
    Ours,
    /// KVM.
    Kvm,
}

/// How the application processors come to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secondary {
    /// The VMM starts them in 64-bit mode, like the first.
    Started,
    /// They wait for INIT and SIPI.
    Waiting,
}

/// What a machine is made of.
#[derive(Clone)]
pub struct Setup {
    /// Number of vCPUs.
    pub vcpus: u32,
    /// The APIC.
    pub apic: Apic,
    /// Hyper-V's MSRs.
    pub hyperv_msrs: HypervMsrs,
    /// How the other vCPUs start.
    pub secondary: Secondary,
    /// Hypervisor leaves of CPUID, instead of KVM's own: (leaf, registers).
    pub hypervisor_leaves: Vec<(u32, [u32; 4])>,
}

impl Setup {
    /// `vcpus` vCPUs that run at once, without an APIC, Hyper-V's MSRs ours.
    #[must_use]
    pub const fn new(vcpus: u32) -> Self {
        Self {
            vcpus,
            apic: Apic::None,
            hyperv_msrs: HypervMsrs::Ours,
            secondary: Secondary::Started,
            hypervisor_leaves: Vec::new(),
        }
    }
}

/// A VM that does not run right now.
pub struct Machine {
    // Before the memory, so that KVM lets go of it first.
    vcpus: Vec<VcpuFd>,
    vm: VmFd,
    memory: GuestMemoryMmap,
}

/// How one vCPU's run went.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Why it stopped.
    pub end: End,
    /// Its registers then.
    pub registers: kvm_regs,
    /// The bytes at its instruction pointer, if that lies in guest memory.
    pub code: Option<[u8; 8]>,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Run {
    /// Each vCPU's end.
    pub ended: Vec<Ended>,
    /// What the guest wrote to its serial port.
    pub serial: String,
    /// The watchdog had to end it.
    pub timed_out: bool,
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
            // SAFETY: the mapping is `memory`'s, which `Self` keeps longer than the VM; regions of one
            // `GuestMemoryMmap` do not overlap.
            unsafe { vm.set_user_memory_region(region) }
                .map_err(LabError::kvm("KVM_SET_USER_MEMORY_REGION"))?;
        }
        divert_msrs(&vm, setup)?;
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
                let cpuid = guest_cpuid(&supported, setup, index)?;
                fd.set_cpuid2(&cpuid)
                    .map_err(LabError::vcpu("KVM_SET_CPUID2", index))?;
                Ok(fd)
            })
            .collect::<Result<_, LabError>>()?;
        Ok(Self { vcpus, vm, memory })
    }

    fn start_at_image(&self, setup: &Setup, job: &Job) -> Result<(), LabError> {
        entry::write_page_tables(&self.memory)?;
        let entry = image::load(&self.memory)?;
        let words: Vec<u8> = job
            .to_words()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        self.memory
            .write_slice(&words, GuestAddress(JOB_GPA))
            .map_err(|error| LabError::Memory {
                what: format!("writing the job: {error}"),
            })?;
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

    /// The VM, for calls of an experiment's own.
    #[must_use]
    pub const fn vm(&self) -> &VmFd {
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

    /// Lets all vCPUs run until the guest ends, a vCPU dies, or `patience` is over.
    ///
    /// # Errors
    ///
    /// [`LabError::Kvm`] if registers cannot be read afterwards.
    pub fn run(&mut self, devices: &Arc<dyn Devices>, patience: Duration) -> Result<Run, LabError> {
        let running = self.start(devices);
        self.finish(running, patience)
    }

    /// Starts all vCPUs and comes back at once.
    #[must_use]
    pub fn start(&mut self, devices: &Arc<dyn Devices>) -> Running {
        kick::install();
        let stop = Arc::new(AtomicBool::new(false));
        let serial = Arc::new(devices::SerialLog::default());
        let (sender, ends) = mpsc::channel();
        let threads = (0..)
            .zip(self.vcpus.drain(..))
            .map(|(index, mut fd)| {
                let (devices, serial, stop, sender) = (
                    Arc::clone(devices),
                    Arc::clone(&serial),
                    Arc::clone(&stop),
                    sender.clone(),
                );
                std::thread::spawn(move || {
                    let end = vcpu::run(index, &mut fd, devices.as_ref(), &serial, &stop);
                    // The receiver lives until the threads are joined.
                    let _ = sender.send(end.clone());
                    (fd, end)
                })
            })
            .collect();
        Running {
            threads,
            ends,
            stop,
            serial,
        }
    }

    /// Waits for a run to end; when `patience` is over, ends it.
    ///
    /// # Errors
    ///
    /// [`LabError::Kvm`] if registers cannot be read afterwards.
    pub fn finish(&mut self, running: Running, patience: Duration) -> Result<Run, LabError> {
        let deadline = Instant::now() + patience;
        let mut left = running.threads.len();
        let mut timed_out = false;
        while left > 0 {
            match running
                .ends
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(End::Done(crate::contract::status::DONE)) => left -= 1,
                // One vCPU died or failed: the others would wait for it for ever.
                Ok(_) => break,
                Err(_) => {
                    timed_out = true;
                    break;
                }
            }
        }
        let mut run = self.stop(running)?;
        run.timed_out = timed_out;
        Ok(run)
    }

    /// Stops all vCPUs between two instructions.
    ///
    /// # Errors
    ///
    /// [`LabError::Kvm`] if registers cannot be read afterwards.
    pub fn stop(&mut self, running: Running) -> Result<Run, LabError> {
        let Running {
            threads,
            ends,
            stop,
            serial,
        } = running;
        stop.store(true, Ordering::Release);
        drop(ends);
        while threads.iter().any(|thread| !thread.is_finished()) {
            for thread in threads.iter().filter(|thread| !thread.is_finished()) {
                kick::kick(thread);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut ended = Vec::new();
        for (index, thread) in (0..).zip(threads) {
            let (fd, end) = thread
                .join()
                .map_err(|_| LabError::Guest(format!("the thread of vCPU {index} panicked")))?;
            let registers = fd
                .get_regs()
                .map_err(LabError::vcpu("KVM_GET_REGS", index))?;
            let code = self.memory.read_obj(GuestAddress(registers.rip)).ok();
            ended.push(Ended {
                end,
                registers,
                code,
            });
            self.vcpus.push(fd);
        }
        Ok(Run {
            ended,
            serial: serial.text(),
            timed_out: false,
        })
    }
}

/// vCPU threads at work.
pub struct Running {
    threads: Vec<std::thread::JoinHandle<(VcpuFd, End)>>,
    ends: mpsc::Receiver<End>,
    stop: Arc<AtomicBool>,
    serial: Arc<devices::SerialLog>,
}

impl Run {
    /// Every vCPU said that it is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ended
            .iter()
            .all(|ended| ended.end == End::Done(crate::contract::status::DONE))
    }

    /// In words, what went wrong; with the registers of the vCPU that it concerns.
    #[must_use]
    pub fn trouble(&self) -> String {
        let blamed = |ended: &&Ended| {
            !matches!(
                ended.end,
                End::Stopped | End::Done(crate::contract::status::DONE)
            )
        };
        let found = (0..)
            .zip(&self.ended)
            .find(|(_, ended)| blamed(ended))
            .or_else(|| {
                (0..)
                    .zip(&self.ended)
                    .find(|(_, ended)| ended.end == End::Stopped)
            });
        let Some((vcpu, ended)) = found else {
            return "nothing: every vCPU is done".into();
        };
        let code = ended.code.map_or_else(
            || "outside guest memory".to_owned(),
            |bytes| bytes.map(|byte| format!("{byte:02x}")).join(" "),
        );
        let r = &ended.registers;
        let what = match &ended.end {
            End::Done(status) => format!("the guest gave up with status {status:#x}"),
            End::Stopped if self.timed_out => "the guest hung and the watchdog ended it".into(),
            End::Stopped => "it was stopped".into(),
            End::TripleFault => "triple fault".into(),
            End::InternalError => {
                "KVM cannot run an instruction of the guest (emulation failure)".into()
            }
            End::FailEntry(reason) => {
                format!("KVM could not enter the guest (hardware reason {reason:#x})")
            }
            End::Halted => "the guest halted with nothing to wake it".into(),
            End::Unexpected(exit) => format!("unexpected exit {exit}"),
            End::RunFailed(number) => {
                format!(
                    "KVM_RUN failed: {}",
                    std::io::Error::from_raw_os_error(*number)
                )
            }
        };
        let serial = if self.serial.is_empty() {
            String::new()
        } else {
            format!("; serial: {}", self.serial.trim_end())
        };
        format!(
            "vCPU {vcpu}: {what}; rip {:#x} [{code}] rsp {:#x} rax {:#x} rcx {:#x} rdx {:#x} rdi {:#x} rsi {:#x} \
             flags {:#x}{serial}",
            r.rip, r.rsp, r.rax, r.rcx, r.rdx, r.rdi, r.rsi, r.rflags
        )
    }
}

fn divert_msrs(vm: &VmFd, setup: &Setup) -> Result<(), LabError> {
    let reasons = MsrExitReason::Inval | MsrExitReason::Unknown | MsrExitReason::Filter;
    let mut enable = kvm_enable_cap {
        cap: u32::try_from(Cap::X86UserSpaceMsr as u64).unwrap_or(0),
        ..Default::default()
    };
    enable.args[0] = u64::from(reasons.bits());
    vm.enable_cap(&enable)
        .map_err(LabError::kvm("KVM_ENABLE_CAP(X86_USER_SPACE_MSR)"))?;
    let flags = MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE;
    // A zero bit denies, and a denied access exits to us.
    let none = [0; 64];
    let mut ranges = Vec::new();
    if setup.hyperv_msrs == HypervMsrs::Ours {
        ranges.push(MsrFilterRange {
            flags,
            base: HYPERV_MSRS.start,
            msr_count: HYPERV_MSRS.end - HYPERV_MSRS.start,
            bitmap: &none,
        });
    }
    if setup.apic == Apic::UserSpace {
        ranges.push(MsrFilterRange {
            flags,
            base: IA32_TSC_DEADLINE,
            msr_count: 8,
            bitmap: &[0xFE],
        });
    }
    if ranges.is_empty() {
        return Ok(());
    }
    vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &ranges)
        .map_err(LabError::kvm("KVM_X86_SET_MSR_FILTER"))
}

fn guest_cpuid(supported: &CpuId, setup: &Setup, vcpu: u32) -> Result<CpuId, LabError> {
    const HYPERVISOR: std::ops::Range<u32> = 0x4000_0000..0x4001_0000;
    const X2APIC: u32 = 1 << 21;
    const TSC_DEADLINE: u32 = 1 << 24;
    const HYPERVISOR_PRESENT: u32 = 1 << 31;
    let mut entries: Vec<_> = supported
        .as_slice()
        .iter()
        .copied()
        .filter(|entry| setup.hypervisor_leaves.is_empty() || !HYPERVISOR.contains(&entry.function))
        .collect();
    for entry in &mut entries {
        match entry.function {
            0x1 => {
                entry.ebx = (entry.ebx & 0x00FF_FFFF) | (vcpu << 24);
                entry.ecx |= HYPERVISOR_PRESENT | X2APIC;
                if setup.apic != Apic::None {
                    entry.ecx |= TSC_DEADLINE;
                }
            }
            0xB | 0x1F => entry.edx = vcpu,
            _ => {}
        }
    }
    for (function, [eax, ebx, ecx, edx]) in &setup.hypervisor_leaves {
        entries.push(kvm_bindings::kvm_cpuid_entry2 {
            function: *function,
            eax: *eax,
            ebx: *ebx,
            ecx: *ecx,
            edx: *edx,
            ..Default::default()
        });
    }
    CpuId::from_entries(&entries).map_err(|error| {
        LabError::Guest(format!(
            "{} CPUID leaves do not fit: {error:?}",
            entries.len()
        ))
    })
}
