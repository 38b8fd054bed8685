//! Where and with what a figure was measured: in every JSON that the program prints.

use std::fs;

use chronovisor_abi::cpuid::{self, Interface, Leaf};
use schemars::JsonSchema;
use serde::Serialize;

/// What a figure depends on besides the thing measured.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Provenance {
    /// This program's version.
    pub(crate) version: String,
    /// The processor's own name.
    pub(crate) cpu: String,
    /// The hypervisor interfaces that CPUID announces, or "none".
    pub(crate) hypervisor: String,
    /// What executed the measured code: "host" for this machine's user space, else the lab's or simulator's back-end.
    pub(crate) backend: String,
    /// The kernel's clock source, or why it is not known.
    pub(crate) clock_source: String,
    /// Kernel name and release.
    pub(crate) kernel: String,
}

impl Provenance {
    /// This machine, with `backend` as what executed the measured code.
    pub(crate) fn here(backend: &str) -> Self {
        let one_line = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cpu: cpu_name(),
            hypervisor: hypervisors(),
            backend: backend.to_owned(),
            clock_source: one_line(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            )
            .unwrap_or_else(|error| format!("not readable: {error}")),
            kernel: one_line("/proc/sys/kernel/osrelease").map_or_else(
                |error| format!("not readable: {error}"),
                |release| format!("Linux {release}"),
            ),
        }
    }
}

fn leaf(number: u32) -> Leaf {
    let result = std::arch::x86_64::__cpuid(number);
    Leaf {
        eax: result.eax,
        ebx: result.ebx,
        ecx: result.ecx,
        edx: result.edx,
    }
}

/// The brand string of leaves 0x80000002 to 0x80000004.
fn cpu_name() -> String {
    if leaf(0x8000_0000).eax < 0x8000_0004 {
        return "unnamed".to_owned();
    }
    let bytes: Vec<u8> = (0x8000_0002..=0x8000_0004_u32)
        .map(leaf)
        .flat_map(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx])
        .flat_map(u32::to_le_bytes)
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn hypervisors() -> String {
    if leaf(1).ecx & cpuid::processor::LEAF1_ECX_HYPERVISOR == 0 {
        return "none".to_owned();
    }
    let names: Vec<String> = cpuid::interfaces(leaf)
        .map(|base| match base.interface {
            Interface::Kvm => "KVM".to_owned(),
            Interface::HyperV => "Hyper-V".to_owned(),
            Interface::Xen => "Xen".to_owned(),
            Interface::VMware => "VMware".to_owned(),
            Interface::Other(signature) => String::from_utf8_lossy(&signature)
                .trim_end_matches('\0')
                .to_owned(),
        })
        .collect();
    if names.is_empty() {
        "unnamed".to_owned()
    } else {
        names.join(", ")
    }
}
