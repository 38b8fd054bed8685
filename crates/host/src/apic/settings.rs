//! What a VMM decides about a timer before the guest sees it.

use chronovisor_abi::quantity::{Hertz, Nanos};

use super::lost_ticks::LostTicks;
use super::ratio::{BusRatio, RateError};

/// Whether CPUID 1.ECX\[24\] offers TSC-deadline mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineMode {
    /// Offered: the LVT's mode may be 10b and the MSR exists.
    Offered,
    /// Absent: bit 18 of the LVT entry is reserved.
    Absent,
}

/// The shortest period of a periodic timer's interrupts, so that a guest cannot keep its host busy with them. An interrupt that comes late may
/// stand closer to the next one, which is on the grid.
///
/// A faster periodic timer keeps its count and its grid; one interrupt then stands for as many periods as are needed, and the write that
/// set it up reports how many. One-shot and deadline timers are bounded by one expiry a write and are not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinimumPeriod(Nanos);

impl MinimumPeriod {
    /// No lower bound: a guest may have an interrupt every bus tick.
    pub const NONE: Self = Self(Nanos::ZERO);
    /// 200 us, KVM's `min_timer_period_us`.
    pub const KVM: Self = Self(Nanos::from_ns(200_000));

    /// A bound of `period`, or `None` above one second.
    #[must_use]
    pub const fn new(period: Nanos) -> Option<Self> {
        if period.as_ns() <= 1_000_000_000 {
            Some(Self(period))
        } else {
            None
        }
    }

    /// The bound in ns.
    #[must_use]
    pub const fn period(self) -> Nanos {
        self.0
    }
}

/// The exact rates of the two clocks that meet in a timer, guest TSC and bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    bus: Hertz,
    tsc: Hertz,
    ratio: BusRatio,
}

impl Rates {
    /// A bus of `bus` timed by a guest TSC of `tsc`.
    ///
    /// # Errors
    ///
    /// [`RateError`] outside 1 kHz to 1 THz for the TSC and 2^-20 to 16 times that for the bus.
    ///
    /// ```
    /// # use chronovisor_abi::quantity::Hertz;
    /// # use chronovisor_host::apic::Rates;
    /// let bus = Hertz::from_ratio(400_000_000, 3).expect("positive");
    /// let rates = Rates::new(bus, Hertz::from_hz(2_600_000_000).expect("positive"))?;
    /// assert_eq!(rates.bus(), bus);
    /// # Ok::<(), chronovisor_host::apic::RateError>(())
    /// ```
    pub fn new(bus: Hertz, tsc: Hertz) -> Result<Self, RateError> {
        let ratio = BusRatio::new(bus, tsc)?;
        Ok(Self { bus, tsc, ratio })
    }

    /// The bus clock's rate, before the divider.
    #[must_use]
    pub const fn bus(self) -> Hertz {
        self.bus
    }

    /// The guest TSC's rate.
    #[must_use]
    pub const fn tsc(self) -> Hertz {
        self.tsc
    }

    pub(super) const fn ratio(self) -> BusRatio {
        self.ratio
    }

    /// The divided bus ticks in `span`, rounded up.
    pub(super) fn counts_ceil(self, span: Nanos, divide_log2: u32) -> u64 {
        let per_second = u128::from(self.bus.denominator()) * 1_000_000_000;
        let ticks = chronovisor_abi::wide::mul_div_ceil(
            u128::from(span.as_ns()),
            u128::from(self.bus.numerator()),
            per_second,
        );
        let counts = ticks.map_or(u128::MAX, |ticks| ticks.div_ceil(1 << divide_log2));
        u64::try_from(counts).unwrap_or(u64::MAX)
    }
}

/// A timer's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The rates of the bus and the guest's TSC.
    pub rates: Rates,
    /// The shortest distance of two periodic interrupts.
    pub minimum_period: MinimumPeriod,
    /// What becomes of overdue periodic ticks.
    pub lost_ticks: LostTicks,
    /// Whether TSC-deadline mode exists.
    pub deadline_mode: DeadlineMode,
}
