//! What becomes of the ticks that a guest could not take in time.
//!
//! # Theory
//!
//! A periodic timer of period P is due at T, T + P, T + 2P, .. . If the virtual processor, or the whole machine, stalls until
//! `now`, then `n + 1` ticks with `n = floor((now - T) / P)` are due at once. Whatever is done with them, the next tick is due on the grid:
//!
//! ```text
//! next = now + P - ((now - T) mod P)
//! ```
//!
//! # Practice
//!
//! | policy | interrupts for the stall | for whom |
//! | --- | --- | --- |
//! | [`LostTicks::Merge`] | 1 | guests that read a counter; what hardware does, since the request register holds one bit a vector |
//! | [`LostTicks::SkipOnGrid`] | 1 if the last tick is at most P/2 late, else 0 | guests that measure the distance between ticks |
//! | [`LostTicks::CatchUp`] | n + 1, spaced out, up to a cap | guests that count time in ticks |
//!
//! # Migration
//!
//! The backlog of a catch-up is part of the saved state.
//!
//! # Caveats
//!
//! A catch-up makes the guest's ticks come faster than real time for a while: a guest that derives a rate from them sees a fast clock.
//!
//! # References
//!
//! QEMU's lost-tick policies (`merge`, `discard`, `slew`) name the same three; Hyper-V TLFS, "Synthetic timers", describes the
//! modulation of the period.

/// What to do with overdue ticks of a periodic timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LostTicks {
    /// All overdue ticks become one interrupt.
    #[default]
    Merge,
    /// Ticks more than half a period late are lost; only a fresher one is delivered.
    SkipOnGrid,
    /// All ticks are delivered, one at a time, until the backlog is gone.
    CatchUp(CatchUp),
}

/// How a backlog of ticks is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchUp {
    spacing: u8,
    cap: u32,
}

impl CatchUp {
    /// Half a period apart, at most 16 ticks behind.
    pub const DEFAULT: Self = Self {
        spacing: Self::PARTS / 2,
        cap: 16,
    };

    /// The parts into which a period is divided for the spacing.
    pub const PARTS: u8 = 128;

    /// Interrupts at least `spacing` 128ths of a period apart and at most `cap` ticks held back; `None` unless the spacing is 1 to 128.
    ///
    /// ```
    /// # use chronovisor_host::apic::CatchUp;
    /// assert_eq!(CatchUp::new(64, 16), Some(CatchUp::DEFAULT));
    /// assert_eq!(CatchUp::new(0, 16), None);
    /// ```
    #[must_use]
    pub const fn new(spacing: u8, cap: u32) -> Option<Self> {
        if spacing == 0 || spacing > Self::PARTS {
            return None;
        }
        Some(Self { spacing, cap })
    }

    /// The least distance of two interrupts, in 128ths of a period.
    #[must_use]
    pub const fn spacing(self) -> u8 {
        self.spacing
    }

    /// The most ticks that are held back; further ones are lost.
    #[must_use]
    pub const fn cap(self) -> u32 {
        self.cap
    }
}

/// What is due at one instant.
pub(crate) struct Due {
    /// Ticks that came due since the last look.
    pub(crate) ticks: u64,
    /// How late the last of them is, and the period, in the same unit.
    pub(crate) lateness: u128,
    pub(crate) period: u128,
    /// Ticks held back from before.
    pub(crate) backlog: u32,
    /// Whether the last interrupt is far enough back for another.
    pub(crate) spaced: Spaced,
}

/// Whether a catch-up may deliver now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spaced {
    Enough,
    TooClose,
}

/// What a policy decides for the ticks that are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Verdict {
    /// 1 if an interrupt is to be raised, else 0.
    pub(crate) interrupts: u64,
    pub(crate) merged: u64,
    pub(crate) lost: u64,
    pub(crate) backlog: u32,
}

