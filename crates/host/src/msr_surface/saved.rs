//! The registers at rest.

use chronovisor_abi::quantity::{Hertz, Tsc};

use super::hypercall::Hypercall;
use super::{MsrSurface, Privileges, Vcpu, timer_settings};
use crate::events::{Events, NoEvents};
use crate::guest_memory::GuestMemory;
use crate::migration::{RestoreError, VcpuState, VmState};
use crate::partition_clock::{Config, PartitionClock, VcpuIndex};
use crate::synthetic_timer::{VcpuTimers, VcpuTimersState};

impl MsrSurface {
    /// A partition's clocks as they were saved, held until an update with [`Change::Resume`](crate::partition_clock::Change::Resume); its vCPUs
    /// follow one by one.
    ///
    /// # Errors
    ///
    /// [`RestoreError::Rate`] if the rate cannot be published.
    pub fn restore(
        config: Config,
        privileges: Privileges,
        apic_rate: Hertz,
        state: &VmState,
    ) -> Result<Self, RestoreError> {
        Self::restore_with_events(config, privileges, apic_rate, state, NoEvents)
    }
}

impl<E: Events> MsrSurface<E> {
    /// As [`MsrSurface::restore`], with `events` told what happens.
    ///
    /// # Errors
    ///
    /// [`RestoreError::Rate`] if the rate cannot be published.
    pub fn restore_with_events(
        config: Config,
        privileges: Privileges,
        apic_rate: Hertz,
        state: &VmState,
        events: E,
    ) -> Result<Self, RestoreError> {
        let clock = PartitionClock::from_snapshot(config, &state.clock)?;
        let mut surface = Self::with_events(clock, privileges, apic_rate, events);
        surface.reenlightenment = state.reenlightenment;
        surface.hypercall = Hypercall {
            guest_os_id: state.guest_os_id,
            register: state.hypercall,
        };
        surface.invariant_control = state.invariant_control;
        Ok(surface)
    }

    /// The partition's clocks at rest, for a partition whose vCPUs are paused; `now` is its counter. Every vCPU has a state of its own.
    #[must_use]
    pub fn save(&self, now: Tsc) -> VmState {
        VmState {
            clock: self.clock.snapshot(now),
            reenlightenment: self.reenlightenment,
            guest_os_id: self.hypercall.guest_os_id,
            hypercall: self.hypercall.register,
            invariant_control: self.invariant_control,
        }
    }

    /// One vCPU's clocks and timers at rest; `None` if there is no such vCPU.
    pub fn save_vcpu(
        &self,
        vcpu: VcpuIndex,
        memory: &(impl GuestMemory + ?Sized),
    ) -> Option<(VcpuState, VcpuTimersState)> {
        let saved = &self.vcpus[self.index(vcpu)?];
        let state = VcpuState {
            record: self.clock.record_state(vcpu, memory)?,
            assist_page: saved.assist_page,
        };
        Some((state, saved.timers.save()))
    }

    /// Puts one vCPU's clocks and timers back, before the clock is resumed.
    ///
    /// # Errors
    ///
    /// [`RestoreError`] if there is no such vCPU, or its timers' state contradicts itself.
    pub fn restore_vcpu(
        &mut self,
        vcpu: VcpuIndex,
        state: &VcpuState,
        timers: &VcpuTimersState,
    ) -> Result<(), RestoreError> {
        let vcpus = self.clock.vcpus();
        let no_such_vcpu = RestoreError::NoSuchVcpu { vcpu, vcpus };
        let at = self.index(vcpu).ok_or(no_such_vcpu)?;
        let timers = VcpuTimers::restore(timer_settings(self.privileges), timers)
            .map_err(|reason| RestoreError::Timers { vcpu, reason })?;
        self.clock
            .restore_record(vcpu, state.record)
            .ok_or(no_such_vcpu)?;
        self.vcpus[at] = Vcpu {
            assist_page: state.assist_page,
            timers,
        };
        Ok(())
    }
}
