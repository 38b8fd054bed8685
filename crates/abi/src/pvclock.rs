//! pvclock: the per-vCPU time record of KVM and Xen, and the wall-clock record.
//!
//! # Theory
//!
//! ```text
//! ns = system_time + (((tsc - tsc_timestamp) << shift) * mul >> 32)
//! ```
//!
//! The host writes one [`Record`] for each vCPU at the address that the vCPU named in its MSR. The record's version is odd
//! while the host writes. The wall-clock [`WallClockRecord`] holds the wall time at which the guest's pvclock was 0.
//!
//! # Practice
//!
//! A guest takes consistent [`Contents`] with [`Record::read`]; a host changes them between [`Record::mark`] and
//! [`Record::publish`]. [`Contents::time_at`] is the one formula for both.
//!
//! # Migration
//!
//! After a migration the host writes new contents with a new version. If the clock was paused it may set
//! [`Flags::GUEST_STOPPED`], which only the guest clears.
//!
//! # Caveats
//!
//! [`Flags::TSC_STABLE`] means something only if the host advertised it in CPUID, and it may go away at any update: test it at
//! each read. Without it two vCPUs' records may disagree by microseconds. The wall-clock record's seconds end in 2106.
//!
//! # References
//!
//! Linux `Documentation/virt/kvm/x86/msr.rst` (MSR_KVM_SYSTEM_TIME_NEW, MSR_KVM_WALL_CLOCK_NEW), `arch/x86/include/asm/pvclock-abi.h`;
//! Xen public headers, `vcpu_time_info`.

use crate::quantity::{Nanos, Tsc};
use crate::scale::{PvclockScale, ScaleError};
use crate::seqlock::sync::{AtomicU32, AtomicU64, Ordering};
use crate::seqlock::{self, OddWhileUpdating, ReadError};

/// Distance of two vCPUs' records in Linux's array of them, in bytes.
pub const SLOT_BYTES: usize = 64;

/// The time record as it lies in guest memory: 32 bytes, little endian, aligned to 8 at least.
#[repr(C)]
#[derive(Debug)]
pub struct Record {
    version: AtomicU32,
    pad: AtomicU32,
    tsc_timestamp: AtomicU64,
    system_time_ns: AtomicU64,
    tsc_to_system_mul: AtomicU32,
    /// Bytes: shift (i8), flags, two of padding.
    shift_and_flags: AtomicU32,
}

/// A record in Linux's array of them: one for each vCPU, 64 bytes apart.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Slot {
    /// The vCPU's record.
    pub record: Record,
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Slot>() == SLOT_BYTES);
    assert!(size_of::<Record>() == 32 && align_of::<Record>() == 8);
    assert!(offset_of!(Record, version) == 0);
    assert!(offset_of!(Record, pad) == 4);
    assert!(offset_of!(Record, tsc_timestamp) == 8);
    assert!(offset_of!(Record, system_time_ns) == 16);
    assert!(offset_of!(Record, tsc_to_system_mul) == 24);
    assert!(offset_of!(Record, shift_and_flags) == 28);
    assert!(size_of::<WallClockRecord>() == 12);
    assert!(offset_of!(WallClockRecord, version) == 0);
    assert!(offset_of!(WallClockRecord, sec) == 4);
    assert!(offset_of!(WallClockRecord, nsec) == 8);
};

/// The record's flag byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Flags(u8);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Bit 0: records of all vCPUs are one clock. Valid only with CPUID 0x40000001.EAX\[24\].
    pub const TSC_STABLE: Self = Self(1);
    /// Bit 1: the host stopped the guest. Set by the host, cleared by the guest.
    pub const GUEST_STOPPED: Self = Self(1 << 1);

    /// The flag byte as it stands in a record.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The flag byte.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These flags without those of `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// A record's fields, taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Contents {
    /// The guest's counter at the host's update.
    pub tsc_timestamp: Tsc,
    /// The clock at `tsc_timestamp`, in ns.
    pub system_time: Nanos,
    /// Multiplier, a fraction of 2^32.
    pub mul: u32,
    /// Shift before the multiplication; left if positive.
    pub shift: i8,
    /// Flags.
    pub flags: Flags,
}

