//! The publisher of the partition's reference TSC page.
//!
//! # Theory
//!
//! The guest names the page in MSR 0x40000021: bit 0 enables, bits 11:1 are the guest's to keep, bits 63:12 are the page number. The page is
//! valid (sequence not 0) only while the partition's clock is set, all its vCPUs count the same and the counter is faster than 10 MHz; otherwise
//! the guest reads the counter MSR, which is the same clock.
//!
//! # Practice
//!
//! The sequence is the host's own, never read back, never reset: it goes on counting when the page moves, over a reset and over a restore, so
//! that no reader finds an old value on new contents. A page that the guest disabled is its own again and is not touched.
//!
//! # Caveats
//!
//! The page lies in ordinary guest memory: what was there before is not kept, as it would be under a true overlay.
//!
//! # References
//!
//! Hyper-V TLFS, "Partition Reference Time Enlightenment".

use chronovisor_abi::msr::{ENABLE, PAGE_ADDRESS_MASK};
use chronovisor_abi::reference_tsc::{Parameters, ReferenceTscPage};

use crate::guest_memory::{GuestAddress, GuestMemory};
use crate::partition_clock::mutant::{self, Mutant};

/// The partition's page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Publisher {
    register: u64,
    sequence: u32,
}

impl Publisher {
    /// The publisher as it was saved.
    pub(crate) fn restored(register: u64, sequence: u32) -> Self {
        let sequence = if mutant::is(Mutant::SequenceRestarts) {
            0
        } else {
            sequence
        };
        Self { register, sequence }
    }

    /// The MSR as the guest wrote it, reserved bits included.
    pub(crate) const fn register(&self) -> u64 {
        self.register
    }

    /// The last valid sequence.
    pub(crate) const fn sequence(&self) -> u32 {
        self.sequence
    }

    /// The guest's write to the MSR.
    pub(crate) const fn set_register(&mut self, value: u64) {
        self.register = value;
    }

    pub(crate) fn mark(&self, memory: &(impl GuestMemory + ?Sized)) {
        if let Some(page) = self.page(memory) {
            page.mark();
        }
    }

    /// Makes a marked page valid again as it was.
    pub(crate) fn reopen(&mut self, memory: &(impl GuestMemory + ?Sized)) {
        if let Some(page) = self.page(memory) {
            self.sequence = page.publish(self.last());
        }
    }

    /// Fills a marked page and makes it valid; `true` if there is one.
    pub(crate) fn publish(
        &mut self,
        parameters: &Parameters,
        memory: &(impl GuestMemory + ?Sized),
    ) -> bool {
        let Some(page) = self.page(memory) else {
            return false;
        };
        page.store(parameters);
        self.sequence = page.publish(self.last());
        true
    }

    /// The last valid sequence, to count on from.
    fn last(&self) -> u32 {
        if mutant::is(Mutant::SequenceRepeats) {
            return self.sequence.saturating_sub(1);
        }
        self.sequence
    }

    fn page<'m>(&self, memory: &'m (impl GuestMemory + ?Sized)) -> Option<&'m ReferenceTscPage> {
        if self.register & ENABLE == 0 {
            return None;
        }
        memory.reference_tsc_page(GuestAddress::new(self.register & PAGE_ADDRESS_MASK))
    }
}
