//! Guests that misbehave: the VMM says what happened and ends; nothing hangs.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod kvm;

use std::sync::Arc;
use std::time::{Duration, Instant};

use chronovisor_lab::contract::{Job, experiment, hostile, status};
use chronovisor_lab::machine::{Devices, End, Machine, NoDevices, Run, Setup};

fn run(how: u64, seed: u64, steps: u64, patience: Duration) -> Option<Run> {
    let backend = kvm::open()?;
    let job = Job {
        argument: [how, seed, steps, 0, 0, 0, 0],
        ..Job::new(experiment::HOSTILE, 1)
    };
    let mut machine = Machine::new(&backend, &Setup::new(1), &job).unwrap();
    let devices: Arc<dyn Devices> = Arc::new(NoDevices);
    Some(machine.run(&devices, patience).unwrap())
}

const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn a_guest_that_never_exits_is_ended_and_its_registers_are_shown() {
    let start = Instant::now();
    let Some(run) = run(hostile::SPIN, 0, 0, Duration::from_millis(200)) else {
        return;
    };
    assert!(run.timed_out);
    assert_eq!(run.ended[0].end, End::Stopped);
    let trouble = run.trouble();
    assert!(
        trouble.contains("watchdog") && trouble.contains("rip 0x1"),
        "{trouble}"
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_triple_fault_is_named() {
    let Some(run) = run(hostile::TRIPLE_FAULT, 0, 0, PATIENCE) else {
        return;
    };
    assert!(!run.is_done() && !run.timed_out, "{}", run.trouble());
    assert!(
        matches!(run.ended[0].end, End::TripleFault | End::InternalError),
        "{}",
        run.trouble()
    );
}

#[test]
fn an_exception_without_a_handler_reaches_the_serial_port() {
    let Some(run) = run(hostile::INVALID, 0, 0, PATIENCE) else {
        return;
    };
    assert_eq!(run.ended[0].end, End::Done(status::FAULT));
    assert!(run.serial.contains("exception 6"), "{}", run.serial);
}

#[test]
fn refused_msrs_and_unknown_ports_end_in_nothing() {
    for (how, steps) in [(hostile::MSRS, 300), (hostile::PORTS, 300)] {
        let Some(run) = run(how, 7, steps, PATIENCE) else {
            return;
        };
        assert!(run.is_done(), "{}", run.trouble());
    }
}
