//! The clocks that are measured: each a name, a path, and a way to read it in a loop of its own.

use std::time::Instant;

use chronovisor_abi::cpuid::{self, Interface};
use chronovisor_abi::quantity::{Hertz, Nanos, RefTime, Tsc};
use chronovisor_abi::reference_tsc::{Parameters, ReferenceTscPage};
use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::counter::{self, Counter, LfenceRdtsc, Rdtscp, Unordered};
use chronovisor_guest::cpuid::{has_rdtscp, leaf};
use chronovisor_guest::guard::{CoarseGuard, GlobalGuard, Guarded};
use chronovisor_guest::linux::Clock as GuestsClock;
use chronovisor_guest::linux::clock::SourceKind;
use chronovisor_guest::linux::getcpu::GetcpuRdtsc;
use chronovisor_guest::linux::os_clock::ClockId;
use chronovisor_guest::linux::pages::{KernelPages, PvclockPage};
use chronovisor_guest::pvclock::{PvclockError, StableBit};
use chronovisor_guest::reference_tsc::ReferencePage;
use chronovisor_probe::read_cost::Unit;
use chronovisor_probe::timed_loop::{Loop, Reads};
use chronovisor_probe::trapped_counter::TrappedCounter;
use schemars::JsonSchema;
use serde::Serialize;

use super::document::Unavailable;

/// What happens behind one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Path {
    /// Instructions of the processor alone.
    Instruction,
    /// A page of shared memory and the counter.
    Page,
    /// The kernel's entry point in user space.
    Vdso,
    /// A system call.
    SystemCall,
    /// A trap into the kernel and a signal handler that emulates the instruction.
    Trap,
    /// An exit to the hypervisor, or the processor alone where there is none.
    Exit,
}

/// One clock of the table.
pub(super) struct Clock {
    pub(super) name: &'static str,
    pub(super) path: Path,
    pub(super) unit: Unit,
    /// Makes the reads, on the thread that will run them.
    make: Box<dyn Fn() -> Box<dyn Reads> + Send + Sync>,
}

impl Clock {
    fn new<R>(name: &'static str, path: Path, unit: Unit, read: R) -> Self
    where
        R: FnMut() -> u64 + Clone + Send + Sync + 'static,
    {
        Self {
            name,
            path,
            unit,
            make: Box::new(move || Box::new(Loop(read.clone()))),
        }
    }

    /// The reads of this clock for the calling thread.
    pub(super) fn reads(&self) -> Box<dyn Reads> {
        (self.make)()
    }
}

/// Clocks found so far, and those that are not to be had.
#[derive(Default)]
struct Found {
    clocks: Vec<Clock>,
    unavailable: Vec<Unavailable>,
}

impl Found {
    fn add(&mut self, clock: Clock) {
        self.clocks.push(clock);
    }