impl LostTicks {
    /// The fate of the ticks that are due: `ticks + backlog = interrupts + merged + lost + new backlog`.
    pub(crate) fn judge(self, due: &Due) -> Verdict {
        let owed = due.ticks.saturating_add(u64::from(due.backlog));
        match self {
            Self::Merge => Verdict {
                interrupts: owed.min(1),
                merged: owed.saturating_sub(1),
                ..Verdict::default()
            },
            Self::SkipOnGrid => {
                let fresh = due.ticks > 0 && due.lateness <= due.period / 2;
                let interrupts = u64::from(fresh);
                Verdict {
                    interrupts,
                    lost: owed - interrupts,
                    ..Verdict::default()
                }
            }
            Self::CatchUp(limits) => {
                let interrupts = u64::from(owed > 0 && due.spaced == Spaced::Enough);
                let left = owed - interrupts;
                let kept = u32::try_from(left).map_or(limits.cap, |left| left.min(limits.cap));
                Verdict {
                    interrupts,
                    merged: 0,
                    lost: left - u64::from(kept),
                    backlog: kept,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(ticks: u64, lateness: u128) -> Due {
        Due {
            ticks,
            lateness,
            period: 1000,
            backlog: 0,
            spaced: Spaced::Enough,
        }
    }

    fn verdict(interrupts: u64, merged: u64, lost: u64, backlog: u32) -> Verdict {
        Verdict {
            interrupts,
            merged,
            lost,
            backlog,
        }
    }

    /// P = 1000, now - T = 10 350: n = 10, so 11 ticks are due, the last of them 350 late.
    #[test]
    fn a_stall_of_ten_periods() {
        let catch_up = LostTicks::CatchUp(CatchUp::DEFAULT);
        for (policy, expected) in [
            (LostTicks::Merge, verdict(1, 10, 0, 0)),
            (LostTicks::SkipOnGrid, verdict(1, 0, 10, 0)),
            (catch_up, verdict(1, 0, 0, 10)),
        ] {
            assert_eq!(policy.judge(&due(11, 350)), expected, "{policy:?}");
        }
        assert_eq!(
            LostTicks::SkipOnGrid.judge(&due(11, 500)),
            verdict(1, 0, 10, 0)
        );
        assert_eq!(
            LostTicks::SkipOnGrid.judge(&due(11, 501)),
            verdict(0, 0, 11, 0)
        );
    }

    #[test]
    fn the_backlog_is_capped_and_the_rest_counted_as_lost() {
        let catch_up = LostTicks::CatchUp(CatchUp::DEFAULT);
        assert_eq!(catch_up.judge(&due(17, 0)), verdict(1, 0, 0, 16));
        assert_eq!(catch_up.judge(&due(18, 0)), verdict(1, 0, 1, 16));
        assert_eq!(
            catch_up.judge(&due(u64::MAX, 0)),
            verdict(1, 0, u64::MAX - 17, 16)
        );
    }

    /// From a host that caught up to one that does not.
    #[test]
    fn what_was_owed_is_accounted_for_under_every_policy() {
        for (policy, ticks, expected) in [
            (LostTicks::Merge, 2, verdict(1, 4, 0, 0)),
            (LostTicks::Merge, 0, verdict(1, 2, 0, 0)),
            (LostTicks::SkipOnGrid, 2, verdict(1, 0, 4, 0)),
            (LostTicks::SkipOnGrid, 0, verdict(0, 0, 3, 0)),
        ] {
            let owing = Due {
                backlog: 3,
                ..due(ticks, 0)
            };
            assert_eq!(policy.judge(&owing), expected, "{policy:?}, {ticks}");
        }
    }

    #[test]
    fn a_catch_up_too_soon_holds_back() {
        let catch_up = LostTicks::CatchUp(CatchUp::DEFAULT);
        let too_close = Due {
            backlog: 3,
            spaced: Spaced::TooClose,
            ..due(1, 0)
        };
        assert_eq!(catch_up.judge(&too_close), verdict(0, 0, 0, 4));
        let idle = Due {
            spaced: Spaced::Enough,
            ..due(0, 0)
        };
        assert_eq!(catch_up.judge(&idle), Verdict::default());
    }
}
