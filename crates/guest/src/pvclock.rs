//! Reads pvclock records, of KVM and Xen: one record that all CPUs share, or one for each CPU.
//!
//! # Theory
//!
//! The host writes a record for each vCPU. While it sets the stable flag (and has advertised it in CPUID) all records are
//! one clock, so any CPU may read any of them: [`SharedRecord`]. Without it each record is right only on its own vCPU, and the
//! reader must know that it did not change CPU between taking the record and taking the counter. `rdtscp` gives counter and CPU number in
//! one step, so a record that lies between two of them with one CPU number is right: [`PerCpuRecords`].
//!
//! # Practice
//!
//! Both readers are bounded, test the stable flag at each read as far as they depend on it, report GUEST_STOPPED, and are generic over
//! the counter. [`Observation`] is all that a read saw; [`GuestClock::read`] is its time.
//!
//! ```
//! use chronovisor_abi::pvclock::{Contents, Flags, Record};
//! use chronovisor_abi::quantity::{Nanos, Tsc};
//! use chronovisor_guest::clock::GuestClock;
//! use chronovisor_guest::pvclock::{SharedRecord, StableBit};
//!
//! let record = Record::new();
//! record.mark(0);
//! record.store(&Contents { mul: 0x8000_0000, shift: 0, flags: Flags::TSC_STABLE, ..Contents::default() });
//! record.publish(0);
//! let clock = SharedRecord::new(&record, || Tsc::from_ticks(2_000), StableBit::Advertised);
//! assert_eq!(clock.read()?.time, Nanos::from_ns(1_000));
//! # Ok::<(), chronovisor_guest::pvclock::PvclockError>(())
//! ```
//!
//! # Migration
//!
//! The host rewrites the records; a reader needs to do nothing. The stable flag may be gone afterwards.
//!
//! # Caveats
//!
//! Records of different vCPUs without the stable flag disagree by microseconds: put a [`guard`](crate::guard) over [`PerCpuRecords`]. A
//! counter value before the record's timestamp, which only an unordered read can yield, counts as the timestamp itself.
//!
//! # References
//!
//! Linux `Documentation/virt/kvm/x86/msr.rst` (MSR_KVM_SYSTEM_TIME_NEW), `arch/x86/kernel/pvclock.c`.

use chronovisor_abi::pvclock::{Contents, Flags, Record, Slot};
use chronovisor_abi::quantity::{Nanos, Reading, Tsc};
use chronovisor_abi::scale::ScaleError;
use chronovisor_abi::seqlock::{DEFAULT_TRIES, ReadError};

use crate::clock::GuestClock;
use crate::counter::{Counter, CpuCounter};

/// Whether the host advertised that the stable flag means something: CPUID 0x40000001.EAX\[24\] of KVM's base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StableBit {
    /// The flag counts.
    Advertised,
    /// The flag is noise: no record may be shared between CPUs.
    NotAdvertised,
}

/// Everything that one read of a record saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The record's fields.
    pub contents: Contents,
    /// The time and the counter value that it was computed from.
    pub reading: Reading<Nanos>,
}

impl Observation {
    #[inline]
    fn new(contents: Contents, tsc: Tsc) -> Result<Self, PvclockError> {
        let at = if tsc.is_before(contents.tsc_timestamp) {
            contents.tsc_timestamp
        } else {
            tsc
        };
        let time = contents.time_at(at)?;
        Ok(Self {
            contents,
            reading: Reading::new(time, tsc),
        })
    }

    /// Whether the host says that it stopped the guest: watchdogs must be told, then
    /// [`Record::clear_guest_stopped`](chronovisor_abi::pvclock::Record::clear_guest_stopped) answers.
    #[must_use]
    pub const fn guest_was_stopped(&self) -> bool {
        self.contents.flags.contains(Flags::GUEST_STOPPED)
    }
}

/// Why a record gave no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PvclockError {
    /// The record may be used on its own vCPU only.
    #[error(
        "the record is not stable over CPUs (flags {:#x}, stable bit {stable_bit:?}): read it on its own CPU only, or read the operating system's clock", flags.bits()
    )]
    NotStable {
        /// The record's flags.
        flags: Flags,
        /// Whether the host advertised the flag.
        stable_bit: StableBit,
    },
    /// No consistent look at the record.
    #[error("no consistent pvclock record: {0}")]
    Inconsistent(#[from] ReadError),
    /// Multiplier and shift are impossible.
    #[error("no time can be told from the record: {0}")]
    Damaged(#[from] ScaleError),
    /// The CPU that the counter named has no record.
    #[error(
        "there are {records} records and none for CPU {cpu}: read the operating system's clock"
    )]
    NoRecord {
        /// The CPU's number.
        cpu: usize,
        /// How many records there are.
        records: usize,
    },
    /// The thread changed CPU at every try.
    #[error("the thread changed CPU during each of {tries} tries")]
    CpuChanged {
        /// How often the record was looked at.
        tries: u32,
    },
}

/// One record that every CPU reads, right as long as its stable flag is set.
#[derive(Clone, Copy, Debug)]
pub struct SharedRecord<'a, C> {
    record: &'a Record,
    counter: C,
    stable_bit: StableBit,
    tries: u32,
}

impl<'a, C: Counter> SharedRecord<'a, C> {
    /// A reader of `record` with `counter`, which should be ordered.
    #[must_use]
    pub const fn new(record: &'a Record, counter: C, stable_bit: StableBit) -> Self {
        Self {
            record,
            counter,
            stable_bit,
            tries: DEFAULT_TRIES,
        }
    }