    /// A reader of pvclock records, if it gives a time now.
    fn add_record_reader<C>(&mut self, name: &'static str, clock: C)
    where
        C: GuestClock<Time = Nanos, Error = PvclockError> + Clone + Send + Sync + 'static,
    {
        match clock.read() {
            Ok(_) => self.add(Clock::new(name, Path::Page, Unit::Nanos, move || {
                clock.read().map_or(0, |reading| reading.time.as_ns())
            })),
            Err(why) => self.lack(&[name], &why.to_string()),
        }
    }

    fn lack(&mut self, names: &[&str], reason: &str) {
        self.unavailable
            .extend(names.iter().map(|name| Unavailable {
                clock: (*name).to_owned(),
                reason: reason.to_owned(),
            }));
    }
}

/// Every clock of the table, in its order, and what this machine lacks; `rate` is that of the counter.
pub(super) fn clocks(rate: Hertz) -> (Vec<Clock>, Vec<Unavailable>) {
    let mut found = Found::default();
    found.add(Clock::new("rdtsc", Path::Instruction, Unit::Ticks, || {
        counter::rdtsc().as_ticks()
    }));
    found.add(Clock::new(
        "lfence-rdtsc",
        Path::Instruction,
        Unit::Ticks,
        || counter::lfence_rdtsc().as_ticks(),
    ));
    if has_rdtscp() {
        found.add(Clock::new("rdtscp", Path::Instruction, Unit::Ticks, || {
            counter::rdtscp().0.as_ticks()
        }));
        pages(&mut found, Rdtscp, rate);
    } else {
        found.lack(&["rdtscp"], "the processor has no RDTSCP");
        pages(&mut found, LfenceRdtsc, rate);
    }
    operating_system(&mut found);
    this_projects_clock(&mut found);
    trap_and_exit(&mut found);
    (found.clocks, found.unavailable)
}

/// The clocks that read a page, with the ordered counter of this processor.
fn pages<C>(found: &mut Found, ordered: C, rate: Hertz)
where
    C: Counter + Copy + Send + Sync + 'static,
{
    let kernels = KernelPages::find()
        .map_err(|why| why.to_string())
        .and_then(|pages| pages.pvclock().map_err(|why| why.to_string()));
    match &kernels {
        Ok(page) => shared_record(found, page, ordered),
        Err(why) => found.lack(&["pvclock-page"], why),
    }
    match own_page(rate) {
        Ok(page) => {
            let in_order = ReferencePage::new(page, ordered);
            found.add(Clock::new(
                "reference-tsc-page",
                Path::Page,
                Unit::HundredNanos,
                move || in_order.read().map_or(0, |reading| reading.time.as_100ns()),
            ));
            let unordered = ReferencePage::new(page, Unordered);
            found.add(Clock::new(
                "reference-tsc-page-unordered",
                Path::Page,
                Unit::HundredNanos,
                move || {
                    unordered
                        .read()
                        .map_or(0, |reading| reading.time.as_100ns())
                },
            ));
        }
        Err(why) => found.lack(
            &["reference-tsc-page", "reference-tsc-page-unordered"],
            &why,
        ),
    }
    match &kernels {
        Ok(page) => own_records(found, page),
        Err(why) => found.lack(&OWN_RECORDS, why),
    }
}

/// The kernel's record of the boot CPU, which all CPUs may read while it is stable.
fn shared_record<C>(found: &mut Found, page: &PvclockPage, ordered: C)
where
    C: Counter + Copy + Send + Sync + 'static,
{
    found.add_record_reader("pvclock-page", page.reader(ordered, stable_bit()));
}

/// The clocks that read each CPU's own record.
const OWN_RECORDS: [&str; 4] = [
    "pvclock-per-cpu",
    "getcpu-rdtsc",
    "pvclock-guarded",
    "pvclock-guarded-coarse",
];

/// The kernel's records, each read on its own CPU; the guards are what such clocks need while the records are not stable.
fn own_records(found: &mut Found, page: &PvclockPage) {
    static GLOBAL: GlobalGuard = GlobalGuard::new();
    static COARSE: CoarseGuard = CoarseGuard::with_quantum_of_2_to_the::<10>();
    let by_getcpu = page.per_cpu_reader(GetcpuRdtsc);
    if has_rdtscp() {
        let by_rdtscp = page.per_cpu_reader(Rdtscp);
        found.add_record_reader("pvclock-per-cpu", by_rdtscp);
        found.add_record_reader("getcpu-rdtsc", by_getcpu);
        found.add_record_reader("pvclock-guarded", Guarded::new(by_rdtscp, &GLOBAL));
        found.add_record_reader("pvclock-guarded-coarse", Guarded::new(by_rdtscp, &COARSE));
    } else {
        found.lack(&["pvclock-per-cpu"], "the processor has no RDTSCP");
        found.add_record_reader("getcpu-rdtsc", by_getcpu);
        found.add_record_reader("pvclock-guarded", Guarded::new(by_getcpu, &GLOBAL));
        found.add_record_reader("pvclock-guarded-coarse", Guarded::new(by_getcpu, &COARSE));
    }
}

/// Whether KVM's leaves say that a record's stable flag means something.
fn stable_bit() -> StableBit {
    let advertised = cpuid::interfaces(leaf)
        .filter(|base| base.interface == Interface::Kvm)
        .any(|base| {
            leaf(base.base + cpuid::kvm::FEATURES).eax & cpuid::kvm::CLOCKSOURCE_STABLE != 0
        });
    if advertised {
        StableBit::Advertised
    } else {
        StableBit::NotAdvertised
    }
}

/// A reference TSC page that this program publishes for itself and keeps for its life.
fn own_page(rate: Hertz) -> Result<&'static ReferenceTscPage, String> {
    let line = Parameters::through(Tsc::from_ticks(0), RefTime::ZERO, rate)
        .map_err(|why| why.to_string())?;
    let page = Box::leak(Box::new(ReferenceTscPage::new()));
    page.mark();
    page.store(&line);
    page.publish(0);
    Ok(page)
}

fn operating_system(found: &mut Found) {
    let monotonic = ClockId::MONOTONIC;
    found.add(Clock::new(
        "vdso-monotonic",
        Path::Vdso,
        Unit::Nanos,
        move || monotonic.now().map_or(0, Nanos::as_ns),
    ));
    found.add(Clock::new(
        "syscall-monotonic",
        Path::SystemCall,
        Unit::Nanos,
        move || monotonic.now_by_system_call().map_or(0, Nanos::as_ns),
    ));
    let origin = Instant::now();
    found.add(Clock {
        name: "std-instant",
        path: Path::Vdso,
        unit: Unit::Nanos,
        make: Box::new(move || Box::new(StdInstant(origin))),
    });
}

/// [`GuestsClock`], on whatever source it has found.
fn this_projects_clock(found: &mut Found) {
    let clock = GuestsClock::of_process();
    let path = match clock.report().source {
        SourceKind::Pvclock | SourceKind::ReferencePage => Path::Page,
        SourceKind::KernelTsc => Path::Instruction,
        SourceKind::OperatingSystem => Path::Vdso,
    };
    found.add(Clock::new(
        "chronovisor-clock",
        path,
        Unit::Nanos,
        move || clock.now().as_ns(),
    ));
    found.add(Clock::new(
        "chronovisor-clock-ordered",
        path,
        Unit::Nanos,
        move || clock.now_ordered().as_ns(),
    ));
}

fn trap_and_exit(found: &mut Found) {
    match TrappedCounter::new() {
        Ok(_) => found.add(Clock {
            name: "trapped-rdtsc",
            path: Path::Trap,
            unit: Unit::Nanos,
            make: Box::new(|| match TrappedCounter::new() {
                Ok(counter) => Box::new(counter),
                // What just worked on one thread works on the next; if not, the row shows 0 readings.
                Err(_) => Box::new(Loop(|| 0)),
            }),
        }),
        Err(why) => found.lack(&["trapped-rdtsc"], &format!("PR_SET_TSC: {why}")),
    }
    found.add(Clock::new("cpuid-exit", Path::Exit, Unit::Nanos, || {
        u64::from(leaf(cpuid::HYPERVISOR_BASE).eax)
    }));
}

/// The standard library's clock. Its value has no number; while it is timed, comparing it with the origin uses both of its halves.
struct StdInstant(Instant);

impl Reads for StdInstant {
    fn time(&mut self, count: u32) -> chronovisor_abi::quantity::TscDelta {
        let origin = self.0;
        chronovisor_probe::timed_loop::time(count, || u64::from(Instant::now() > origin))
    }

    fn collect(&mut self, values: &mut [u64]) {
        for value in values {
            let elapsed = self.0.elapsed().as_nanos();
            *value = u64::try_from(elapsed).unwrap_or(u64::MAX);
        }
    }
}
