//! The clock pages of this guest and their registration.
//!
//! The reference TSC page is a static, so that it can be registered as the guest's first act, before anything reads a clock.

use core::convert::Infallible;
use core::sync::atomic::{AtomicU64, Ordering};

use chronovisor_abi::msr::{ENABLE, Msr};
use chronovisor_abi::pvclock::{Record, Slot, WallClockRecord};
use chronovisor_abi::quantity::{Reading, RefTime};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::counter::{Counter, LfenceRdtsc, Rdtscp};
use chronovisor_guest::guard::{CoarseGuard, GlobalGuard};
use chronovisor_guest::pvclock::{SharedRecord, StableBit};
use chronovisor_guest::reference_tsc::{ReferenceClock, ReferencePage};
use chronovisor_guest::sched_clock::SchedClock;

use crate::contract::{MAX_VCPUS, OUR_SYSTEM_TIME_MSR};
use crate::instruction::{Refused, rdmsr, try_wrmsr};
use crate::{cpu, gate};

/// The page that the reference TSC MSR names.
pub static REFERENCE: ReferenceTscPage = ReferenceTscPage::new();

/// A slot for each CPU. Atomics, since the hypervisor writes here: a plain static would be constant to the compiler.
#[repr(C, align(4096))]
struct Records([AtomicU64; MAX_VCPUS as usize * 8]);

impl Records {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_VCPUS as usize * 8])
    }
}

static KVM_RECORDS: Records = Records::new();
static OUR_RECORDS: Records = Records::new();

/// The guard that remembers every time given out, for all CPUs.
pub static GUARD: GlobalGuard = GlobalGuard::new();
/// The guard that remembers whole microseconds (1024 ns).
pub static COARSE_GUARD: CoarseGuard = CoarseGuard::with_quantum_of_2_to_the::<10>();

/// What became of the reference page: 0 not tried, 1 registered, 2 refused.
static REFERENCE_STATE: AtomicU64 = AtomicU64::new(0);
static FIRST_SCHED_NS: AtomicU64 = AtomicU64::new(u64::MAX);
static REFERENCE_AT_START: AtomicU64 = AtomicU64::new(0);

/// Registers the reference TSC page and starts the scheduler's clock on it; ring 0, the boot CPU's first act.
pub fn register_reference() {
    let done = try_wrmsr(
        Msr::HV_REFERENCE_TSC.0,
        (&raw const REFERENCE) as u64 | ENABLE,
    );
    REFERENCE_STATE.store(if done.is_ok() { 1 } else { 2 }, Ordering::Relaxed);
    if done.is_err() {
        return;
    }
    let clock = kernel::reference_clock();
    REFERENCE_AT_START.store(clock.observe().reading.time.as_100ns(), Ordering::Relaxed);
    if let Ok(sched) = SchedClock::start(clock)
        && let Ok(first) = sched.now()
    {
        FIRST_SCHED_NS.store(first.as_ns(), Ordering::Relaxed);
    }
}

/// The scheduler's clock at its first read (ns) and the reference time at its start (100 ns).
pub fn sched_clock_start() -> [u64; 2] {
    [
        FIRST_SCHED_NS.load(Ordering::Relaxed),
        REFERENCE_AT_START.load(Ordering::Relaxed),
    ]
}

/// Whether the hypervisor took the reference page.
pub fn has_reference() -> bool {
    REFERENCE_STATE.load(Ordering::Relaxed) == 1
}

