//! One machine's life: boot, uptime, reads, pause, move, reads.

use std::rc::Rc;

use chronovisor_abi::quantity::{Hertz, Ppb, Tsc, TscDelta};
use chronovisor_abi::vmclock::{ClockStatus, LeapIndicator, WallTime};
use chronovisor_host::migration::{Adjustments, Destination, Ratio, Source, VmState, adjust};
use chronovisor_host::msr_surface::{MsrSurface, Privileges};
use chronovisor_host::partition_clock::{Change, Config, PartitionClock, TimeOfDay, VcpuIndex};
use chronovisor_host::vmclock::{Disruption, Notification};

use super::alarm::{Alarm, Fate, deadline_after};
use super::hosts::{GuestCounter, Host};
use super::parameters::{Parameters, Policy};
use super::promise::Promised;
use super::row::MachineSeen;
use crate::clock_checks::{Checks, Clock};
use crate::clock_guest::{Guest, Memory};
use crate::noise::Noise;
use crate::watch::{Violation, Watch};
use crate::world::World;
use crate::world_time::{WorldSpan, WorldTime};

/// What can happen to the machine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A read of the clock with this number, so many more to come.
    Read(u32),
    Pause,
    Move,
    /// The deadline timer's wake-up, valid if its number is the last one's.
    Alarm(u32),
}

/// A machine on its way.
pub(super) struct Journey<'a> {
    parameters: &'a Parameters,
    policy: Policy,
    noise: Noise,
    watch: &'a mut Watch,
    world: &'a mut World<Step>,
    source: Host<'a>,
    destination: Host<'a>,
    guest: Rc<Guest>,
    counter: GuestCounter,
    checks: Checks,
    rebases: u64,
    alarm: Option<Alarm>,
    alarm_number: u32,
    fate: Fate,
}

const APIC_HZ: u64 = 1_000_000_000;

impl<'a> Journey<'a> {
    /// A machine that boots on a source, with a destination to come.
    pub(super) fn new(
        parameters: &'a Parameters,
        policy: Policy,
        mut noise: Noise,
        world: &'a mut World<Step>,
        watch: &'a mut Watch,
    ) -> Result<Self, Violation> {
        world.start_at(WorldTime::ZERO);
        let mut host = |watch: &Watch| {
            Host::draw(parameters, &mut noise)
                .ok_or_else(|| watch.violation("possible-host", "a host cannot be".into()))
        };
        let (source, destination) = (host(watch)?, host(watch)?);
        let host_tsc = source.tsc(WorldTime::ZERO);
        // The guest's counter starts anywhere in the first hours of a counter.
        let start = if source.kind.offset {
            Tsc::from_ticks(noise.uniform(0..=1 << 45))
        } else {
            host_tsc
        };
        let counter = GuestCounter {
            ratio: Ratio::ONE,
            offset: start.wrapping_delta(host_tsc),
        };
        let config = Config {
            counter: source.counter(),
            ..Config::for_vcpus(parameters.vcpus)
        };
        let clock = PartitionClock::start(config, source.rate, start)
            .map_err(|error| watch.violation("possible-host", error.to_string()))?;
        let surface = MsrSurface::new(clock, Privileges::EVERYTHING, apic_rate());
        let guest = Rc::new(Guest::boot(
            parameters.vcpus,
            parameters.vcpus,
            surface,
            start,
        ));
        let checks = Checks::new(&guest, start, source.rate, source.counter());
        Ok(Self {
            parameters,
            policy,
            noise,
            watch,
            world,
            source,
            destination,
            guest,
            counter,
            checks,
            rebases: 0,
            alarm: None,
            alarm_number: 0,
            fate: Fate::Armed,
        })
    }

