//! One move: save here, adjust, restore there. The steps follow `chronovisor_host::migration::RESTORE_ORDER`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chronovisor_abi::quantity::{Hertz, Nanos, TscDelta};
use chronovisor_guest::counter::lfence_rdtsc;
use chronovisor_host::migration::{
    Destination, HostPair, Policy, Ratio, ScalingHardware, Source, VcpuState as VcpuClocks,
    VmState, adjust,
};
use chronovisor_host::msr_surface::{MsrSurface, Privileges};
use chronovisor_host::partition_clock::{Change, Config, Counter, VcpuIndex};
use chronovisor_host::vmclock::Disruption;

use crate::LabError;
use crate::backend::Backend;
use crate::clocks::{BUS, Clocks};
use crate::experiment::GuestCounter;
use crate::machine::{Machine, Setup, VcpuState, set_tsc_offset, tsc_offset};
use crate::pages::GuestPages;

/// How the destination's counter stands to the source's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shift {
    /// Ahead by so many ticks.
    Ahead(u64),
    /// Behind by so many.
    Behind(u64),
}

impl Shift {
    /// Another one for each move: 8 s ahead and 4 s behind in turn. That is more than any pause takes, so the raw counter
    /// goes back at every other move, and less than what it gained before, so it never passes 0.
    pub(super) fn of(index: u32, rate: Hertz) -> Self {
        let second = rate.rounded_hz();
        if index.is_multiple_of(2) {
            Self::Ahead(second.saturating_mul(8))
        } else {
            Self::Behind(second.saturating_mul(4))
        }
    }

    fn delta(self) -> TscDelta {
        match self {
            Self::Ahead(ticks) => TscDelta::from_ticks(ticks),
            // wrapping: offsets are modulo 2^64.
            Self::Behind(ticks) => TscDelta::from_ticks(ticks.wrapping_neg()),
        }
    }
}

/// How a move is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) policy: Policy,
    pub(super) shift: Shift,
    /// How long the guest's state waits between save and restore.
    pub(super) pause: Duration,
}

/// The guest at its destination, not yet running.
pub(super) struct Moved {
    pub(super) machine: Machine,
    pub(super) clocks: Clocks,
    pub(super) state_bytes: usize,
    pub(super) tsc_jump: u64,
    /// Between the two pairs of readings: what a clock that goes on advances by.
    pub(super) between: Duration,
    pub(super) destination: &'static str,
}

/// Counter and time of one instant. UTC serves as TAI here: no leap second falls into a move within one machine.
fn pair() -> Result<HostPair, LabError> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(|_| LabError::ClockBefore1970)?;
    let tai = Nanos::from_ns(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    Ok(HostPair {
        host_tsc: lfence_rdtsc(),
        tai,
        error: Nanos::ZERO,
    })
}