impl Contents {
    /// The record's line `system_time` at `tsc_timestamp` with `scale`'s slope.
    #[must_use]
    pub const fn new(
        tsc_timestamp: Tsc,
        system_time: Nanos,
        scale: PvclockScale,
        flags: Flags,
    ) -> Self {
        Self {
            tsc_timestamp,
            system_time,
            mul: scale.mul(),
            shift: scale.shift(),
            flags,
        }
    }

    /// Multiplier and shift, checked.
    ///
    /// # Errors
    ///
    /// [`ScaleError`] if multiplier or shift are impossible.
    #[inline]
    pub const fn scale(&self) -> Result<PvclockScale, ScaleError> {
        PvclockScale::from_raw(self.mul, self.shift)
    }

    /// The time at `tsc`, in ns modulo 2^64, rounded down; a counter before `tsc_timestamp` gives a huge time, as the interface
    /// has it: a host must not publish a timestamp in any reader's future.
    ///
    /// # Errors
    ///
    /// [`ScaleError`] if multiplier or shift are impossible.
    ///
    /// ```
    /// # use chronovisor_abi::{pvclock::{Contents, Flags}, quantity::{Nanos, Tsc}};
    /// let record = Contents {
    ///     tsc_timestamp: Tsc::from_ticks(0x2DA2_CC4E),
    ///     system_time: Nanos::from_ns(1_347_234_883),
    ///     mul: 0xC4EC_4EC4,
    ///     shift: -1,
    ///     flags: Flags::TSC_STABLE,
    /// };
    /// let second_later = Tsc::from_ticks(0x2DA2_CC4E + 2_600_000_000);
    /// assert_eq!(record.time_at(second_later)?, Nanos::from_ns(2_347_234_882));
    /// # Ok::<(), chronovisor_abi::scale::ScaleError>(())
    /// ```
    #[inline]
    pub const fn time_at(&self, tsc: Tsc) -> Result<Nanos, ScaleError> {
        match self.scale() {
            // wrapping: the interface counts modulo 2^64 ns.
            Ok(scale) => Ok(self
                .system_time
                .wrapping_add(scale.nanos(tsc.wrapping_delta(self.tsc_timestamp)))),
            Err(error) => Err(error),
        }
    }
}

