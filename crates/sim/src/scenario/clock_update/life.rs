//! One machine's 40 hours.

use std::rc::Rc;

use chronovisor_abi::quantity::{Hertz, Ppb, Tsc};
use chronovisor_abi::vmclock::{ClockStatus, LeapIndicator, WallTime};
use chronovisor_host::msr_surface::{MsrSurface, Privileges};
use chronovisor_host::partition_clock::{Change, Config, Counter, PartitionClock, TimeOfDay};
use chronovisor_host::vmclock::Notification;

use super::Parameters;
use super::row::MachineSeen;
use crate::clock_checks::{Checks, Clock, true_tai_ns};
use crate::clock_guest::Guest;
use crate::historical_clock::Resnapshot;
use crate::line::{Line, Slope};
use crate::noise::Noise;
use crate::watch::{Violation, Watch};
use crate::world::World;
use crate::world_time::{WorldSpan, WorldTime};

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Something about the machine changes.
    Update,
    /// The VMM tells the time of day.
    Tell,
    /// A re-base falls due, valid if its number is the last one's.
    Rebase(u32),
    /// A read of one clock.
    Read(u8),
    /// The end.
    End,
}

/// A machine in its world.
pub(super) struct Life<'a> {
    parameters: &'a Parameters,
    noise: Noise,
    watch: &'a mut Watch,
    world: &'a mut World<Step>,
    guest: Rc<Guest>,
    tsc: Line,
    crystal: Ppb,
    rate: usize,
    vcpus: u32,
    tai_error_ns: i64,
    checks: Checks,
    rebase_number: u32,
    /// The historical clock over the same updates, and over one at the end; on a counter that keeps its first rate.
    often: Resnapshot,
    once: Resnapshot,
    steady: Line,
    seen: MachineSeen,
}

impl<'a> Life<'a> {
    pub(super) fn new(
        parameters: &'a Parameters,
        mut noise: Noise,
        world: &'a mut World<Step>,
        watch: &'a mut Watch,
    ) -> Result<Self, Violation> {
        world.start_at(WorldTime::ZERO);
        let either_way = |bound: u64, noise: &mut Noise| {
            let drawn = i64::try_from(noise.uniform(0..=2 * bound)).unwrap_or(0);
            drawn - i64::try_from(bound).unwrap_or(0)
        };
        let crystal = either_way(u64::from(parameters.crystal_ppb), &mut noise);
        let crystal = Ppb::from_ppb_saturating(crystal);
        let impossible = |watch: &Watch| watch.violation("possible-host", "no such rate".into());
        let hertz = Hertz::from_hz(parameters.rates_hz[0]).ok_or_else(|| impossible(watch))?;
        let slope = Slope::of_counter(hertz, crystal).ok_or_else(|| impossible(watch))?;
        let start = noise.uniform(0..=1 << 45);
        let tsc = Line::new(WorldTime::ZERO, start, slope);
        let start = Tsc::from_ticks(start);
        let config = Config::for_vcpus(parameters.vcpus_max);
        let clock = PartitionClock::start(config, hertz, start).map_err(|_| impossible(watch))?;
        let historical = Resnapshot::new(hertz, start).map_err(|_| impossible(watch))?;
        let apic_rate = Hertz::from_hz(1_000_000_000).expect("the rate is not zero");
        let surface = MsrSurface::new(clock, Privileges::EVERYTHING, apic_rate);
        let guest = Rc::new(Guest::boot(
            parameters.vcpus,
            parameters.vcpus_max,
            surface,
            start,
        ));
        let checks = Checks::new(&guest, start, hertz, Counter::Invariant);
        Ok(Self {
            parameters,
            tai_error_ns: either_way(parameters.tai_error_ns, &mut noise),
            noise,
            watch,
            world,
            guest,
            tsc,
            crystal,
            rate: 0,
            vcpus: parameters.vcpus,
            checks,
            rebase_number: 0,
            often: historical,
            once: historical,
            steady: tsc,
            seen: MachineSeen::default(),
        })
    }

    pub(super) fn run(mut self) -> Result<MachineSeen, Violation> {
        self.tell()?;
        self.guest
            .surface()
            .borrow_mut()
            .clock_mut()
            .offer_vmclock(Notification::Present, self.guest.memory());
        let hours = WorldSpan::from_ns(self.parameters.hours * 3_600_000_000_000);
        self.world.after(hours, Step::End);
        self.schedule_update();
        self.schedule_rebase();
        loop {
            match self.world.take() {
                Some(Step::Update) => {
                    self.update()?;
                    self.schedule_update();
                    self.schedule_rebase();
                }
                Some(Step::Tell) => {
                    self.tell()?;
                    self.schedule_rebase();
                }
                Some(Step::Rebase(number)) if number == self.rebase_number => {
                    self.change("rebase", Change::Rebase)?;
                    self.seen.rebases += 1;
                    self.schedule_rebase();
                }
                Some(Step::Rebase(_)) => {}
                Some(Step::Read(clock)) => self.read(clock)?,
                Some(Step::End) | None => break,
            }
        }
        let steady = Tsc::from_ticks(self.steady.at(self.world.now()));
        self.seen.once.add(self.once.update(steady));
        self.seen.clocks = self.checks.finish();
        Ok(self.seen)
    }

    fn now_tsc(&self) -> Tsc {
        let tsc = Tsc::from_ticks(self.tsc.at(self.world.now()));
        // A wait of the counter register has left the guest a little ahead.
        if tsc.is_before(self.guest.tsc()) {
            self.guest.tsc()
        } else {
            tsc
        }
    }

