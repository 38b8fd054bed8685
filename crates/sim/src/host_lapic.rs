//! The local APIC timer of `chronovisor-host`, behind the trait that also drives the historical ones.
//!
//! # Theory
//!
//! The timer holds one deadline in its own exact ticks; both back-ends get it converted afresh. Nothing of that is here: this is the few lines
//! with which a VMM calls the timer.
//!
//! # Practice
//!
//! [`HostLapic::new`] with a lost-tick policy; a bus clock of 1 GHz divided by 1, a preemption timer with steps of 32 ticks, as KVM has.
//!
//! # Migration
//!
//! Not used here.
//!
//! # Caveats
//!
//! No lead compensation.
//!
//! # References
//!
//! `chronovisor_host::apic`.

use chronovisor_abi::apic::{DivideConfiguration, LvtTimer, TimerMode};
use chronovisor_abi::quantity::{Hertz, Nanos, Reading, Tsc};
use chronovisor_host::apic::{
    DeadlineMode, Delivery, Effects, LocalTimer, LostTicks, MinimumPeriod, Place, PreemptionTimer,
    RateError, Rates, Set, Settings, SoftwareTimer, TimerRegister, Wake as Woken, Wakeups,
};

use crate::host_machine::HostLook;
use crate::lapic_timer::{Fired, LapicTimer, Mode, Raised, Wake};

const VECTOR: u8 = 0xec;
const BUS_HZ: u64 = 1_000_000_000;
/// KVM's preemption timer counts every 32nd tick of the counter.
const PREEMPTION_STEP_LOG2: u32 = 5;

/// Our timer on its two back-ends.
#[derive(Debug)]
pub struct HostLapic {
    timer: LocalTimer,
    wakeups: Wakeups<SoftwareTimer, PreemptionTimer>,
    place: Place,
}

impl HostLapic {
    /// A timer for a guest whose counter is said to run at `tsc`, at counter value `now`.
    ///
    /// # Errors
    ///
    /// [`RateError`] if the timer cannot count with such a counter.
    ///
    /// # Panics
    ///
    /// Never: the constants are in range.
    pub fn new(lost_ticks: LostTicks, tsc: Hertz, now: Tsc) -> Result<Self, RateError> {
        let bus = Hertz::from_hz(BUS_HZ).expect("the bus rate is not zero");
        let preemption = PreemptionTimer::new(PREEMPTION_STEP_LOG2).expect("the step is below 32");
        let settings = Settings {
            rates: Rates::new(bus, tsc)?,
            minimum_period: MinimumPeriod::KVM,
            lost_ticks,
            deadline_mode: DeadlineMode::Offered,
        };
        Ok(Self {
            timer: LocalTimer::new(settings, now),
            wakeups: Wakeups::new(SoftwareTimer::new(tsc), preemption),
            place: Place::Guest,
        })
    }

    fn set(&mut self, look: HostLook) {
        self.wakeups.set(&self.timer, self.place, reading(look));
    }
}

const fn reading(look: HostLook) -> Reading<Nanos> {
    Reading::new(look.monotonic, look.tsc)
}

fn fired(effects: Effects) -> Fired {
    Fired {
        expiries: effects.expiries,
        raised: match effects.delivery {
            Delivery::Interrupt(_) => Raised::Interrupt,
            Delivery::Nothing | Delivery::IllegalVector(_) => Raised::Nothing,
        },
        callbacks: 1,
    }
}

impl LapicTimer for HostLapic {
    fn start(&mut self, mode: Mode, period: Nanos, look: HostLook) -> Fired {
        let mode = match mode {
            Mode::OneShot => TimerMode::ONE_SHOT,
            Mode::Periodic => TimerMode::PERIODIC,
        };
        let divide = u64::from(DivideConfiguration::BY_1.0);
        let lvt = u64::from(LvtTimer::new(mode, VECTOR).0);
        let mut expiries = 0;
        for (register, value) in [
            (TimerRegister::DivideConfiguration, divide),
            (TimerRegister::LvtTimer, lvt),
            // One bus tick is one ns.
            (TimerRegister::InitialCount, period.as_ns()),
        ] {
            expiries += self.timer.write(register, value, look.tsc).expiries;
        }
        self.set(look);
        Fired {
            expiries,
            ..Fired::default()
        }
    }

    fn enter_guest(&mut self, look: HostLook) {
        self.place = Place::Guest;
        self.set(look);
    }

    fn halt(&mut self, look: HostLook) -> Fired {
        self.place = Place::Host;
        self.set(look);
        Fired::default()
    }

    fn fire(&mut self, look: HostLook) -> Fired {
        match self
            .wakeups
            .wake(&mut self.timer, self.place, reading(look))
        {
            Woken::Done(effects) => fired(effects),
            Woken::Early | Woken::Wait(_) => Fired::default(),
        }
    }

    fn wake(&self) -> Wake {
        let wake = match self.wakeups.which() {
            Set::Nothing => None,
            Set::Software => self.wakeups.software().expires().map(Wake::Monotonic),
            Set::Preemption => self.wakeups.preemption().expires().map(Wake::GuestTsc),
        };
        wake.unwrap_or(Wake::Never)
    }

    fn fast_forward(&mut self, look: HostLook) -> u64 {
        let effects = self.timer.expire(look.tsc);
        self.set(look);
        effects.expiries
    }

    fn is_armed(&self) -> bool {
        self.timer.next_deadline().is_some()
    }
}
