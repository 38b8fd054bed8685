//! A VMM's main loop, as far as clocks go: it serves MSR exits, re-bases in time, and changes the rate.
//!
//! The exits come from a list here, and the guest's counter from a variable; in a VMM they are KVM_EXIT_X86_RDMSR and KVM_EXIT_X86_WRMSR, and
//! `rdtsc` plus the vCPU's offset. Run it with `cargo run -p chronovisor-host --example msr_exits`.

use std::error::Error;

use chronovisor_abi::msr::Msr;
use chronovisor_abi::pvclock::{Record, WallClockRecord};
use chronovisor_abi::quantity::{Hertz, Nanos, Tsc};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_abi::vmclock::{self, ClockStatus, LeapIndicator, WallTime};
use chronovisor_host::cpuid_leaves::Offer;
use chronovisor_host::events::Events;
use chronovisor_host::guest_memory::{GuestAddress, GuestMemory};
use chronovisor_host::msr_surface::{
    Access, Answer, Effect, INVALID_HYPERCALL_CODE, MsrSurface, Privileges,
};
use chronovisor_host::partition_clock::{Change, Config, PartitionClock, TimeOfDay, VcpuIndex};
use chronovisor_host::vmclock::Notification;

/// Guest memory: in a VMM a mapping, from which these are references after a check of bounds and alignment.
#[derive(Default)]
struct Memory {
    record: Record,
    wall_clock: WallClockRecord,
    page: ReferenceTscPage,
    vmclock: vmclock::Page,
}

const RECORD: u64 = 0x1_0000;
const WALL_CLOCK: u64 = 0x1_0100;
const PAGE: u64 = 0x2_0000;

impl GuestMemory for Memory {
    fn pvclock_record(&self, address: GuestAddress) -> Option<&Record> {
        (address.as_u64() == RECORD).then_some(&self.record)
    }

    fn wall_clock_record(&self, address: GuestAddress) -> Option<&WallClockRecord> {
        (address.as_u64() == WALL_CLOCK).then_some(&self.wall_clock)
    }

    fn reference_tsc_page(&self, address: GuestAddress) -> Option<&ReferenceTscPage> {
        (address.as_u64() == PAGE).then_some(&self.page)
    }

    fn vmclock_page(&self) -> Option<&vmclock::Page> {
        Some(&self.vmclock)
    }
}

/// What this VMM counts.
#[derive(Default)]
struct Statistics {
    faults: u64,
}

impl Events for Statistics {
    fn fault(&mut self, vcpu: VcpuIndex, msr: Msr, access: Access) {
        eprintln!("vcpu {}: #GP for {access:?} of msr {msr}", vcpu.0);
        self.faults += 1;
    }
}

/// The guest's counter: `rdtsc` plus the offset, in a VMM.
struct Counter(u64);

impl Counter {
    fn read(&mut self) -> Tsc {
        self.0 += 1000;
        Tsc::from_ticks(self.0)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let memory = Memory::default();
    let mut counter = Counter(0);
    let rate = Hertz::from_hz(2_600_000_000).ok_or("a rate is not zero")?;
    let apic_rate = Hertz::from_hz(1_000_000_000).ok_or("a rate is not zero")?;

    // Before the vCPUs: the leaves for KVM_SET_CPUID2, checked against each other.
    let privileges = Privileges::EVERYTHING;
    let leaves = Offer {
        privileges,
        tsc: rate,
        apic: apic_rate,
        max_vcpus: 1,
        ..Offer::nothing()
    }
    .leaves()?;
    println!("{} CPUID leaves", leaves.iter().count());

    let clock = PartitionClock::start(Config::for_vcpus(1), rate, counter.read())?;
    let mut surface = MsrSurface::with_events(clock, privileges, apic_rate, Statistics::default());
    surface
        .clock_mut()
        .offer_vmclock(Notification::Absent, &memory);

    // What time it is, from the host's disciplined clock, before the guest asks.
    let told = TimeOfDay {
        tsc: counter.read(),
        tai: WallTime {
            sec: 1_800_000_037,
            frac_sec: 0,
        },
        tai_offset_sec: Some(37),
        leap: LeapIndicator::NONE,
        status: ClockStatus::SYNCHRONIZED,
        estimated_error: None,
        maximum_error: Some(Nanos::from_ns(50_000)),
        rate_estimated_error: None,
        rate_maximum_error: None,
    };
    let open = surface
        .clock_mut()
        .begin_update(Change::TimeOfDay(told), &memory)?;
    open.publish(counter.read())?;

    let boot = [
        (Msr::HV_REFERENCE_TSC, Access::Write(PAGE | 1)),
        (Msr::HV_TIME_REF_COUNT, Access::Read),
        (Msr::HV_TSC_FREQUENCY, Access::Read),
        (Msr::HV_GUEST_OS_ID, Access::Write(0x8100 << 48)),
        (Msr::HV_HYPERCALL, Access::Write(0x3_0001)),
        (Msr::KVM_WALL_CLOCK, Access::Write(WALL_CLOCK)),
        (Msr::KVM_SYSTEM_TIME, Access::Write(RECORD | 1)),
        (Msr::HV_TIME_REF_COUNT, Access::Write(0)),
    ];
    for (msr, access) in boot {
        serve_exit(&mut surface, msr, access, &mut counter, &memory);

        // Once in a while (a timer of the VMM's): re-base in time.
        while surface
            .clock()
            .next_rebase()
            .is_some_and(|due| due.is_before(counter.read()))
        {
            let open = surface.clock_mut().begin_update(Change::Rebase, &memory)?;
            open.publish(counter.read())?;
        }
    }

    // The host's counter turned out to be a little faster. All pages of the guest follow, at one reading.
    let measured = Hertz::from_hz(2_600_000_123).ok_or("a rate is not zero")?;
    let open = surface
        .clock_mut()
        .begin_update(Change::Frequency(measured), &memory)?;
    let published = open.publish(counter.read())?;
    println!(
        "new rate: {published:?}, {} faults so far",
        surface.events().faults
    );
    Ok(())
}

/// One exit of vCPU 0: the answer goes back into the exit's data or its error field.
fn serve_exit(
    surface: &mut MsrSurface<Statistics>,
    msr: Msr,
    access: Access,
    counter: &mut Counter,
    memory: &Memory,
) {
    loop {
        match surface.access(VcpuIndex(0), msr, access, counter.read(), memory) {
            Answer::Value(value) => println!("rdmsr {msr}: {value:#x}"),
            Answer::Written(Effect::FillHypercallPage(address)) => {
                println!(
                    "write {INVALID_HYPERCALL_CODE:02x?} at {:#x}",
                    address.as_u64()
                );
            }
            Answer::Written(effect) => println!("wrmsr {msr}: {effect:?}"),
            // Less than 100 ns away: read the counter again and ask again.
            Answer::NotBefore(_) => continue,
            Answer::RunTime => println!("rdmsr {msr}: the vCPU's run time in 100 ns"),
            Answer::Fault => println!("msr {msr}: inject #GP"),
            Answer::NotOurs => println!("msr {msr}: handled elsewhere"),
        }
        return;
    }
}