    /// The whole life.
    pub(super) fn run(mut self) -> Result<MachineSeen, Violation> {
        self.age()?;
        // A VMM tells the time again and again; here it is told when the window begins, and on arrival.
        self.tell_time_of_day()?;
        self.offer_vmclock();
        let marker = self.guest.disruption_marker();
        self.set_alarm()?;
        let reads = self.parameters.reads * 6;
        self.world.at(self.world.now(), Step::Read(reads));
        let mut moved = false;
        while let Some(step) = self.world.take() {
            match step {
                Step::Read(left) => {
                    self.read(left)?;
                    if left > 1 {
                        let gap = self.noise.span(self.parameters.read_gap);
                        self.world.after(gap, Step::Read(left - 1));
                    } else if !moved {
                        let gap = self.noise.span(self.parameters.read_gap);
                        self.world.after(gap, Step::Pause);
                    }
                }
                Step::Alarm(number) if number == self.alarm_number => self.ring()?,
                Step::Alarm(_) => {}
                Step::Pause => {
                    self.pause();
                    // The VMM takes its pair a moment after the vCPUs stand.
                    self.world.after(WorldSpan::from_ns(50_000), Step::Move);
                }
                Step::Move => {
                    let resumed = self.travel()?;
                    moved = true;
                    self.world.at(resumed, Step::Read(reads));
                    self.schedule_alarm(resumed);
                }
            }
        }
        if self.fate == Fate::Armed {
            let details = "the deadline timer never fired".to_owned();
            return Err(self.watch.violation("no-lost-timer", details));
        }
        Ok(MachineSeen {
            fate: self.fate,
            clocks: self.checks.finish(),
            told: u64::from(self.guest.disruption_marker() != marker || self.guest.was_stopped()),
            fallbacks: self.guest.fallbacks(),
            rebases: self.rebases,
        })
    }

