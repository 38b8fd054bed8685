//! A local APIC in user space: as much of it as timers need, its timer `chronovisor-host`'s.
//!
//! The timer's wake-up is an [`Alarm`], set by `SoftwareTimer` to a time of the host's clock. That time comes from one reading of
//! counter and clock together, made under the APIC's lock: what delays the vCPU's thread after it does not delay the tick.

use std::sync::{Mutex, MutexGuard, PoisonError};

use chronovisor_abi::msr::Msr;
use chronovisor_abi::quantity::{Nanos, Reading, Tsc};
use chronovisor_host::apic::{
    Backend as _, Delivery, Effects, LocalTimer, Power, Settings, SoftwareTimer,
};

use crate::LabError;
use crate::alarm::Alarm;
use crate::machine::Refused;

const ID: Msr = Msr(0x802);
const VERSION: Msr = Msr(0x803);
const TASK_PRIORITY: Msr = Msr(0x808);
const EOI: Msr = Msr(0x80B);
const SPURIOUS: Msr = Msr(0x80F);
const COMMAND: Msr = Msr(0x830);
/// The APIC's own registers.
const X2APIC: std::ops::Range<u32> = 0x800..0x900;
/// Version 0x14 with six LVT entries, as hardware of the time has it.
const VERSION_VALUE: u64 = 0x0005_0014;
const SOFTWARE_ENABLE: u64 = 0x100;

/// Whether the APIC answers for `msr`.
#[must_use]
pub fn owns(msr: Msr) -> bool {
    X2APIC.contains(&msr.0) || msr == Msr::TSC_DEADLINE
}

/// A set of vectors.
#[derive(Clone, Copy, Debug, Default)]
struct Vectors([u64; 4]);

impl Vectors {
    fn insert(&mut self, vector: u8) {
        self.0[usize::from(vector >> 6)] |= 1 << (vector & 63);
    }

    fn remove(&mut self, vector: u8) {
        self.0[usize::from(vector >> 6)] &= !(1 << (vector & 63));
    }

    fn highest(self) -> Option<u8> {
        let (word, bits) = (0_u8..4).zip(self.0).rfind(|(_, bits)| *bits != 0)?;
        let bit = u8::try_from(bits.ilog2()).ok()?;
        Some(word * 64 + bit)
    }
}

struct State {
    timer: LocalTimer,
    wake: SoftwareTimer,
    spurious: u64,
    task_priority: u64,
    requested: Vectors,
    in_service: Vectors,
}

/// The APIC of one vCPU.
pub struct UserApic {
    id: u32,
    state: Mutex<State>,
    alarm: Alarm,
}

