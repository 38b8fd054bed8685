//! Saving a partition's clocks, adjusting them for another host, and restoring them.
//!
//! # Theory
//!
//! At the source one instant is known as (host counter, TAI), and so the guest's counter; at the destination another one. What the guest's
//! clocks do between the two is a [`Policy`]:
//!
//! | policy | guest counter | pvclock | reference time | wall time |
//! | --- | --- | --- | --- | --- |
//! | stop (the default) | stands | stands | stands | right |
//! | advance | advances | advances | advances | right |
//! | per encoding | advances | advances | stands, as TLFS demands | right |
//!
//! With downtime `dT` and the guest's rate `f`: `tsc_d = tsc_s + dT * f` (advance) or `tsc_s` (stop), and
//! `offset_d = tsc_d - (host_tsc_d * ratio_d >> bits)`. A negative downtime (clocks of two hosts that disagree) counts as none, and is reported.
//!
//! If the destination cannot give the guest its old rate, the clocks go on at the new one from `tsc_d`, or the counter is emulated until a guest
//! hypervisor has followed ([`crate::reenlightenment`]).
//!
//! # Practice
//!
//! ```
//! use chronovisor_abi::quantity::{Hertz, Nanos, Tsc, TscDelta};
//! use chronovisor_host::guest_memory::NoMemory;
//! use chronovisor_host::migration::{adjust, Destination, HostPair, Policy, Ratio, ScalingHardware, Source, VmState};
//! use chronovisor_host::msr_surface::{MsrSurface, Privileges};
//! use chronovisor_host::partition_clock::{Change, Config, Counter, PartitionClock};
//! use chronovisor_host::vmclock::Disruption;
//!
//! let hz = |hz| Hertz::from_hz(hz).expect("not zero");
//! let config = Config::for_vcpus(1);
//! let clock = PartitionClock::start(config, hz(2_600_000_000), Tsc::from_ticks(0))?;
//! let source = MsrSurface::new(clock, Privileges::EVERYTHING, hz(1_000_000_000));
//!
//! // Source, vCPUs paused: the state goes into a buffer of the VMM's.
//! let mut buffer = [0; VmState::MAX_BYTES];
//! let bytes = source.save(Tsc::from_ticks(26_000_000_000)).encode(&mut buffer)?;
//!
//! // Destination: another rate, no scaling, two seconds later.
//! let saved = VmState::decode(&buffer[..bytes])?;
//! let (state, adjustments) = adjust(
//!     &saved,
//!     &Source {
//!         pair: HostPair { host_tsc: Tsc::from_ticks(26_000_000_000), tai: Nanos::from_ns(1_000_000_000_000), error: Nanos::ZERO },
//!         scaling: Ratio::ONE,
//!         offset: TscDelta::ZERO,
//!     },
//!     &Destination {
//!         pair: HostPair { host_tsc: Tsc::from_ticks(77), tai: Nanos::from_ns(1_002_000_000_000), error: Nanos::ZERO },
//!         host_rate: hz(2_100_000_000),
//!         scaling: ScalingHardware::None,
//!         counter: Counter::Invariant,
//!         arrival: Disruption::Moved,
//!     },
//!     Policy::Stop,
//! )?;
//! assert_eq!(adjustments.downtime, Nanos::from_ns(2_000_000_000));
//! assert_eq!(adjustments.tsc, Tsc::from_ticks(26_000_000_000));
//! assert_eq!(adjustments.pvclock_gained, Nanos::ZERO);
//!
//! // Set every vCPU's offset to `adjustments.offset`, then, before the first vCPU runs:
//! let mut restored = MsrSurface::restore(config, Privileges::EVERYTHING, hz(1_000_000_000), &state)?;
//! restored.clock_mut().begin_update(Change::Resume, &NoMemory)?.publish(Tsc::from_ticks(26_000_000_000))?;
//! assert_eq!(restored.clock().pvclock_at(adjustments.tsc), Nanos::from_ns(10_000_000_000));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`RESTORE_ORDER`] is the whole order with the reason of each step.
//!
//! # Migration
//!
//! A state has a version, a length and a checksum. A newer version is refused by name.
//!
//! # Caveats
//!
//! TAI and not UTC in the pairs: a leap second during the move would be a second of downtime. The pairs' errors go into VMClock's bounds. A
//! scaled counter's true rate is the host's rate times the rounded ratio; it is used as it is, exactly.
//!
//! # References
//!
//! Hyper-V TLFS, "Partition Reference Time" (save and restore); Linux `Documentation/virt/kvm/devices/vcpu.rst` (KVM_VCPU_TSC_OFFSET), whose
//! older formula leaves out the scaling ratios.

mod adjust;
mod bytes;
mod codec;
mod order;
mod state;
mod timers;

pub use adjust::{
    AdjustError, Adjustments, Destination, HostPair, Policy, Promise, Ratio, ScalingHardware,
    Source, adjust,
};
pub use bytes::{DecodeError, EncodeError};
pub use order::{RESTORE_ORDER, RestoreStep};
pub(crate) use state::ClockState;
pub use state::{RestoreError, VcpuState, VmState};
