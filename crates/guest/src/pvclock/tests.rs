use super::*;
use chronovisor_abi::quantity::Hertz;
use chronovisor_abi::scale::PvclockScale;
use proptest::prelude::*;
use std::cell::Cell;
use std::vec::Vec;

fn tsc(ticks: u64) -> Tsc {
    Tsc::from_ticks(ticks)
}

/// One nanosecond a tick, `system_time` at counter 0.
fn contents(system_time: u64, flags: Flags) -> Contents {
    Contents {
        system_time: Nanos::from_ns(system_time),
        mul: 0x8000_0000,
        shift: 1,
        flags,
        ..Contents::default()
    }
}

fn publish(record: &Record, contents: &Contents) {
    let last = record.version();
    record.mark(last);
    record.store(contents);
    record.publish(last);
}

fn record(contents: &Contents) -> Record {
    let record = Record::new();
    publish(&record, contents);
    record
}

#[test]
fn a_stable_record_gives_its_time_with_the_counter() {
    let record = record(&contents(100, Flags::TSC_STABLE));
    let clock = SharedRecord::new(&record, || tsc(7), StableBit::Advertised);
    assert_eq!(clock.read(), Ok(Reading::new(Nanos::from_ns(107), tsc(7))));
}

/// A reader that asks CPUID once goes on with a record whose flag went away in a migration.
#[test]
fn d80_the_stable_flag_is_tested_at_each_read() {
    let record = record(&contents(0, Flags::TSC_STABLE));
    let clock = SharedRecord::new(&record, || tsc(7), StableBit::Advertised);
    assert!(clock.read().is_ok());
    publish(&record, &contents(0, Flags::NONE));
    assert_eq!(
        clock.read(),
        Err(PvclockError::NotStable {
            flags: Flags::NONE,
            stable_bit: StableBit::Advertised
        })
    );
    publish(&record, &contents(0, Flags::TSC_STABLE));
    assert!(clock.read().is_ok());
}

/// The flag of a host that never advertised it means nothing.
#[test]
fn d80_a_flag_that_was_not_advertised_does_not_count() {
    let record = record(&contents(0, Flags::TSC_STABLE));
    let clock = SharedRecord::new(&record, || tsc(7), StableBit::NotAdvertised);
    assert!(matches!(clock.read(), Err(PvclockError::NotStable { .. })));
    assert!(clock.observe().is_ok(), "the time itself can be looked at");
}

/// The counter is taken between the two looks at the version: a record that changes after the counter was read is read again.
#[test]
fn d80_the_counter_is_read_between_the_two_looks() {
    let record = record(&contents(0, Flags::TSC_STABLE));
    let reads = Cell::new(0);
    let counter = || {
        reads.set(reads.get() + 1);
        if reads.get() == 1 {
            publish(&record, &contents(1_000, Flags::TSC_STABLE));
        }
        tsc(5)
    };
    let clock = SharedRecord::new(&record, counter, StableBit::Advertised);
    assert_eq!(clock.read().map(|r| r.time), Ok(Nanos::from_ns(1_005)));
    assert_eq!(reads.get(), 2);
}

#[test]
fn a_stopped_guest_is_told_and_the_answer_clears_it() {
    let record = record(&contents(0, Flags::TSC_STABLE.union(Flags::GUEST_STOPPED)));
    let clock = SharedRecord::new(&record, || tsc(7), StableBit::Advertised);
    assert!(clock.observe().unwrap().guest_was_stopped());
    assert!(record.clear_guest_stopped());
    assert!(!clock.observe().unwrap().guest_was_stopped());
}

/// A snapshot taken in the middle of an update leaves the version odd for ever: the reader says so and returns.
#[test]
fn a_record_left_odd_ends_the_reader() {
    let record = Record::new();
    record.mark(4);
    let clock = SharedRecord::new(&record, || tsc(7), StableBit::Advertised).with_tries(50);
    let invalid = PvclockError::Inconsistent(ReadError::Invalid {
        sequence: 5,
        tries: 50,
    });
    assert_eq!(clock.read(), Err(invalid));
    let mut slots = [Slot::default(), Slot::default()];
    slots[1].record.mark(4);
    slots[0] = Slot::default();
    let clock = PerCpuRecords::new(&slots, || (tsc(7), 1)).with_tries(50);
    assert_eq!(clock.read(), Err(invalid));
}

/// A counter that an out-of-order read took just before the update must not become 584 years.
#[test]
fn a_counter_before_the_timestamp_reads_as_the_timestamp() {
    let record = record(&Contents {
        tsc_timestamp: tsc(1_000),
        ..contents(77, Flags::TSC_STABLE)
    });
    let clock = SharedRecord::new(&record, || tsc(999), StableBit::Advertised);
    assert_eq!(clock.read().map(|r| r.time), Ok(Nanos::from_ns(77)));
}