impl UserApic {
    /// An APIC as after reset, switched on, at guest TSC `now`.
    ///
    /// # Errors
    ///
    /// [`LabError::Timer`] if there is no timerfd to be had.
    pub fn new(id: u32, settings: Settings, now: Tsc) -> Result<Self, LabError> {
        Ok(Self {
            id,
            alarm: Alarm::new()?,
            state: Mutex::new(State {
                timer: LocalTimer::new(settings, now),
                wake: SoftwareTimer::new(settings.rates.tsc()),
                spurious: 0,
                task_priority: 0,
                requested: Vectors::default(),
                in_service: Vectors::default(),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest reads `msr` at guest TSC `now`.
    ///
    /// # Errors
    ///
    /// [`Refused`] for a register that does not exist.
    pub fn read(&self, msr: Msr, now: Tsc) -> Result<u64, Refused> {
        let state = self.lock();
        match msr {
            ID => Ok(u64::from(self.id)),
            VERSION => Ok(VERSION_VALUE),
            TASK_PRIORITY => Ok(state.task_priority),
            SPURIOUS => Ok(state.spurious),
            _ => state.timer.read_msr(msr, now).map_err(|_| Refused),
        }
    }

    /// The guest writes `value` to `msr`, at the guest TSC and the host's time that `now` reads.
    ///
    /// # Errors
    ///
    /// [`Refused`] for a register or a value that does not exist.
    pub fn write(
        &self,
        msr: Msr,
        value: u64,
        now: impl FnOnce() -> Reading<Nanos>,
    ) -> Result<(), Refused> {
        let mut state = self.lock();
        match msr {
            EOI => {
                if let Some(vector) = state.in_service.highest() {
                    state.in_service.remove(vector);
                }
            }
            SPURIOUS => {
                state.spurious = value & 0x1FF;
                let power = if value & SOFTWARE_ENABLE == 0 {
                    Power::SoftwareDisabled
                } else {
                    Power::On
                };
                let now = now();
                let effects = state.timer.set_power(power, now.tsc);
                self.apply(&mut state, effects, now);
            }
            TASK_PRIORITY => state.task_priority = value & 0xFF,
            // Interrupts from one CPU to another are not carried: the timer guest sends none.
            COMMAND => {}
            _ => {
                let now = now();
                let effects = state
                    .timer
                    .write_msr(msr, value, now.tsc)
                    .map_err(|_| Refused)?;
                self.apply(&mut state, effects, now);
            }
        }
        Ok(())
    }

    /// The time has come, or seems to have: brings the timer up to what `now` reads, and sets the alarm again, which has gone off.
    pub fn expire(&self, now: impl FnOnce() -> Reading<Nanos>) {
        let mut state = self.lock();
        let now = now();
        let effects = state.timer.expire(now.tsc);
        self.apply(&mut state, effects, now);
    }

    fn apply(&self, state: &mut State, effects: Effects, now: Reading<Nanos>) {
        if let Delivery::Interrupt(vector) = effects.delivery {
            state.requested.insert(vector);
        }
        match state.timer.next_deadline() {
            Some(deadline) => {
                // A software timer counts any distance.
                let _ = state.wake.set(deadline, now);
            }
            None => state.wake.clear(),
        }
        self.alarm.set(state.wake.expires());
    }

    /// The timer's alarm.
    pub const fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Raises `vector`, which is not the timer's.
    pub fn request(&self, vector: u8) {
        self.lock().requested.insert(vector);
    }

    /// The vector that the vCPU can take now, if any.
    pub fn pending(&self) -> Option<u8> {
        let state = self.lock();
        let vector = state.requested.highest()?;
        let class = |vector: u8| u64::from(vector >> 4);
        let busy = state
            .in_service
            .highest()
            .is_some_and(|serving| class(serving) >= class(vector));
        (!busy && class(vector) > state.task_priority >> 4).then_some(vector)
    }

    /// The vCPU takes `vector`.
    pub fn acknowledge(&self, vector: u8) {
        let mut state = self.lock();
        state.requested.remove(vector);
        state.in_service.insert(vector);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_vector_comes_first() {
        let mut vectors = Vectors::default();
        assert_eq!(vectors.highest(), None);
        for vector in [0x40, 0xEC, 0x41] {
            vectors.insert(vector);
        }
        assert_eq!(vectors.highest(), Some(0xEC));
        vectors.remove(0xEC);
        assert_eq!(vectors.highest(), Some(0x41));
    }

    const LVT_TIMER: Msr = Msr(0x832);
    const INITIAL_COUNT: Msr = Msr(0x838);
    const CURRENT_COUNT: Msr = Msr(0x839);
    const DIVIDE: Msr = Msr(0x83E);
    const PERIODIC: u64 = 1 << 17;

    /// A counter of 2 GHz and a bus of 1 GHz.
    fn apic() -> UserApic {
        let hz = |hz| chronovisor_abi::quantity::Hertz::from_hz(hz).expect("not zero");
        let settings = Settings {
            rates: chronovisor_host::apic::Rates::new(hz(1_000_000_000), hz(2_000_000_000))
                .expect("plausible rates"),
            minimum_period: chronovisor_host::apic::MinimumPeriod::KVM,
            lost_ticks: chronovisor_host::apic::LostTicks::Merge,
            deadline_mode: chronovisor_host::apic::DeadlineMode::Offered,
        };
        UserApic::new(0, settings, Tsc::from_ticks(0)).expect("a timerfd")
    }

    /// The host's clock stands `ahead_ns` ahead of the counter's time.
    fn at(us: u64, ahead_ns: u64) -> impl FnOnce() -> Reading<Nanos> {
        move || {
            Reading::new(
                Nanos::from_ns(us * 1000 + ahead_ns),
                Tsc::from_ticks(us * 2000),
            )
        }
    }

    fn wakes_at(apic: &UserApic) -> Option<u64> {
        apic.lock().wake.expires().map(Nanos::as_ns)
    }

    #[test]
    fn the_alarm_stands_on_the_grid_of_the_arming_however_late_it_is_served() {
        let apic = apic();
        for (msr, value) in [
            (SPURIOUS, 0x1FF),
            (LVT_TIMER, PERIODIC | 0x40),
            (DIVIDE, 0xB),
        ] {
            assert_eq!(apic.write(msr, value, at(100, 0)), Ok(()));
        }
        assert_eq!(wakes_at(&apic), None);
        assert_eq!(
            apic.write(INITIAL_COUNT, 1_000_000, at(100, 7_000_000)),
            Ok(())
        );
        // 100 us + 1 ms + what the clock is ahead, and 1 ns since readings are rounded down.
        assert_eq!(wakes_at(&apic), Some(8_100_001));
        assert_eq!(
            apic.read(CURRENT_COUNT, Tsc::from_ticks(200_000 + 500_000)),
            Ok(750_000)
        );
        // Early: nothing happens, and the alarm is set again.
        apic.expire(at(1099, 7_000_000));
        assert_eq!((apic.pending(), wakes_at(&apic)), (None, Some(8_100_001)));
        // 900 us late: one tick, and the next one in time.
        apic.expire(at(2000, 7_000_000));
        assert_eq!(
            (apic.pending(), wakes_at(&apic)),
            (Some(0x40), Some(9_100_001))
        );
        apic.acknowledge(0x40);
        apic.expire(at(2100, 7_000_000));
        // The first one is in service.
        assert_eq!(apic.pending(), None);
        assert_eq!(apic.write(EOI, 0, at(2101, 0)), Ok(()));
        assert_eq!(apic.pending(), Some(0x40));
        assert_eq!(apic.write(TASK_PRIORITY, 0x40, at(2102, 0)), Ok(()));
        assert_eq!(apic.pending(), None);
        // Switched off: no tick to come.
        assert_eq!(apic.write(SPURIOUS, 0xFF, at(2103, 0)), Ok(()));
        assert_eq!(wakes_at(&apic), None);
    }
}