    /// The same reader that gives up after `tries` looks.
    #[must_use]
    pub fn with_tries(self, tries: u32) -> Self {
        Self { tries, ..self }
    }

    /// All that one read saw; the stable flag is not judged.
    ///
    /// # Errors
    ///
    /// [`PvclockError::Inconsistent`] and [`PvclockError::Damaged`].
    #[inline]
    pub fn observe(&self) -> Result<Observation, PvclockError> {
        let (contents, tsc) = self.record.read(self.tries, || self.counter.read())?;
        Observation::new(contents, tsc)
    }

    /// The record's version as it stands: it changes with each update.
    #[must_use]
    #[inline]
    pub fn version(&self) -> u32 {
        self.record.version()
    }
}

impl<C: Counter> GuestClock for SharedRecord<'_, C> {
    type Time = Nanos;
    type Error = PvclockError;

    /// Inlined is the one look that nearly always suffices; all else is out of line, so that the time stays in registers.
    #[inline]
    fn read(&self) -> Result<Reading<Nanos>, PvclockError> {
        if let Ok((contents, tsc, _)) = self.record.try_read(|| self.counter.read())
            && self.is_stable(contents.flags)
            && let Some(time) = time_behind(&contents, tsc)
        {
            return Ok(Reading::new(time, tsc));
        }
        self.read_slowly()
    }
}

impl<C: Counter> SharedRecord<'_, C> {
    #[inline]
    fn is_stable(&self, flags: Flags) -> bool {
        self.stable_bit == StableBit::Advertised && flags.contains(Flags::TSC_STABLE)
    }

    #[cold]
    #[inline(never)]
    fn read_slowly(&self) -> Result<Reading<Nanos>, PvclockError> {
        let seen = self.observe()?;
        let flags = seen.contents.flags;
        if self.is_stable(flags) {
            Ok(seen.reading)
        } else {
            Err(PvclockError::NotStable {
                flags,
                stable_bit: self.stable_bit,
            })
        }
    }
}

/// The time at a counter value behind the record's timestamp; `None` before it, or if the record is damaged.
#[inline]
fn time_behind(contents: &Contents, tsc: Tsc) -> Option<Nanos> {
    if tsc.is_before(contents.tsc_timestamp) {
        return None;
    }
    contents.time_at(tsc).ok()
}

/// A record for each CPU, read on its own CPU.
#[derive(Clone, Copy, Debug)]
pub struct PerCpuRecords<'a, C> {
    slots: &'a [Slot],
    counter: C,
    tries: u32,
}

impl<'a, C: CpuCounter> PerCpuRecords<'a, C> {
    /// A reader of `slots`, indexed by the CPU number that `counter` gives.
    #[must_use]
    pub const fn new(slots: &'a [Slot], counter: C) -> Self {
        Self {
            slots,
            counter,
            tries: DEFAULT_TRIES,
        }
    }

    /// The same reader that gives up after `tries` looks.
    #[must_use]
    pub fn with_tries(self, tries: u32) -> Self {
        Self { tries, ..self }
    }

    /// All that one read saw, and on which CPU.
    ///
    /// # Errors
    ///
    /// [`PvclockError`], but for [`PvclockError::NotStable`].
    #[inline]
    pub fn observe(&self) -> Result<(Observation, usize), PvclockError> {
        let tries = self.tries.max(1);
        let (mut cpu, mut last) = (
            self.counter.read_on_cpu().1,
            PvclockError::CpuChanged { tries },
        );
        for _ in 0..tries {
            let slot = self.slots.get(cpu).ok_or(PvclockError::NoRecord {
                cpu,
                records: self.slots.len(),
            })?;
            // The second reading's counter is the one used: its CPU number proves that record and counter belong together. A thread that
            // left the CPU and came back in between has still read that CPU's record and that CPU's counter.
            match slot.record.try_read(|| self.counter.read_on_cpu()) {
                Ok((contents, (tsc, now_on), _)) if now_on == cpu => {
                    return Observation::new(contents, tsc).map(|seen| (seen, cpu));
                }
                Ok((_, (_, now_on), _)) => {
                    cpu = now_on;
                    last = PvclockError::CpuChanged { tries };
                }
                Err(version) => {
                    // The thread may have been moved off the CPU whose record is being written.
                    cpu = self.counter.read_on_cpu().1;
                    last = if version & 1 == 1 {
                        ReadError::Invalid {
                            sequence: version,
                            tries,
                        }
                        .into()
                    } else {
                        ReadError::Busy { tries }.into()
                    };
                    core::hint::spin_loop();
                }
            }
        }
        Err(last)
    }
}

impl<C: CpuCounter> GuestClock for PerCpuRecords<'_, C> {
    type Time = Nanos;
    type Error = PvclockError;

    #[inline]
    fn read(&self) -> Result<Reading<Nanos>, PvclockError> {
        let cpu = self.counter.read_on_cpu().1;
        if let Some(slot) = self.slots.get(cpu)
            && let Ok((contents, (tsc, now_on), _)) =
                slot.record.try_read(|| self.counter.read_on_cpu())
            && now_on == cpu
            && let Some(time) = time_behind(&contents, tsc)
        {
            return Ok(Reading::new(time, tsc));
        }
        self.read_slowly()
    }
}

impl<C: CpuCounter> PerCpuRecords<'_, C> {
    #[cold]
    #[inline(never)]
    fn read_slowly(&self) -> Result<Reading<Nanos>, PvclockError> {
        self.observe().map(|(seen, _)| seen.reading)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
