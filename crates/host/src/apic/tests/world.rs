//! The host around the timer under test: time, the host's clock (which may run fast or slow), and two back-ends.

use chronovisor_abi::quantity::{Hertz, Nanos, Reading, Tsc};

use super::exercised::{Exercised, Rule};
use super::fraction::Fraction;
use super::random::Random;
use crate::apic::{LocalTimer, Place, PreemptionTimer, Set, SoftwareTimer, Wakeups};

/// Step of the preemption timer, log2 of TSC ticks.
pub(super) const STEP_LOG2: u32 = 5;

/// Bus and TSC rates: the usual ones, and odd ones that have no short ratio.
pub(super) fn rates(random: &mut Random) -> (Hertz, Hertz) {
    let bus = random.pick(&[
        (24_000_000_u128, 1_u128),
        (25_000_000, 1),
        (38_400_000, 1),
        (400_000_000, 3),
        (200_000_000, 1),
        (1_000_000_000, 1),
    ]);
    let tsc = random.pick(&[
        2_600_000_000_u128,
        2_599_999_500,
        2_400_000_000,
        3_000_000_000,
        1_996_800_000,
        800_000_000,
    ]);
    (
        Hertz::from_ratio(bus.0, bus.1).unwrap(),
        Hertz::from_ratio(tsc, 1).unwrap(),
    )
}

pub(super) fn fraction(rate: Hertz) -> Fraction {
    Fraction::new(rate.numerator().into(), rate.denominator().into())
}

/// Time in TSC ticks since the beginning, and what counts along.
pub(super) struct World {
    pub(super) t: u128,
    tsc: Hertz,
    /// Host nanoseconds for each true one, in millionths above or below 1.
    slew_ppm: i32,
    /// Host time at the last change of the TSC's rate.
    host: (u128, Nanos),
    pub(super) wakeups: Wakeups<SoftwareTimer, PreemptionTimer>,
    pub(super) place: Place,
}

impl World {
    pub(super) fn new(tsc: Hertz, random: &mut Random) -> Self {
        let software = SoftwareTimer::new(tsc);
        let preemption = PreemptionTimer::new(STEP_LOG2).unwrap();
        Self {
            t: 0,
            tsc,
            slew_ppm: random.pick(&[0, 0, -100, 100, 500]),
            host: (0, Nanos::from_ns(random.magnitude(40))),
            wakeups: Wakeups::new(software, preemption),
            place: Place::Guest,
        }
    }

    /// Host nanoseconds a TSC tick.
    fn slope(&self) -> Fraction {
        let millionths = u128::try_from(1_000_000 + self.slew_ppm).unwrap();
        Fraction::new(millionths * 1000, 1).times_fraction(fraction(self.tsc).inverse())
    }

    pub(super) fn reading(&self, guest_tsc: u64) -> Reading<Nanos> {
        let gone = self.slope().times(self.t - self.host.0).floor();
        let time = self
            .host
            .1
            .saturating_add(Nanos::from_ns(u64::try_from(gone).unwrap()));
        Reading::new(time, Tsc::from_ticks(guest_tsc))
    }

    pub(super) fn set_tsc_rate(&mut self, tsc: Hertz) {
        let now = self.reading(0).time;
        self.host = (self.t, now);
        self.tsc = tsc;
        let preemption = PreemptionTimer::new(STEP_LOG2).unwrap();
        self.wakeups = Wakeups::new(SoftwareTimer::new(tsc), preemption);
    }

    /// Sets the wake-up for where the processor is, and notes a change of back-end.
    pub(super) fn set(&mut self, timer: &LocalTimer, guest_tsc: u64, exercised: &mut Exercised) {
        let before = self.wakeups.which();
        let now = self.reading(guest_tsc);
        let after = self.wakeups.set(timer, self.place, now);
        exercised.note_if(
            Rule::ToSoftware,
            (before, after) == (Set::Preemption, Set::Software),
        );
        exercised.note_if(
            Rule::ToPreemption,
            (before, after) == (Set::Software, Set::Preemption),
        );
        exercised.note_if(
            Rule::OutOfRange,
            self.place == Place::Guest && after == Set::Software,
        );
    }

    /// When the back-end that is set wakes the host, given the guest TSC of this instant; and how late it may be, in ticks.
    pub(super) fn wake_time(&self, guest_tsc: u64) -> Option<(u128, u128)> {
        match self.wakeups.which() {
            Set::Nothing => None,
            Set::Preemption => {
                let at = self.wakeups.preemption().expires()?.as_ticks();
                let ahead = at.wrapping_sub(guest_tsc);
                // A step that began before this instant: at once.
                let ahead = if ahead >> 63 == 1 { 0 } else { ahead };
                Some((self.t + u128::from(ahead), 1 << STEP_LOG2))
            }
            Set::Software => {
                let expires = self.wakeups.software().expires()?;
                let ahead = expires.saturating_sub(self.host.1).as_ns();
                if ahead > 1 << 50 {
                    return None;
                }
                let ticks = Fraction::whole(ahead.into())
                    .times_fraction(self.slope().inverse())
                    .ceil();
                let at = (self.host.0 + ticks).max(self.t);
                // Two roundings to a nanosecond, and the host clock's slew since the wake-up was set.
                let rounding = fraction(self.tsc)
                    .times(3)
                    .times_fraction(Fraction::new(1, 1_000_000_000))
                    .ceil()
                    + 1;
                let slew = (at - self.t) * u128::from(self.slew_ppm.unsigned_abs()) / 900_000;
                Some((at, rounding + slew))
            }
        }
    }

    /// The largest number of ticks by which a wake-up that was set now may come early.
    pub(super) fn slew_ppm(&self) -> i32 {
        self.slew_ppm
    }
}
