//! The CPUID instruction as a source of leaves for [`chronovisor_abi::cpuid`].

#[cfg(target_arch = "x86")]
use core::arch::x86::__cpuid_count;
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::__cpuid_count;

use chronovisor_abi::cpuid::{Leaf, processor};

/// The registers of leaf `number`, sub-leaf 0. An exit in a virtual machine: some 2 us to 6 us.
#[must_use]
pub fn leaf(number: u32) -> Leaf {
    subleaf(number, 0)
}

/// The registers of sub-leaf `sub` of leaf `number`.
#[must_use]
pub fn subleaf(number: u32, sub: u32) -> Leaf {
    let found = __cpuid_count(number, sub);
    Leaf {
        eax: found.eax,
        ebx: found.ebx,
        ecx: found.ecx,
        edx: found.edx,
    }
}

/// Leaf `number` if the processor's own range reaches it (basic leaves and 0x8000xxxx), [`Leaf::ZERO`] beyond: Intel
/// processors answer a leaf that they do not have with the data of another.
#[must_use]
pub fn processor_leaf(number: u32) -> Leaf {
    let base = number & 0x8000_0000;
    if (base..=leaf(base).eax).contains(&number) {
        leaf(number)
    } else {
        Leaf::ZERO
    }
}

/// Whether the processor has `rdtscp`.
#[must_use]
pub fn has_rdtscp() -> bool {
    processor_leaf(0x8000_0001).edx & processor::EXTENDED1_EDX_RDTSCP != 0
}

/// Whether the counter runs at one rate in all power states (CPUID 0x80000007.EDX\[8\]).
#[must_use]
pub fn has_invariant_tsc() -> bool {
    processor_leaf(0x8000_0007).edx & processor::EXTENDED7_EDX_INVARIANT_TSC != 0
}
