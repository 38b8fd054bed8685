//! A value that was read between two looks at the counter, so that it is known how late or early it can be.

use chronovisor_abi::quantity::{Nanos, Tsc, TscDelta};
use chronovisor_guest::counter;

/// A value and the two counter values between which it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bracketed<T> {
    /// The counter just before the read.
    pub before: Tsc,
    /// What was read.
    pub value: T,
    /// The counter just after the read.
    pub after: Tsc,
}

impl<T> Bracketed<T> {
    /// Width of the bracket.
    #[must_use]
    pub fn width(&self) -> TscDelta {
        self.after.wrapping_delta(self.before)
    }
}

/// The narrowest of `tries` bracketed reads; `None` if no read gave a value. A read that was interrupted has a wide bracket and loses.
pub fn narrowest<T>(tries: u32, mut read: impl FnMut() -> Option<T>) -> Option<Bracketed<T>> {
    let mut best: Option<Bracketed<T>> = None;
    for _ in 0..tries {
        let before = counter::read_fenced();
        let Some(value) = read() else { continue };
        let after = counter::read_fenced();
        let this = Bracketed {
            before,
            value,
            after,
        };
        if best.as_ref().is_none_or(|best| this.width() < best.width()) {
            best = Some(this);
        }
    }
    best
}

/// A clock's time and the times of another clock read just before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sandwich {
    /// The reference just before.
    pub before: Nanos,
    /// The clock.
    pub value: Nanos,
    /// The reference just after.
    pub after: Nanos,
}

impl Sandwich {
    /// The narrowest of `tries` reads of `clock` between two of `reference`.
    pub fn narrowest(
        tries: u32,
        mut clock: impl FnMut() -> Option<Nanos>,
        mut reference: impl FnMut() -> Option<Nanos>,
    ) -> Option<Self> {
        let mut best: Option<Self> = None;
        for _ in 0..tries {
            let (Some(before), Some(value), Some(after)) = (reference(), clock(), reference())
            else {
                continue;
            };
            let this = Self {
                before,
                value,
                after,
            };
            // A reference that went back gives a bracket without meaning.
            let width = |sandwich: &Self| sandwich.after.checked_sub(sandwich.before);
            if let Some(wide) = width(&this)
                && best.as_ref().and_then(width).is_none_or(|best| wide < best)
            {
                best = Some(this);
            }
        }
        best
    }

    /// The clock minus the reference, in ns, at the middle of the bracket, and how far from it the truth can lie.
    #[must_use]
    pub fn offset(&self) -> (i128, u64) {
        let (before, after) = (
            i128::from(self.before.as_ns()),
            i128::from(self.after.as_ns()),
        );
        // Each of the three is rounded down to a whole ns.
        let bound = (self.after.saturating_sub(self.before).as_ns()).div_ceil(2) + 1;
        (i128::from(self.value.as_ns()) - (before + after) / 2, bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_wins_and_refusals_are_passed_over() {
        let mut calls = 0;
        let best = narrowest(50, || {
            calls += 1;
            (calls != 1).then_some(calls)
        });
        let best = best.unwrap();
        assert_eq!(calls, 50);
        assert!(best.value > 1 && !best.after.is_before(best.before));
        assert_eq!(narrowest(5, || None::<u32>), None);
    }

    /// offset = value - (before + after) / 2, bound = width / 2 and the rounding of the three
    #[test]
    fn an_offset_is_told_with_its_bound() {
        let ns = Nanos::from_ns;
        let sandwich = Sandwich {
            before: ns(100),
            value: ns(1_000),
            after: ns(140),
        };
        assert_eq!(sandwich.offset(), (880, 21));
    }

    #[test]
    fn a_reference_that_goes_back_is_not_used() {
        let mut reference = [10_u64, 5, 20, 22].into_iter().map(Nanos::from_ns);
        let best = Sandwich::narrowest(2, || Some(Nanos::from_ns(1)), || reference.next());
        assert_eq!(
            best.map(|best| (best.before.as_ns(), best.after.as_ns())),
            Some((20, 22))
        );
    }
}
