//! What a guest may read and write: one function from an MSR access to its answer.
//!
//! # Theory
//!
//! Which register exists follows from the CPUID privileges that the VMM advertises ([`Privileges`]); an access without its privilege, a write to a
//! read-only register and a value with reserved bits raise #GP, and nothing else does. A guest can call this with anything: every access takes
//! constant time and no memory.
//!
//! # Practice
//!
//! ```
//! use chronovisor_abi::{msr::Msr, quantity::{Hertz, Tsc}};
//! use chronovisor_host::msr_surface::{Access, Answer, MsrSurface, Privileges};
//! use chronovisor_host::partition_clock::{Config, PartitionClock, VcpuIndex};
//! # let memory = chronovisor_host::guest_memory::NoMemory;
//! let rate = Hertz::from_hz(2_600_000_000).expect("not zero");
//! let clock = PartitionClock::start(Config::for_vcpus(1), rate, Tsc::from_ticks(0))?;
//! let apic = Hertz::from_hz(1_000_000_000).expect("not zero");
//! let mut surface = MsrSurface::new(clock, Privileges::EVERYTHING, apic);
//! // The exit handler: MSR number and direction from the exit, the vCPU's counter from the VMM.
//! let answer = surface.access(VcpuIndex(0), Msr::HV_TIME_REF_COUNT, Access::Read, Tsc::from_ticks(2_600), &memory);
//! assert_eq!(answer, Answer::Value(9));
//! assert!(matches!(
//!     surface.access(VcpuIndex(0), Msr::HV_TIME_REF_COUNT, Access::Write(0), Tsc::from_ticks(2_700), &memory),
//!     Answer::Fault
//! ));
//! # Ok::<(), chronovisor_abi::scale::ScaleError>(())
//! ```
//!
//! # Migration
//!
//! Every register is part of the saved state.
//!
//! # Caveats
//!
//! The old numbers 0x11 and 0x12 of KVM's clocks are served as the new ones are. The page that a hypercall register names is filled by the VMM.
//!
//! # References
//!
//! Hyper-V TLFS, "Partition Privilege Flags" and the sections of each register; Linux `Documentation/virt/kvm/x86/msr.rst`.

mod hypercall;
mod privileges;
mod saved;

use alloc::boxed::Box;
use alloc::vec;

use chronovisor_abi::cpuid::hyperv;
use chronovisor_abi::msr::{ENABLE, Msr, PAGE_ADDRESS_MASK};
use chronovisor_abi::quantity::{Hertz, Tsc};

use crate::events::{Events, NoEvents, Page};
use crate::guest_memory::{GuestAddress, GuestMemory};
use crate::partition_clock::{CounterRead, PartitionClock, VcpuIndex};
use crate::reenlightenment::{Emulation, Reenlightenment, Written};
use crate::synthetic_timer::{self as timer, DirectMode, Presence, VcpuTimers};

pub use hypercall::{ENDBR64, INVALID_HYPERCALL_CODE, VMCALL, VMMCALL};
pub use privileges::Privileges;

use hypercall::Hypercall;

/// A guest's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// RDMSR.
    Read,
    /// WRMSR of this value.
    Write(u64),
}

/// What the guest gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Answer {
    /// The value read.
    Value(u64),
    /// The write is done; what the VMM has to do for it.
    Written(Effect),
    /// Read the vCPU's TSC again until it is at least this, less than 100 ns away, and ask again.
    NotBefore(Tsc),
    /// The value is the run time of the vCPU in units of 100 ns, which the VMM knows.
    RunTime,
    /// #GP.
    Fault,
    /// Not a register of this surface: the VMM's own business.
    NotOurs,
}

