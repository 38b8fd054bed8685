//! A live migration of the clocks: saved on one host, adjusted for another, restored in the right order.
//!
//! Run it with `cargo run -p chronovisor-host --example save_and_restore`.

use std::error::Error;

use chronovisor_abi::quantity::{Hertz, Nanos, Tsc, TscDelta};
use chronovisor_host::guest_memory::NoMemory;
use chronovisor_host::migration::{
    Destination, HostPair, Policy, RESTORE_ORDER, Ratio, ScalingHardware, Source, VcpuState,
    VmState, adjust,
};
use chronovisor_host::msr_surface::{MsrSurface, Privileges};
use chronovisor_host::partition_clock::{Change, Config, Counter, PartitionClock, VcpuIndex};
use chronovisor_host::reenlightenment::RateChange;
use chronovisor_host::synthetic_timer::VcpuTimersState;
use chronovisor_host::vmclock::Disruption;

const VCPU: VcpuIndex = VcpuIndex(0);

fn main() -> Result<(), Box<dyn Error>> {
    let hz = |hz| Hertz::from_hz(hz).ok_or("a rate is not zero");
    let (config, privileges, apic_rate) = (
        Config::for_vcpus(1),
        Privileges::EVERYTHING,
        hz(1_000_000_000)?,
    );
    let memory = NoMemory; // the guest's memory is copied by the VMM, and mapped there as here

    // --- the source, after an hour of the guest's life -------------------------------------------------------------
    let clock = PartitionClock::start(config, hz(2_600_000_000)?, Tsc::from_ticks(0))?;
    let surface = MsrSurface::new(clock, privileges, apic_rate);
    let paused_at = Tsc::from_ticks(3600 * 2_600_000_000);

    let (mut vm_bytes, mut vcpu_bytes) = ([0; VmState::MAX_BYTES], [0; VcpuState::MAX_BYTES]);
    let vm_length = surface.save(paused_at).encode(&mut vm_bytes)?;
    let (vcpu_state, timers) = surface.save_vcpu(VCPU, &memory).ok_or("no such vcpu")?;
    let vcpu_length = vcpu_state.encode(&mut vcpu_bytes)?;
    let mut timer_bytes = [0; VcpuTimersState::MAX_BYTES];
    let timer_length = timers.encode(&mut timer_bytes)?;
    println!(
        "the VM's clocks: {vm_length} bytes, each vCPU's: {vcpu_length} bytes, its timers: {timer_length} bytes"
    );
    let source = Source {
        // One instant of the host, read in one go: its counter and TAI.
        pair: HostPair {
            host_tsc: Tsc::from_ticks(3600 * 2_600_000_000),
            tai: Nanos::from_ns(1_800_000_000_000_000_000),
            error: Nanos::from_ns(20_000),
        },
        scaling: Ratio::ONE,
        offset: TscDelta::ZERO,
    };

    // --- the destination: another rate, with TSC scaling ----------------------------------------------------------
    let destination = Destination {
        pair: HostPair {
            host_tsc: Tsc::from_ticks(77_000_000_000),
            tai: Nanos::from_ns(1_800_000_000_350_000_000),
            error: Nanos::from_ns(20_000),
        },
        host_rate: hz(3_000_000_000)?,
        scaling: ScalingHardware::Bits48,
        counter: Counter::Invariant,
        arrival: Disruption::Moved,
    };
    let saved = VmState::decode(&vm_bytes[..vm_length])?;
    let (state, done) = adjust(&saved, &source, &destination, Policy::Stop)?;
    println!(
        "downtime {}, pvclock moved {}, reference time {}",
        done.downtime, done.pvclock_gained, done.reference_gained
    );
    println!(
        "set the ratio {:#x} >> {} and the offset {:#x} on every vCPU",
        done.ratio.ratio(),
        done.ratio.fraction_bits(),
        done.offset.as_ticks()
    );
    if let RateChange::Emulate(interrupt) = done.rate_change {
        println!("emulate the counter, and inject {interrupt:?}");
    }

    for (number, step) in RESTORE_ORDER.iter().enumerate() {
        println!(
            "{:>2}. {}\n      because {}",
            number + 1,
            step.what,
            step.because
        );
    }
    let mut restored = MsrSurface::restore(config, privileges, apic_rate, &state)?;
    let vcpu_state = VcpuState::decode(&vcpu_bytes[..vcpu_length])?;
    let timers = VcpuTimersState::decode(&timer_bytes[..timer_length])?;
    restored.restore_vcpu(VCPU, &vcpu_state, &timers)?;
    restored.clock_mut().hold(&memory);
    let now = done.tsc; // the guest's counter, read after the offsets are set
    let open = restored.clock_mut().begin_update(Change::Resume, &memory)?;
    open.publish(now)?;
    let open = restored
        .clock_mut()
        .begin_update(Change::GuestStopped, &memory)?;
    open.publish(now)?;
    println!("the guest goes on at {}", restored.clock().pvclock_at(now));
    Ok(())
}
