//! What a vCPU has to do, and what disturbs it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::noise::Delay;

/// A load: all that happens to a vCPU besides its timer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// How it is called in the table.
    pub name: String,
    /// How long the guest works after each tick before it halts.
    pub work: Delay,
    /// How long the guest works after each halt at least; a guest under stress hardly ever halts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Delay>,
    /// One long piece of work in the middle of the run: indexing, an update, a scan for viruses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// From an interrupt that wakes a halted vCPU to its first instruction in guest mode.
    pub wake_latency: Delay,
    /// The time between two preemptions by neighbours; they meet the vCPU only if it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt_every: Option<Delay>,
    /// How long a preemption lasts.
    #[serde(default = "nothing")]
    pub preempt_for: Delay,
    /// A single stop of the whole machine, after half of the ticks, in ns: a suspended host, a paused guest.
    #[serde(default)]
    pub pause_ns: u64,
    /// How the host's clock discipline changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slewing: Option<Slewing>,
}

/// One long piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// It starts at this tick.
    pub at_tick: u64,
    /// And lasts this long, in ns.
    pub for_ns: u64,
}

/// NTP's changes of the slew: each `every_ns` it is drawn anew, uniform within `by_ppb` of `around_ppb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slewing {
    /// The time between two changes, in ns.
    pub every_ns: u64,
    /// The mean slew, in ppb.
    pub around_ppb: i64,
    /// The largest distance from it, in ppb.
    pub by_ppb: u32,
}

fn nothing() -> Delay {
    Delay::Fixed { ns: 0 }
}
