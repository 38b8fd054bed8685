//! The VMM itself, with guests of a few instructions: what it owes to its memory, its threads and a CPU that changes its mind.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod kvm;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use chronovisor_lab::contract::{
    CHECKPOINT_PORT, DONE_PORT, Job, MEMORY_BYTES, experiment, hostile, status,
};
use chronovisor_lab::machine::{Devices, Machine, NoDevices, Refused, Setup};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

/// Hyper-V's task priority register, which the VMM answers.
const TASK_PRIORITY: u32 = 0x4000_0072;
const VECTOR: u8 = 0x40;

/// A tick that is pending until the guest raises its priority above it.
#[derive(Default)]
struct OneTick {
    masked: AtomicBool,
    checkpoint: AtomicBool,
    /// How often the VMM asked, which is once for each time that it lets the guest run.
    turns: AtomicU64,
}

impl Devices for OneTick {
    fn read_msr(&self, _vcpu: u32, _index: u32) -> Result<u64, Refused> {
        Err(Refused)
    }

    fn write_msr(&self, _vcpu: u32, index: u32, _value: u64) -> Result<(), Refused> {
        assert_eq!(index, TASK_PRIORITY);
        self.masked.store(true, Ordering::Release);
        Ok(())
    }

    fn time_call(&self, _vcpu: u32) -> u64 {
        0
    }

    fn checkpoint(&self, _vcpu: u32) {
        self.checkpoint.store(true, Ordering::Release);
    }

    fn pending_interrupt(&self, _vcpu: u32) -> Option<u8> {
        self.turns.fetch_add(1, Ordering::Relaxed);
        (!self.masked.load(Ordering::Acquire)).then_some(VECTOR)
    }
}

/// A machine with one vCPU that runs `code` and nothing else.
fn machine(code: &[u8]) -> Option<Machine> {
    let backend = kvm::open()?;
    let job = Job::new(experiment::HOSTILE, 1);
    let machine = Machine::new(&backend, &Setup::new(1), &job).unwrap();
    let entry = machine.vcpus()[0].get_regs().unwrap().rip;
    machine
        .memory()
        .write_slice(code, GuestAddress(entry))
        .unwrap();
    Some(machine)
}

fn out(port: u16, value: u32) -> Vec<u8> {
    let mut code = vec![0xB8]; // mov eax, value
    code.extend(value.to_le_bytes());
    code.push(0xBA); // mov edx, port
    code.extend(u32::from(port).to_le_bytes());
    code.push(0xEF); // out dx, eax
    code
}

#[test]
fn a_tick_that_is_masked_while_the_guest_cannot_take_it_does_not_keep_the_guest_out() {
    // Interrupts are off at the first instruction, with the tick pending: the VMM asks KVM to tell when the guest can take it.
    let mut code = vec![0xB9]; // mov ecx, TASK_PRIORITY
    code.extend(TASK_PRIORITY.to_le_bytes());
    code.extend([0xB8, 0xF0, 0, 0, 0]); // mov eax, 0xF0
    code.extend([0x31, 0xD2]); // xor edx, edx
    code.extend([0x0F, 0x30]); // wrmsr
    code.extend([0xFB, 0x90]); // sti; nop
    code.extend([0xB9, 0x00, 0x10, 0, 0]); // mov ecx, 4096
    code.extend([0xE2, 0xFE]); // loop to itself
    code.extend(out(CHECKPOINT_PORT, 0));
    code.extend(out(DONE_PORT, status::DONE));
    let Some(mut machine) = machine(&code) else {
        return;
    };
    let devices = Arc::new(OneTick::default());
    let run = machine
        .run(
            &(Arc::<OneTick>::clone(&devices) as Arc<dyn Devices>),
            Duration::from_secs(5),
        )
        .unwrap();
    assert!(run.is_done(), "{}", run.trouble());
    assert!(devices.masked.load(Ordering::Acquire));
    assert!(devices.checkpoint.load(Ordering::Acquire));
    // At the start, after the write and after the checkpoint. Hardware that is still asked to tell lets the guest do nothing at
    // all; an interpreter comes back after every few instructions.
    assert_eq!(devices.turns.load(Ordering::Relaxed), 3);
}

/// How many bytes of the process are mapped in one piece from `address` on.
fn mapped_at(address: usize) -> Option<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().find_map(|line| {
        let (range, _) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).unwrap();
        let end = usize::from_str_radix(end, 16).unwrap();
        (start..end).contains(&address).then(|| end - address)
    })
}

/// Counts what the guest does, so that a test sees it run.
#[derive(Default)]
struct Checkpoints(AtomicU64);

impl Devices for Checkpoints {
    fn read_msr(&self, _vcpu: u32, _index: u32) -> Result<u64, Refused> {
        Err(Refused)
    }

    fn write_msr(&self, _vcpu: u32, _index: u32, _value: u64) -> Result<(), Refused> {
        Err(Refused)
    }

    fn time_call(&self, _vcpu: u32) -> u64 {
        0
    }

    fn checkpoint(&self, _vcpu: u32) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_guest_keeps_its_memory_as_long_as_it_runs_and_ends_with_its_handle() {
    // The checkpoint again and again; every fetch of an instruction goes to guest memory.
    let mut code = out(CHECKPOINT_PORT, 0);
    let back = u8::try_from(code.len() + 2).unwrap().wrapping_neg();
    code.extend([0xEB, back]); // jmp to the start
    let Some(mut machine) = machine(&code) else {
        return;
    };
    let checkpoints = Arc::new(Checkpoints::default());
    let devices: Arc<dyn Devices> = Arc::<Checkpoints>::clone(&checkpoints);
    let running = machine.start(&devices);
    let memory = machine.memory().get_host_address(GuestAddress(0)).unwrap() as usize;
    drop(machine);
    let goes_on = || {
        let before = checkpoints.0.load(Ordering::Relaxed);
        let deadline = Instant::now() + Duration::from_secs(5);
        while checkpoints.0.load(Ordering::Relaxed) < before + 10 {
            assert!(Instant::now() < deadline, "the guest does not go on");
            std::thread::yield_now();
        }
    };
    goes_on();
    let mapped = mapped_at(memory).unwrap_or(0);
    assert!(
        u64::try_from(mapped).unwrap() >= MEMORY_BYTES,
        "{mapped} bytes are left under a guest that runs"
    );
    goes_on();
    drop(running);
    // Its thread held the third.
    assert_eq!(Arc::strong_count(&checkpoints), 2, "the thread goes on");
}

#[test]
fn a_guest_that_spins_ends_with_its_handle() {
    let Some(backend) = kvm::open() else { return };
    let job = Job {
        argument: [hostile::SPIN, 0, 0, 0, 0, 0, 0],
        ..Job::new(experiment::HOSTILE, 1)
    };
    let mut machine = Machine::new(&backend, &Setup::new(1), &job).unwrap();
    let devices: Arc<dyn Devices> = Arc::new(NoDevices);
    let running = machine.start(&devices);
    std::thread::sleep(Duration::from_millis(20));
    drop(running);
    assert_eq!(Arc::strong_count(&devices), 1, "the thread goes on");
    // Its vCPUs went with the handle.
    let run = machine.run(&devices, Duration::from_secs(1)).unwrap();
    assert!(!run.is_done());
    assert_eq!(run.trouble(), "no vCPU ran");
}