/// Moves the paused guest of `source`.
pub(super) fn move_to(
    backend: &Backend,
    setup: &Setup,
    source: Machine,
    clocks: &Clocks,
    counter: GuestCounter,
    plan: Plan,
) -> Result<Moved, LabError> {
    let states = (0..)
        .zip(source.vcpus())
        .map(|(index, fd)| VcpuState::save(fd, index))
        .collect::<Result<Vec<_>, _>>()?;
    let here = Source {
        pair: pair()?,
        scaling: Ratio::ONE,
        offset: clocks.offset(),
    };
    // wrapping: the counter itself wraps.
    let saved = clocks
        .lock()
        .save(here.pair.host_tsc.wrapping_add(here.offset));
    let vcpu_clocks = (0..setup.vcpus)
        .map(|vcpu| {
            clocks
                .lock()
                .save_vcpu(VcpuIndex(vcpu), clocks.pages())
                .ok_or_else(|| LabError::Clocks {
                    step: "saving a vCPU's clocks",
                    why: format!("there is no vCPU {vcpu}"),
                })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let memory = source.memory().clone();
    drop(source);
    std::thread::sleep(plan.pause);

    // Over the wire, as bytes.
    let mut buffer = [0; VmState::MAX_BYTES];
    let state_bytes = saved
        .encode(&mut buffer)
        .map_err(LabError::clocks("encoding the clock state"))?;
    let saved = VmState::decode(&buffer[..state_bytes])
        .map_err(LabError::clocks("decoding the clock state"))?;

    let machine = Machine::bare(backend, setup, memory)?;
    let honours_offset = honours_offset(&machine)?;
    let old_rate = clocks.lock().clock().rate();
    let host_rate = if honours_offset {
        counter.rate
    } else {
        other_rate(counter.rate, old_rate)
    };
    let there = Destination {
        pair: pair()?,
        host_rate,
        scaling: ScalingHardware::None,
        counter: Counter::Invariant,
        arrival: Disruption::Moved,
    };
    let (state, adjustments) = adjust(&saved, &here, &there, plan.policy)
        .map_err(LabError::clocks("adjusting the clock state"))?;

    let wanted = adjustments
        .offset
        .as_ticks()
        .wrapping_add(plan.shift.delta().as_ticks());
    let mut offset = 0;
    for (index, fd) in (0..).zip(machine.vcpus()) {
        if honours_offset {
            set_tsc_offset(fd, index, wanted)?;
        }
        offset = tsc_offset(fd, index)?;
    }
    for (index, (fd, state)) in (0..).zip(machine.vcpus().iter().zip(&states)) {
        state.restore(fd, index)?;
    }

    let mut surface = MsrSurface::restore(
        Config::for_vcpus(setup.vcpus),
        Privileges::EVERYTHING,
        BUS,
        &state,
    )
    .map_err(LabError::clocks("restoring the clocks"))?;
    for (vcpu, (clocks, timers)) in (0..).zip(&vcpu_clocks) {
        restore_vcpu(&mut surface, vcpu, clocks, timers)?;
    }
    let pages = GuestPages::new(machine.memory().clone());
    let publish = |surface: &mut MsrSurface, change, offset| -> Result<(), LabError> {
        let open = surface
            .clock_mut()
            .begin_update(change, &pages)
            .map_err(LabError::clocks("the update"))?;
        // wrapping: the counter itself wraps.
        open.publish(lfence_rdtsc().wrapping_add(offset))
            .map(|_| ())
            .map_err(LabError::clocks("publishing the update"))
    };
    publish(&mut surface, Change::Resume, adjustments.offset)?;
    // The counter is not where the adjustment put it: shifted on purpose, or not to be shifted at all.
    let ahead = TscDelta::from_ticks(offset.wrapping_sub(adjustments.offset.as_ticks()));
    if ahead != TscDelta::ZERO {
        publish(
            &mut surface,
            Change::Counter {
                rate: adjustments.rate,
                ahead,
            },
            TscDelta::from_ticks(offset),
        )?;
    }
    let jump = if honours_offset {
        ahead.as_ticks().cast_signed().unsigned_abs()
    } else {
        0
    };
    Ok(Moved {
        machine,
        clocks: Clocks::with(surface, offset, pages),
        state_bytes,
        tsc_jump: jump,
        between: Duration::from_nanos(adjustments.downtime.as_ns()),
        destination: if honours_offset {
            "another TSC value at every move"
        } else {
            "another nominal TSC rate at every move (this KVM ignores TSC offsets)"
        },
    })
}

fn restore_vcpu(
    surface: &mut MsrSurface,
    vcpu: u32,
    clocks: &VcpuClocks,
    timers: &chronovisor_host::synthetic_timer::VcpuTimersState,
) -> Result<(), LabError> {
    surface
        .restore_vcpu(VcpuIndex(vcpu), clocks, timers)
        .map_err(LabError::clocks("restoring a vCPU's clocks"))
}

/// A nominal rate that is not the one before: 4/5 of the real one, and the real one, in turn.
fn other_rate(real: Hertz, before: Hertz) -> Hertz {
    if before == real {
        real.checked_scale(4, 5).unwrap_or(real)
    } else {
        real
    }
}

/// Whether an offset can be set: KVM may accept one and ignore it, so it is read back.
fn honours_offset(machine: &Machine) -> Result<bool, LabError> {
    let Some(fd) = machine.vcpus().first() else {
        return Ok(false);
    };
    let probe = tsc_offset(fd, 0)?.wrapping_add(1 << 20);
    set_tsc_offset(fd, 0, probe)?;
    Ok(tsc_offset(fd, 0)? == probe)
}
