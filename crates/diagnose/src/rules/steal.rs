//! Time that the host took.

use super::Facts;
use crate::code::Code;
use crate::evidence::{CpuStat, CpuTicks};
use crate::finding::Finding;
use crate::forensics::real;

/// From this share on: 10 %.
const LIMIT: f64 = 0.1;

/// Fewer ticks than this are no measurement: 0.2 s of one CPU.
const LEAST_TICKS: u64 = 20;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    stolen(facts).into_iter().collect()
}

impl CpuTicks {
    fn sum(&self) -> u64 {
        [
            self.user,
            self.nice,
            self.system,
            self.idle,
            self.iowait,
            self.irq,
            self.softirq,
            self.steal,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// What passed since an earlier capture. A field that fell (idle and iowait may) counts as not moved.
    fn since(&self, earlier: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            nice: self.nice.saturating_sub(earlier.nice),
            system: self.system.saturating_sub(earlier.system),
            idle: self.idle.saturating_sub(earlier.idle),
            iowait: self.iowait.saturating_sub(earlier.iowait),
            irq: self.irq.saturating_sub(earlier.irq),
            softirq: self.softirq.saturating_sub(earlier.softirq),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            user: self.user.saturating_add(other.user),
            nice: self.nice.saturating_add(other.nice),
            system: self.system.saturating_add(other.system),
            idle: self.idle.saturating_add(other.idle),
            iowait: self.iowait.saturating_add(other.iowait),
            irq: self.irq.saturating_add(other.irq),
            softirq: self.softirq.saturating_add(other.softirq),
            steal: self.steal.saturating_add(other.steal),
        }
    }
}

fn total(stat: &CpuStat) -> Option<CpuTicks> {
    stat.total.or_else(|| {
        stat.cpus
            .iter()
            .map(|(_, ticks)| *ticks)
            .reduce(|sum, ticks| sum.plus(&ticks))
    })
}

fn stolen(facts: &Facts<'_>) -> Option<Finding> {
    let captures = facts.evidence.cpu_time.seen()?;
    let last = total(captures.last()?)?;
    let (ticks, how) = if captures.len() > 1 {
        // The worst stretch between two captures.
        let stretch = captures
            .windows(2)
            .filter_map(|pair| Some(total(&pair[1])?.since(&total(&pair[0])?)))
            .filter(|ticks| ticks.sum() >= LEAST_TICKS)
            .max_by(|a, b| share(a.steal, a).total_cmp(&share(b.steal, b)))?;
        (stretch, "between two captures")
    } else {
        (last, "since boot")
    };
    if ticks.sum() < LEAST_TICKS {
        return None;
    }
    let steal = share(ticks.steal, &ticks);
    if steal < LIMIT {
        return None;
    }
    let irq = share(ticks.irq, &ticks);
    Some(
        Finding::new(
            Code::HostStealSpikes,
            format!("the host took {:.1} % of the time {how}", steal * 100.0),
        )
        .seen(
            format!(
                "steal {} of {} ticks, interrupts {}, soft interrupts {}",
                ticks.steal,
                ticks.sum(),
                ticks.irq,
                ticks.softirq
            ),
            format!("proc/stat, {how}"),
        )
        .because("The vCPUs were ready to run and the host ran something else. Timers fire late by that much, and measurements of short spans (calibrations, watchdog checks) are disturbed; the clocks themselves stay right.")
        .real("steal_ratio", steal)
        .real("irq_ratio", irq),
    )
}

fn share(part: u64, of: &CpuTicks) -> f64 {
    real(i128::from(part)) / real(i128::from(of.sum())).max(1.0)
}