/// What the VMM has to do after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Fill the hypercall page at this address.
    FillHypercallPage(GuestAddress),
    /// The guest now relies on an invariant counter: CPUID 0x80000007.EDX\[8\] must read 1 from now on.
    ExposeInvariantTsc,
    /// The guest has followed the change of rate: end the emulation of its counter and update the clock with
    /// [`Change::Counter`](crate::partition_clock::Change::Counter).
    TscEmulationEnds(Emulation),
    /// Raise the interrupts, and set the wake-up for [`MsrSurface::next_timer`] again.
    Timers(timer::Effects),
}

/// The registers of one vCPU.
#[derive(Clone, Copy, Debug)]
struct Vcpu {
    assist_page: u64,
    timers: VcpuTimers,
}

/// The clock registers of a partition.
#[derive(Debug)]
pub struct MsrSurface<E: Events = NoEvents> {
    clock: PartitionClock,
    privileges: Privileges,
    apic_rate: Hertz,
    hypercall: Hypercall,
    reenlightenment: Reenlightenment,
    invariant_control: u64,
    vcpus: Box<[Vcpu]>,
    events: E,
}

impl MsrSurface {
    /// The registers as they are at power-on. `apic_rate` is the rate at which the emulated local APIC timer counts.
    #[must_use]
    pub fn new(clock: PartitionClock, privileges: Privileges, apic_rate: Hertz) -> Self {
        Self::with_events(clock, privileges, apic_rate, NoEvents)
    }
}

/// The timers' settings that follow from the privileges.
const fn timer_settings(privileges: Privileges) -> timer::Settings {
    let direct = privileges.hyperv_edx & hyperv::DIRECT_SYNTHETIC_TIMERS != 0;
    timer::Settings {
        direct_mode: if direct {
            DirectMode::Offered
        } else {
            DirectMode::Absent
        },
        ..timer::Settings::DEFAULT
    }
}

impl<E: Events> MsrSurface<E> {
    /// The registers as they are at power-on, with `events` told what happens.
    #[must_use]
    pub fn with_events(
        clock: PartitionClock,
        privileges: Privileges,
        apic_rate: Hertz,
        events: E,
    ) -> Self {
        let slots = usize::try_from(clock.vcpus()).unwrap_or(usize::MAX);
        let vcpu = Vcpu {
            assist_page: 0,
            timers: VcpuTimers::new(timer_settings(privileges)),
        };
        Self {
            clock,
            privileges,
            apic_rate,
            hypercall: Hypercall::default(),
            reenlightenment: Reenlightenment::default(),
            invariant_control: 0,
            vcpus: vec![vcpu; slots].into_boxed_slice(),
            events,
        }
    }

    /// The partition's clock.
    #[must_use]
    pub const fn clock(&self) -> &PartitionClock {
        &self.clock
    }

    /// The partition's clock, for updates.
    #[must_use]
    pub const fn clock_mut(&mut self) -> &mut PartitionClock {
        &mut self.clock
    }

    /// The re-enlightenment registers.
    #[must_use]
    pub const fn reenlightenment(&self) -> &Reenlightenment {
        &self.reenlightenment
    }

    /// The re-enlightenment registers, for a change of rate.
    #[must_use]
    pub const fn reenlightenment_mut(&mut self) -> &mut Reenlightenment {
        &mut self.reenlightenment
    }

    /// What was told the events.
    #[must_use]
    pub const fn events(&self) -> &E {
        &self.events
    }

    /// Answers `vcpu`'s access to `msr`; `now` is the vCPU's own counter, read after its exit.
    pub fn access(
        &mut self,
        vcpu: VcpuIndex,
        msr: Msr,
        access: Access,
        now: Tsc,
        memory: &(impl GuestMemory + ?Sized),
    ) -> Answer {
        let answer = match self.privileges.allow(msr) {
            None => return Answer::NotOurs,
            Some(privileges::Gate::Closed) => Answer::Fault,
            Some(privileges::Gate::Open) if self.index(vcpu).is_none() => Answer::Fault,
            Some(privileges::Gate::Open) if VcpuTimers::owns(msr) => {
                self.access_timers(vcpu, msr, access, now, memory)
            }
            Some(privileges::Gate::Open) => match access {
                Access::Read => self.read(vcpu, msr, now),
                Access::Write(value) => self.write(vcpu, msr, value, memory),
            },
        };
        match answer {
            Answer::Fault => self.events.fault(vcpu, msr, access),
            Answer::NotBefore(_) => self.events.counter_not_before(vcpu),
            _ => {}
        }
        answer
    }

