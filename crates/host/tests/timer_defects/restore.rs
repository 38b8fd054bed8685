//! Known defects of save and restore.

use crate::timer::{FIRED, VECTOR, armed, at, count, counting, due, plain, write};
use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode, TimerRegisters};
use chronovisor_abi::msr::Msr;
use chronovisor_host::apic::{
    AccessFault, DeadlineMode, Delivery, LastInterrupt, LocalTimer, Settings, StateError,
    TimerRegister, TimerState,
};

#[test]
fn d49_a_running_timer_survives_a_save() {
    let timer = counting(plain(), TimerMode::PERIODIC, 1_000_000);
    let state = timer.save(at(500_001));
    assert_eq!(state.registers().current_count, 750_000);
    let moved = LocalTimer::restore(plain(), &state, at(9_000_000)).unwrap();
    assert_eq!(due(&moved), Some(9_000_000 + 2_000_000 - 500_001));
}

#[test]
fn d50_a_restored_count_goes_on_and_an_expired_one_shot_stays_expired() {
    let mut timer = counting(plain(), TimerMode::ONE_SHOT, 1000);
    assert_eq!(timer.expire(at(2000)).delivery, FIRED);
    let mut moved = LocalTimer::restore(plain(), &timer.save(at(3000)), at(0)).unwrap();
    assert_eq!((due(&moved), count(&moved, 0)), (None, 0));
    assert_eq!(moved.expire(at(u64::MAX >> 2)).expiries, 0);
    // The same from the registers alone, as KVM hands them over.
    let half = TimerRegisters {
        lvt: LvtTimer::new(TimerMode::ONE_SHOT, VECTOR),
        initial_count: 1000,
        current_count: 400,
        divide: DivideConfiguration::BY_1,
        deadline: 0,
    };
    for (current_count, expected) in [(400, Some(800)), (2000, Some(2000)), (0, None)] {
        let state = TimerState::from_registers(
            TimerRegisters {
                current_count,
                ..half
            },
            LastInterrupt::Delivered,
        );
        assert_eq!(
            due(&LocalTimer::restore(plain(), &state, at(0)).unwrap()),
            expected
        );
    }
}

#[test]
fn d58_a_deadline_restored_before_the_tsc_is_not_dead() {
    let state = armed(plain(), 50_000_000, 40_000_000).save(at(45_000_000));
    // The counter still reads what the new host gave it; then it is set.
    let mut timer = LocalTimer::restore(plain(), &state, at(17)).unwrap();
    assert_eq!(
        timer.tsc_moved(at(20), at(45_000_000)).delivery,
        Delivery::Nothing
    );
    assert_eq!(due(&timer), Some(50_000_000));
    assert_eq!(timer.expire(at(50_000_000)).delivery, FIRED);
    // And where the new host's counter was already past it, the interrupt comes early but comes.
    let mut timer = LocalTimer::restore(plain(), &state, at(70_000_000)).unwrap();
    assert_eq!(timer.expire(at(70_000_001)).delivery, FIRED);
}

#[test]
fn d59_a_deadline_that_reads_0_may_have_an_interrupt_to_come() {
    let timer = armed(plain(), 5000, 0);
    let state = timer.save(at(6000));
    assert_eq!((state.deadline, state.pending), (0, 1));
    let mut moved = LocalTimer::restore(plain(), &state, at(6000)).unwrap();
    assert_eq!(due(&moved), Some(6000));
    assert_eq!(moved.expire(at(6000)).delivery, FIRED);
    assert_eq!(moved.expire(at(7000)).delivery, Delivery::Nothing);
    // From registers that cannot tell.
    let lvt = LvtTimer::new(TimerMode::TSC_DEADLINE, VECTOR);
    let registers = TimerRegisters {
        lvt,
        ..TimerRegisters::RESET
    };
    for (last, delivery) in [
        (LastInterrupt::MayBeLost, FIRED),
        (LastInterrupt::Delivered, Delivery::Nothing),
    ] {
        let state = TimerState::from_registers(registers, last);
        let mut timer = LocalTimer::restore(plain(), &state, at(0)).unwrap();
        assert_eq!(timer.expire(at(0)).delivery, delivery);
    }
}

#[test]
fn d60_the_mode_is_the_saved_one() {
    let state = armed(plain(), 5000, 0).save(at(0));
    let again = LocalTimer::restore(plain(), &state, at(0))
        .unwrap()
        .save(at(0));
    assert_eq!(again, state);
    // A host that lost the CPUID bit is told so; the timer does not become a one-shot.
    let without = Settings {
        deadline_mode: DeadlineMode::Absent,
        ..plain()
    };
    assert_eq!(
        LocalTimer::restore(without, &again, at(0)),
        Err(StateError::DeadlineModeNotOffered)
    );
}

#[test]
fn d61_the_deadline_and_its_mode_are_restored_together() {
    // Register by register, the deadline comes too early and is dropped, as the processor does.
    let mut timer = LocalTimer::new(plain(), at(0));
    let dropped = timer.write_msr(Msr::TSC_DEADLINE, 5000, at(0)).unwrap();
    assert_eq!(dropped.delivery, Delivery::Nothing);
    assert_eq!(timer.read_msr(Msr::TSC_DEADLINE, at(0)), Ok(0));
    write(
        &mut timer,
        TimerRegister::LvtTimer,
        LvtTimer::new(TimerMode::TSC_DEADLINE, VECTOR).0.into(),
        0,
    );
    assert_eq!(timer.read_msr(Msr::TSC_DEADLINE, at(0)), Ok(0));
    // As one state there is no order to get wrong.
    let state = armed(plain(), 5000, 0).save(at(0));
    let timer = LocalTimer::restore(plain(), &state, at(0)).unwrap();
    assert_eq!(timer.read_msr(Msr::TSC_DEADLINE, at(0)), Ok(5000));
    let without = Settings {
        deadline_mode: DeadlineMode::Absent,
        ..plain()
    };
    let msr = Msr::TSC_DEADLINE;
    assert_eq!(
        LocalTimer::new(without, at(0)).read_msr(msr, at(0)),
        Err(AccessFault::NoSuchRegister { msr })
    );
}
