//! The registers in which a guest names its pages.

use chronovisor_abi::seqlock::sync::{Ordering, fence};

use super::mutant::{self, Mutant};
use super::{PartitionClock, Phase, PvclockLine, VcpuIndex, WallClockError};
use crate::guest_memory::GuestMemory;
use crate::kvmclock;

impl PartitionClock {
    /// The vCPU's system-time register, MSR 0x4b564d01; 0 for a vCPU that does not exist.
    #[must_use]
    pub fn system_time_register(&self, vcpu: VcpuIndex) -> u64 {
        self.record(vcpu).map_or(0, kvmclock::Publisher::register)
    }

    /// The guest's write to the vCPU's system-time register: its record shows the partition's line at once. Other records are not
    /// touched. `false` if there is no such vCPU or the address is not reachable.
    pub fn write_system_time_register(
        &mut self,
        vcpu: VcpuIndex,
        value: u64,
        memory: &(impl GuestMemory + ?Sized),
    ) -> bool {
        let (flags, phase) = (self.record_flags(), self.phase);
        let Some(record) = usize::try_from(vcpu.0)
            .ok()
            .and_then(|at| self.records.get_mut(at))
        else {
            return false;
        };
        record.set_register(value);
        if phase == Phase::Held {
            return false;
        }
        record.mark(memory);
        fence(Ordering::SeqCst); // W2 of the sequence lock: the address may hold a record that is being read
        if mutant::is(Mutant::HotPlugHasItsOwnLine) {
            let own = PvclockLine::first(&self.master, &self.multipliers);
            return record.publish(&own, flags, memory);
        }
        record.publish(&self.pvclock, flags, memory)
    }

    /// The wall-clock register, MSR 0x4b564d00.
    #[must_use]
    pub const fn wall_clock_register(&self) -> u64 {
        self.wall_clock.register()
    }

    /// The guest's write to the wall-clock register, which fills the record at that address once: the time of day at which pvclock stood at 0.
    /// `Ok(false)` if the address is not reachable.
    ///
    /// # Errors
    ///
    /// [`WallClockError`] if that time is not known or does not fit the record; the record is not touched then.
    pub fn write_wall_clock_register(
        &mut self,
        value: u64,
        memory: &(impl GuestMemory + ?Sized),
    ) -> Result<bool, WallClockError> {
        self.wall_clock.set_register(value);
        let wall = self.wall.ok_or(WallClockError::Unknown)?.wall_clock()?;
        Ok(self.wall_clock.fill(wall, memory))
    }

    /// The reference TSC register, MSR 0x40000021.
    #[must_use]
    pub const fn reference_tsc_register(&self) -> u64 {
        self.page.register()
    }

    /// The guest's write to the reference TSC register: the page at the new address is valid at once if the clock can be shown there. `false` if
    /// it is not, for whichever reason.
    pub fn write_reference_tsc_register(
        &mut self,
        value: u64,
        memory: &(impl GuestMemory + ?Sized),
    ) -> bool {
        self.page.set_register(value);
        self.page.mark(memory);
        fence(Ordering::SeqCst); // W2 of the sequence lock: the address may be that of the page as it was
        match self.page_parameters() {
            Some(parameters) => self.page.publish(&parameters, memory),
            None => false,
        }
    }
}