fn slot(records: &'static Records, cpu: u64) -> &'static Slot {
    // SAFETY: the array is static, aligned and has a slot for each CPU; a slot is made of atomics and valid for any bits.
    unsafe { &*(&raw const *records).cast::<Slot>().add(cpu as usize) }
}

/// Registers this CPU's pvclock records; ring 0. Says what became of KVM's and of ours.
pub fn register_pvclock() -> [Result<(), Refused>; 2] {
    let cpu = cpu::this().index.load(Ordering::Relaxed);
    [
        (Msr::KVM_SYSTEM_TIME.0, &KVM_RECORDS),
        (OUR_SYSTEM_TIME_MSR, &OUR_RECORDS),
    ]
    .map(|(msr, records)| try_wrmsr(msr, core::ptr::from_ref(slot(records, cpu)) as u64 | ENABLE))
}

/// Registers this CPU's record with KVM alone; ring 0.
pub fn register_kvm_pvclock() -> Result<(), Refused> {
    let cpu = cpu::this().index.load(Ordering::Relaxed);
    try_wrmsr(
        Msr::KVM_SYSTEM_TIME.0,
        core::ptr::from_ref(slot(&KVM_RECORDS, cpu)) as u64 | ENABLE,
    )
}

/// Has KVM fill the wall-clock record; ring 0. The wall time at the guest's 0, in s, if KVM did.
pub fn register_wall_clock() -> Option<u64> {
    static WALL: Records = Records::new();
    // SAFETY: the array is static, aligned and larger than the record, which is made of atomics and valid for any bits.
    let record = unsafe { &*(&raw const WALL).cast::<WallClockRecord>() };
    try_wrmsr(Msr::KVM_WALL_CLOCK.0, (&raw const WALL) as u64).ok()?;
    record.read(100).ok().map(|wall| u64::from(wall.sec))
}

/// KVM's own record of CPU 0.
pub fn kvm_record() -> &'static Record {
    &slot(&KVM_RECORDS, 0).record
}

/// The record of CPU 0 that our host crate fills.
pub fn our_record() -> &'static Record {
    &slot(&OUR_RECORDS, 0).record
}

/// Readers for ring 3.
pub mod user {
    use super::*;

    /// The reference page.
    pub fn reference() -> ReferencePage<'static, Rdtscp> {
        ReferencePage::new(&REFERENCE, Rdtscp)
    }

    /// The reference page, or the counter MSR while the page is not valid.
    pub fn reference_clock() -> ReferenceClock<'static, Rdtscp, fn() -> RefTime> {
        ReferenceClock::new(&REFERENCE, Rdtscp, counter_msr)
    }

    /// A pvclock record.
    pub fn pvclock(record: &'static Record) -> SharedRecord<'static, Rdtscp> {
        SharedRecord::new(record, Rdtscp, StableBit::Advertised)
    }

    /// The reference counter MSR as a clock of its own.
    #[derive(Clone, Copy)]
    pub struct CounterMsr;

    impl GuestClock for CounterMsr {
        type Time = RefTime;
        type Error = Infallible;

        fn read(&self) -> Result<Reading<RefTime>, Infallible> {
            let tsc = Rdtscp.read();
            Ok(Reading::new(counter_msr(), tsc))
        }
    }

    /// The reference counter MSR, through the call gate.
    pub fn counter_msr() -> RefTime {
        RefTime::from_100ns(gate::rdmsr(Msr::HV_TIME_REF_COUNT.0))
    }
}

/// Readers for ring 0, where a software-only KVM has no `rdtscp`.
pub mod kernel {
    use super::*;

    /// The reference page.
    pub fn reference() -> ReferencePage<'static, LfenceRdtsc> {
        ReferencePage::new(&REFERENCE, LfenceRdtsc)
    }

    /// The reference page, or the counter MSR while the page is not valid.
    pub fn reference_clock() -> ReferenceClock<'static, LfenceRdtsc, fn() -> RefTime> {
        ReferenceClock::new(&REFERENCE, LfenceRdtsc, counter_msr)
    }

    /// A pvclock record.
    pub fn pvclock(record: &'static Record) -> SharedRecord<'static, LfenceRdtsc> {
        SharedRecord::new(record, LfenceRdtsc, StableBit::Advertised)
    }

    /// The reference counter MSR as a clock of its own.
    #[derive(Clone, Copy)]
    pub struct CounterMsr;

    impl GuestClock for CounterMsr {
        type Time = RefTime;
        type Error = Infallible;

        fn read(&self) -> Result<Reading<RefTime>, Infallible> {
            let tsc = LfenceRdtsc.read();
            Ok(Reading::new(counter_msr(), tsc))
        }
    }

    /// The reference counter MSR.
    pub fn counter_msr() -> RefTime {
        RefTime::from_100ns(rdmsr(Msr::HV_TIME_REF_COUNT.0))
    }
}