/// CPU n's record says (n + 1) million ns.
fn slots() -> [Slot; 3] {
    [1, 2, 3].map(|millions| Slot {
        record: record(&contents(millions * 1_000_000, Flags::NONE)),
    })
}

#[test]
fn each_cpu_reads_its_own_record() {
    let slots = slots();
    for cpu in 0..3 {
        let clock = PerCpuRecords::new(&slots, || (tsc(9), cpu));
        let (seen, on) = clock.observe().unwrap();
        assert_eq!(on, cpu);
        assert_eq!(
            seen.reading.time.as_ns(),
            (u64::try_from(cpu).unwrap() + 1) * 1_000_000 + 9
        );
    }
}

/// The thread moves between the two counter reads: the record of the CPU it left is not used with the other's counter.
#[test]
fn a_change_of_cpu_during_the_read_is_seen() {
    let slots = slots();
    let path = [0, 2, 1, 1];
    let at = Cell::new(0);
    let clock = PerCpuRecords::new(&slots, || {
        let step = at.get();
        at.set(step + 1);
        (tsc(u64::try_from(step).unwrap()), path[step])
    });
    // CPU 0 named, then 2 (its record is next), then 1, then 1 again: only the last pair agrees.
    assert_eq!(
        clock.observe().map(|(seen, cpu)| (seen.reading.time, cpu)),
        Ok((Nanos::from_ns(2_000_003), 1))
    );
}

#[test]
fn a_thread_that_never_stays_and_a_cpu_without_record_are_said() {
    let slots = slots();
    let turn = Cell::new(0);
    let clock = PerCpuRecords::new(&slots, || {
        turn.set(turn.get() + 1);
        (tsc(0), turn.get() % 3)
    })
    .with_tries(20);
    assert_eq!(clock.read(), Err(PvclockError::CpuChanged { tries: 20 }));
    let clock = PerCpuRecords::new(&slots, || (tsc(0), 3));
    assert_eq!(
        clock.read(),
        Err(PvclockError::NoRecord { cpu: 3, records: 3 })
    );
}

#[test]
fn errors_say_what_to_try() {
    let said: Vec<_> = [
        PvclockError::NotStable {
            flags: Flags::GUEST_STOPPED,
            stable_bit: StableBit::Advertised,
        },
        PvclockError::NoRecord {
            cpu: 64,
            records: 64,
        },
        PvclockError::Damaged(ScaleError::ZeroMultiplier),
    ]
    .iter()
    .map(std::string::ToString::to_string)
    .collect();
    assert!(
        said[0].contains("flags 0x2") && said[0].contains("operating system's clock"),
        "{}",
        said[0]
    );
    assert!(
        said[1].contains("64 records and none for CPU 64"),
        "{}",
        said[1]
    );
    assert!(said[2].contains("multiplier is 0"), "{}", said[2]);
}

proptest! {
    /// Whatever a record holds, a read ends without panic, and an impossible scale gives no time.
    #[test]
    fn any_record_is_safe(timestamp: u64, system_time: u64, mul: u32, shift: i8, flags: u8, ticks: u64) {
        let record = record(&Contents {
            tsc_timestamp: tsc(timestamp),
            system_time: Nanos::from_ns(system_time),
            mul,
            shift,
            flags: Flags::from_bits(flags),
        });
        let clock = SharedRecord::new(&record, || tsc(ticks), StableBit::Advertised);
        let possible = mul != 0 && (-31..=31).contains(&shift);
        prop_assert_eq!(clock.observe().is_ok(), possible);
        prop_assert_eq!(clock.read().is_ok(), possible && flags & 1 == 1);
    }

    /// The reader's time is the exact line's, rounded down, to within the interface's own truncation.
    #[test]
    fn the_time_is_that_of_the_exact_line(hz in 20_000_000_u64..10_000_000_000, at in 0_u64..1 << 62, ticks in 0_u64..1 << 52) {
        let scale = PvclockScale::nearest(Hertz::from_hz(hz).unwrap()).unwrap();
        let record = record(&Contents::new(tsc(at), Nanos::from_ns(5), scale, Flags::TSC_STABLE));
        let clock = SharedRecord::new(&record, || tsc(at + ticks), StableBit::Advertised);
        let time = u128::from(clock.read().unwrap().time.as_ns() - 5);
        // ns = ticks * mul / 2^(32 - shift), exact in 128 bits; a right shift drops up to 2^-shift - 1 ticks, each worth less than 2^shift ns.
        let width = u32::try_from(32 - i32::from(scale.shift())).unwrap();
        let exact = (u128::from(ticks) * u128::from(scale.mul())) >> width;
        prop_assert!(time <= exact && exact - time <= 1, "{time} against {exact}");
    }
}