    fn schedule_update(&mut self) {
        let span = self.noise.span(self.parameters.update_every);
        self.world
            .after(span.max(WorldSpan::from_ns(1_000)), Step::Update);
    }

    fn schedule_rebase(&mut self) {
        // wrapping: only equality with the last number counts.
        self.rebase_number = self.rebase_number.wrapping_add(1);
        let due = self.guest.surface().borrow().clock().next_rebase();
        if let Some(due) = due {
            let time = self.tsc.first_reaching(due.as_ticks());
            self.world.at(time, Step::Rebase(self.rebase_number));
        }
    }

    /// A vCPU is plugged in, the counter gets its next rate, or the guest was stopped for a moment: one of them.
    fn update(&mut self) -> Result<(), Violation> {
        self.read_around()?;
        let steady = Tsc::from_ticks(self.steady.at(self.world.now()));
        self.seen.often.add(self.often.update(steady));
        let rates = u64::try_from(self.parameters.rates_hz.len()).unwrap_or(1);
        match self.noise.uniform(0..=2) {
            0 if self.vcpus < self.parameters.vcpus_max => {
                let tsc = self.now_tsc();
                self.guest.run_on(self.vcpus, tsc);
                let before = Checks::shown(&self.guest, tsc);
                self.guest.plug(self.vcpus);
                self.judge_jump(before, tsc)?;
                self.world
                    .note(self.watch, "plug", self.vcpus, tsc.as_ticks());
                self.vcpus += 1;
                self.seen.hot_plugs += 1;
                Ok(())
            }
            1 if rates > 1 => {
                self.rate = (self.rate + 1) % self.parameters.rates_hz.len();
                let hertz = Hertz::from_hz(self.parameters.rates_hz[self.rate]);
                let slope = hertz.and_then(|hertz| Slope::of_counter(hertz, self.crystal));
                let (Some(hertz), Some(slope)) = (hertz, slope) else {
                    return Err(self.watch.violation("possible-host", "no such rate".into()));
                };
                let tsc = self.change("rate", Change::Frequency(hertz))?;
                // From the guest's last reading on, which a wait may have left a few ns ahead of the world.
                self.tsc = Line::new(self.world.now(), tsc.as_ticks(), slope);
                self.checks.go_on(tsc, tsc, hertz);
                self.seen.rate_changes += 1;
                Ok(())
            }
            _ => self.change("stopped", Change::GuestStopped).map(|_| ()),
        }
    }

    fn tell(&mut self) -> Result<(), Violation> {
        let tsc = self.now_tsc();
        let tai = true_tai_ns(self.world.now()).saturating_add_signed(self.tai_error_ns);
        let error = chronovisor_abi::quantity::Nanos::from_ns(self.parameters.tai_error_ns + 100);
        let told = TimeOfDay {
            tsc,
            tai: WallTime::from_frac((u128::from(tai) << 64) / 1_000_000_000),
            tai_offset_sec: Some(37),
            leap: LeapIndicator::NONE,
            status: ClockStatus::SYNCHRONIZED,
            estimated_error: Some(error),
            maximum_error: Some(error),
            rate_estimated_error: None,
            rate_maximum_error: Some(Ppb::from_ppb_saturating(
                2 * i64::from(self.parameters.crystal_ppb),
            )),
        };
        self.change("tell", Change::TimeOfDay(told))?;
        let every = WorldSpan::from_ns(self.parameters.tell_every_ns);
        self.world.after(every, Step::Tell);
        Ok(())
    }

    /// One update of the pages, with every clock read on every vCPU before and after it. Returns the counter value of the update.
    fn change(&mut self, what: &'static str, change: Change) -> Result<Tsc, Violation> {
        self.read_around()?;
        let tsc = self.now_tsc();
        self.guest.run_on(0, tsc);
        let before = Checks::shown(&self.guest, tsc);
        {
            let mut surface = self.guest.surface().borrow_mut();
            let opened = surface
                .clock_mut()
                .begin_update(change, self.guest.memory());
            let published = opened
                .map_err(|error| error.to_string())
                .and_then(|open| open.publish(tsc).map_err(|error| error.to_string()));
            published.map_err(|error| self.watch.violation("update", error))?;
        }
        self.world.note(self.watch, what, 0, tsc.as_ticks());
        self.judge_jump(before, tsc)?;
        self.seen.updates += 1;
        Ok(tsc)
    }

    fn judge_jump(
        &mut self,
        before: crate::clock_checks::Shown,
        tsc: Tsc,
    ) -> Result<(), Violation> {
        let after = Checks::shown(&self.guest, tsc);
        self.seen.jump(&before, &after);
        Checks::same_line(before, after, self.watch)
    }

    /// Reads every clock now, just before the update that is to be done, and again within microseconds after it.
    fn read_around(&mut self) -> Result<(), Violation> {
        for clock in 0..6 {
            self.read(clock)?;
            let ns = self.noise.uniform(1..=20_000);
            self.world.after(WorldSpan::from_ns(ns), Step::Read(clock));
        }
        Ok(())
    }

    fn read(&mut self, clock: u8) -> Result<(), Violation> {
        let clock = Clock::ALL[usize::from(clock)];
        let vcpus = u64::from(self.vcpus);
        let vcpu = u32::try_from(self.noise.uniform(0..=vcpus - 1)).unwrap_or(0);
        self.guest.run_on(vcpu, self.now_tsc());
        let value = self
            .checks
            .read(clock, &self.guest, self.world.now(), self.watch)?;
        self.world.note(self.watch, clock.name(), vcpu, value);
        Ok(())
    }
}
