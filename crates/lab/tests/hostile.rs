//! Guests that misbehave: the VMM says what happened and ends; nothing hangs.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod kvm;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chronovisor_abi::quantity::Hertz;
use chronovisor_host::apic::LostTicks;
use chronovisor_host::partition_clock::Change;
use chronovisor_lab::clocks::Clocks;
use chronovisor_lab::contract::{Job, experiment, hostile, record, status};
use chronovisor_lab::experiment::GuestCounter;
use chronovisor_lab::experiment::timers::TimerDevices;
use chronovisor_lab::machine::{Apic, Devices, End, Machine, NoDevices, Owner, Run, Setup};
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
    for (how, steps) in [(hostile::MSRS, 2000), (hostile::PORTS, 300)] {
        let Some(run) = run(how, 7, steps, PATIENCE) else {
            return;
        };
        assert!(run.is_done(), "{}", run.trouble());
    }
}

/// Updates `clocks` again and again while `guest` runs, and says how often.
fn updating<T>(clocks: &Clocks, rate: Hertz, guest: impl FnOnce() -> T) -> (T, u64) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let updates = scope.spawn(|| {
            let mut updates = 0_u64;
            while !over.load(Ordering::Acquire) {
                let rate = rate.checked_scale(98 + updates % 3, 100).unwrap();
                clocks.update(Change::Frequency(rate)).unwrap();
                clocks.update(Change::Rebase).unwrap();
                updates += 1;
                // The guest must get at its registers too: the lock is not a fair one.
                std::thread::sleep(Duration::from_micros(200));
            }
            updates
        });
        let value = guest();
        over.store(true, Ordering::Release);
        (value, updates.join().unwrap())
    })
}

/// Every vCPU's accesses were taken in part and refused in part: they met registers, and not only those. The interrupts that came of
/// them.
fn reached(machine: &Machine, seed: u64) -> u64 {
    let mut all = 0;
    for report in machine.reports().unwrap() {
        let found = report
            .records
            .iter()
            .find(|one| one.kind == record::HOSTILE_ACCESSES);
        let [accepted, refused, interrupts] = found.unwrap().values;
        assert!(
            accepted > 100 && refused > 100,
            "seed {seed}: {accepted} accepted, {refused} refused"
        );
        all += interrupts;
    }
    all
}

/// The host's own clocks behind guests that write anything to any of their registers, with addresses that lie in memory, at
/// its end and outside, and over their pages; from one vCPU and from two, while the host updates them to the end.
#[test]
fn the_clocks_survive_a_guest_that_writes_anything() {
    let Some(backend) = kvm::open() else { return };
    for (how, seed, vcpus) in [
        (hostile::MSRS, 1, 1),
        (hostile::MSRS, 2, 2),
        (hostile::PAGES, 3, 1),
        (hostile::PAGES, 4, 2),
    ] {
        let job = Job {
            argument: [how, seed, 2000, 0, 0, 0, 0],
            ..Job::new(experiment::HOSTILE, u64::from(vcpus))
        };
        let setup = Setup {
            kvm_clock_msrs: Owner::Ours,
            ..Setup::new(vcpus)
        };
        let mut machine = Machine::new(&backend, &setup, &job).unwrap();
        let counter = GuestCounter::of(&machine).unwrap();
        let pages = GuestPages::new(machine.memory().clone());
        let clocks = Arc::new(Clocks::start(vcpus, counter, pages).unwrap());
        let before = clocks.lock().clock().pvclock_at(clocks.guest_tsc());
        let devices: Arc<dyn Devices> = Arc::<Clocks>::clone(&clocks);
        let (run, updates) = updating(&clocks, counter.rate, || {
            machine.run(&devices, PATIENCE).unwrap()
        });
        assert!(run.is_done(), "seed {seed}: {}", run.trouble());
        assert!(updates > 10, "seed {seed}: only {updates} updates");
        if how == hostile::MSRS {
            reached(&machine, seed);
        }
        let after = clocks.lock().clock().pvclock_at(clocks.guest_tsc());
        assert!(
            after > before,
            "the partition's own time went on: {before:?} {after:?}"
        );
    }
}

/// The same with APICs of ours, whose timers and the synthetic ones the guests set to anything.
#[test]
fn the_timers_survive_a_guest_that_writes_anything() {
    let Some(backend) = kvm::open() else { return };
    let mut interrupts = 0;
    for (seed, vcpus) in [(5, 1), (6, 2), (7, 2), (8, 2)] {
        let job = Job {
            argument: [hostile::MSRS, seed, 2000, 0, 0, 0, 0],
            ..Job::new(experiment::HOSTILE, u64::from(vcpus))
        };
        let setup = Setup {
            apic: Apic::UserSpace,
            kvm_clock_msrs: Owner::Ours,
            ..Setup::new(vcpus)
        };
        let mut machine = Machine::new(&backend, &setup, &job).unwrap();
        let counter = GuestCounter::of(&machine).unwrap();
        let timers =
            TimerDevices::new(&machine, counter, Apic::UserSpace, LostTicks::Merge).unwrap();
        let timers = Arc::new(timers);
        let devices: Arc<dyn Devices> = Arc::<TimerDevices>::clone(&timers);
        let (run, updates) = updating(timers.clocks(), counter.rate, || {
            machine.run(&devices, PATIENCE).unwrap()
        });
        assert!(run.is_done(), "seed {seed}: {}", run.trouble());
        assert!(updates > 10, "seed {seed}: only {updates} updates");
        interrupts += reached(&machine, seed);
    }
    assert!(interrupts > 100, "only {interrupts} interrupts");
}
