//! The clock pages of this guest and their registration.
//!
//! The reference TSC page is a static, so that it can be registered as the guest's first act, before anything reads a clock.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::convert::Infallible;
use core::sync::atomic::{AtomicU64, Ordering};

use chronovisor_abi::msr::{ENABLE, Msr};
use chronovisor_abi::pvclock::{Record, Slot, WallClockRecord};
use chronovisor_abi::quantity::{Nanos, Reading, RefTime};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::counter::{Counter, LfenceRdtsc, Rdtscp};
use chronovisor_guest::guard::{CoarseGuard, GlobalGuard};
use chronovisor_guest::pvclock::{SharedRecord, StableBit};
use chronovisor_guest::reference_tsc::{ReferenceClock, ReferencePage};
use chronovisor_guest::sched_clock::SchedClock;

use crate::contract::{MAX_VCPUS, OUR_SYSTEM_TIME_MSR};
use crate::instruction::{Refused, rdmsr, try_rdmsr, try_wrmsr};
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
/// Nothing yet: no clock gives this out within 584 years.
const NO_TIME: u64 = u64::MAX;
static FIRST_SCHED_NS: AtomicU64 = AtomicU64::new(NO_TIME);

/// Registers the reference TSC page and starts the scheduler's clock on it; ring 0, the boot CPU's first act.
pub fn register_reference() {
    let done = try_wrmsr(
        Msr::HV_REFERENCE_TSC.0,
        (&raw const REFERENCE) as u64 | ENABLE,
    );
    REFERENCE_STATE.store(if done.is_ok() { 1 } else { 2 }, Ordering::Relaxed);
    // The clock falls back on the counter MSR while the page is not valid, and that may be missing: a VMM need not offer both.
    let readable =
        kernel::reference().read().is_ok() || try_rdmsr(Msr::HV_TIME_REF_COUNT.0).is_ok();
    if done.is_err() || !readable {
        return;
    }
    if let Ok(sched) = SchedClock::start(kernel::reference_clock())
        && let Ok(first) = sched.now()
    {
        FIRST_SCHED_NS.store(first.as_ns(), Ordering::Relaxed);
    }
}

/// The scheduler's clock at its first read; none if no reference page was to be had.
pub fn sched_clock_first() -> Option<Nanos> {
    match FIRST_SCHED_NS.load(Ordering::Relaxed) {
        NO_TIME => None,
        first => Some(Nanos::from_ns(first)),
    }
}

/// Whether the hypervisor took the reference page.
pub fn has_reference() -> bool {
    REFERENCE_STATE.load(Ordering::Relaxed) == 1
}

/// The hypercall page: code that the hypervisor brings.
#[repr(C, align(4096))]
struct HypercallPage(UnsafeCell<[u8; 4096]>);

// SAFETY: this program never writes to it, and reads it by volatile loads and by running it.
unsafe impl Sync for HypercallPage {}

static HYPERCALLS: HypercallPage = HypercallPage(UnsafeCell::new([0; 4096]));

/// Says who we are and enables the hypercall page; ring 0. Every CPU may do it: the page is the partition's.
pub fn enable_hypercalls() -> Result<(), Refused> {
    // Bit 63: an operating system with open sources, of a kind that has no number.
    const OPEN_SOURCE: u64 = 1 << 63;
    // The page stays off as long as the identity is 0.
    try_wrmsr(Msr::HV_GUEST_OS_ID.0, OPEN_SOURCE | 1)?;
    try_wrmsr(Msr::HV_HYPERCALL.0, (&raw const HYPERCALLS) as u64 | ENABLE)
}

/// Whether there is code in the hypercall page. Zeros would be an `add` to wherever RAX points.
pub fn has_hypercalls() -> bool {
    // SAFETY: a byte of the static; volatile, since the hypervisor writes it.
    let first = unsafe { HYPERCALLS.0.get().cast::<u8>().read_volatile() };
    first != 0
}

/// The time in 100 ns by hypercall, in either ring; [`has_hypercalls`] must have said yes.
#[inline(always)]
pub fn hypercall_time() -> u64 {
    let time: u64;
    // SAFETY: the page holds code that returns; a hypercall may change the registers that are named here, and no others.
    unsafe {
        asm!(
            "call {page}",
            page = sym HYPERCALLS,
            inout("rax") 0_u64 => time,
            out("rcx") _, out("rdx") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        )
    };
    time
}

/// A value that CPU 0 makes and every CPU reads.
struct Once<T> {
    made: AtomicU64,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: written by CPU 0 alone and once, before `made` is set; only shared references are given out after that.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    const fn new() -> Self {
        Self {
            made: AtomicU64::new(0),
            value: UnsafeCell::new(None),
        }
    }

    /// The value. CPU 0 makes it at its first call; the others wait for that.
    fn get(&self, make: impl FnOnce() -> T) -> Option<&T> {
        let first = cpu::this().index.load(Ordering::Relaxed) == 0;
        if first && self.made.load(Ordering::Relaxed) == 0 {
            // SAFETY: CPU 0 only, and no other looks at the value before `made` is set.
            unsafe { *self.value.get() = Some(make()) };
            // Release: who sees the flag sees the value.
            self.made.store(1, Ordering::Release);
        }
        while self.made.load(Ordering::Acquire) == 0 {
            core::hint::spin_loop();
        }
        // SAFETY: nobody writes any more.
        unsafe { (*self.value.get()).as_ref() }
    }
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

    /// What reads the reference page or else the counter MSR.
    pub type ReferenceReader = ReferenceClock<'static, Rdtscp, fn() -> RefTime>;

    /// The reference page.
    pub fn reference() -> ReferencePage<'static, Rdtscp> {
        ReferencePage::new(&REFERENCE, Rdtscp)
    }

    /// The reference page, or the counter MSR while the page is not valid.
    pub fn reference_clock() -> ReferenceReader {
        ReferenceClock::new(&REFERENCE, Rdtscp, counter_msr)
    }

    /// The scheduler's clock of the whole machine: started once, by CPU 0, and read by all.
    pub fn sched_clock() -> Option<&'static SchedClock<ReferenceReader>> {
        static SCHED: Once<SchedClock<ReferenceReader>> = Once::new();
        SCHED.get(|| {
            let Ok(started) = SchedClock::start(reference_clock());
            started
        })
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
