//! A guest that reads its clocks: memory, the pages in it, and the readers of `chronovisor-guest` over them.
//!
//! # Theory
//!
//! The guest sees its counter, its pages and the registers that its hypervisor serves, and nothing else. All of these are real: the readers are
//! those of the guest crate, the registers those of the host crate. Only the counter's value is simulated.
//!
//! # Practice
//!
//! [`Guest::run_on`] puts the guest on a vCPU at a counter value; [`Guest::pvclock`], [`Guest::reference`], [`Guest::counter`] and [`Guest::vmclock`] read there. A counter register that answers "not before" is asked again once the counter is there.
//!
//! # Migration
//!
//! Memory moves with the guest; [`Guest::arrive`] puts another hypervisor under it.
//!
//! # Caveats
//!
//! Reads take no time, but for the wait that the counter register may ask for.
//!
//! # References
//!
//! `chronovisor_guest`, `chronovisor_host::msr_surface`.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;

use chronovisor_abi::msr::{ENABLE, Msr};
use chronovisor_abi::pvclock::{Record, Slot, WallClockRecord};
use chronovisor_abi::quantity::{Nanos, Reading, RefTime, Tsc};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_abi::vmclock::{self, TimeError};
use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::guard::{GlobalGuard, Guarded};
use chronovisor_guest::pvclock::{PerCpuRecords, PvclockError, SharedRecord, StableBit};
use chronovisor_guest::reference_tsc::{ReferenceClock, Source};
use chronovisor_guest::vmclock::{VmclockError, VmclockPage};
use chronovisor_host::guest_memory::{GuestAddress, GuestMemory};
use chronovisor_host::msr_surface::{Access, Answer, MsrSurface};
use chronovisor_host::partition_clock::VcpuIndex;

const RECORDS_AT: u64 = 0x1000;
const PAGE_AT: u64 = 0x10_0000;
const SLOT_BYTES: u64 = 64;
/// A register that asks to wait is asked again this often at most: each wait is below 100 ns.
const MOST_WAITS: u32 = 8;

/// The guest's memory, as far as it holds clocks.
#[derive(Debug)]
pub struct Memory {
    slots: Vec<Slot>,
    page: Box<ReferenceTscPage>,
    vmclock: Box<vmclock::Page>,
}

impl Memory {
    fn new(vcpus: u32) -> Self {
        Self {
            slots: (0..vcpus)
                .map(|_| Slot {
                    record: Record::new(),
                })
                .collect(),
            page: Box::new(ReferenceTscPage::new()),
            vmclock: Box::new(vmclock::Page::new()),
        }
    }
}

impl GuestMemory for Memory {
    fn pvclock_record(&self, address: GuestAddress) -> Option<&Record> {
        let offset = address.as_u64().checked_sub(RECORDS_AT)?;
        let slot = self.slots.get(usize::try_from(offset / SLOT_BYTES).ok()?)?;
        (offset % SLOT_BYTES == 0).then_some(&slot.record)
    }

    fn wall_clock_record(&self, _address: GuestAddress) -> Option<&WallClockRecord> {
        None
    }

    fn reference_tsc_page(&self, address: GuestAddress) -> Option<&ReferenceTscPage> {
        (address.as_u64() == PAGE_AT).then_some(&*self.page)
    }

    fn vmclock_page(&self) -> Option<&vmclock::Page> {
        Some(&self.vmclock)
    }
}

/// Why a clock gave no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTime {
    /// The clock says that it cannot be used now; a guest takes another one.
    Unavailable,
    /// It should have given a time.
    Broken,
}

/// A guest and the hypervisor's registers under it.
#[derive(Debug)]
pub struct Guest {
    memory: Memory,
    surface: RefCell<MsrSurface>,
    tsc: Cell<Tsc>,
    vcpu: Cell<u32>,
    guard: GlobalGuard,
    fallbacks: Cell<u64>,
}

impl Guest {
    /// A guest that has just started on `surface` with `vcpus` of at most `vcpus_max` vCPUs, its counter at `tsc`: each vCPU names its record, the
    /// first one the reference page.
    #[must_use]
    pub fn boot(vcpus: u32, vcpus_max: u32, surface: MsrSurface, tsc: Tsc) -> Self {
        let guest = Self {
            memory: Memory::new(vcpus_max),
            surface: RefCell::new(surface),
            tsc: Cell::new(tsc),
            vcpu: Cell::new(0),
            guard: GlobalGuard::new(),
            fallbacks: Cell::new(0),
        };
        guest.write(0, Msr::HV_REFERENCE_TSC, PAGE_AT | ENABLE);
        for vcpu in 0..vcpus {
            guest.plug(vcpu);
        }
        guest
    }

    /// A vCPU comes up: it names its record.
    pub fn plug(&self, vcpu: u32) {
        let record = RECORDS_AT + u64::from(vcpu) * SLOT_BYTES;
        self.write(vcpu, Msr::KVM_SYSTEM_TIME, record | ENABLE);
    }

    /// Another hypervisor runs the guest from now on, with the counter at `tsc`.
    pub fn arrive(&self, surface: MsrSurface, tsc: Tsc) {
        self.surface.replace(surface);
        self.tsc.set(tsc);
    }

    /// The guest's memory.
    #[must_use]
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The hypervisor's registers and clock.
    #[must_use]
    pub const fn surface(&self) -> &RefCell<MsrSurface> {
        &self.surface
    }

