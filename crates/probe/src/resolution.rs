//! What a row of successive values says about a clock: its resolution, and whether it stood still or went back.
//!
//! # Theory
//!
//! A clock moves in multiples of its resolution. A slow read hides that: each step is large. But the steps differ, and they differ by multiples
//! of the resolution too, so the smallest distance between two different steps shows it where a step alone does not. A hardware clock
//! whose period is no whole number of ns (279.365 ns) gives steps of two neighbouring values for one; three values in a row are a clock
//! that really moves by one.
//!
//! # Caveats
//!
//! The result is a multiple of the true resolution if too few different steps were seen, and that of a clock whose values were rounded can be off by one. A clamp turns backward motion into
//! repeats, so repeats are counted as well.

/// What successive values of a clock say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Values looked at.
    pub readings: u64,
    /// The unit in which the clock moves, in the unit of the values; `None` if it never moved.
    pub resolution: Option<u64>,
    /// Values equal to the one before.
    pub stalls: u64,
    /// Values lower than the one before (wrapping counters: more than half of the range ahead).
    pub regressions: u64,
}

/// Looks at successive values of one clock, read by one thread.
///
/// ```
/// # use chronovisor_probe::resolution::judge;
/// // A 100 ns clock, read every 250 ns or so.
/// let steps = judge(&[0, 200, 500, 700, 1000, 1000, 900]);
/// assert_eq!((steps.resolution, steps.stalls, steps.regressions), (Some(100), 1, 1));
/// ```
#[must_use]
pub fn judge(values: &[u64]) -> Steps {
    let (mut stalls, mut regressions, mut sizes) = (0, 0, Vec::with_capacity(values.len()));
    for pair in values.windows(2) {
        // wrapping: a counter may pass its end.
        match pair[1].wrapping_sub(pair[0]) {
            0 => stalls += 1,
            back if back > u64::MAX / 2 => regressions += 1,
            step => sizes.push(step),
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    Steps {
        readings: u64::try_from(values.len()).unwrap_or(u64::MAX),
        resolution: resolution(&sizes),
        stalls,
        regressions,
    }
}

/// The unit of steps that are sorted and distinct.
fn resolution(sizes: &[u64]) -> Option<u64> {
    let smallest = *sizes.first()?;
    if sizes.windows(3).any(|three| three[2] - three[0] == 2) {
        return Some(1);
    }
    // Two neighbours are one step of a fractional clock: the lower of them stands for both. Which of the two was seen is chance, so a distance
    // can be off by one, and the mean of the smallest ones is nearer to the truth than the smallest.
    let (mut distances, mut stands_for, mut last) = (vec![smallest], smallest, smallest);
    for size in &sizes[1..] {
        if size - last > 1 {
            distances.push(size - stands_for);
            stands_for = *size;
        }
        last = *size;
    }
    let least = distances.iter().copied().min()?;
    let (sum, count) = distances
        .iter()
        .filter(|distance| **distance <= least + 1)
        .fold((0_u128, 0_u128), |(sum, count), distance| {
            (sum + u128::from(*distance), count + 1)
        });
    u64::try_from((2 * sum + count) / (2 * count)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_clocks() {
        let steps_of = |steps: &[u64]| {
            let mut value = 1_000_u64;
            let mut values = vec![value];
            for step in steps {
                value += step;
                values.push(value);
            }
            judge(&values).resolution
        };
        for (name, steps, unit) in [
            ("a clock that stands", &[0_u64, 0][..], None),
            ("1 ns, cheap", &[15, 16, 17, 15, 30], Some(1)),
            (
                "10 ns, rounded twice on its way",
                &[20, 21, 20, 30, 31],
                Some(10),
            ),
            (
                "10 ns, and chance showed one of two neighbours only",
                &[20, 30, 31, 41, 50, 60],
                Some(10),
            ),
            ("100 ns, cheap: 0 and 100", &[0, 0, 100, 0, 100], Some(100)),
            (
                "10 ns behind a read of 1 us",
                &[1_010, 1_020, 1_000],
                Some(10),
            ),
            (
                "279.365 ns behind a read of 1.2 us",
                &[1_117, 1_396, 1_397, 1_118, 1_676, 1_955, 2_234],
                Some(279),
            ),
            ("jiffies", &[0, 4_000_000, 0], Some(4_000_000)),
        ] {
            assert_eq!(steps_of(steps), unit, "{name}");
        }
    }

    #[test]
    fn a_wrap_is_a_step_and_a_step_back_is_not() {
        let steps = judge(&[u64::MAX - 5, 4, 2]);
        assert_eq!(
            (steps.resolution, steps.regressions, steps.readings),
            (Some(10), 1, 3)
        );
    }

    proptest! {
        /// Every value of a clock of whole units is a multiple of the unit, and so is what is found.
        #[test]
        fn the_resolution_is_a_multiple_of_the_unit(unit in 2_u64..1_000, steps in prop::collection::vec(0_u64..100, 1..200)) {
            let values: Vec<u64> = steps.iter().scan(7, |value, step| { *value += step * unit; Some(*value) }).collect();
            let found = judge(&values);
            if let Some(resolution) = found.resolution {
                prop_assert_eq!(resolution % unit, 0);
            }
            prop_assert_eq!(found.regressions, 0);
        }

        #[test]
        fn any_values_are_safe(values: Vec<u64>) {
            let found = judge(&values);
            prop_assert!(found.stalls + found.regressions <= found.readings);
        }
    }
}
