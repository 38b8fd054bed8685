//! The Hyper-V reference TSC page: one page that turns the counter into reference time.
//!
//! # Theory
//!
//! ```text
//! reference time = (tsc * scale >> 64) + offset        [100 ns]
//! ```
//!
//! The guest names the page in MSR 0x40000021; the hypervisor fills it. Sequence 0 means "not usable now": the guest then
//! reads the reference counter MSR 0x40000020, which is the same clock.
//!
//! # Practice
//!
//! A guest takes consistent [`Parameters`] with [`ReferenceTscPage::read`]; a host changes them between
//! [`ReferenceTscPage::mark`] and [`ReferenceTscPage::publish`]. [`Parameters::time_at`] is the one formula for both.
//!
//! # Migration
//!
//! Reference time stops between save and restore. Until scale and offset fit the new host the sequence must be 0, and
//! afterwards it must differ from every recent value.
//!
//! # Caveats
//!
//! A counter at or below 10 MHz has no scale: the sequence stays 0. 0xFFFFFFFF is treated like 0: early specifications
//! named it by mistake.
//!
//! # References
//!
//! Hyper-V TLFS, "Partition Reference Time Enlightenment" (page format, sequence rules).

use crate::quantity::{Hertz, RefTime, Tsc};
use crate::scale::{ReferenceScale, ScaleError};
use crate::seqlock::sync::{AtomicU32, AtomicU64, Ordering};
use crate::seqlock::{self, ReadError, ZeroIsInvalid};

/// Size of the page, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// The page as it lies in guest memory: 4096 bytes, little endian.
#[cfg_attr(not(loom), repr(C, align(4096)))]
#[derive(Debug)]
pub struct ReferenceTscPage {
    sequence: AtomicU32,
    reserved: AtomicU32,
    scale: AtomicU64,
    offset: AtomicU64,
    #[cfg(not(loom))]
    rest: [AtomicU64; 509],
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<ReferenceTscPage>() == PAGE_BYTES);
    assert!(offset_of!(ReferenceTscPage, sequence) == 0);
    assert!(offset_of!(ReferenceTscPage, reserved) == 4);
    assert!(offset_of!(ReferenceTscPage, scale) == 8);
    assert!(offset_of!(ReferenceTscPage, offset) == 16);
    assert!(offset_of!(ReferenceTscPage, rest) == 24);
};

/// The page's scale and offset, taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parameters {
    /// Units of 100 ns per tick, a fraction of 2^64.
    pub scale: ReferenceScale,
    /// Units of 100 ns to add, modulo 2^64.
    pub offset: i64,
}

impl Parameters {
    /// The line with `rate`'s slope that reads `time` at `tsc`.
    ///
    /// # Errors
    ///
    /// [`ScaleError`] if the rate is at or below 10 MHz.
    ///
    /// ```
    /// # use chronovisor_abi::{quantity::{Hertz, RefTime, Tsc}, reference_tsc::Parameters};
    /// let at = Tsc::from_ticks(260_000_000_000);
    /// let line = Parameters::through(at, RefTime::from_100ns(999_999_999), Hertz::from_hz(2_100_000_000).expect("not zero"))?;
    /// assert_eq!(line.offset, -238_095_239);
    /// assert_eq!(line.time_at(at), RefTime::from_100ns(999_999_999));
    /// # Ok::<(), chronovisor_abi::scale::ScaleError>(())
    /// ```
    pub fn through(tsc: Tsc, time: RefTime, rate: Hertz) -> Result<Self, ScaleError> {
        let scale = ReferenceScale::from_frequency(rate)?;
        // wrapping: the interface adds modulo 2^64.
        let offset = time.as_100ns().wrapping_sub(scale.ticks(tsc)).cast_signed();
        Ok(Self { scale, offset })
    }

    /// The reference time at `tsc`, rounded down, modulo 2^64 units of 100 ns.
    #[must_use]
    #[inline]
    pub fn time_at(&self, tsc: Tsc) -> RefTime {
        // wrapping: the interface adds modulo 2^64.
        RefTime::from_100ns(self.scale.ticks(tsc).wrapping_add_signed(self.offset))
    }
}

