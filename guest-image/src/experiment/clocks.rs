//! What one read of each clock costs.

use core::arch::asm;

use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Nanos, Reading};
use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::counter::{lfence_rdtsc, rdtsc, rdtscp};
use chronovisor_guest::guard::Guarded;
use chronovisor_guest::pvclock::PvclockError;
use chronovisor_guest::sched_clock::SchedClock;

use crate::contract::{Job, NULL_MSR, record, row, void};
use crate::experiment::barrier;
use crate::gate::in_ring0;
use crate::loops::{self, Plan, Rounds};
use crate::pages::{self, kernel, user};
use crate::{cpu, gate, instruction, report};

/// Runs the rows of the job, all CPUs at once.
pub fn run(job: &Job) {
    let taken = in_ring0(|| pages::register_pvclock().map(|result| result.is_ok()));
    let rows = Rows { job };
    rows.both(row::RDTSC, || rdtsc().as_ticks());
    rows.both(row::LFENCE_RDTSC, || lfence_rdtsc().as_ticks());
    rows.both(row::RDTSCP, || rdtscp().0.as_ticks());
    rows.exits(
        row::NULL_MSR_EXIT,
        || gate::rdmsr(NULL_MSR),
        || instruction::rdmsr(NULL_MSR),
    );
    rows.user(row::TRAP_ROUND_TRIP, job.reads_exit, || {
        gate::nothing();
        0
    });
    let cpuid = || u64::from(instruction::cpuid(0, 0)[0]);
    rows.exits(row::CPUID, cpuid, cpuid);
    hypercall_page(&rows);
    if cpu::this()
        .index
        .load(core::sync::atomic::Ordering::Relaxed)
        == 0
        && let Some(first) = pages::sched_clock_first()
    {
        report::push(record::SCHED_CLOCK_START, 0, [first.as_ns(), 0, 0]);
    }
    reference(&rows);
    sched_clock(&rows);
    hypercall(&rows);
    pvclock(&rows, taken);
    trapped(&rows);
}

fn reference(rows: &Rows<'_>) {
    if !pages::has_reference() {
        for row in [row::REFERENCE_TSC_PAGE, row::REFERENCE_COUNTER_MSR] {
            rows.void(row, void::REFUSED, 0);
        }
        return;
    }
    if user::reference().read().is_err() {
        rows.void(
            row::REFERENCE_TSC_PAGE,
            void::NOT_VALID,
            u64::from(pages::REFERENCE.sequence()),
        );
    } else {
        // Zero if the page turned invalid meanwhile: the agreement run would notice.
        rows.user(row::REFERENCE_TSC_PAGE, rows.job.reads_user, || {
            user::reference()
                .read()
                .map_or(0, |reading| reading.time.as_100ns())
        });
        rows.kernel(row::REFERENCE_TSC_PAGE, rows.job.reads_kernel, || {
            kernel::reference()
                .read()
                .map_or(0, |reading| reading.time.as_100ns())
        });
    }
    let msr = Msr::HV_TIME_REF_COUNT.0;
    rows.exits(
        row::REFERENCE_COUNTER_MSR,
        || gate::rdmsr(msr),
        || instruction::rdmsr(msr),
    );
}

fn sched_clock(rows: &Rows<'_>) {
    if !pages::has_reference() {
        for row in [row::SCHED_CLOCK_PAGE, row::SCHED_CLOCK_MSR] {
            rows.void(row, void::REFUSED, 0);
        }
        return;
    }
    let ns = |now: Result<Nanos, core::convert::Infallible>| now.map_or(0, Nanos::as_ns);
    {
        let Ok(sched) = SchedClock::start(user::reference_clock());
        rows.user(row::SCHED_CLOCK_PAGE, rows.job.reads_user, || {
            ns(sched.now())
        });
    }
    {
        let Ok(sched) = SchedClock::start(user::CounterMsr);
        rows.user(
            row::SCHED_CLOCK_MSR,
            rows.job.reads_exit,
            || ns(sched.now()),
        );
    }
    if rows.asked(32 + row::SCHED_CLOCK_PAGE) || rows.asked(32 + row::SCHED_CLOCK_MSR) {
        let page = in_ring0(|| SchedClock::start(kernel::reference_clock()).ok());
        if let Some(sched) = page {
            rows.kernel(row::SCHED_CLOCK_PAGE, rows.job.reads_kernel, || {
                ns(sched.now())
            });
        }
        let msr = in_ring0(|| SchedClock::start(kernel::CounterMsr).ok());
        if let Some(sched) = msr {
            rows.kernel(
                row::SCHED_CLOCK_MSR,
                rows.job.reads_exit,
                || ns(sched.now()),
            );
        }
    }
}

