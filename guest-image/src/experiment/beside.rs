//! KVM's own Hyper-V clock and ours in one guest, one after the other.

use chronovisor_abi::msr::{ENABLE, Msr};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_guest::clock::GuestClock;
use chronovisor_guest::counter::{Rdtscp, rdtscp};
use chronovisor_guest::reference_tsc::ReferencePage;

use crate::contract::{CHECKPOINT_PORT, Job, record, status};
use crate::gate::in_ring0;
use crate::instruction::{self, try_rdmsr, try_wrmsr};
use crate::pages::{self, user};
use crate::report;

/// Where ours is published, while KVM's stays where it is.
static OURS: ReferenceTscPage = ReferenceTscPage::new();

/// Argument 0: rounds.
pub fn run(job: &Job) {
    let rounds = job.argument[0];
    if !pages::has_reference() {
        report::finish(status::REFUSED);
    }
    describe(0, &pages::REFERENCE, rounds);
    // The VMM takes the MSRs over.
    instruction::out8(CHECKPOINT_PORT, 1);
    let registered = in_ring0(|| {
        let address = (&raw const OURS) as u64;
        Some(try_wrmsr(Msr::HV_REFERENCE_TSC.0, address | ENABLE).is_ok())
    });
    if registered != Some(true) {
        report::finish(status::REFUSED);
    }
    describe(1, &OURS, rounds);
    // Both pages at one and the same counter value, again and again.
    let (mut smallest, mut largest, mut done) = (i64::MAX, i64::MIN, 0);
    for _ in 0..rounds {
        let now = rdtscp().0;
        let kvm = ReferencePage::new(&pages::REFERENCE, || now).read();
        let ours = ReferencePage::new(&OURS, || now).read();
        if let (Ok(kvm), Ok(ours)) = (kvm, ours) {
            let difference = ours
                .time
                .as_100ns()
                .wrapping_sub(kvm.time.as_100ns())
                .cast_signed();
            smallest = smallest.min(difference);
            largest = largest.max(difference);
            done += 1;
        }
    }
    report::push(
        record::BESIDE_DIFFERENCE,
        3,
        [smallest.cast_unsigned(), largest.cast_unsigned(), done],
    );
}

fn describe(which: u64, page: &'static ReferenceTscPage, rounds: u64) {
    let reader = ReferencePage::new(page, Rdtscp);
    let line = page.read(100, || ()).ok().map(|(line, ())| line);
    let (scale, offset) = line.map_or((0, 0), |line| (line.scale.as_raw(), line.offset));
    report::push(
        record::BESIDE_PAGE,
        3,
        [
            which << 32 | u64::from(page.sequence()),
            scale,
            offset.cast_unsigned(),
        ],
    );
    let mut violations = 0;
    for _ in 0..rounds {
        let (before, counter, after) = (reader.read(), user::counter_msr(), reader.read());
        let holds = matches!((before, after), (Ok(before), Ok(after)) if before.time <= counter && counter <= after.time);
        violations += u64::from(!holds);
    }
    report::push(record::BESIDE_COUNTER, 3, [which, violations, rounds]);
    let frequency = in_ring0(|| try_rdmsr(Msr::HV_TSC_FREQUENCY.0).ok());
    report::push(
        record::BESIDE_FREQUENCY,
        3,
        [which, frequency.unwrap_or(0), 0],
    );
}