impl Record {
    /// A record that was never published: all zeros, as fresh memory is.
    #[must_use]
    pub fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            pad: AtomicU32::new(0),
            tsc_timestamp: AtomicU64::new(0),
            system_time_ns: AtomicU64::new(0),
            tsc_to_system_mul: AtomicU32::new(0),
            shift_and_flags: AtomicU32::new(0),
        }
    }

    /// The version word as it stands.
    #[must_use]
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }

    /// The version word itself, for a reader that keeps a copy of the fields and watches for a change.
    #[must_use]
    #[inline]
    pub const fn version_word(&self) -> &AtomicU32 {
        &self.version
    }

    /// Consistent contents together with what `counter` gave between the two looks at the version.
    ///
    /// # Errors
    ///
    /// [`ReadError`] after `tries` looks without a consistent one.
    #[inline]
    pub fn read<T>(
        &self,
        tries: u32,
        mut counter: impl FnMut() -> T,
    ) -> Result<(Contents, T), ReadError> {
        seqlock::read::<OddWhileUpdating, _>(&self.version, tries, || (self.load(), counter()))
    }

    /// One look: consistent contents, what `counter` gave, and the version that both belong to.
    ///
    /// # Errors
    ///
    /// The version seen first, if it is odd or changed during the look.
    #[inline]
    pub fn try_read<T>(&self, counter: impl FnOnce() -> T) -> Result<(Contents, T, u32), u32> {
        seqlock::try_read::<OddWhileUpdating, _>(&self.version, || (self.load(), counter()))
            .map(|((contents, value), version)| (contents, value, version))
    }

    /// One look at the version around `body`, without loading the fields: for a reader that keeps a copy of them keyed by the version.
    ///
    /// # Errors
    ///
    /// The version seen first, if it is odd or changed during the look.
    #[inline]
    pub fn try_version<T>(&self, body: impl FnOnce() -> T) -> Result<(T, u32), u32> {
        seqlock::try_read::<OddWhileUpdating, _>(&self.version, body)
    }

    /// The fields as they stand, without asking the version: possibly torn. For the side that writes, and for `body` of a look.
    #[must_use]
    #[inline]
    pub fn load(&self) -> Contents {
        let [shift, flags, _, _] = self.shift_and_flags.load(Ordering::Relaxed).to_le_bytes();
        Contents {
            tsc_timestamp: Tsc::from_ticks(self.tsc_timestamp.load(Ordering::Relaxed)),
            system_time: Nanos::from_ns(self.system_time_ns.load(Ordering::Relaxed)),
            mul: self.tsc_to_system_mul.load(Ordering::Relaxed),
            shift: i8::from_le_bytes([shift]),
            flags: Flags::from_bits(flags),
        }
    }

    /// Marks the record as being updated; `last` is the host's own copy of the last version. A `fence(SeqCst)` must follow before the
    /// host reads its counter, and [`Self::publish`] on every path: see [`seqlock::begin`].
    pub fn mark(&self, last: u32) {
        seqlock::mark::<OddWhileUpdating>(&self.version, last);
    }

    /// Changes the fields of a marked record.
    pub fn store(&self, contents: &Contents) {
        let [shift] = contents.shift.to_le_bytes();
        self.pad.store(0, Ordering::Relaxed);
        self.tsc_timestamp
            .store(contents.tsc_timestamp.as_ticks(), Ordering::Relaxed);
        self.system_time_ns
            .store(contents.system_time.as_ns(), Ordering::Relaxed);
        self.tsc_to_system_mul
            .store(contents.mul, Ordering::Relaxed);
        self.shift_and_flags.store(
            u32::from_le_bytes([shift, contents.flags.bits(), 0, 0]),
            Ordering::Relaxed,
        );
    }

    /// Makes the record valid again and returns the new version, to be kept as the next `last`.
    pub fn publish(&self, last: u32) -> u32 {
        seqlock::publish::<OddWhileUpdating>(&self.version, last)
    }

    /// The guest's answer to [`Flags::GUEST_STOPPED`]: clears it and says whether it was set. The host leaves the flag alone once set,
    /// so the two do not race but for an update that sets it again, which the guest then sees at its next read.
    pub fn clear_guest_stopped(&self) -> bool {
        let flag = u32::from_le_bytes([0, Flags::GUEST_STOPPED.bits(), 0, 0]);
        self.shift_and_flags.fetch_and(!flag, Ordering::Relaxed) & flag != 0
    }
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

/// The wall-clock record as it lies in guest memory: 12 bytes. It is filled once for each write of its MSR.
#[repr(C)]
#[derive(Debug)]
pub struct WallClockRecord {
    version: AtomicU32,
    sec: AtomicU32,
    nsec: AtomicU32,
}

/// The wall time at which the guest's pvclock was 0: seconds and ns since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct WallClock {
    /// Seconds since 1970-01-01 UTC; 32 bits, so they end in February 2106.
    pub sec: u32,
    /// Nanoseconds below one second.
    pub nsec: u32,
}

impl WallClockRecord {
    /// A record that was never published.
    #[must_use]
    pub fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            sec: AtomicU32::new(0),
            nsec: AtomicU32::new(0),
        }
    }

    /// The version word as it stands.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }

    /// Consistent contents.
    ///
    /// # Errors
    ///
    /// [`ReadError`] after `tries` looks without a consistent one.
    pub fn read(&self, tries: u32) -> Result<WallClock, ReadError> {
        seqlock::read::<OddWhileUpdating, _>(&self.version, tries, || WallClock {
            sec: self.sec.load(Ordering::Relaxed),
            nsec: self.nsec.load(Ordering::Relaxed),
        })
    }

    /// Fills the record; `last` is its version before. Returns the new version.
    pub fn fill(&self, last: u32, wall: WallClock) -> u32 {
        seqlock::begin::<OddWhileUpdating>(&self.version, last);
        self.sec.store(wall.sec, Ordering::Relaxed);
        self.nsec.store(wall.nsec, Ordering::Relaxed);
        seqlock::publish::<OddWhileUpdating>(&self.version, last)
    }
}

impl Default for WallClockRecord {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
