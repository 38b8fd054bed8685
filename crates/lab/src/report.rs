//! What the guest left in shared memory.

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::LabError;
use crate::contract::{
    MAX_RECORDS, RECORD_WORDS, REPORT_BYTES, REPORT_GPA, REPORT_HEADER_WORDS, Record,
    SAMPLES_BYTES, SAMPLES_GPA,
};

/// One vCPU's report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VcpuReport {
    /// The records, oldest first.
    pub records: Vec<Record>,
    /// The step that ran last: bit of the job's rows. `None` before the first.
    pub step: Option<u32>,
}

fn word(memory: &GuestMemoryMmap, gpa: u64) -> Result<u64, LabError> {
    memory
        .read_obj(GuestAddress(gpa))
        .map_err(|error| LabError::Memory {
            what: format!("reading the report at {gpa:#x}: {error}"),
        })
}

/// Reads the report of `vcpu`. Nothing in it is trusted.
///
/// # Errors
///
/// [`LabError::Memory`] if the slot is outside guest memory, [`LabError::Guest`] if the vCPU counted more records than
/// a slot holds: what is missing nobody knows.
pub fn read(memory: &GuestMemoryMmap, vcpu: u32) -> Result<VcpuReport, LabError> {
    let slot = REPORT_GPA + u64::from(vcpu) * REPORT_BYTES;
    let count = word(memory, slot)?;
    if count > MAX_RECORDS {
        return Err(LabError::Guest(format!(
            "vCPU {vcpu} reported {count} records, and only {MAX_RECORDS} have room"
        )));
    }
    let mut records = Vec::new();
    for record in 0..count {
        let at = slot + 8 * (REPORT_HEADER_WORDS + record * RECORD_WORDS);
        let mut words = [0; 4];
        for (word_at, value) in (at..).step_by(8).zip(&mut words) {
            *value = word(memory, word_at)?;
        }
        records.push(Record::from_words(words));
    }
    let step = word(memory, slot + 8)?;
    Ok(VcpuReport {
        records,
        step: step
            .checked_sub(1)
            .and_then(|bit| u32::try_from(bit).ok())
            .filter(|bit| *bit < u64::BITS),
    })
}

/// The first `count` samples of `vcpu`, at most as many as the array holds.
///
/// # Errors
///
/// [`LabError::Memory`] if the array is outside guest memory.
pub fn samples(memory: &GuestMemoryMmap, vcpu: u32, count: u64) -> Result<Vec<u64>, LabError> {
    let first = SAMPLES_GPA + u64::from(vcpu) * SAMPLES_BYTES;
    let count = count.min(SAMPLES_BYTES / 8);
    (0..count)
        .map(|index| word(memory, first + 8 * index))
        .collect()
}
