//! What the wall clock can be compared with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What disciplines the wall clock, and which outside clocks there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TimeReference {
    /// The kernel's discipline state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adjtimex: Option<Adjtimex>,
    /// PTP devices, readable or not.
    #[serde(default)]
    pub ptp: Vec<PtpDevice>,
    /// Time daemons that run here, e.g. `chronyd`.
    #[serde(default)]
    pub daemons: Vec<String>,
    /// Where no list of daemons could be made: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemons_not_readable: Option<String>,
}

/// The answer of `adjtimex` with no mode set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Adjtimex {
    /// Return value: 0 ok, 1 to 4 leap second states, 5 unsynchronised.
    pub state: i32,
    /// Status bits (`STA_UNSYNC` is 0x40, `STA_NANO` 0x2000).
    pub status: i32,
    /// Frequency correction, in ppm times 65536.
    pub freq_ppm_scaled: i64,
    /// Remaining offset, in ns.
    pub offset_ns: i64,
    /// Largest error that the daemon declares, in us.
    pub maxerror_us: i64,
    /// Estimated error, in us.
    pub esterror_us: i64,
    /// Length of a tick, in us (10000 if untouched).
    pub tick_us: i64,
    /// TAI minus UTC, in s; 0 if never set.
    pub tai_s: i32,
}

/// One PTP clock device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PtpDevice {
    /// Device, e.g. `/dev/ptp0`.
    pub device: String,
    /// The name of its clock, e.g. `KVM virtual PTP`, `hyperv`, `vmclock0`.
    pub clock_name: String,
    /// How it was read: `precise`, `extended`, `basic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// `CLOCK_REALTIME` minus the device, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset_ns: Option<i64>,
    /// Largest error of the offset (half the window of the read), in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_ns: Option<u64>,
    /// Where it could not be read: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_readable: Option<String>,
}
