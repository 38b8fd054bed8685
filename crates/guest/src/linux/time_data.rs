//! The kernel's own time data page: which counter the vDSO reads, and with which multiplier.
//!
//! # Theory
//!
//! The vDSO computes `ns = base + ((counter - cycle_last) * mult >> shift)` from this page. Its clock mode says which counter: none, TSC,
//! pvclock page or Hyper-V page. So the page tells directly what the kernel trusts now; when it marks the TSC unstable, the mode changes.
//!
//! # Practice
//!
//! [`TimeDataPage::read`] gives the fields. The layout is the kernel's own affair and has moved between versions (record at byte 128 or 0, a
//! field more or less), so it is looked for, and believed only if mode, mask, multiplier and shift are possible.
//!
//! # Migration
//!
//! The kernel rewrites the page at each tick: no word of it tells of a migration.
//!
//! # Caveats
//!
//! The multiplier follows the time daemon: up to 500 ppm off the counter's own rate.
//!
//! # References
//!
//! Linux `include/vdso/datapage.h`, `kernel/time/vsyscall.c`.

use chronovisor_abi::quantity::{Hertz, Ppb};
use chronovisor_abi::seqlock::sync::{AtomicU32, Ordering};
use chronovisor_abi::seqlock::{self, OddWhileUpdating};

use crate::frequency::{Channel, Estimate};

/// The page as 32-bit words, each an atomic.
pub(crate) type Words = [AtomicU32; 1024];

/// Which counter the vDSO reads; any value can stand in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClockMode(pub u32);

impl ClockMode {
    /// None: every read is a system call.
    pub const NONE: Self = Self(0);
    /// The TSC.
    pub const TSC: Self = Self(1);
    /// The pvclock page.
    pub const PVCLOCK: Self = Self(2);
    /// The Hyper-V page.
    pub const HVCLOCK: Self = Self(3);
    /// The page holds a time namespace's offsets, not time data.
    pub const TIME_NAMESPACE: Self = Self(i32::MAX.cast_unsigned());
}

/// What the page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeData {
    /// Which counter the vDSO reads.
    pub mode: ClockMode,
    /// The counter's width, as a mask.
    pub mask: u64,
    /// The most cycles that the kernel goes without an update; absent on kernels before 6.10.
    pub max_cycles: Option<u64>,
    /// The multiplier.
    pub mult: u32,
    /// The shift behind the multiplication.
    pub shift: u32,
}

impl TimeData {
    /// The counter's rate that multiplier and shift stand for: `10^9 * 2^shift / mult`. Within 500 ppm of the counter's own, as the time daemon
    /// steers it. `None` if no rate can be told.
    #[must_use]
    pub fn frequency(&self) -> Option<Hertz> {
        let scale = 1_u128.checked_shl(self.shift)?;
        Hertz::from_ratio_floor(
            1_000_000_000_u128.checked_mul(scale)?,
            u128::from(self.mult),
        )
    }

    /// The TSC's rate as the kernel has it, to within the 500 ppm by which a time daemon may steer the multiplier; `None` if the kernel does not read the TSC.
    #[must_use]
    pub fn estimate(&self) -> Option<Estimate> {
        let rate = self.frequency().filter(|_| self.mode == ClockMode::TSC)?;
        Some(Estimate {
            channel: Channel::KernelTimeData,
            rate,
            bound: Ppb::from_ppb_saturating(500_000),
        })
    }

    fn is_possible(&self) -> bool {
        let modes = [
            ClockMode::NONE,
            ClockMode::TSC,
            ClockMode::PVCLOCK,
            ClockMode::HVCLOCK,
        ];
        // A mask is 2^n - 1. The kernel's shifts are at most 32, and a multiplier uses its bits.
        modes.contains(&self.mode)
            && self.mask >= 0xffff
            && self.mask & self.mask.wrapping_add(1) == 0
            && (1..=32).contains(&self.shift)
            && self.mult > 0
    }
}

/// Where the fields stand in the page, in words.
#[derive(Clone, Copy, Debug)]
struct Fields {
    record: usize,
    mask: usize,
    max_cycles: Option<usize>,
}

impl Fields {
    /// Every layout that a kernel has had: record at byte 0 or 128, with and without `max_cycles`.
    const KNOWN: [Self; 4] = [
        Self::at(0, true),
        Self::at(32, true),
        Self::at(0, false),
        Self::at(32, false),
    ];

    const fn at(record: usize, has_max_cycles: bool) -> Self {
        // sequence, mode, cycle_last (2), [max_cycles (2)], mask (2), mult, shift
        Self {
            record,
            mask: record + if has_max_cycles { 6 } else { 4 },
            max_cycles: if has_max_cycles {
                Some(record + 4)
            } else {
                None
            },
        }
    }

