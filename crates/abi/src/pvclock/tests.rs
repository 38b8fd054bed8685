use super::*;
use proptest::prelude::*;

#[test]
fn a_record_is_read_as_it_was_written() {
    let record = Record::new();
    let contents = Contents {
        tsc_timestamp: Tsc::from_ticks(u64::MAX),
        system_time: Nanos::from_ns(7),
        mul: 0xC4EC_4EC4,
        shift: -1,
        flags: Flags::TSC_STABLE.union(Flags::GUEST_STOPPED),
    };
    record.mark(0);
    assert_eq!(
        record.read(3, || ()),
        Err(ReadError::Invalid {
            sequence: 1,
            tries: 3
        })
    );
    record.store(&contents);
    assert_eq!(record.publish(0), 2);
    assert_eq!(record.read(1, || 5), Ok((contents, 5)));
    assert!(record.clear_guest_stopped() && !record.clear_guest_stopped());
    assert_eq!(record.load().flags, Flags::TSC_STABLE);
}

/// A product of 64 bits would lose multiples of 2^32 ns: 38.65 s at the ninth.
#[test]
fn d81_long_distances_lose_no_multiple_of_2_to_the_32() {
    let contents = Contents {
        mul: 0x8000_0000,
        shift: 1,
        ..Contents::default()
    };
    for ns in [38_654_705_664, 1 << 40, u64::MAX / 2] {
        assert_eq!(
            contents.time_at(Tsc::from_ticks(ns)),
            Ok(Nanos::from_ns(ns))
        );
    }
}

#[test]
fn a_wall_clock_record_is_read_as_it_was_written() {
    let (record, wall) = (
        WallClockRecord::new(),
        WallClock {
            sec: u32::MAX,
            nsec: 999_999_999,
        },
    );
    // Any starting parity ends even.
    assert_eq!(record.fill(7, wall), 10);
    assert_eq!(record.read(1), Ok(wall));
}

proptest! {
    /// Whatever a record holds, reading it neither panics nor gives a time for an impossible scale.
    #[test]
    fn any_contents_are_safe(timestamp: u64, system_time: u64, mul: u32, shift: i8, flags: u8, tsc: u64) {
        let contents = Contents {
            tsc_timestamp: Tsc::from_ticks(timestamp),
            system_time: Nanos::from_ns(system_time),
            mul,
            shift,
            flags: Flags::from_bits(flags),
        };
        let possible = mul != 0 && (-31..=31).contains(&shift);
        prop_assert_eq!(contents.time_at(Tsc::from_ticks(tsc)).is_ok(), possible);
    }
}
