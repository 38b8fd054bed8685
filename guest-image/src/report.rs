//! The report that a vCPU leaves in shared memory, and the end of its run.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::contract::{
    DONE_PORT, JOB_GPA, JOB_WORDS, Job, MAX_RECORDS, RECORD_WORDS, REPORT_BYTES, REPORT_GPA,
    REPORT_HEADER_WORDS, Record, SAMPLES_BYTES, SAMPLES_GPA,
};
use crate::{boot, cpu, instruction};

const KEYBOARD_CONTROLLER: u16 = 0x64;
const RESET: u8 = 0xFE;

/// The job, if a VMM of this project left one.
pub fn job() -> Option<Job> {
    // SAFETY: the page is mapped in every layout that this image runs in; the VMM writes it before the first run.
    let words = unsafe {
        core::ptr::with_exposed_provenance::<[u64; JOB_WORDS]>(JOB_GPA as usize).read_volatile()
    };
    Job::from_words(&words)
}

fn word(index: u64) -> &'static AtomicU64 {
    let slot = REPORT_GPA + cpu::this().index.load(Ordering::Relaxed) * REPORT_BYTES;
    // SAFETY: inside the slot by the callers' indices; aligned; only ever touched as an atomic.
    unsafe {
        AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(
            (slot + 8 * index) as usize,
        ))
    }
}

/// Adds a record; a full slot drops it and goes on counting, so that the VMM can tell.
pub fn push(kind: u32, ring: u32, values: [u64; 3]) {
    let count = word(0).load(Ordering::Relaxed);
    if count < MAX_RECORDS {
        let first = REPORT_HEADER_WORDS + count * RECORD_WORDS;
        for (at, value) in (first..).zip(Record { kind, ring, values }.to_words()) {
            word(at).store(value, Ordering::Relaxed);
        }
    }
    word(0).store(count + 1, Ordering::Release);
}

/// Says which step runs now, so that the VMM can name it if it never comes back. Bit of [`Job::rows`], plus one.
pub fn step(bit: u32) {
    word(1).store(u64::from(bit) + 1, Ordering::Release);
}

/// This CPU's sample array.
pub fn sample(index: u64) -> Option<&'static AtomicU64> {
    if index >= SAMPLES_BYTES / 8 {
        return None;
    }
    let at = SAMPLES_GPA + cpu::this().index.load(Ordering::Relaxed) * SAMPLES_BYTES + 8 * index;
    // SAFETY: inside the array, aligned, only ever touched as an atomic.
    Some(unsafe { AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(at as usize)) })
}

/// Ends this CPU's run, from either ring.
pub fn finish(status: u32) -> ! {
    instruction::out32(DONE_PORT, status);
    // A VMM of another project, without a device at that port: the keyboard controller resets the machine.
    if boot::by_pvh() {
        instruction::out8(KEYBOARD_CONTROLLER, RESET);
    }
    loop {
        core::hint::spin_loop();
    }
}