    fn load(self, words: &Words) -> TimeData {
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let double = |at: usize| u64::from(word(at)) | u64::from(word(at + 1)) << 32;
        TimeData {
            mode: ClockMode(word(self.record + 1)),
            mask: double(self.mask),
            max_cycles: self.max_cycles.map(double),
            mult: word(self.mask + 2),
            shift: word(self.mask + 3),
        }
    }
}

/// How often the page is looked at before it is called unreadable: an update takes less than 1 us.
const TRIES: u32 = 1_000;

/// A time data page whose layout was recognised.
#[derive(Clone, Copy, Debug)]
pub struct TimeDataPage {
    words: &'static Words,
    fields: Fields,
}

impl TimeDataPage {
    /// `words` as time data, or `None` if no known layout fits.
    pub(crate) fn recognise(words: &'static Words) -> Option<Self> {
        Fields::KNOWN
            .into_iter()
            .map(|fields| Self { words, fields })
            .find(|page| page.read().is_some_and(|data| data.is_possible()))
    }

    /// Whether `words` are those of a time namespace, whose time data lies in the other page.
    pub(crate) fn is_time_namespace(words: &Words) -> bool {
        [1, 33]
            .iter()
            .any(|at| words[*at].load(Ordering::Relaxed) == ClockMode::TIME_NAMESPACE.0)
    }

    /// What the page says now; `None` if the kernel was writing it at every look.
    #[must_use]
    pub fn read(&self) -> Option<TimeData> {
        let sequence = &self.words[self.fields.record];
        seqlock::read::<OddWhileUpdating, _>(sequence, TRIES, || self.fields.load(self.words)).ok()
    }

    /// The word in which the clock mode stands, to be watched.
    pub(crate) fn mode_word(&self) -> &'static AtomicU32 {
        &self.words[self.fields.record + 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;

    /// The words of a page; it is leaked, as the kernel's is never unmapped.
    fn page(words: &[(usize, u32)]) -> &'static Words {
        let page = Box::leak(Box::new([const { AtomicU32::new(0) }; 1024]));
        for (at, value) in words {
            page[*at].store(*value, Ordering::Relaxed);
        }
        page
    }

    const MULT: u32 = 6_452_775;

    /// The record of a kernel that reads the TSC at 2600 MHz, in each layout: `base` its first word, `mask` its mask.
    fn record(base: usize, mask: usize) -> [(usize, u32); 7] {
        [
            (base, 8),
            (base + 1, 1),
            (base + 2, 12_345),
            (mask, u32::MAX),
            (mask + 1, u32::MAX),
            (mask + 2, MULT),
            (mask + 3, 24),
        ]
    }

    #[test]
    fn each_layout_is_recognised() {
        for (base, mask, max_cycles) in
            [(0, 6, true), (32, 38, true), (0, 4, false), (32, 36, false)]
        {
            let words = page(&record(base, mask));
            if max_cycles {
                words[base + 4].store(0x3c32_32d0, Ordering::Relaxed);
                words[base + 5].store(0x257a, Ordering::Relaxed);
            }
            let found = TimeDataPage::recognise(words).expect("a known layout");
            let data = found.read().unwrap();
            assert_eq!(
                (data.mode, data.mult, data.shift),
                (ClockMode::TSC, MULT, 24)
            );
            assert_eq!(data.max_cycles, max_cycles.then_some(0x257a_3c32_32d0));
            // 10^9 * 2^24 / 6452775 = 2600000155.0..
            assert_eq!(data.frequency().map(Hertz::rounded_hz), Some(2_600_000_155));
            assert_eq!(
                data.estimate().map(|e| (e.rate, e.channel)),
                data.frequency().map(|rate| (rate, Channel::KernelTimeData))
            );
            let on_pvclock = TimeData {
                mode: ClockMode::PVCLOCK,
                ..data
            };
            assert_eq!(on_pvclock.estimate(), None);
            assert_eq!(found.mode_word().load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn zeros_noise_and_a_namespace_are_not_time_data() {
        assert!(TimeDataPage::recognise(page(&[])).is_none());
        let mut odd = record(0, 6);
        odd[0].1 = 9;
        assert!(
            TimeDataPage::recognise(page(&odd)).is_none(),
            "a page left odd"
        );
        for (at, value) in [(1, 7), (6, 0x1234_5678), (8, 0), (9, 0), (9, 64)] {
            let words = page(&record(0, 6));
            words[at].store(value, Ordering::Relaxed);
            assert!(
                TimeDataPage::recognise(words).is_none(),
                "word {at} = {value:#x}"
            );
        }
        let namespace = page(&[(0, 1), (1, ClockMode::TIME_NAMESPACE.0)]);
        assert!(TimeDataPage::is_time_namespace(namespace));
        assert!(TimeDataPage::recognise(namespace).is_none());
    }
}
