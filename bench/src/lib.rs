//! Pages of the benches' own, and a timing loop whose rounds are interleaved.

use std::hint::black_box;

use chronovisor_abi::pvclock::{Contents, Flags, Record};
use chronovisor_abi::quantity::{Hertz, Nanos, RefTime, Tsc};
use chronovisor_abi::reference_tsc::{Parameters, ReferenceTscPage};
use chronovisor_abi::scale::PvclockScale;
use chronovisor_guest::counter::{rdtsc, read_fenced};

/// The rate of the pages that [`record`] and [`page`] make; their times are not this machine's, their cost is.
pub const PAGE_HZ: u64 = 2_600_000_000;

fn rate() -> Hertz {
    Hertz::from_hz(PAGE_HZ).expect("not zero")
}

/// A stable pvclock record that starts now.
///
/// # Panics
///
/// Never: the rate is in range.
#[must_use]
pub fn record() -> Record {
    let record = Record::new();
    record.mark(0);
    record.store(&contents());
    record.publish(0);
    record
}

/// The contents of [`record`].
///
/// # Panics
///
/// Never: the rate is in range.
#[must_use]
pub fn contents() -> Contents {
    let scale = PvclockScale::nearest(rate()).expect("in range");
    Contents::new(rdtsc(), Nanos::ZERO, scale, Flags::TSC_STABLE)
}

/// A usable reference TSC page that starts now.
///
/// # Panics
///
/// Never: the rate is above 10 MHz.
#[must_use]
pub fn page() -> Box<ReferenceTscPage> {
    let page = Box::new(ReferenceTscPage::new());
    page.mark();
    page.store(&Parameters::through(rdtsc(), RefTime::ZERO, rate()).expect("above 10 MHz"));
    page.publish(0);
    page
}

/// Reads a chunk of `reads` and returns its cost in hundredths of a cycle of the counter for each read.
#[inline]
pub fn hundredths<T>(reads: u32, mut read: impl FnMut() -> T) -> u64 {
    let start: Tsc = read_fenced();
    for _ in 0..reads {
        black_box(read());
    }
    read_fenced().wrapping_delta(start).as_ticks() * 100 / u64::from(reads)
}

/// One clock of a comparison: its name and a chunk of its reads.
pub struct Contender<'a> {
    /// The clock.
    pub name: &'static str,
    /// Reads it so many times and returns the cost as [`hundredths`] does.
    pub chunk: Box<dyn FnMut(u32) -> u64 + 'a>,
}

/// The cheapest chunk of each contender in one round of `chunks` interleaved chunks: what other programs on the machine add only makes a chunk dearer.
pub fn round(contenders: &mut [Contender<'_>], chunks: u32, reads: u32) -> Vec<u64> {
    let mut best = vec![u64::MAX; contenders.len()];
    for _ in 0..chunks {
        for (best, contender) in best.iter_mut().zip(contenders.iter_mut()) {
            *best = (*best).min((contender.chunk)(reads));
        }
    }
    best
}

/// The middle of `values`, which are put in order.
///
/// # Panics
///
/// If there are none.
#[must_use]
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
