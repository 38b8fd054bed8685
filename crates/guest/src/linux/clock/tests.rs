//! A simulated machine: true time in ns, a counter, the operating system's clock, and a page that its host writes.

mod healthy;
mod hostile;
mod real;
mod switches;
mod threads;

use std::cell::Cell;
use std::vec::Vec;

use chronovisor_abi::pvclock::{Contents, Flags, Record};
use chronovisor_abi::quantity::{Hertz, Nanos, Tsc};
use chronovisor_abi::reference_tsc::{Parameters, ReferenceTscPage};
use chronovisor_abi::scale::PvclockScale;

use super::engine::Engine;
use super::machine::Machine;
use super::source::Source;
use crate::pvclock::StableBit;

/// What each look at a clock costs, in ns of true time.
const LOOK_NS: u64 = 8;
const HZ: u64 = 2_600_000_000;

#[derive(Debug)]
struct World {
    now_ns: Cell<u64>,
    /// The counter's line: its value `tsc_base` at true time `tsc_at_ns`.
    tsc_base: Cell<u64>,
    tsc_at_ns: Cell<u64>,
    hz: Cell<u64>,
    /// The operating system's clock less the true time awake, and how fast it runs.
    raw_ahead_ns: Cell<u64>,
    raw_ppm: Cell<i64>,
    /// The operating system's clock stands still.
    raw_stands: Cell<bool>,
    suspended_ns: Cell<u64>,
}

impl World {
    fn new() -> Self {
        Self {
            now_ns: Cell::new(1_000_000_000),
            tsc_base: Cell::new(123_456_789_012),
            tsc_at_ns: Cell::new(0),
            hz: Cell::new(HZ),
            raw_ahead_ns: Cell::new(77),
            raw_ppm: Cell::new(0),
            raw_stands: Cell::new(false),
            suspended_ns: Cell::new(0),
        }
    }

    fn pass(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
    }

    /// The guest sleeps: counter and hypervisor go on, the operating system's clock does not.
    fn suspend(&self, ns: u64) {
        self.pass(ns);
        self.suspended_ns.set(self.suspended_ns.get() + ns);
    }

    fn tsc(&self) -> Tsc {
        let passed = u128::from(self.now_ns.get() - self.tsc_at_ns.get());
        let ticks =
            u64::try_from(passed * u128::from(self.hz.get()) / 1_000_000_000).expect("a few days");
        Tsc::from_ticks(self.tsc_base.get().wrapping_add(ticks))
    }

    /// From now on the counter is `tsc` and runs at `hz`.
    fn set_tsc(&self, tsc: u64, hz: u64) {
        self.tsc_base.set(tsc);
        self.tsc_at_ns.set(self.now_ns.get());
        self.hz.set(hz);
    }
}

impl Machine for &World {
    fn counter(&self) -> Tsc {
        self.pass(LOOK_NS);
        self.tsc()
    }

    fn raw(&self) -> Nanos {
        self.pass(LOOK_NS);
        if self.raw_stands.get() {
            return Nanos::ZERO;
        }
        let awake = i128::from(self.now_ns.get() - self.suspended_ns.get());
        let steered = awake + awake * i128::from(self.raw_ppm.get()) / 1_000_000;
        Nanos::from_ns(u64::try_from(steered).expect("a few days") + self.raw_ahead_ns.get())
    }

    fn suspended(&self) -> u64 {
        self.suspended_ns.get()
    }
}

/// The host's side of a pvclock record: its clock is true time plus what it has stepped.
struct Host {
    record: &'static Record,
    stepped_ns: Cell<i64>,
    flags: Cell<Flags>,
}

impl Host {
    fn new(world: &World) -> Self {
        let host = Self {
            record: Box::leak(Box::new(Record::new())),
            stepped_ns: Cell::new(0),
            flags: Cell::new(Flags::TSC_STABLE),
        };
        host.publish(world);
        host
    }

    fn publish(&self, world: &World) {
        let last = self.record.version();
        let time = world
            .now_ns
            .get()
            .checked_add_signed(self.stepped_ns.get())
            .expect("a time after boot");
        let scale = PvclockScale::nearest(Hertz::from_hz(world.hz.get()).expect("not zero"))
            .expect("in range");
        self.record.mark(last);
        self.record.store(&Contents::new(
            world.tsc(),
            Nanos::from_ns(time),
            scale,
            self.flags.get(),
        ));
        self.record.publish(last);
    }

    fn source(&self) -> Source {
        Source::Pvclock {
            record: self.record,
            stable_bit: StableBit::Advertised,
        }
    }
}

fn clock(world: &World, source: Source) -> Engine<&World> {
    Engine::new(world, Vec::from([source]), Vec::new())
}

fn read(clock: &Engine<&World>, world: &World) -> u64 {
    world.pass(LOOK_NS);
    clock.read(|| world.tsc()).as_ns()
}

/// A reference TSC page of a host whose clock is true time.
struct HypervHost {
    page: &'static ReferenceTscPage,
    sequence: Cell<u32>,
}

impl HypervHost {
    fn new(world: &World) -> Self {
        let host = Self {
            page: Box::leak(Box::new(ReferenceTscPage::new())),
            sequence: Cell::new(0),
        };
        host.publish(world);
        host
    }

    fn publish(&self, world: &World) {
        self.page.mark();
        let time = chronovisor_abi::quantity::RefTime::from_nanos_floor(Nanos::from_ns(
            world.now_ns.get(),
        ));
        let rate = Hertz::from_hz(world.hz.get()).expect("not zero");
        self.page
            .store(&Parameters::through(world.tsc(), time, rate).expect("above 10 MHz"));
        self.sequence.set(self.page.publish(self.sequence.get()));
    }
}