    /// The host of the present counter.
    fn host(&self) -> &Host<'a> {
        if self.checks.has_moved() {
            &self.destination
        } else {
            &self.source
        }
    }

    fn guest_tsc(&self) -> Tsc {
        self.counter.at(self.host().tsc(self.world.now()))
    }

    fn tell_time_of_day(&mut self) -> Result<(), Violation> {
        self.tell_time_of_day_at(self.world.now())
    }

    fn tell_time_of_day_at(&mut self, now: WorldTime) -> Result<(), Violation> {
        let pair = self.host().pair(now);
        let tsc = self.counter.at(pair.host_tsc);
        let frac = u128::from(pair.tai.as_ns()) << 64;
        let told = TimeOfDay {
            tsc,
            tai: WallTime::from_frac(frac / 1_000_000_000),
            tai_offset_sec: Some(37),
            leap: LeapIndicator::NONE,
            status: ClockStatus::SYNCHRONIZED,
            estimated_error: Some(pair.error),
            maximum_error: Some(pair.error),
            rate_estimated_error: None,
            rate_maximum_error: Some(Ppb::from_ppb_saturating(
                2 * i64::from(self.parameters.crystal_ppb),
            )),
        };
        self.update(Change::TimeOfDay(told), tsc)
    }

    fn offer_vmclock(&self) {
        let mut surface = self.guest.surface().borrow_mut();
        surface
            .clock_mut()
            .offer_vmclock(Notification::Present, self.guest.memory());
    }

    /// The uptime before the window: nothing but the re-bases that fall due, each at its counter value.
    fn age(&mut self) -> Result<(), Violation> {
        let uptime = self
            .noise
            .uniform(0..=self.parameters.uptime_max_s * 1_000_000_000);
        let end = WorldTime::ZERO.saturating_add(WorldSpan::from_ns(uptime));
        let host_end = self.source.tsc(end);
        let end_tsc = self.counter.at(host_end);
        loop {
            let due = self.guest.surface().borrow().clock().next_rebase();
            let Some(due) = due.filter(|due| due.is_before(end_tsc)) else {
                break;
            };
            // wrapping: the counter itself wraps.
            let host = due.wrapping_sub(self.counter.offset);
            self.world.start_at(self.source.when(host));
            let before = Checks::shown(&self.guest, due);
            self.update(Change::Rebase, due)?;
            let after = Checks::shown(&self.guest, due);
            Checks::same_line(before, after, self.watch)?;
            self.world.note(self.watch, "rebase", 0, due.as_ticks());
            self.rebases += 1;
        }
        self.world.start_at(end);
        Ok(())
    }

    fn read(&mut self, left: u32) -> Result<(), Violation> {
        let vcpus = u64::from(self.parameters.vcpus);
        let vcpu = u32::try_from(self.noise.uniform(0..=vcpus - 1)).unwrap_or(0);
        let tsc = self.guest_tsc();
        self.guest.run_on(vcpu, tsc);
        let clock = Clock::ALL[usize::try_from(left % 6).unwrap_or(0)];
        let now = self.world.now();
        let value = self.checks.read(clock, &self.guest, now, self.watch)?;
        self.world.note(self.watch, clock.name(), vcpu, value);
        Ok(())
    }

    fn set_alarm(&mut self) -> Result<(), Violation> {
        let now = self.guest_tsc();
        // Up to 4 ms ahead: some fire before the move.
        let ticks = self.noise.uniform(1..=self.source.kind.tsc_hz / 250);
        let deadline = deadline_after(now, ticks);
        let due = self.checks.exact(deadline);
        let alarm = Alarm::set(self.source.rate, now, deadline, due, self.watch)?;
        self.alarm = Some(alarm);
        self.schedule_alarm(self.world.now());
        Ok(())
    }

    /// Sets the wake-up of the deadline timer, at `from` if that is past.
    fn schedule_alarm(&mut self, from: WorldTime) {
        // wrapping: only equality with the last number counts.
        self.alarm_number = self.alarm_number.wrapping_add(1);
        if let Some(deadline) = self.alarm.as_ref().and_then(Alarm::wake) {
            let host = self.counter.first_host(deadline, self.host().tsc(from));
            let time = self.host().when(host).max(from);
            self.world.at(time, Step::Alarm(self.alarm_number));
        }
    }

    fn ring(&mut self) -> Result<(), Violation> {
        let now = self.guest_tsc();
        let exact = self.checks.exact(now);
        let Some(alarm) = &mut self.alarm else {
            return Ok(());
        };
        if alarm.look(now, exact, self.watch)?.is_some() {
            self.fate = if self.checks.has_moved() {
                Fate::FiredAfter
            } else {
                Fate::FiredBefore
            };
        }
        self.world.note(self.watch, "alarm", 0, now.as_ticks());
        self.schedule_alarm(self.world.now());
        Ok(())
    }

    fn pause(&mut self) {
        // wrapping: only equality with the last number counts. No vCPU runs, and no timer wakes one.
        self.alarm_number = self.alarm_number.wrapping_add(1);
        let tsc = self.guest_tsc();
        self.guest.run_on(0, tsc);
        self.world.note(self.watch, "pause", 0, tsc.as_ticks());
    }

    /// Save, adjust, restore, resume; returns when the guest runs again.
    fn travel(&mut self) -> Result<WorldTime, Violation> {
        let bytes = self.save()?;
        let paused_at = self.world.now();
        let source = Source {
            pair: self.source.pair(paused_at),
            scaling: self.counter.ratio,
            offset: self.counter.offset,
        };
        let state = VmState::decode(&bytes)
            .map_err(|error| self.watch.violation("state-round-trip", error.to_string()))?;
        let downtime = self.noise.span(self.parameters.downtime);
        let arrived = paused_at.saturating_add(downtime);
        let destination = Destination {
            pair: self.destination.pair(arrived),
            host_rate: self.destination.rate,
            scaling: self.destination.kind.scaling.into(),
            counter: self.destination.counter(),
            arrival: Disruption::Moved,
        };
        let adjusted = adjust(&state, &source, &destination, self.policy.into());
        let (state, adjustments) =
            adjusted.map_err(|error| self.watch.violation("adjust", error.to_string()))?;
        self.world
            .note(self.watch, "move", 0, adjustments.tsc.as_ticks());
        let rate = self.guest.surface().borrow().clock().rate();
        let promised = Promised::of(&source, &destination, rate, self.policy)
            .ok_or_else(|| self.watch.violation("possible-host", "no such rate".into()))?;
        promised.compare(&adjustments, self.watch)?;
        self.checks.go_on(promised.tsc, promised.tsc, promised.rate);
        self.checks.moved(promised.counter);
        let resumed = arrived.saturating_add(self.noise.span(self.parameters.restore));
        self.resume(&state, &adjustments, resumed)?;
        Ok(resumed)
    }

    fn save(&mut self) -> Result<Vec<u8>, Violation> {
        let mut buffer = [0; VmState::MAX_BYTES];
        let saved = self.guest.surface().borrow().save(self.guest.tsc());
        let size = saved
            .encode(&mut buffer)
            .map_err(|error| self.watch.violation("state-round-trip", error.to_string()))?;
        Ok(buffer[..size].to_vec())
    }

    fn resume(
        &mut self,
        state: &VmState,
        adjustments: &Adjustments,
        resumed: WorldTime,
    ) -> Result<(), Violation> {
        let config = Config {
            counter: self.destination.counter(),
            ..Config::for_vcpus(self.parameters.vcpus)
        };
        let restored = MsrSurface::restore(config, Privileges::EVERYTHING, apic_rate(), state);
        let mut surface =
            restored.map_err(|error| self.watch.violation("restore", error.to_string()))?;
        for vcpu in (0..self.parameters.vcpus).map(VcpuIndex) {
            let saved = self
                .guest
                .surface()
                .borrow()
                .save_vcpu(vcpu, self.guest.memory());
            let Some((state, timers)) = saved else {
                continue;
            };
            surface
                .restore_vcpu(vcpu, &state, &timers)
                .map_err(|error| self.watch.violation("restore", error.to_string()))?;
        }
        self.counter = GuestCounter {
            ratio: adjustments.ratio,
            offset: adjustments.offset,
        };
        let paused = self.guest.tsc();
        let tsc = self.counter.at(self.destination.tsc(resumed));
        if let Some(alarm) = &mut self.alarm {
            alarm.travel(paused, tsc, adjustments, self.watch)?;
        }
        self.guest.arrive(surface, tsc);
        self.guest.resumed();
        self.update(Change::Resume, tsc)?;
        if !self.destination.kind.offset {
            self.lose_the_offset(adjustments.rate, tsc, resumed)?;
        }
        self.tell_time_of_day_at(resumed)?;
        self.update(Change::GuestStopped, self.guest.tsc())?;
        self.world.note(self.watch, "resume", 0, tsc.as_ticks());
        Ok(())
    }

    /// The destination cannot set the guest's counter off: it shows the host's own, and every page follows.
    fn lose_the_offset(
        &mut self,
        rate: Hertz,
        tsc: Tsc,
        resumed: WorldTime,
    ) -> Result<(), Violation> {
        // The guest's deadline is a value of a counter that is no more.
        self.alarm = None;
        if self.fate == Fate::Armed {
            self.fate = Fate::Stranded;
        }
        let host_tsc = self.destination.tsc(resumed);
        let ahead = host_tsc.wrapping_delta(tsc);
        self.checks.go_on(tsc, host_tsc, rate);
        self.counter = GuestCounter {
            ratio: Ratio::ONE,
            offset: TscDelta::ZERO,
        };
        self.update(Change::Counter { rate, ahead }, host_tsc)?;
        self.guest.set_tsc(host_tsc);
        Ok(())
    }

    fn update(&mut self, change: Change, tsc: Tsc) -> Result<(), Violation> {
        let mut surface = self.guest.surface().borrow_mut();
        publish(surface.clock_mut(), change, tsc, self.guest.memory())
            .map_err(|error| self.watch.violation("update", error))
    }
}

fn publish(
    clock: &mut PartitionClock,
    change: Change,
    tsc: Tsc,
    memory: &Memory,
) -> Result<(), String> {
    let open = clock
        .begin_update(change, memory)
        .map_err(|error| error.to_string())?;
    open.publish(tsc)
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// The rate of the emulated local APIC; nothing here depends on it.
fn apic_rate() -> Hertz {
    Hertz::from_hz(APIC_HZ).expect("the rate is not zero")
}
