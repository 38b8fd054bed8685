//! The page as it lies in guest memory.

use super::{
    ClockStatus, Constants, Contents, CounterId, Flags, HeaderError, LeapIndicator, MAGIC,
    SmearingHint, TimeType, VERSION,
};
use crate::quantity::Tsc;
use crate::seqlock::sync::{AtomicU32, AtomicU64, Ordering};
use crate::seqlock::{self, OddWhileUpdating, ReadError};

/// Bytes of the structure, generation counter included.
pub const SIZE_BYTES: u32 = 112;
/// Bytes of the page.
pub const PAGE_BYTES: u32 = 4096;

/// The page: 4096 bytes, little endian. Small fields share a word, so that each can be read at once.
#[cfg_attr(not(loom), repr(C, align(4096)))]
#[derive(Debug)]
pub struct Page {
    magic: AtomicU32,
    size_bytes: AtomicU32,
    /// version: u16, counter_id: u8, time_type: u8
    version_counter_time: AtomicU32,
    seq_count: AtomicU32,
    disruption_marker: AtomicU64,
    flags: AtomicU64,
    /// pad: [u8; 2], status: u8, smearing hint: u8, TAI offset: i16, leap indicator: u8, period shift: u8
    small_fields: AtomicU64,
    counter_value: AtomicU64,
    period_frac_sec: AtomicU64,
    period_esterror: AtomicU64,
    period_maxerror: AtomicU64,
    time_sec: AtomicU64,
    time_frac_sec: AtomicU64,
    time_esterror_ns: AtomicU64,
    time_maxerror_ns: AtomicU64,
    vm_generation_counter: AtomicU64,
    #[cfg(not(loom))]
    rest: [AtomicU64; 498],
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Page>() == 4096);
    assert!(offset_of!(Page, magic) == 0);
    assert!(offset_of!(Page, size_bytes) == 4);
    assert!(offset_of!(Page, version_counter_time) == 8);
    assert!(offset_of!(Page, seq_count) == 0xc);
    assert!(offset_of!(Page, disruption_marker) == 0x10);
    assert!(offset_of!(Page, flags) == 0x18);
    assert!(offset_of!(Page, small_fields) == 0x20);
    assert!(offset_of!(Page, counter_value) == 0x28);
    assert!(offset_of!(Page, period_frac_sec) == 0x30);
    assert!(offset_of!(Page, period_esterror) == 0x38);
    assert!(offset_of!(Page, period_maxerror) == 0x40);
    assert!(offset_of!(Page, time_sec) == 0x48);
    assert!(offset_of!(Page, time_frac_sec) == 0x50);
    assert!(offset_of!(Page, time_esterror_ns) == 0x58);
    assert!(offset_of!(Page, time_maxerror_ns) == 0x60);
    assert!(offset_of!(Page, vm_generation_counter) == 0x68);
    assert!(offset_of!(Page, rest) == 0x70);
};

