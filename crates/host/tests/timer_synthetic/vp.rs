//! One virtual processor's synthetic timers with a message page, for tests.

use chronovisor_abi::msr::Msr;
use chronovisor_abi::pvclock::{Record, WallClockRecord};
use chronovisor_abi::quantity::RefTime;
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_abi::synthetic_timer::{Config, EndOfMessage, MessagePage, TimerMessage};
use chronovisor_host::apic::LostTicks;
use chronovisor_host::guest_memory::{GuestAddress, GuestMemory};
use chronovisor_host::synthetic_timer::{Effects, Presence, Settings, VcpuTimers};

/// Guest memory that holds one message page.
pub(crate) struct Memory(MessagePage);

pub(crate) const PAGE: u64 = 0x7000;
pub(crate) const SOURCE: u8 = 2;
pub(crate) const VECTOR: u8 = 0x60;

impl GuestMemory for Memory {
    fn pvclock_record(&self, _address: GuestAddress) -> Option<&Record> {
        None
    }

    fn wall_clock_record(&self, _address: GuestAddress) -> Option<&WallClockRecord> {
        None
    }

    fn reference_tsc_page(&self, _address: GuestAddress) -> Option<&ReferenceTscPage> {
        None
    }

    fn message_page(&self, address: GuestAddress) -> Option<&MessagePage> {
        (address.as_u64() == PAGE).then_some(&self.0)
    }
}

/// One virtual processor's timers with their guest memory.
pub(crate) struct Vp {
    pub(crate) timers: VcpuTimers,
    pub(crate) memory: Memory,
}

pub(crate) fn config(timer: u32) -> Msr {
    Msr(Msr::HV_STIMER0_CONFIG.0 + 2 * timer)
}

pub(crate) fn count(timer: u32) -> Msr {
    Msr(Msr::HV_STIMER0_COUNT.0 + 2 * timer)
}

pub(crate) fn at(time: u64) -> RefTime {
    RefTime::from_100ns(time)
}

impl Vp {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut vp = Self {
            timers: VcpuTimers::new(settings),
            memory: Memory(MessagePage::new()),
        };
        vp.set(Msr::HV_SCONTROL, 1, 0);
        vp.set(Msr::HV_SIMP, PAGE | 1, 0);
        vp.set(Msr(Msr::HV_SINT0.0 + u32::from(SOURCE)), VECTOR.into(), 0);
        vp
    }

    /// Every tick merged, no minimum: the plain rules.
    pub(crate) fn plain() -> Self {
        Self::new(Settings {
            punctual: LostTicks::Merge,
            minimum_period: RefTime::ZERO,
            ..Settings::DEFAULT
        })
    }

    pub(crate) fn write(&mut self, msr: Msr, value: u64, now: u64) -> Effects {
        self.timers
            .write(msr, value, at(now), &self.memory)
            .unwrap()
    }

    /// A write that is not expected to raise anything.
    pub(crate) fn set(&mut self, msr: Msr, value: u64, now: u64) {
        let effects = self.write(msr, value, now);
        assert_eq!(vectors(effects), [], "{msr} := {value:#x}");
    }

    pub(crate) fn read(&self, msr: Msr, now: u64) -> u64 {
        self.timers.read(msr, at(now)).unwrap()
    }

    pub(crate) fn expire(&mut self, now: u64) -> Effects {
        self.timers.expire(at(now), &self.memory)
    }

    pub(crate) fn due(&self) -> Option<u64> {
        self.timers
            .next_due(Presence::Present)
            .map(RefTime::as_100ns)
    }

    /// The guest takes the message of a source.
    pub(crate) fn take(&self) -> Option<(TimerMessage, EndOfMessage)> {
        self.memory.0.slot(SOURCE).take()
    }

    pub(crate) fn enabled(&self, timer: u32, now: u64) -> bool {
        Config(self.read(config(timer), now)).has(Config::ENABLED)
    }
}

pub(crate) fn vectors(effects: Effects) -> Vec<u8> {
    effects
        .interrupts()
        .map(|interrupt| interrupt.vector)
        .collect()
}

pub(crate) fn direct(vector: u8, flags: u64) -> u64 {
    Config::for_vector(vector).with(flags).0
}

pub(crate) fn message(flags: u64) -> u64 {
    Config::for_source(SOURCE).with(flags).0
}

pub(crate) const ON: u64 = Config::ENABLED;
pub(crate) const PERIODIC: u64 = Config::ENABLED | Config::PERIODIC;
