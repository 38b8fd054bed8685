//! Guests that misbehave: the VMM says what happened and ends; nothing hangs.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod kvm;

use std::sync::Arc;
use std::time::{Duration, Instant};

use chronovisor_host::partition_clock::Change;
use chronovisor_lab::clocks::Clocks;
use chronovisor_lab::contract::{Job, experiment, hostile, status};
use chronovisor_lab::experiment::GuestCounter;
use chronovisor_lab::machine::{Devices, End, Machine, NoDevices, Run, Setup};
use chronovisor_lab::pages::GuestPages;

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

/// The host's own clocks behind a guest that writes anything to any of their registers, and over their pages while the host
/// updates them.
#[test]
fn the_clocks_survive_a_guest_that_writes_anything() {
    let Some(backend) = kvm::open() else { return };
    for (how, seed) in [
        (hostile::MSRS, 1),
        (hostile::MSRS, 2),
        (hostile::PAGES, 3),
        (hostile::PAGES, 4),
    ] {
        let job = Job {
            argument: [how, seed, 400, 0, 0, 0, 0],
            ..Job::new(experiment::HOSTILE, 1)
        };
        let mut machine = Machine::new(&backend, &Setup::new(1), &job).unwrap();
        let counter = GuestCounter::of(&machine).unwrap();
        let pages = GuestPages::new(machine.memory().clone());
        let clocks = Arc::new(Clocks::start(1, counter.rate, counter.offset, pages).unwrap());
        let devices: Arc<dyn Devices> = Arc::<Clocks>::clone(&clocks);
        let running = machine.start(&devices);
        for percent in [99, 100, 98, 100] {
            let rate = counter.rate.checked_scale(percent, 100).unwrap();
            clocks.update(Change::Frequency(rate)).unwrap();
            clocks.update(Change::Rebase).unwrap();
        }
        let before = clocks.lock().clock().pvclock_at(clocks.guest_tsc());
        let run = machine.finish(running, PATIENCE).unwrap();
        assert!(run.is_done(), "{}", run.trouble());
        let after = clocks.lock().clock().pvclock_at(clocks.guest_tsc());
        assert!(
            after > before,
            "the partition's own time went on: {before:?} {after:?}"
        );
    }
}
