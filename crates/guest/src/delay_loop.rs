//! Loops per jiffy: how long a busy wait is, known without calibration where the host or a sibling tells.
//!
//! # Theory
//!
//! A kernel's short delays spin for a number of loops, kept per CPU as loops per jiffy (lpj). With a delay loop on the TSC one loop is one tick, so
//!
//! ```text
//! lpj = f / HZ                BogoMIPS = lpj * HZ / 500000 = 2 f / 10^6
//! ```
//!
//! A CPU that does not know its lpj calibrates it against timer interrupts, which takes 80 ms and more, and under a noisy neighbour yields too small a value: the
//! delays become too short. A virtual machine's host knows the rate, so every CPU, not only the first, can take the value from it.
//!
//! | order | source | why it stands there |
//! | --- | --- | --- |
//! | 1 | the value kept from this CPU's last start | measured on this very CPU |
//! | 2 | preset: from the host, or the command line | exact, and holds for every CPU |
//! | 3 | from the calibrated TSC, boot CPU only | exact for the CPU on which the TSC was calibrated |
//! | 4 | copied from a CPU that is up | same counter (TSC constant and trusted: the boot CPU), or same package (TSC constant) |
//! | 5 | measured against a direct timer | takes a few ticks |
//! | 6 | binary search over ticks | takes tens of ticks, the last resort |
//!
//! # Practice
//!
//! ```
//! use chronovisor_abi::quantity::Hertz;
//! use chronovisor_guest::delay_loop::{Bring, Cpu, LoopsPerJiffy, Source, TickRate, Tsc};
//!
//! let hz = TickRate::new(250).expect("not zero");
//! let preset = LoopsPerJiffy::from_frequency(Hertz::from_hz(2_600_000_000).expect("not zero"), hz);
//! assert_eq!(preset.map(LoopsPerJiffy::get), Some(10_400_000));
//! let choice = Bring { cpu: Cpu::Secondary, preset, tsc: Tsc::Unstable, ..Bring::default() }.choose();
//! assert_eq!((choice.source, choice.value), (Source::Preset, preset));
//! ```
//!
//! # Migration
//!
//! The value belongs to a counter rate. On a host with another rate and no scaling every delay is off by the ratio, until the kernel is told.
//!
//! # Caveats
//!
//! Time spent preempted makes a delay longer, never shorter; only a wrong lpj makes it shorter.
//!
//! # References
//!
//! Linux `init/calibrate.c` (order of the sources, sibling copy), `arch/x86/kernel/tsc.c` (lpj from the TSC rate), `arch/x86/kernel/kvmclock.c` (preset).

use core::fmt;
use core::num::NonZeroU64;

use chronovisor_abi::quantity::Hertz;

/// Timer interrupts a second: the kernel's HZ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TickRate(NonZeroU64);

impl TickRate {
    /// `hz` interrupts a second, or `None` for zero.
    #[must_use]
    pub const fn new(hz: u64) -> Option<Self> {
        match NonZeroU64::new(hz) {
            Some(hz) => Some(Self(hz)),
            None => None,
        }
    }

    /// Interrupts a second.
    #[must_use]
    pub const fn as_hz(self) -> u64 {
        self.0.get()
    }

    /// Not below 1: the kernel has no HZ above 5000.
    fn divisors(self) -> Divisors {
        Divisors {
            whole: (500_000 / self.as_hz()).max(1),
            hundredth: (5_000 / self.as_hz()).max(1),
        }
    }
}

/// Loops of the delay loop in one jiffy, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoopsPerJiffy(NonZeroU64);

impl LoopsPerJiffy {
    /// `loops` a jiffy, or `None` for zero.
    #[must_use]
    pub const fn new(loops: u64) -> Option<Self> {
        match NonZeroU64::new(loops) {
            Some(loops) => Some(Self(loops)),
            None => None,
        }
    }

    /// Loops a jiffy.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// `rate / ticks`, rounded up, so that a delay is never too short: by less than one loop. `None` if that needs more than 64 bits. The
    /// kernel itself rounds down, by less than one loop.
    #[must_use]
    pub fn from_frequency(rate: Hertz, ticks: TickRate) -> Option<Self> {
        let divisor = u128::from(rate.denominator()) * u128::from(ticks.as_hz());
        u64::try_from(u128::from(rate.numerator()).div_ceil(divisor))
            .ok()
            .and_then(Self::new)
    }

    /// The counter's rate that the value stands for, `lpj * HZ`: up to HZ above the true one, which it was rounded up from. `None` beyond 64 bits.
    #[must_use]
    pub fn frequency(self, ticks: TickRate) -> Option<Hertz> {
        Hertz::from_hz(self.get().checked_mul(ticks.as_hz())?)
    }

    /// The BogoMIPS that the kernel prints for the value. It divides twice, each time rounding down, by divisors that are rounded down too: at a HZ of 300, which
    /// divides neither 500000 nor 5000, that is 500 ppm and more above `lpj * HZ / 500000`.
    #[must_use]
    pub fn bogo_mips(self, ticks: TickRate) -> BogoMips {
        let Divisors { whole, hundredth } = ticks.divisors();
        let hundredths =
            u128::from(self.get() / whole) * 100 + u128::from(self.get() / hundredth % 100);
        BogoMips {
            hundredths: u64::try_from(hundredths).unwrap_or(u64::MAX),
        }
    }
}

