//! Firing early by what the way to the guest takes, and waiting for the rest.

use chronovisor_abi::quantity::TscDelta;

/// The limits of a lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadBounds {
    start: TscDelta,
    most: TscDelta,
    ignore_below: TscDelta,
    ignore_above: TscDelta,
}

impl LeadBounds {
    /// A lead that begins with `start` and is never above `most`; errors below `ignore_below` or above `ignore_above` teach it nothing (noise, and a processor
    /// that was not there). `None` if `start` exceeds `most` or the limits for errors cross.
    ///
    /// KVM uses 1000 ns, 5000 ns, 100 cycles and 10 000 cycles.
    #[must_use]
    pub fn new(
        start: TscDelta,
        most: TscDelta,
        ignore_below: TscDelta,
        ignore_above: TscDelta,
    ) -> Option<Self> {
        (start <= most && ignore_below <= ignore_above).then_some(Self {
            start,
            most,
            ignore_below,
            ignore_above,
        })
    }
}

/// How much earlier than its deadline a timer is woken, learnt from how late the guest got its interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    bounds: LeadBounds,
    ticks: TscDelta,
}

impl Lead {
    /// A lead of the bounds' start.
    ///
    /// ```
    /// # use chronovisor_abi::quantity::TscDelta;
    /// # use chronovisor_host::apic::{Lead, LeadBounds};
    /// let ticks = TscDelta::from_ticks;
    /// let bounds = LeadBounds::new(ticks(2600), ticks(13_000), ticks(100), ticks(10_000)).expect("in order");
    /// let mut lead = Lead::new(bounds);
    /// lead.learn_late(ticks(800));
    /// assert_eq!(lead.ticks(), ticks(2700));
    /// lead.learn_waited(ticks(1600));
    /// assert_eq!(lead.ticks(), ticks(2500));
    /// ```
    #[must_use]
    pub const fn new(bounds: LeadBounds) -> Self {
        Self {
            bounds,
            ticks: bounds.start,
        }
    }

    /// The present lead in TSC ticks.
    #[must_use]
    pub const fn ticks(&self) -> TscDelta {
        self.ticks
    }

    /// The guest got its interrupt `late` ticks after the deadline: lead more, by an eighth of it.
    pub fn learn_late(&mut self, late: TscDelta) {
        if let Some(step) = self.step(late) {
            let ticks = self.ticks.as_ticks().saturating_add(step);
            self.put(ticks);
        }
    }

    /// The VMM had to wait `waited` ticks for the deadline: lead less, by an eighth of it.
    pub fn learn_waited(&mut self, waited: TscDelta) {
        if let Some(step) = self.step(waited) {
            self.put(self.ticks.as_ticks().saturating_sub(step));
        }
    }

    fn step(&self, error: TscDelta) -> Option<u64> {
        let bounds = self.bounds;
        let teaches = (bounds.ignore_below..=bounds.ignore_above).contains(&error);
        teaches.then(|| error.as_ticks() / 8)
    }

    fn put(&mut self, ticks: u64) {
        // A lead beyond its bound has learnt from something else than the way to the guest: start again.
        self.ticks = if ticks > self.bounds.most.as_ticks() {
            self.bounds.start
        } else {
            TscDelta::from_ticks(ticks)
        };
    }
}
