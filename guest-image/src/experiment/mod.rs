//! The experiments, each a ring-3 program. They find their job in shared memory.

mod agreement;
mod beside;
mod clocks;
mod conformance;
mod hostile;
mod migrate;
mod smp;
mod timers;

use core::sync::atomic::{AtomicU64, Ordering};

use crate::contract::{experiment, status};
use crate::{boot, report};

/// Runs this CPU's part of the job.
pub extern "C" fn run() -> ! {
    if boot::by_pvh() {
        report::finish(conformance());
    }
    let Some(job) = report::job() else {
        report::finish(status::BAD_JOB)
    };
    match job.experiment {
        experiment::HELLO => {}
        experiment::CLOCKS => clocks::run(&job),
        experiment::AGREEMENT => agreement::run(&job),
        experiment::SMP => smp::run(&job),
        experiment::MIGRATE => migrate::run(&job),
        experiment::BESIDE => beside::run(&job),
        experiment::CONFORMANCE => report::finish(conformance()),
        experiment::TIMERS => timers::run(&job),
        experiment::HOSTILE => hostile::run(&job),
        _ => report::finish(status::BAD_JOB),
    }
    report::finish(status::DONE)
}

fn conformance() -> u32 {
    if conformance::run() == 0 {
        status::DONE
    } else {
        status::NOT_CONFORMING
    }
}

/// All CPUs of the job arrive before any leaves.
pub fn barrier(vcpus: u64) {
    static ARRIVED: AtomicU64 = AtomicU64::new(0);
    if vcpus < 2 {
        return;
    }
    let turn = ARRIVED.fetch_add(1, Ordering::AcqRel) / vcpus;
    while ARRIVED.load(Ordering::Acquire) < (turn + 1) * vcpus {
        core::hint::spin_loop();
    }
}
