use super::*;
use crate::quantity::{Hertz, Nanos, Tsc, TscDelta};
use crate::scale::{PvclockScale, Rounding};
use proptest::prelude::*;

/// The values after `last`: while updating, and when done.
#[test]
fn both_flavours_step_over_their_reserved_values() {
    for (last, mark, next) in [
        (0, 1, 2),
        (2, 3, 4),
        (3, 5, 6),
        (u32::MAX, 1, 2),
        (u32::MAX - 1, u32::MAX, 0),
    ] {
        assert_eq!(
            OddWhileUpdating::invalid_mark(last),
            mark,
            "mark after {last:#x}"
        );
        assert_eq!(
            OddWhileUpdating::next_valid(last),
            next,
            "value after {last:#x}"
        );
    }
    for (last, next) in [
        (0, 1),
        (1, 2),
        (u32::MAX - 2, u32::MAX - 1),
        (u32::MAX - 1, 1),
        (u32::MAX, 1),
    ] {
        assert_eq!(ZeroIsInvalid::invalid_mark(last), 0);
        assert_eq!(
            ZeroIsInvalid::next_valid(last),
            next,
            "value after {last:#x}"
        );
    }
}

#[test]
fn a_page_that_never_becomes_valid_ends_the_reader() {
    for sequence in [1, 3, u32::MAX] {
        let error = read::<OddWhileUpdating, ()>(&AtomicU32::new(sequence), 100, || ());
        assert_eq!(
            error,
            Err(ReadError::Invalid {
                sequence,
                tries: 100
            })
        );
    }
    for sequence in [0, u32::MAX] {
        let error = read::<ZeroIsInvalid, ()>(&AtomicU32::new(sequence), 0, || ());
        assert_eq!(error, Err(ReadError::Invalid { sequence, tries: 1 }));
    }
}

#[test]
fn a_page_that_changes_under_each_look_ends_the_reader() {
    let sequence = AtomicU32::new(2);
    let error = read::<OddWhileUpdating, ()>(&sequence, 7, || {
        sequence.fetch_add(2, Ordering::Relaxed);
    });
    assert_eq!(error, Err(ReadError::Busy { tries: 7 }));
}

proptest! {
    /// From any value, each update changes the word, and the word is valid after it.
    #[test]
    fn every_update_is_seen(last: u32) {
        for (mark, next, valid) in [
            (OddWhileUpdating::invalid_mark(last), OddWhileUpdating::next_valid(last), OddWhileUpdating::is_valid(OddWhileUpdating::next_valid(last))),
            (ZeroIsInvalid::invalid_mark(last), ZeroIsInvalid::next_valid(last), ZeroIsInvalid::is_valid(ZeroIsInvalid::next_valid(last))),
        ] {
            prop_assert!(valid && next != last && mark != next);
        }
    }

    /// A counter read that slips past the second look by up to 1 us still gives a time at most 1 ns (plus the last digit that
    /// the multiplication rounds) later than what readers of the new line get, for rates up to 1000 ppm apart.
    ///
    /// The model checker orders the counter with the looks; the hardware may not. old(t0 + slip) - new(t0) is what a reader
    /// can gain: slip * (old rate - new rate) where the lines meet at t0, against a reader of the new line at t0 + slip.
    #[test]
    fn a_slipped_counter_read_gains_at_most_a_nanosecond(
        hz in 1_000_000_000_u64..5_000_000_000,
        ppm in -1000_i64..=1000,
        age in 0_u64..10_000_000_000,
        slip_ns in 0_u64..=1000,
    ) {
        let changed = hz.checked_add_signed(i64::try_from(hz).unwrap() / 1_000_000 * ppm).unwrap();
        let scale = |hz| PvclockScale::from_frequency(Hertz::from_hz(hz).unwrap(), Rounding::Nearest).unwrap();
        let (old, new) = (scale(hz), scale(changed));
        // The update falls on a tick that the shift does not round, as the host chooses it.
        let at = Tsc::from_ticks(age & !3);
        let base = old.nanos(TscDelta::from_ticks(at.as_ticks()));
        let slip = TscDelta::from_ticks(slip_ns * hz / 1_000_000_000);
        let late_old = old.nanos(at.wrapping_add(slip).wrapping_delta(Tsc::from_ticks(0)));
        let same_instant_new = base.checked_add(new.nanos(slip)).unwrap();
        let gain = late_old.saturating_sub(same_instant_new);
        // 1 us * 1000 ppm = 1 ns, and each line rounds down by up to 1 ns and the shift's ticks (1.4 ns in all).
        prop_assert!(gain <= Nanos::from_ns(3), "{gain}");
    }
}