    /// Brings `vcpu`'s synthetic timers up to `now`, its own counter: the answer to a wake-up, and to the end of an interrupt. `None` if there is
    /// no such vCPU or the clock is held.
    pub fn expire_timers(
        &mut self,
        vcpu: VcpuIndex,
        now: Tsc,
        memory: &(impl GuestMemory + ?Sized),
    ) -> Option<timer::Effects> {
        let time = self.clock.vcpu_reference_at(vcpu, now).ok()?;
        let at = self.index(vcpu)?;
        Some(self.vcpus[at].timers.expire(time, memory))
    }

    /// When [`Self::expire_timers`] has to be called for `vcpu` next, in its own counter, or `None` if nothing is to come.
    #[must_use]
    pub fn next_timer(&self, vcpu: VcpuIndex, presence: Presence) -> Option<Tsc> {
        let due = self.vcpus[self.index(vcpu)?].timers.next_due(presence)?;
        self.clock.reference_reached_at(vcpu, due)
    }

    /// The synthetic timers and interrupt controller of `vcpu`.
    #[must_use]
    pub fn timers(&self, vcpu: VcpuIndex) -> Option<&VcpuTimers> {
        self.index(vcpu).map(|at| &self.vcpus[at].timers)
    }

    fn access_timers(
        &mut self,
        vcpu: VcpuIndex,
        msr: Msr,
        access: Access,
        now: Tsc,
        memory: &(impl GuestMemory + ?Sized),
    ) -> Answer {
        let (time, at) = match (self.clock.vcpu_reference_at(vcpu, now), self.index(vcpu)) {
            (Ok(time), Some(at)) => (time, at),
            (Err(CounterRead::NotBefore(tsc)), _) => return Answer::NotBefore(tsc),
            _ => return Answer::Fault,
        };
        let timers = &mut self.vcpus[at].timers;
        let answer = match access {
            Access::Read => timers.read(msr, time).map(Answer::Value),
            Access::Write(value) => timers
                .write(msr, value, time, memory)
                .map(|effects| Answer::Written(Effect::Timers(effects))),
        };
        answer.unwrap_or(Answer::Fault)
    }

    fn read(&mut self, vcpu: VcpuIndex, msr: Msr, now: Tsc) -> Answer {
        Answer::Value(match msr {
            Msr::HV_TIME_REF_COUNT => {
                return match self.clock.read_reference_counter(vcpu, now) {
                    CounterRead::Time(time) => Answer::Value(time.as_100ns()),
                    CounterRead::NotBefore(tsc) => Answer::NotBefore(tsc),
                    CounterRead::Held => Answer::Fault,
                };
            }
            Msr::HV_REFERENCE_TSC => self.clock.reference_tsc_register(),
            // The new rate during an emulation: the guest reads it after its acknowledgement.
            Msr::HV_TSC_FREQUENCY => self
                .reenlightenment
                .emulation()
                .map_or(self.clock.rate(), |running| running.new)
                .rounded_hz(),
            Msr::HV_APIC_FREQUENCY => self.apic_rate.rounded_hz(),
            Msr::HV_VP_RUNTIME => return Answer::RunTime,
            Msr::HV_VP_INDEX => u64::from(vcpu.0),
            Msr::HV_GUEST_OS_ID => self.hypercall.guest_os_id,
            Msr::HV_HYPERCALL => self.hypercall.register,
            Msr::HV_VP_ASSIST_PAGE => self.index(vcpu).map_or(0, |at| self.vcpus[at].assist_page),
            Msr::HV_REENLIGHTENMENT_CONTROL
            | Msr::HV_TSC_EMULATION_CONTROL
            | Msr::HV_TSC_EMULATION_STATUS => self.reenlightenment.read(msr),
            Msr::HV_TSC_INVARIANT_CONTROL => self.invariant_control,
            Msr::KVM_SYSTEM_TIME | Msr::KVM_SYSTEM_TIME_OLD => {
                self.clock.system_time_register(vcpu)
            }
            Msr::KVM_WALL_CLOCK | Msr::KVM_WALL_CLOCK_OLD => self.clock.wall_clock_register(),
            _ => return Answer::Fault,
        })
    }

