use super::*;
use chronovisor_abi::quantity::{Hertz, Tsc};
use chronovisor_abi::reference_tsc::Parameters;
use proptest::prelude::*;
use std::cell::Cell;

fn tsc(ticks: u64) -> Tsc {
    Tsc::from_ticks(ticks)
}

fn line(at: u64, time: u64, hz: u64) -> Parameters {
    Parameters::through(
        tsc(at),
        RefTime::from_100ns(time),
        Hertz::from_hz(hz).expect("a rate above 10 MHz"),
    )
    .expect("a rate above 10 MHz")
}

fn publish(page: &ReferenceTscPage, last: u32, line: &Parameters) {
    page.mark();
    page.store(line);
    page.publish(last);
}

fn never() -> RefTime {
    panic!("the page is usable: no fall-back")
}

#[test]
fn a_usable_page_is_read_without_the_fall_back() {
    let page = ReferenceTscPage::new();
    publish(&page, 0, &line(1_000, 50, 2_600_000_000));
    let clock = ReferenceClock::new(&page, || tsc(1_000 + 2_600), never);
    let seen = clock.observe();
    assert_eq!(seen.source, Source::Page);
    assert_eq!(
        seen.reading,
        Reading::new(RefTime::from_100ns(60), tsc(3_600))
    );
}

/// Sequence 0 and the 0xFFFFFFFF of early specifications both mean "read the counter".
#[test]
fn an_unusable_page_is_answered_by_the_counter() {
    for last_valid in [None, Some(u32::MAX - 1)] {
        let page = ReferenceTscPage::new();
        if let Some(last) = last_valid {
            publish(&page, last, &line(0, 0, 2_600_000_000));
            page.mark();
        }
        let clock = ReferenceClock::new(&page, || tsc(5), || RefTime::from_100ns(9));
        assert_eq!(
            clock.observe(),
            Observation {
                reading: Reading::new(RefTime::from_100ns(9), tsc(5)),
                source: Source::Counter
            }
        );
    }
}

/// A page whose writer never rests is given up after the bound, and the counter is read.
#[test]
fn a_page_that_changes_at_every_look_is_answered_by_the_counter() {
    let page = ReferenceTscPage::new();
    publish(&page, 0, &line(0, 0, 2_600_000_000));
    let looks = Cell::new(0_u32);
    let counter = || {
        looks.set(looks.get() + 1);
        publish(&page, page.sequence(), &line(0, 0, 2_600_000_000));
        tsc(5)
    };
    let clock = ReferenceClock::new(&page, counter, || RefTime::from_100ns(9)).with_tries(4);
    assert_eq!(clock.observe().source, Source::Counter);
    // Four looks at the page, one reading beside the counter.
    assert_eq!(looks.get(), 5);
}

proptest! {
    /// Page and counter are one clock: whichever answers, and however often they alternate, time never goes back. The counter is the exact
    /// clock rounded up to what the page may have said, as the hypervisor keeps it.
    #[test]
    fn time_never_goes_back_over_switches(steps in prop::collection::vec((1_u64..10_000_000, any::<bool>(), any::<bool>()), 1..60)) {
        let page = ReferenceTscPage::new();
        let (rates, mut rate) = ([2_600_000_000_u64, 2_100_000_000], 0);
        let mut current = line(0, 0, rates[rate]);
        let (mut now, mut sequence, mut usable) = (0_u64, 0, false);
        let mut last = RefTime::ZERO;
        for (ticks, toggle, new_rate) in steps {
            now += ticks;
            if new_rate {
                // The host re-bases: the new line goes through the old one's value.
                rate = 1 - rate;
                page.mark();
                current = line(now, current.time_at(tsc(now)).as_100ns(), rates[rate]);
            }
            if toggle {
                usable = !usable;
            }
            if usable {
                page.mark();
                page.store(&current);
                sequence = page.publish(sequence);
            } else {
                page.mark();
            }
            let clock = ReferenceClock::new(&page, || tsc(now), || current.time_at(tsc(now)));
            let seen = clock.observe();
            prop_assert_eq!(seen.source, if usable { Source::Page } else { Source::Counter });
            prop_assert!(seen.reading.time >= last, "{:?} after {last:?}", seen.reading);
            last = seen.reading.time;
        }
    }

    /// Whatever a page holds, a read ends, without panic.
    #[test]
    fn any_page_is_safe(scale: u64, offset: i64, sequence: u32, ticks: u64) {
        let page = ReferenceTscPage::new();
        publish(&page, sequence, &Parameters { scale: chronovisor_abi::scale::ReferenceScale::from_raw(scale), offset });
        let clock = ReferenceClock::new(&page, || tsc(ticks), never);
        let expected = (u128::from(ticks) * u128::from(scale)) >> 64;
        let expected = u64::try_from(expected).unwrap().wrapping_add_signed(offset);
        prop_assert_eq!(clock.read().unwrap().time.as_100ns(), expected);
    }
}