impl ReferenceTscPage {
    /// A page that was never published: all zeros, so sequence 0.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sequence: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            scale: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            rest: [const { AtomicU64::new(0) }; 509],
        }
    }

    /// A page that was never published.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            sequence: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            scale: AtomicU64::new(0),
            offset: AtomicU64::new(0),
        }
    }

    /// The sequence word as it stands.
    #[must_use]
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// The sequence word itself, for a reader that keeps a copy of the fields and watches for a change.
    #[must_use]
    #[inline]
    pub const fn sequence_word(&self) -> &AtomicU32 {
        &self.sequence
    }

    /// Consistent parameters together with what `counter` gave between the two looks at the sequence.
    ///
    /// # Errors
    ///
    /// [`ReadError::Invalid`] at once if the sequence is invalid (there is a counter MSR to read instead), [`ReadError::Busy`]
    /// after `tries` looks without a consistent one.
    #[inline]
    pub fn read<T>(
        &self,
        tries: u32,
        mut counter: impl FnMut() -> T,
    ) -> Result<(Parameters, T), ReadError> {
        let mut tried = 0;
        loop {
            tried += 1;
            match seqlock::try_read::<ZeroIsInvalid, _>(&self.sequence, || (self.load(), counter()))
            {
                Ok((result, _)) => return Ok(result),
                Err(sequence @ (0 | u32::MAX)) => {
                    return Err(ReadError::Invalid {
                        sequence,
                        tries: tried,
                    });
                }
                Err(_) if tried >= tries => return Err(ReadError::Busy { tries: tried }),
                Err(_) => seqlock::sync::spin_loop(),
            }
        }
    }

    /// One look: consistent parameters, what `counter` gave, and the sequence that both belong to.
    ///
    /// # Errors
    ///
    /// The sequence seen first, if it is invalid or changed during the look.
    #[inline]
    pub fn try_read<T>(&self, counter: impl FnOnce() -> T) -> Result<(Parameters, T, u32), u32> {
        seqlock::try_read::<ZeroIsInvalid, _>(&self.sequence, || (self.load(), counter()))
            .map(|((parameters, value), sequence)| (parameters, value, sequence))
    }

    /// One look at the sequence around `body`, without loading the fields: for a reader that keeps a copy of them keyed by the sequence.
    ///
    /// # Errors
    ///
    /// The sequence seen first, if it is invalid or changed during the look.
    #[inline]
    pub fn try_sequence<T>(&self, body: impl FnOnce() -> T) -> Result<(T, u32), u32> {
        seqlock::try_read::<ZeroIsInvalid, _>(&self.sequence, body)
    }

    /// The fields as they stand, without asking the sequence: possibly torn. For the side that writes, and for `body` of a look.
    #[must_use]
    #[inline]
    pub fn load(&self) -> Parameters {
        Parameters {
            scale: ReferenceScale::from_raw(self.scale.load(Ordering::Relaxed)),
            offset: self.offset.load(Ordering::Relaxed).cast_signed(),
        }
    }

    /// Marks the page invalid (sequence 0). A `fence(SeqCst)` must follow before the host reads its counter: see [`seqlock::begin`].
    pub fn mark(&self) {
        seqlock::mark::<ZeroIsInvalid>(&self.sequence, 0);
    }

    /// Changes the fields of a marked page.
    pub fn store(&self, parameters: &Parameters) {
        self.reserved.store(0, Ordering::Relaxed);
        self.scale
            .store(parameters.scale.as_raw(), Ordering::Relaxed);
        self.offset
            .store(parameters.offset.cast_unsigned(), Ordering::Relaxed);
    }

    /// Makes the page valid under the sequence after `last`, the host's own copy of the last valid one, and returns it.
    pub fn publish(&self, last: u32) -> u32 {
        seqlock::publish::<ZeroIsInvalid>(&self.sequence, last)
    }
}

impl Default for ReferenceTscPage {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hz(hz: u64) -> Hertz {
        Hertz::from_hz(hz).expect("not zero")
    }

    /// R = (tsc * scale >> 64) + offset
    #[test]
    fn known_times() {
        let line = Parameters {
            scale: ReferenceScale::from_frequency(hz(2_600_000_000)).unwrap(),
            offset: 0,
        };
        for (tsc, time) in [
            (26_000_000_000_u64, 99_999_999),
            (2_600_000_000 * 86_400 * 365, 315_359_999_999_999),
        ] {
            assert_eq!(
                line.time_at(Tsc::from_ticks(tsc)),
                RefTime::from_100ns(time)
            );
        }
        let slower = Parameters::through(
            Tsc::from_ticks(260_000_000_000),
            RefTime::from_100ns(999_999_999),
            hz(2_100_000_000),
        )
        .unwrap();
        assert_eq!(
            slower.time_at(Tsc::from_ticks(262_100_000_000)),
            RefTime::from_100ns(1_009_999_999)
        );
    }

    #[test]
    fn a_page_is_read_as_it_was_written_and_invalid_until_then() {
        let page = ReferenceTscPage::new();
        let line = Parameters {
            scale: ReferenceScale::from_raw(5),
            offset: -7,
        };
        assert_eq!(
            page.read(9, || ()),
            Err(ReadError::Invalid {
                sequence: 0,
                tries: 1
            })
        );
        page.mark();
        page.store(&line);
        assert_eq!(page.publish(u32::MAX - 1), 1);
        assert_eq!(page.read(1, || 3), Ok((line, 3)));
    }

    proptest! {
        /// The line goes through its point, at any counter value.
        #[test]
        fn a_line_goes_through_its_point(tsc: u64, time: u64, rate in 10_000_001_u64..20_000_000_000) {
            let (tsc, time) = (Tsc::from_ticks(tsc), RefTime::from_100ns(time));
            prop_assert_eq!(Parameters::through(tsc, time, hz(rate)).unwrap().time_at(tsc), time);
        }
    }
}
