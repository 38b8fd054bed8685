//! Guest memory of a few pages, for tests.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod partition;

use chronovisor_abi::pvclock::{Record, WallClockRecord};
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_abi::vmclock;
use std::vec::Vec;

use chronovisor_host::guest_memory::{GuestAddress, GuestMemory};

/// Address of the first vCPU's record; the others follow every 64 bytes.
pub const RECORDS: u64 = 0x1000_0000;
/// Address of the wall-clock record.
pub const WALL: u64 = 0x2000;
/// Address of the reference TSC page.
pub const PAGE: u64 = 0x3000;
/// Address of a second page to move to.
pub const OTHER_PAGE: u64 = 0x5000;

/// Guest memory with records for some vCPUs, a wall-clock record and two pages.
pub struct Memory {
    pub records: Vec<Record>,
    pub wall: WallClockRecord,
    pub page: ReferenceTscPage,
    pub other_page: ReferenceTscPage,
    pub vmclock: vmclock::Page,
}

impl Memory {
    pub fn new(vcpus: usize) -> Self {
        Self {
            records: (0..vcpus).map(|_| Record::new()).collect(),
            wall: WallClockRecord::new(),
            page: ReferenceTscPage::new(),
            other_page: ReferenceTscPage::new(),
            vmclock: vmclock::Page::new(),
        }
    }

    /// What a vCPU writes to name and enable its record.
    pub fn record_register(vcpu: u32) -> u64 {
        RECORDS + 64 * u64::from(vcpu) + 1
    }
}

impl GuestMemory for Memory {
    fn pvclock_record(&self, address: GuestAddress) -> Option<&Record> {
        let offset = address.as_u64().checked_sub(RECORDS)?;
        if offset % 64 != 0 {
            return None;
        }
        self.records.get(usize::try_from(offset / 64).ok()?)
    }

    fn wall_clock_record(&self, address: GuestAddress) -> Option<&WallClockRecord> {
        (address.as_u64() == WALL).then_some(&self.wall)
    }

    fn vmclock_page(&self) -> Option<&vmclock::Page> {
        Some(&self.vmclock)
    }

    fn reference_tsc_page(&self, address: GuestAddress) -> Option<&ReferenceTscPage> {
        match address.as_u64() {
            PAGE => Some(&self.page),
            OTHER_PAGE => Some(&self.other_page),
            _ => None,
        }
    }
}