/// The hypercall page, called as a guest calls it: what its code does is the VMM's affair.
fn hypercall_page(rows: &Rows<'_>) {
    let row = row::HYPERCALL_TIME;
    if !rows.asked(row) && !rows.asked(32 + row) {
        return;
    }
    let enabled = in_ring0(|| Some(pages::enable_hypercalls().is_ok())) == Some(true);
    if !enabled {
        rows.void(row, void::REFUSED, 0);
    } else if !pages::has_hypercalls() || pages::hypercall_time() == 0 {
        rows.void(row, void::NOT_VALID, 0);
    } else {
        rows.exits(row, pages::hypercall_time, pages::hypercall_time);
    }
}

/// KVM's clock pairing, by the instruction that the host says is right here (argument 0: 1 VMCALL, 2 VMMCALL).
fn hypercall(rows: &Rows<'_>) {
    let row = row::HYPERCALL_CLOCK_PAIRING;
    if !rows.asked(row) && !rows.asked(32 + row) {
        return;
    }
    let intel = rows.job.argument[0] == 1;
    report::step(32 + row);
    let result = in_ring0(|| instruction::clock_pairing(intel));
    if result != 0 {
        rows.void(row, void::HYPERCALL_FAILED, result);
        return;
    }
    rows.exits(
        row,
        || in_ring0(|| instruction::clock_pairing(intel)),
        || instruction::clock_pairing(intel),
    );
}

fn pvclock(rows: &Rows<'_>, taken: [bool; 2]) {
    let records = [
        (row::PVCLOCK_PAGE, pages::kvm_record()),
        (row::PVCLOCK_PAGE_OURS, pages::our_record()),
    ];
    for ((row, record), taken) in records.into_iter().zip(taken) {
        if !taken {
            rows.void(row, void::REFUSED, 0);
        } else if user::pvclock(record).read().is_err() {
            rows.void(row, void::NOT_VALID, u64::from(record.load().flags.bits()));
        } else {
            rows.user(row, rows.job.reads_user, || {
                user::pvclock(record)
                    .read()
                    .map_or(0, |reading| reading.time.as_ns())
            });
            rows.kernel(row, rows.job.reads_kernel, || {
                kernel::pvclock(record)
                    .read()
                    .map_or(0, |reading| reading.time.as_ns())
            });
        }
    }
    if taken[1] {
        guarded(rows);
    } else {
        for row in [row::PVCLOCK_GUARDED, row::PVCLOCK_COARSE_GUARD] {
            rows.void(row, void::REFUSED, 0);
        }
    }
}

fn guarded(rows: &Rows<'_>) {
    let (reads_user, reads_kernel) = (rows.job.reads_user, rows.job.reads_kernel);
    let record = pages::our_record();
    let ns =
        |read: Result<Reading<Nanos>, PvclockError>| read.map_or(0, |reading| reading.time.as_ns());
    let global = Guarded::new(user::pvclock(record), &pages::GUARD);
    rows.user(row::PVCLOCK_GUARDED, reads_user, || ns(global.read()));
    let coarse = Guarded::new(user::pvclock(record), &pages::COARSE_GUARD);
    rows.user(row::PVCLOCK_COARSE_GUARD, reads_user, || ns(coarse.read()));
    let global = Guarded::new(kernel::pvclock(record), &pages::GUARD);
    rows.kernel(row::PVCLOCK_GUARDED, reads_kernel, || ns(global.read()));
    let coarse = Guarded::new(kernel::pvclock(record), &pages::COARSE_GUARD);
    rows.kernel(
        row::PVCLOCK_COARSE_GUARD,
        reads_kernel,
        || ns(coarse.read()),
    );
}

