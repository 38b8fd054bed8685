//! The sequence lock: how one writer changes several fields of a page while readers that may never wait read them.
//!
//! # Theory
//!
//! A sequence word stands beside the fields. The writer marks it invalid, changes the fields, and gives it a new valid
//! value; a reader accepts the fields only if it saw the same valid value before and after. The interfaces of this field
//! use two flavours of the word: [`OddWhileUpdating`] (pvclock, VMClock: a counter whose odd values mean "in progress")
//! and [`ZeroIsInvalid`] (the reference TSC page: any value but 0 and 0xFFFFFFFF is valid, and it changes at each update).
//!
//! What makes a clock page special is the counter: a reader takes it between its two looks at the sequence, the writer
//! after its invalid mark is visible. So a reading that used the old fields was taken before the writer's, and one
//! that uses the new fields after it; if old and new line agree at the writer's reading, no reader ever sees time go back.
//!
//! ```text
//! reader                                        writer
//! s1 = sequence          Acquire  (R1)          sequence = invalid mark    Relaxed   (W1)
//! fields, counter        Relaxed                fence                      SeqCst    (W2)
//! fence                  Acquire  (R2)          counter; fields            Relaxed
//! s2 = sequence          Relaxed  (R3)          sequence = new             Release   (W3)
//! ```
//!
//! R1 pairs with W3: who sees the new sequence sees the new fields, and takes its counter after the writer's. R2 pairs with W2: who
//! saw a new field, or a counter later than the writer's, sees the mark in R3 and tries again.
//!
//! # Practice
//!
//! All fields are atomics, so a torn read is a retry, never undefined behaviour, and the same code runs under a model
//! checker. A reader is bounded: a page left invalid for ever (a crashed writer, a snapshot taken in the middle) yields
//! [`ReadError`], not a hang.
//!
//! # Migration
//!
//! A page must be valid in every saved image, and the sequence must go on counting over a restore: a reader that slept
//! through it must not find its old value on new fields. [`begin`] and [`publish`] take the last value from the host's
//! own memory for that reason, never from the page, which the guest may overwrite.
//!
//! # Caveats
//!
//! With 31 (odd/even) or 32 bits the sequence repeats after 2^31 updates; a reader would have to sleep through exactly
//! that many. On the machine itself a counter read that is not fenced behind can slip past R3 by less than 1 us: worth less
//! than 1 ns as long as no update steps the line.
//!
//! # References
//!
//! Hyper-V TLFS, "Reference TSC page"; Linux `Documentation/virt/kvm/x86/msr.rst`; H.-J. Boehm, "Can Seqlocks Get Along
//! With Programming Language Memory Models?", MSPC 2012.

pub mod sync;

use sync::{AtomicU32, Ordering, fence};

/// How often a reader looks at a page before it gives up, unless told otherwise: an update takes well under 1 us, so this is
/// milliseconds of a writer that does not finish.
pub const DEFAULT_TRIES: u32 = 10_000;

/// What the sequence word's values mean.
pub trait Flavour {
    /// Whether fields read under this value may be used.
    fn is_valid(sequence: u32) -> bool;
    /// The mark that makes a page whose last valid value was `last` invalid.
    fn invalid_mark(last: u32) -> u32;
    /// The next valid value after `last`.
    fn next_valid(last: u32) -> u32;
}

/// pvclock and VMClock: odd while an update is in progress.
#[derive(Clone, Copy, Debug)]
pub struct OddWhileUpdating;

impl Flavour for OddWhileUpdating {
    #[inline]
    fn is_valid(sequence: u32) -> bool {
        sequence & 1 == 0
    }

    // wrapping, both: the word is a counter modulo 2^32. `| 1` makes any starting value right, an odd one included.
    fn invalid_mark(last: u32) -> u32 {
        last.wrapping_add(1) | 1
    }

    fn next_valid(last: u32) -> u32 {
        Self::invalid_mark(last).wrapping_add(1)
    }
}