impl Page {
    /// A page of zeros: no VMClock yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            magic: AtomicU32::new(0),
            size_bytes: AtomicU32::new(0),
            version_counter_time: AtomicU32::new(0),
            seq_count: AtomicU32::new(0),
            disruption_marker: AtomicU64::new(0),
            flags: AtomicU64::new(0),
            small_fields: AtomicU64::new(0),
            counter_value: AtomicU64::new(0),
            period_frac_sec: AtomicU64::new(0),
            period_esterror: AtomicU64::new(0),
            period_maxerror: AtomicU64::new(0),
            time_sec: AtomicU64::new(0),
            time_frac_sec: AtomicU64::new(0),
            time_esterror_ns: AtomicU64::new(0),
            time_maxerror_ns: AtomicU64::new(0),
            vm_generation_counter: AtomicU64::new(0),
            #[cfg(not(loom))]
            rest: [const { AtomicU64::new(0) }; 498],
        }
    }

    /// The fields that never change, checked.
    ///
    /// # Errors
    ///
    /// [`HeaderError`]: no VMClock page, or not one that can be read.
    pub fn constants(&self) -> Result<Constants, HeaderError> {
        let magic = self.magic.load(Ordering::Relaxed);
        if magic != MAGIC {
            return Err(HeaderError::NotVmclock { found: magic });
        }
        let size_bytes = self.size_bytes.load(Ordering::Relaxed);
        if !(SIZE_BYTES..=PAGE_BYTES).contains(&size_bytes) {
            return Err(HeaderError::BadSize { found: size_bytes });
        }
        let [v0, v1, counter_id, time_type] = self
            .version_counter_time
            .load(Ordering::Relaxed)
            .to_le_bytes();
        let version = u16::from_le_bytes([v0, v1]);
        if version != VERSION {
            return Err(HeaderError::UnknownVersion { found: version });
        }
        Ok(Constants {
            size_bytes,
            version,
            counter_id: CounterId(counter_id),
            time_type: TimeType(time_type),
        })
    }

    /// Writes the fields that never change; once, before the guest can see the page.
    pub fn write_constants(&self, constants: &Constants) {
        let [v0, v1] = constants.version.to_le_bytes();
        self.size_bytes
            .store(constants.size_bytes, Ordering::Relaxed);
        self.version_counter_time.store(
            u32::from_le_bytes([v0, v1, constants.counter_id.0, constants.time_type.0]),
            Ordering::Relaxed,
        );
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// The sequence count as it stands.
    #[must_use]
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.seq_count.load(Ordering::Relaxed)
    }

    /// Consistent contents together with what `counter` gave between the two looks at the sequence.
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
        seqlock::read::<OddWhileUpdating, _>(&self.seq_count, tries, || (self.load(), counter()))
    }

    /// One look: consistent contents, what `counter` gave, and the sequence that both belong to.
    ///
    /// # Errors
    ///
    /// The sequence seen first, if it is odd or changed during the look.
    #[inline]
    pub fn try_read<T>(&self, counter: impl FnOnce() -> T) -> Result<(Contents, T, u32), u32> {
        seqlock::try_read::<OddWhileUpdating, _>(&self.seq_count, || (self.load(), counter()))
            .map(|((contents, value), sequence)| (contents, value, sequence))
    }

    /// The fields as they stand, without asking the sequence: possibly torn.
    #[must_use]
    #[inline]
    pub fn load(&self) -> Contents {
        let [_, _, status, hint, t0, t1, leap, shift] =
            self.small_fields.load(Ordering::Relaxed).to_le_bytes();
        let word = |field: &AtomicU64| field.load(Ordering::Relaxed);
        Contents {
            disruption_marker: word(&self.disruption_marker),
            flags: Flags::from_bits(word(&self.flags)),
            status: ClockStatus(status),
            smearing_hint: SmearingHint(hint),
            tai_offset_sec: i16::from_le_bytes([t0, t1]),
            leap_indicator: LeapIndicator(leap),
            period_shift: shift,
            counter_value: Tsc::from_ticks(word(&self.counter_value)),
            period_frac_sec: word(&self.period_frac_sec),
            period_esterror: word(&self.period_esterror),
            period_maxerror: word(&self.period_maxerror),
            time_sec: word(&self.time_sec),
            time_frac_sec: word(&self.time_frac_sec),
            time_esterror_ns: word(&self.time_esterror_ns),
            time_maxerror_ns: word(&self.time_maxerror_ns),
            vm_generation_counter: word(&self.vm_generation_counter),
        }
    }

    /// Marks the page as being updated; `last` is the host's own copy of the last sequence. A `fence(SeqCst)` must follow before the
    /// host reads its counter, and [`Self::publish`] on every path: see [`seqlock::begin`].
    pub fn mark(&self, last: u32) {
        seqlock::mark::<OddWhileUpdating>(&self.seq_count, last);
    }

    /// Changes the fields of a marked page.
    pub fn store(&self, contents: &Contents) {
        let [t0, t1] = contents.tai_offset_sec.to_le_bytes();
        let small = u64::from_le_bytes([
            0,
            0,
            contents.status.0,
            contents.smearing_hint.0,
            t0,
            t1,
            contents.leap_indicator.0,
            contents.period_shift,
        ]);
        for (field, value) in [
            (&self.disruption_marker, contents.disruption_marker),
            (&self.flags, contents.flags.bits()),
            (&self.small_fields, small),
            (&self.counter_value, contents.counter_value.as_ticks()),
            (&self.period_frac_sec, contents.period_frac_sec),
            (&self.period_esterror, contents.period_esterror),
            (&self.period_maxerror, contents.period_maxerror),
            (&self.time_sec, contents.time_sec),
            (&self.time_frac_sec, contents.time_frac_sec),
            (&self.time_esterror_ns, contents.time_esterror_ns),
            (&self.time_maxerror_ns, contents.time_maxerror_ns),
            (&self.vm_generation_counter, contents.vm_generation_counter),
        ] {
            field.store(value, Ordering::Relaxed);
        }
    }

    /// Makes the page valid again and returns the new sequence, to be kept as the next `last`.
    pub fn publish(&self, last: u32) -> u32 {
        seqlock::publish::<OddWhileUpdating>(&self.seq_count, last)
    }
}

impl Default for Page {
    fn default() -> Self {
        Self::new()
    }
}