    fn write(
        &mut self,
        vcpu: VcpuIndex,
        msr: Msr,
        value: u64,
        memory: &(impl GuestMemory + ?Sized),
    ) -> Answer {
        let effect = match msr {
            Msr::HV_REFERENCE_TSC => {
                let valid = self.clock.write_reference_tsc_register(value, memory);
                self.tell(
                    vcpu,
                    Page::ReferenceTscPage,
                    value & ENABLE,
                    value & PAGE_ADDRESS_MASK,
                    valid,
                );
                Effect::None
            }
            Msr::HV_GUEST_OS_ID => {
                self.hypercall.write_guest_os_id(value);
                Effect::None
            }
            Msr::HV_HYPERCALL => self
                .hypercall
                .write_register(value)
                .map_or(Effect::None, Effect::FillHypercallPage),
            Msr::HV_VP_ASSIST_PAGE => {
                if let Some(at) = self.index(vcpu) {
                    self.vcpus[at].assist_page = value;
                }
                Effect::None
            }
            Msr::HV_REENLIGHTENMENT_CONTROL
            | Msr::HV_TSC_EMULATION_CONTROL
            | Msr::HV_TSC_EMULATION_STATUS => match self.reenlightenment.write(msr, value) {
                Written::Stored => Effect::None,
                Written::Acknowledged(emulation) => {
                    self.events.reenlightenment_acknowledged(vcpu);
                    Effect::TscEmulationEnds(emulation)
                }
                Written::Refused => return Answer::Fault,
            },
            // Other bits are reserved, and the guest cannot take its word back.
            Msr::HV_TSC_INVARIANT_CONTROL if value > 1 || value < self.invariant_control => {
                return Answer::Fault;
            }
            Msr::HV_TSC_INVARIANT_CONTROL if value > self.invariant_control => {
                self.invariant_control = value;
                Effect::ExposeInvariantTsc
            }
            Msr::HV_TSC_INVARIANT_CONTROL => Effect::None,
            Msr::KVM_SYSTEM_TIME | Msr::KVM_SYSTEM_TIME_OLD => {
                let valid = self.clock.write_system_time_register(vcpu, value, memory);
                self.tell(
                    vcpu,
                    Page::PvclockRecord,
                    value & ENABLE,
                    value & !ENABLE,
                    valid,
                );
                Effect::None
            }
            Msr::KVM_WALL_CLOCK | Msr::KVM_WALL_CLOCK_OLD => {
                let filled = self.clock.write_wall_clock_register(value, memory);
                self.tell(
                    vcpu,
                    Page::WallClockRecord,
                    ENABLE,
                    value,
                    filled.is_ok_and(|found| found),
                );
                Effect::None
            }
            // Read-only registers.
            _ => return Answer::Fault,
        };
        Answer::Written(effect)
    }

    fn tell(&mut self, vcpu: VcpuIndex, page: Page, enabled: u64, address: u64, valid: bool) {
        let address = GuestAddress::new(address);
        match (enabled, valid) {
            (0, _) => {}
            (_, true) => self.events.page_enabled(vcpu, page, address),
            (_, false) => self.events.page_not_valid(vcpu, page, address),
        }
    }

    fn index(&self, vcpu: VcpuIndex) -> Option<usize> {
        usize::try_from(vcpu.0)
            .ok()
            .filter(|at| *at < self.vcpus.len())
    }
}