/// The reference TSC page: 0 is invalid, and so is 0xFFFFFFFF, which early versions of the specification named.
#[derive(Clone, Copy, Debug)]
pub struct ZeroIsInvalid;

impl Flavour for ZeroIsInvalid {
    #[inline]
    fn is_valid(sequence: u32) -> bool {
        sequence != 0 && sequence != u32::MAX
    }

    fn invalid_mark(_last: u32) -> u32 {
        0
    }

    fn next_valid(last: u32) -> u32 {
        match last.wrapping_add(1) {
            0 | u32::MAX => 1,
            next => next,
        }
    }
}

/// Why a page gave no consistent reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The sequence word said "invalid" at every try, the last time with this value.
    #[error("the page stayed invalid (sequence {sequence:#x}) over {tries} tries")]
    Invalid {
        /// The last value seen.
        sequence: u32,
        /// How often the page was looked at.
        tries: u32,
    },
    /// The page changed under the reader at every try.
    #[error("the page changed during each of {tries} tries")]
    Busy {
        /// How often the page was looked at.
        tries: u32,
    },
}

/// One look: `body` between two looks at the sequence. `Ok` with the sequence that it was read under; `Err` with the first
/// sequence that was seen if that is invalid or the second look differs.
///
/// `body` must do nothing but loads of the page's fields and a counter read; its result is dropped if the page changed.
///
/// # Errors
///
/// The first sequence value seen, if the look cannot be used.
#[inline]
pub fn try_read<F: Flavour, T>(
    sequence: &AtomicU32,
    body: impl FnOnce() -> T,
) -> Result<(T, u32), u32> {
    let first = sequence.load(Ordering::Acquire); // R1, pairs with W3
    if !F::is_valid(first) {
        return Err(first);
    }
    let result = body();
    fence(Ordering::Acquire); // R2, pairs with W2
    if sequence.load(Ordering::Relaxed) == first {
        Ok((result, first))
    } else {
        Err(first)
    }
}

/// Up to `tries` looks (at least one), until one is consistent.
///
/// # Errors
///
/// [`ReadError`] if none was.
#[inline]
pub fn read<F: Flavour, T>(
    sequence: &AtomicU32,
    tries: u32,
    mut body: impl FnMut() -> T,
) -> Result<T, ReadError> {
    let mut left = tries.max(1);
    loop {
        match try_read::<F, T>(sequence, &mut body) {
            Ok((result, _)) => return Ok(result),
            Err(seen) => {
                left -= 1;
                if left == 0 {
                    return Err(gave_up::<F>(seen, tries.max(1)));
                }
                sync::spin_loop();
            }
        }
    }
}

#[cold]
fn gave_up<F: Flavour>(sequence: u32, tries: u32) -> ReadError {
    if F::is_valid(sequence) {
        ReadError::Busy { tries }
    } else {
        ReadError::Invalid { sequence, tries }
    }
}

/// Marks a page invalid, whose last valid value was `last`, and waits until every other CPU can see the mark: what the
/// caller reads from the counter after this call is later than any reading that the old fields can give.
///
/// Each call must be followed by [`publish`] with the same `last` on every path.
pub fn begin<F: Flavour>(sequence: &AtomicU32, last: u32) {
    mark::<F>(sequence, last);
    fence(Ordering::SeqCst); // W2, pairs with R2; on x86 it drains the store buffer
}

/// [`begin`] without its fence, for marking many pages: one `fence(SeqCst)` after the last mark serves them all.
#[inline]
pub fn mark<F: Flavour>(sequence: &AtomicU32, last: u32) {
    sequence.store(F::invalid_mark(last), Ordering::Relaxed); // W1
}

/// Makes the page valid again under the value after `last`, which is returned to be kept as the next `last`.
#[inline]
pub fn publish<F: Flavour>(sequence: &AtomicU32, last: u32) -> u32 {
    let next = F::next_valid(last);
    sequence.store(next, Ordering::Release); // W3, pairs with R1
    next
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod model;
