//! The machine that a sequence plays on.

use chronovisor_abi::quantity::{Hertz, Nanos, Tsc};

use super::oracle::{Oracle, Random, Rate};
use super::tally::{Failure, Rule, Step, Tally};
use crate::msr_surface::{MsrSurface, Privileges};
use crate::partition_clock::{Config, PartitionClock, VcpuIndex};
use crate::support::{Memory, OTHER_PAGE, PAGE};
use crate::vmclock::Notification;

pub(super) const VCPUS: usize = 4;
/// The least counter value of a test.
pub(super) const YOUNGEST: u64 = 1 << 20;

pub(super) fn tsc(ticks: u64) -> Tsc {
    Tsc::from_ticks(ticks)
}

pub(super) fn hertz(rate: Rate) -> Hertz {
    Hertz::from_ratio(u128::from(rate.n), u128::from(rate.d)).expect("positive")
}

pub(super) fn vcpu(at: usize) -> VcpuIndex {
    VcpuIndex(u32::try_from(at).expect("four vcpus"))
}

/// A vCPU's counter: what the host believes, and what is so.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Skew {
    pub(super) offset: u64,
    pub(super) bound: u64,
    /// The true counter less `offset`, within the bound.
    pub(super) error: i64,
}

/// One partition, its true state, and what its readers saw.
pub(super) struct World<'m> {
    pub(super) seed: u64,
    pub(super) random: Random,
    pub(super) memory: &'m Memory,
    pub(super) surface: MsrSurface,
    pub(super) config: Config,
    pub(super) oracle: Oracle,
    /// The partition's counter.
    pub(super) now: u64,
    pub(super) skews: [Option<Skew>; VCPUS],
    /// The most that readings of unequal counters can be apart, since they are unequal.
    pub(super) doubt_ns: u64,
    pub(super) registered: [bool; VCPUS],
    pub(super) stopped: [bool; VCPUS],
    pub(super) page: Option<u64>,
    pub(super) time_of_day_known: bool,
    pub(super) seen: Seen,
    pub(super) step: Step,
    pub(super) checks: [u64; super::tally::RULES.len()],
    pub(super) waits: u64,
}

/// The latest that any reader saw.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) pvclock: u64,
    pub(super) reference: u64,
    pub(super) msr: Option<u64>,
    pub(super) vmclock: u128,
}

pub(super) fn random_rate(random: &mut Random) -> Rate {
    match random.below(20) {
        0 => Rate {
            n: random.pick(&[1_000_000_000, 2_000_000_000, 4_000_000_000, 800_000_000]),
            d: 1,
        },
        1..4 => {
            let d = 1 + random.below(1000);
            Rate {
                n: 1_000_000_000 * d + random.below(4_000_000_000 * d),
                d,
            }
        }
        4 => Rate {
            n: 10_000_001 + random.below(50_000_000),
            d: 1,
        },
        5 => Rate {
            n: 1_000_000 + random.below(9_000_001),
            d: 1,
        },
        _ => Rate {
            n: 800_000_000 + random.below(4_500_000_000),
            d: 1,
        },
    }
}

impl<'m> World<'m> {
    pub(super) fn new(seed: u64, memory: &'m Memory) -> Self {
        let mut random = Random(seed.wrapping_mul(0xd134_2543_de82_ef95));
        let rate = random_rate(&mut random);
        // In its first 100 us a counter has no phase to bend a reference line by.
        let now = YOUNGEST + random.magnitude(55);
        let config = Config {
            drift_budget: Nanos::from_ns(random.pick(&[4, 20, 100, 100, 1000])),
            ..Config::for_vcpus(4)
        };
        let clock = PartitionClock::start(config, hertz(rate), tsc(now)).expect("a rate in range");
        let surface = MsrSurface::new(clock, Privileges::EVERYTHING, hertz(rate));
        let tai_origin = u128::from(1_700_000_000 * 1_000_000_000_u64 + random.magnitude(60)) << 64;
        let mut world = Self {
            seed,
            random,
            memory,
            surface,
            config,
            oracle: Oracle::new(now, rate, tai_origin),
            now,
            skews: [None; VCPUS],
            doubt_ns: 0,
            registered: [false; VCPUS],
            stopped: [false; VCPUS],
            page: None,
            time_of_day_known: false,
            seen: Seen::default(),
            step: Step::Idle,
            checks: [0; super::tally::RULES.len()],
            waits: 0,
        };
        let clock = world.surface.clock_mut();
        clock.offer_vmclock(Notification::Absent, memory);
        for at in 0..VCPUS {
            if !world.random.one_in(4) {
                world.registered[at] = true;
                let register = Memory::record_register(vcpu(at).0);
                world
                    .surface
                    .clock_mut()
                    .write_system_time_register(vcpu(at), register, memory);
            }
        }
        if !world.random.one_in(4) {
            world.page = Some(PAGE);
            world
                .surface
                .clock_mut()
                .write_reference_tsc_register(PAGE | 1, memory);
        }
        world
    }

    pub(super) fn play(mut self, steps: u64, tally: &mut Tally) -> Result<(), Failure> {
        self.read_everything()?;
        for _ in 0..steps {
            let step = self.choose();
            self.step = step;
            tally.steps[step as usize] += 1;
            self.take(step)?;
            self.read_everything()?;
        }
        for (to, from) in tally.rules.iter_mut().zip(self.checks) {
            *to += from;
        }
        tally.waits += self.waits;
        Ok(())
    }

    /// Records that `rule` was checked, and fails if it does not hold.
    pub(super) fn check(
        &mut self,
        rule: Rule,
        holds: bool,
        detail: impl FnOnce(&Self) -> std::string::String,
    ) -> Result<(), Failure> {
        self.checks[rule as usize] += 1;
        if holds {
            Ok(())
        } else {
            Err(Failure {
                rule,
                seed: self.seed,
                after: self.step,
                detail: detail(self),
            })
        }
    }

    pub(super) fn equal(&self) -> bool {
        self.skews.iter().all(Option::is_none)
    }

    /// The widest that two vCPUs' counters can lie apart, in ns, rounded up, at the slower of the rates that count.
    pub(super) fn skew_ns(&self) -> u64 {
        let widest = self
            .skews
            .iter()
            .flatten()
            .map(|skew| skew.bound)
            .max()
            .unwrap_or(0);
        u64::try_from(self.oracle.rate.time(2 * widest) >> 64).expect("small") + 3
    }

    /// vCPU `at`'s true counter.
    pub(super) fn own_tsc(&self, at: usize) -> u64 {
        match self.skews[at] {
            None => self.now,
            Some(skew) => self
                .now
                .wrapping_add(skew.offset)
                .wrapping_add_signed(skew.error),
        }
    }

    pub(super) fn page_memory(
        &self,
    ) -> Option<&'m chronovisor_abi::reference_tsc::ReferenceTscPage> {
        match self.page? {
            OTHER_PAGE => Some(&self.memory.other_page),
            _ => Some(&self.memory.page),
        }
    }
}
