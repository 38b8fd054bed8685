//! Jumps by multiples of 2^32 ns: the upper half of a 64-bit time was lost, torn or cut.
//!
//! # Theory
//!
//! A clock that loses its upper bits goes back by `n * 2^32` ns, while the time between the two reads goes on, so
//! `|jump| = n * 2^32 - passed`. Where no other clock tells `passed`, two reads in a row are taken to be at most 10 ms apart.
//!
//! # Caveats
//!
//! A ratio test with a fixed relative tolerance misses exactly the public case (8.99989 times 2^32): the remainder is the time
//! that passed, not an error.

/// 2^32 ns, or 4.294967296 s.
pub const QUANTUM_NS: i128 = 1 << 32;

/// Longest time between two reads in a row where nothing tells it, in ns.
const UNTOLD_NS: i128 = 10_000_000;

/// A jump that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Later minus earlier, in ns; negative.
    pub jump_ns: i128,
    /// Multiples of 2^32 ns.
    pub multiple: i128,
    /// `multiple * 2^32 - |jump|`: the time that really passed, in ns.
    pub residual_ns: i128,
}

/// Whether the step from `earlier` to `later` is a loss of upper bits. `passed_ns` is the time that another clock saw pass
/// between the two, if one did.
#[must_use]
pub fn truncation(earlier: i128, later: i128, passed_ns: Option<i128>) -> Option<Truncation> {
    let jump_ns = later.checked_sub(earlier)?;
    if jump_ns >= 0 {
        return None;
    }
    let back = jump_ns.checked_neg()?;
    let passed = passed_ns.unwrap_or(0).max(0);
    // Round (back + passed) to the nearest multiple.
    let multiple = back.checked_add(passed)?.checked_add(QUANTUM_NS / 2)? / QUANTUM_NS;
    // Without another clock the remainder may only be positive: the nearest multiple from above.
    let multiple = if passed_ns.is_none() {
        back.checked_add(QUANTUM_NS - 1)? / QUANTUM_NS
    } else {
        multiple
    };
    let residual_ns = multiple * QUANTUM_NS - back;
    let fits = match passed_ns {
        None => (0..UNTOLD_NS).contains(&residual_ns),
        Some(_) => (residual_ns - passed).abs() < UNTOLD_NS,
    };
    (multiple >= 1 && fits).then_some(Truncation {
        jump_ns,
        multiple,
        residual_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::{QUANTUM_NS, truncation};
    use proptest::prelude::*;

    /// |jump| = n * 2^32 - passed.
    #[test]
    fn the_public_case_is_nine_times() {
        let found = truncation(15_204_184_227_830, 15_165_529_985_890, None).unwrap();
        assert_eq!(
            (found.jump_ns, found.multiple, found.residual_ns),
            (-38_654_241_940, 9, 463_724)
        );
    }

    #[test]
    fn other_jumps_are_none() {
        for (earlier, later, passed) in [
            (0, 5, None),
            (40_000_000_000, 0, None),
            (QUANTUM_NS, 20_000_000, None),
            (QUANTUM_NS, -1, None),
            (1000, 900, None),
            (i128::MAX, i128::MIN, None),
        ] {
            assert_eq!(
                truncation(earlier, later, passed),
                None,
                "{earlier} {later}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_lost_upper_half_is_recovered(start in 0_i128..1 << 62, n in 1_i128..1000, passed in 0_i128..9_999_999) {
            let found = truncation(start, start - n * QUANTUM_NS + passed, None).unwrap();
            prop_assert_eq!((found.multiple, found.residual_ns), (n, passed));
        }

        #[test]
        fn another_clock_widens_the_window(start in 0_i128..1 << 62, n in 1_i128..1000, passed in 0_i128..3_000_000_000) {
            let found = truncation(start, start - n * QUANTUM_NS + passed, Some(passed));
            if passed < n * QUANTUM_NS {
                prop_assert_eq!(found.unwrap().multiple, n);
            }
        }
    }
}
