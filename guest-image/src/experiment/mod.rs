//! The experiments, each a ring-3 program. They find their job in shared memory.

mod clocks;
mod hostile;
mod timers;

use crate::contract::{experiment, status};
use crate::report;

/// Runs this CPU's part of the job.
pub extern "C" fn run() -> ! {
    let Some(job) = report::job() else {
        report::finish(status::BAD_JOB)
    };
    match job.experiment {
        experiment::HELLO => {}
        experiment::CLOCKS => clocks::run(&job),
        experiment::TIMERS => timers::run(&job),
        experiment::HOSTILE => hostile::run(&job),
        _ => report::finish(status::BAD_JOB),
    }
    report::finish(status::DONE)
}
