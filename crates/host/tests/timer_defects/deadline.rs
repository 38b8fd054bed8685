//! Known defects of TSC-deadline mode.

use crate::timer::{FIRED, armed, at, hz, plain, reading, write};
use chronovisor_abi::quantity::{Nanos, TscDelta};
use chronovisor_host::apic::{Backend, Delivery, SoftwareTimer, TimerRegister};

#[test]
fn d57_tsc_deadline_mode_exists() {
    let mut timer = armed(plain(), 5000, 0);
    assert_eq!(timer.read(TimerRegister::TscDeadline, at(4999)), 5000);
    assert_eq!(timer.expire(at(4999)).delivery, Delivery::Nothing);
    assert_eq!(timer.expire(at(5000)).delivery, FIRED);
    assert_eq!(timer.read(TimerRegister::TscDeadline, at(5000)), 0);
    assert_eq!(timer.expire(at(9000)).delivery, Delivery::Nothing);
    // In the past: at once.
    assert_eq!(
        write(&mut timer, TimerRegister::TscDeadline, 8000, 9000),
        FIRED
    );
}

#[test]
fn d62_the_deadline_is_compared_with_the_guests_tsc() {
    // The guest's counter is 10^12 behind the host's. The back-end gets the guest's value and counts the distance.
    let host_tsc = 1_000_000_005_000_u64;
    let guest_tsc = host_tsc - 1_000_000_000_000;
    let mut timer = armed(plain(), 9000, guest_tsc);
    let mut software = SoftwareTimer::new(hz(2_000_000_000));
    let now = reading(77, guest_tsc);
    software.set(timer.next_deadline().unwrap(), now).unwrap();
    assert_eq!(software.expires(), Some(Nanos::from_ns(77 + 2000 + 1)));
    // The guest moves its counter: the expiry moves along.
    assert_eq!(
        timer.tsc_moved(at(5000), at(8000)).delivery,
        Delivery::Nothing
    );
    assert_eq!(
        timer.next_deadline().unwrap().remaining(at(8000)),
        TscDelta::from_ticks(1000)
    );
    assert_eq!(timer.tsc_moved(at(8000), at(20_000)).delivery, FIRED);
}