    /// The counter as the guest saw it last.
    #[must_use]
    pub fn tsc(&self) -> Tsc {
        self.tsc.get()
    }

    /// How often the reference clock's reader fell back to the register.
    #[must_use]
    pub fn fallbacks(&self) -> u64 {
        self.fallbacks.get()
    }

    /// The guest runs on `vcpu`, and its counter stands at `tsc`, or where a wait has left it if that is later.
    pub fn run_on(&self, vcpu: u32, tsc: Tsc) {
        self.vcpu.set(vcpu);
        if self.tsc.get().is_before(tsc) {
            self.tsc.set(tsc);
        }
    }

    /// kvm-clock, as a kernel reads it: one record for all while the stable flag is set, else the own one under a guard.
    ///
    /// # Errors
    ///
    /// [`NoTime::Broken`] if neither gives a time.
    pub fn pvclock(&self) -> Result<Reading<Nanos>, NoTime> {
        let counter = || self.tsc.get();
        let shared =
            SharedRecord::new(&self.memory.slots[0].record, counter, StableBit::Advertised);
        match shared.read() {
            Err(PvclockError::NotStable { .. }) => {}
            read => return read.map_err(|_| NoTime::Broken),
        }
        let on_cpu = || {
            let cpu = usize::try_from(self.vcpu.get()).unwrap_or(usize::MAX);
            (self.tsc.get(), cpu)
        };
        let own = PerCpuRecords::new(&self.memory.slots, on_cpu);
        Guarded::new(own, &self.guard)
            .read()
            .map_err(|_| NoTime::Broken)
    }

    /// The hypervisor moved the guest's counter.
    pub fn set_tsc(&self, tsc: Tsc) {
        self.tsc.set(tsc);
    }

    /// Forgets what the guard over unstable records remembers, as a guest does when it is resumed.
    pub fn resumed(&self) {
        chronovisor_guest::guard::Guard::reset(&self.guard);
    }

    /// The reference page, or the counter register where the page is not usable.
    #[must_use]
    pub fn reference(&self) -> Reading<RefTime> {
        let clock = ReferenceClock::new(
            &self.memory.page,
            || self.tsc.get(),
            || self.counter().unwrap_or(RefTime::ZERO),
        );
        let seen = clock.observe();
        if seen.source == Source::Counter {
            self.fallbacks.set(self.fallbacks.get() + 1);
        }
        seen.reading
    }

    /// The reference counter register; waits as long as it asks for.
    ///
    /// # Errors
    ///
    /// [`NoTime::Broken`] if it faults, or asks to wait again and again.
    pub fn counter(&self) -> Result<RefTime, NoTime> {
        for _ in 0..MOST_WAITS {
            let mut surface = self.surface.borrow_mut();
            let (vcpu, tsc) = (VcpuIndex(self.vcpu.get()), self.tsc.get());
            let register = Msr::HV_TIME_REF_COUNT;
            match surface.access(vcpu, register, Access::Read, tsc, &self.memory) {
                Answer::Value(value) => return Ok(RefTime::from_100ns(value)),
                Answer::NotBefore(tsc) => self.tsc.set(tsc),
                _ => return Err(NoTime::Broken),
            }
        }
        Err(NoTime::Broken)
    }

    /// VMClock: TAI in 2^-64 s, and the page's own bound on its error in ns.
    ///
    /// # Errors
    ///
    /// [`NoTime::Unavailable`] if the page says that its clock is not usable.
    pub fn vmclock(&self) -> Result<(u128, Option<Nanos>), NoTime> {
        let page = VmclockPage::open(&self.memory.vmclock, || self.tsc.get());
        let seen = page.map_err(|_| NoTime::Unavailable)?.observe();
        match seen {
            Ok(seen) => Ok((seen.reading.time.as_frac(), seen.bounds.maximum)),
            Err(VmclockError::NoTime(TimeError::NotUsable { .. })) => Err(NoTime::Unavailable),
            Err(_) => Err(NoTime::Broken),
        }
    }

    /// The marker that changes whenever the counter may have jumped.
    #[must_use]
    pub fn disruption_marker(&self) -> u64 {
        self.memory.vmclock.load().disruption_marker
    }

    /// Whether the first vCPU's record says that the machine was stopped.
    #[must_use]
    pub fn was_stopped(&self) -> bool {
        let counter = || self.tsc.get();
        SharedRecord::new(&self.memory.slots[0].record, counter, StableBit::Advertised)
            .observe()
            .is_ok_and(|seen| seen.guest_was_stopped())
    }

    fn write(&self, vcpu: u32, register: Msr, value: u64) {
        let mut surface = self.surface.borrow_mut();
        // A write that is refused shows when the clock is read.
        let _ = surface.access(
            VcpuIndex(vcpu),
            register,
            Access::Write(value),
            self.tsc.get(),
            &self.memory,
        );
    }
}

/// The guest's reference clock as the clock of a scheduler.
#[derive(Clone, Debug)]
pub struct SchedulersReference(pub Rc<Guest>);

impl GuestClock for SchedulersReference {
    type Time = RefTime;
    type Error = Infallible;

    fn read(&self) -> Result<Reading<RefTime>, Infallible> {
        Ok(self.0.reference())
    }
}