/// Loops in one BogoMIPS and in a hundredth, as the kernel has them.
struct Divisors {
    whole: u64,
    hundredth: u64,
}

/// The kernel's BogoMIPS, in hundredths, as it prints them: rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BogoMips {
    hundredths: u64,
}

impl BogoMips {
    /// `hundredths` of a BogoMIPS.
    #[must_use]
    pub const fn from_hundredths(hundredths: u64) -> Self {
        Self { hundredths }
    }

    /// In hundredths.
    #[must_use]
    pub const fn hundredths(self) -> u64 {
        self.hundredths
    }

    /// The smallest value that prints as this: the true one is less than `5000 / HZ` loops above it, or at a HZ of 300 sometimes 1600 more. `None` for zero, beyond
    /// 64 bits, or if no value prints so.
    #[must_use]
    pub fn loops_per_jiffy(self, ticks: TickRate) -> Option<LoopsPerJiffy> {
        let Divisors { whole, hundredth } = ticks.divisors();
        let least = (self.hundredths / 100).checked_mul(whole)?;
        // The first multiple of a hundredth at or above `least` with the right last two digits; `least` itself may stand in the middle of one.
        let (digits, at) = (self.hundredths % 100, least / hundredth);
        let step = (digits + 100 - at % 100) % 100;
        let loops = at.checked_add(step)?.checked_mul(hundredth)?.max(least);
        LoopsPerJiffy::new(loops).filter(|value| value.bogo_mips(ticks) == self)
    }
}

/// As the kernel prints it: `5187.81`.
impl fmt::Display for BogoMips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.hundredths / 100, self.hundredths % 100)
    }
}

/// Which CPU is being brought up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cpu {
    /// The first.
    #[default]
    Boot,
    /// Any other.
    Secondary,
}

/// What the kernel thinks of the TSC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tsc {
    /// Its rate may change.
    #[default]
    Varying,
    /// Its rate is constant, but it was marked unstable: CPUs may disagree, as on Hyper-V without the invariant bit.
    Unstable,
    /// Its rate is constant, and all CPUs share it.
    Shared,
}

/// What is known when a CPU is brought up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bring {
    /// Which CPU.
    pub cpu: Cpu,
    /// The value from this CPU's last start.
    pub kept: Option<LoopsPerJiffy>,
    /// The value that the host or the command line gives.
    pub preset: Option<LoopsPerJiffy>,
    /// The value from the calibrated TSC.
    pub from_tsc: Option<LoopsPerJiffy>,
    /// What the TSC is good for.
    pub tsc: Tsc,
    /// The boot CPU's value, if it is up.
    pub boot_cpu: Option<LoopsPerJiffy>,
    /// The value of a CPU of the same package (or NUMA node, which virtual machines show as packages) that is up.
    pub sibling: Option<LoopsPerJiffy>,
    /// What a measurement against a direct timer gave, if there is such a timer.
    pub by_timer: Option<LoopsPerJiffy>,
}

/// Where a CPU's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// This CPU's last start.
    Kept,
    /// The host or the command line.
    Preset,
    /// The calibrated TSC.
    FromTsc,
    /// The boot CPU.
    BootCpu,
    /// A sibling of the same package.
    Sibling,
    /// A direct timer.
    Timer,
    /// A binary search over ticks, still to be done.
    Search,
}

/// A value and the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Where it comes from.
    pub source: Source,
    /// The value; `None` only for [`Source::Search`].
    pub value: Option<LoopsPerJiffy>,
    /// Why this source, in a clause.
    pub reason: &'static str,
}

impl Bring {
    /// The value to use, by the order of the [module's table](self).
    #[must_use]
    pub fn choose(&self) -> Choice {
        let from_tsc = self.from_tsc.filter(|_| self.cpu == Cpu::Boot);
        let boot_cpu = self
            .boot_cpu
            .filter(|_| self.tsc == Tsc::Shared && self.cpu == Cpu::Secondary);
        let sibling = self.sibling.filter(|_| self.tsc != Tsc::Varying);
        let in_order = [
            (Source::Kept, self.kept, "it was measured on this CPU"),
            (
                Source::Preset,
                self.preset,
                "the host or the command line gave it, for every CPU",
            ),
            (
                Source::FromTsc,
                from_tsc,
                "the TSC was calibrated on the boot CPU",
            ),
            (
                Source::BootCpu,
                boot_cpu,
                "the TSC is constant and trusted, so all CPUs share the boot CPU's value",
            ),
            (
                Source::Sibling,
                sibling,
                "the TSC is constant, and a CPU of the same package is calibrated",
            ),
            (
                Source::Timer,
                self.by_timer,
                "there is a timer to measure against",
            ),
        ];
        in_order
            .into_iter()
            .find(|(_, value, _)| value.is_some())
            .map_or(
                Choice {
                    source: Source::Search,
                    value: None,
                    reason: "nothing is known: a full calibration over ticks",
                },
                |(source, value, reason)| Choice {
                    source,
                    value,
                    reason,
                },
            )
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
