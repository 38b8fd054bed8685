//! A virtual CPU with a local APIC timer, under a load.
//!
//! # Theory
//!
//! A vCPU runs, halts when it has nothing to do, and is taken off its physical CPU by neighbours. While it runs, the preemption timer can
//! stop it; while it halts, only the software timer can wake it; while it is off its CPU, a software timer that is armed still fires but its
//! interrupt waits. Which back-end is used, with which deadline, is the model's business ([`LapicTimer`]); when it fires is the host
//! machine's.
//!
//! # Practice
//!
//! [`Vcpu::run`] takes the guest through a given number of ticks and returns what it saw. The guest measures as the programs of the field do: the time
//! between two ticks, by its own counter at its nominal rate.
//!
//! # Migration
//!
//! The guest stays on one host.
//!
//! # Caveats
//!
//! Exits, interrupt handling and callbacks take no time. A guest that halts with no interrupt to come waits for its watchdog.
//!
//! # References
//!
//! Linux `virt/kvm/kvm_main.c` (kvm_vcpu_block), `arch/x86/kvm/lapic.c` (switching back-ends).

mod load;
mod seen;
mod steps;

pub use load::{Job, Load, Slewing};
pub use seen::Seen;

use chronovisor_abi::quantity::{Nanos, Tsc};

use crate::host_machine::HostMachine;
use crate::lapic_timer::{LapicTimer, Mode, Raised, Wake};
use crate::noise::Noise;
use crate::watch::{Violation, Watch};
use crate::world::World;
use crate::world_time::{WorldSpan, WorldTime};

/// A guest whose timer was lost notices after this long and programs it again.
const WATCHDOG: WorldSpan = WorldSpan::from_ns(100_000_000);
/// No run takes more events than this many a tick: one that does is stuck.
const MOST_EVENTS_A_TICK: u64 = 64;

/// Whether a broken invariant stops the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariants {
    /// It does: our own timers.
    Enforced,
    /// It is counted: models that are here to be wrong.
    Counted,
}

/// What the guest does with its timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Periodic, or one-shot started again at each tick.
    pub mode: Mode,
    /// The period.
    pub period: Nanos,
    /// How many ticks to take.
    pub ticks: u64,
    /// How long the timer has run before, in ns; reached in closed form. Periodic only.
    pub uptime: Nanos,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The back-end's wake-up, valid if its number is the last one's.
    Wake(u32),
    /// The vCPU enters guest mode after a halt.
    Enter,
    /// The guest has nothing left to do, if it did not get more to do since.
    Halt(u32),
    /// A neighbour takes the physical CPU.
    Preempt,
    /// The vCPU gets it back.
    Resume,
    /// NTP changes the slew.
    Slew,
    /// The guest notices that its timer is dead.
    Watchdog(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Halted,
    /// Woken from a halt, not yet in guest mode.
    Waking,
    /// Runnable, but off its physical CPU.
    Off,
}

/// A vCPU in its world.
#[derive(Debug)]
pub struct Vcpu<'a, T> {
    world: World<Event>,
    host: HostMachine,
    timer: T,
    load: &'a Load,
    noise: Noise,
    program: Program,
    invariants: Invariants,
    state: State,
    /// A bit of the interrupt request register.
    pending: Raised,
    wake_number: u32,
    wake_set: Wake,
    halt_number: u32,
    halt_at: WorldTime,
    off_since: WorldTime,
    /// When the timer was started, for the check that nothing comes early.
    started: Tsc,
    /// Periods that had passed when the window began.
    due_before: u64,
    last_tick: Option<Tsc>,
    seen: Seen,
}

impl<'a, T: LapicTimer> Vcpu<'a, T> {
    /// A vCPU on `host` (switched on at the beginning of the world) that runs `program` with `timer` under `load`.
    pub fn new(
        host: HostMachine,
        timer: T,
        load: &'a Load,
        program: Program,
        invariants: Invariants,
        noise: Noise,
    ) -> Self {
        Self {
            world: World::new(),
            host,
            timer,
            load,
            noise,
            program,
            invariants,
            state: State::Running,
            pending: Raised::Nothing,
            wake_number: 0,
            wake_set: Wake::Never,
            halt_number: 0,
            halt_at: WorldTime::ZERO,
            off_since: WorldTime::ZERO,
            started: Tsc::from_ticks(0),
            due_before: 0,
            last_tick: None,
            seen: Seen::default(),
        }
    }

    /// Runs until the guest has taken its ticks.
    ///
    /// # Errors
    ///
    /// The invariant that broke, if they are enforced; a run that does not end in any case.
    pub fn run(mut self, watch: &mut Watch) -> Result<Seen, Violation> {
        self.begin(watch)?;
        let limit = self
            .program
            .ticks
            .saturating_mul(MOST_EVENTS_A_TICK)
            .saturating_add(1000);
        let mut events = 0_u64;
        while self.seen.intervals.count() < self.program.ticks {
            let Some(event) = self.world.take() else {
                return Err(
                    watch.violation("no-lost-timer", "nothing will ever happen again".into())
                );
            };
            events += 1;
            if events > limit {
                let details = format!("more than {limit} events for {} ticks", self.program.ticks);
                return Err(watch.violation("no-storm", details));
            }
            self.happen(event, watch)?;
        }
        self.end(watch)?;
        Ok(self.seen)
    }

    fn happen(&mut self, event: Event, watch: &mut Watch) -> Result<(), Violation> {
        match event {
            Event::Wake(number) if number == self.wake_number => self.wake(watch),
            Event::Halt(number) if number == self.halt_number => self.halt(watch),
            Event::Watchdog(number) if number == self.wake_number => self.watchdog(watch),
            Event::Wake(_) | Event::Halt(_) | Event::Watchdog(_) => Ok(()),
            Event::Enter => self.enter("enter", watch),
            Event::Preempt => {
                self.preempt(watch);
                Ok(())
            }
            Event::Resume => {
                let off = self.world.now().saturating_since(self.off_since);
                // The work that was interrupted is still to be done.
                self.halt_at = self.halt_at.saturating_add(off);
                self.set_halt();
                self.enter("resume", watch)
            }
            Event::Slew => {
                self.slew(watch);
                Ok(())
            }
        }
    }
}