/// CR4.TSD: the counter is the kernel's only, and `rdtsc` in ring 3 traps to the handler, which emulates it.
fn trapped(rows: &Rows<'_>) {
    const TSD: u64 = 1 << 2;
    let row = row::TRAPPED_RDTSC;
    if !rows.asked(row) {
        return;
    }
    let traps = || {
        cpu::this()
            .emulated_rdtsc
            .load(core::sync::atomic::Ordering::Relaxed)
    };
    let toggle = || {
        in_ring0(|| {
            let cr4: u64;
            // SAFETY: ring 0; TSD decides on the counter's instructions in ring 3 alone.
            unsafe {
                asm!("mov {}, cr4", out(reg) cr4, options(nomem, nostack, preserves_flags));
                asm!("mov cr4, {}", in(reg) cr4 ^ TSD, options(nostack, preserves_flags));
            }
        });
    };
    report::step(row);
    toggle();
    let before = traps();
    let probe = rdtsc().as_ticks();
    loops::keep(probe);
    let trapped = traps() > before;
    barrier(rows.job.vcpus);
    if trapped {
        // Brackets around the loop would trap too, or go through the gate and put its cost into the figure.
        let plan = rows.plan(rows.job.reads_exit);
        let found = loops::time_by_values(plan, || rdtsc().as_ticks());
        toggle();
        rows.report(row, 3, plan, found);
    } else {
        toggle();
        rows.void(row, void::NOT_TRAPPED, 0);
    }
}

struct Rows<'a> {
    job: &'a Job,
}

impl Rows<'_> {
    fn asked(&self, row: u32) -> bool {
        self.job.rows >> row & 1 == 1
    }

    fn plan(&self, reads: u64) -> Plan {
        Plan::new(self.job.rounds, reads, self.job.vcpus)
    }

    fn report(&self, row: u32, ring: u32, plan: Plan, found: Rounds) {
        report::push(row, ring, [found.best, plan.reads(), found.median]);
        if !found.at_once {
            report::push(record::ROW_IN_TURNS, ring, [u64::from(row), 0, 0]);
        }
    }

    fn void(&self, row: u32, reason: u64, detail: u64) {
        if self.asked(row) || self.asked(32 + row) {
            report::push(record::ROW_VOID, 3, [u64::from(row), reason, detail]);
        }
    }

    /// A read without an exit, in both rings.
    #[inline(always)]
    fn both(&self, row: u32, read: impl Fn() -> u64 + Copy) {
        self.user(row, self.job.reads_user, read);
        self.kernel(row, self.job.reads_kernel, read);
    }

    /// A read that exits or traps, as each ring does it.
    #[inline(always)]
    fn exits(&self, row: u32, in_user: impl Fn() -> u64, in_kernel: impl Fn() -> u64) {
        self.user(row, self.job.reads_exit, in_user);
        self.kernel(row, self.job.reads_exit, in_kernel);
    }

    #[inline(always)]
    fn user(&self, row: u32, reads: u64, read: impl Fn() -> u64) {
        if self.asked(row) {
            report::step(row);
            barrier(self.job.vcpus);
            let plan = self.plan(reads);
            self.report(row, 3, plan, loops::time(plan, read));
        }
    }

    #[inline(always)]
    fn kernel(&self, row: u32, reads: u64, read: impl Fn() -> u64) {
        if self.asked(32 + row) {
            report::step(32 + row);
            barrier(self.job.vcpus);
            let plan = self.plan(reads);
            self.report(row, 0, plan, in_ring0(|| loops::time(plan, read)));
        }
    }
}
