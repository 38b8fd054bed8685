//! Clock readings over time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A column of a series.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Column {
    /// `CLOCK_REALTIME`, in ns.
    RealtimeNs,
    /// `CLOCK_MONOTONIC`, in ns.
    MonotonicNs,
    /// `CLOCK_MONOTONIC_RAW`, in ns.
    MonotonicRawNs,
    /// `CLOCK_BOOTTIME`, in ns.
    BoottimeNs,
    /// The time-stamp counter, in ticks.
    Tsc,
    /// The CPU that took the reading.
    Cpu,
    /// A clock outside the guest, in ns.
    ReferenceNs,
    /// The host's `CLOCK_REALTIME`, in ns.
    HostRealtimeNs,
    /// Another timer of the guest, in ns.
    HpetNs,
    /// Time computed from the Hyper-V page, in ns.
    PageNs,
    /// The Hyper-V counter MSR times 100, in ns.
    CounterNs,
    /// Time of a clock library, in ns.
    LibraryNs,
}

impl Column {
    /// Every column.
    pub const ALL: [Self; 12] = [
        Self::RealtimeNs,
        Self::MonotonicNs,
        Self::MonotonicRawNs,
        Self::BoottimeNs,
        Self::Tsc,
        Self::Cpu,
        Self::ReferenceNs,
        Self::HostRealtimeNs,
        Self::HpetNs,
        Self::PageNs,
        Self::CounterNs,
        Self::LibraryNs,
    ];

    /// The column's name in a file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RealtimeNs => "realtime_ns",
            Self::MonotonicNs => "monotonic_ns",
            Self::MonotonicRawNs => "monotonic_raw_ns",
            Self::BoottimeNs => "boottime_ns",
            Self::Tsc => "tsc",
            Self::Cpu => "cpu",
            Self::ReferenceNs => "reference_ns",
            Self::HostRealtimeNs => "host_realtime_ns",
            Self::HpetNs => "hpet_ns",
            Self::PageNs => "page_ns",
            Self::CounterNs => "counter_ns",
            Self::LibraryNs => "library_ns",
        }
    }

    /// The column of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|column| column.name() == name)
    }
}

/// A table of readings, one row an instant, in time order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Samples {
    /// Values by column, each column of the same length; a cell that was empty is `None`. A counter above 2^63 needs the
    /// wide type.
    pub columns: BTreeMap<Column, Vec<Option<i128>>>,
}

impl Samples {
    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.columns.values().map(Vec::len).max().unwrap_or(0)
    }
}
