//! Which KVM this is, and what it can do.

use std::io::ErrorKind;
use std::path::Path;

use chronovisor_abi::cpuid::{HYPERVISOR_BASE, Leaf};
use chronovisor_guest::cpuid::leaf;
use kvm_bindings::KVM_CAP_VCPU_ATTRIBUTES;
use kvm_ioctls::{Cap, Kvm};

use crate::LabError;

const API_VERSION: i32 = 12;

/// The kernel module behind /dev/kvm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Intel VT-x.
    Vmx,
    /// AMD SVM.
    Svm,
    /// Software only: ring 3 runs natively, ring 0 is interpreted.
    Software,
    /// No module that we know is to be seen: another one, or sysfs is not mounted.
    Unknown,
}

impl Kind {
    /// The module's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vmx => "kvm_intel",
            Self::Svm => "kvm_amd",
            Self::Software => "kvm_pvm",
            Self::Unknown => "kvm (unknown module)",
        }
    }

    /// Whether guest ring 0 runs on the CPU itself.
    #[must_use]
    pub const fn runs_ring0_natively(self) -> bool {
        !matches!(self, Self::Software)
    }
}

/// An open /dev/kvm with what was asked of it.
#[derive(Debug)]
pub struct Backend {
    pub(crate) kvm: Kvm,
    /// The module behind it.
    pub kind: Kind,
    /// The CPU below KVM is QEMU's software emulation.
    pub is_emulated: bool,
    /// KVM emulates Hyper-V itself.
    pub has_hyperv: bool,
    /// Most vCPUs of a VM.
    pub max_vcpus: u32,
}

impl Backend {
    /// Opens /dev/kvm.
    ///
    /// # Errors
    ///
    /// [`LabError`] names what is missing.
    pub fn open() -> Result<Self, LabError> {
        let kvm = Kvm::new().map_err(|error| {
            let error = std::io::Error::from(error);
            match error.kind() {
                ErrorKind::NotFound => LabError::NoKvm,
                ErrorKind::PermissionDenied => LabError::NoPermission,
                // The node is there, no driver is behind it.
                _ if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => {
                    LabError::NoKvm
                }
                _ => LabError::Open(error),
            }
        })?;
        // Something else at that path, or a KVM of before 2007.
        if kvm.get_api_version() != API_VERSION {
            return Err(LabError::NoKvm);
        }
        for (capability, name, since) in [
            (
                Cap::X86UserSpaceMsr as u64,
                "KVM_CAP_X86_USER_SPACE_MSR",
                "5.10",
            ),
            (Cap::X86MsrFilter as u64, "KVM_CAP_X86_MSR_FILTER", "5.10"),
            (Cap::ImmediateExit as u64, "KVM_CAP_IMMEDIATE_EXIT", "4.13"),
            // Without KVM_VCPU_TSC_CTRL nobody says where a fresh vCPU's counter stands.
            (
                u64::from(KVM_CAP_VCPU_ATTRIBUTES),
                "KVM_CAP_VCPU_ATTRIBUTES",
                "5.16",
            ),
        ] {
            if kvm.check_extension_raw(capability) <= 0 {
                return Err(LabError::MissingCapability { name, since });
            }
        }
        Ok(Self {
            kind: kind(Path::new("/sys/module"), leaf(0)),
            is_emulated: is_emulated(leaf(HYPERVISOR_BASE)),
            has_hyperv: kvm.check_extension(Cap::Hyperv),
            max_vcpus: u32::try_from(kvm.get_max_vcpus()).unwrap_or(u32::MAX),
            kvm,
        })
    }
}

/// The module by its folder in sysfs and, since a kernel with both built in shows both, by the CPU's vendor in leaf 0.
fn kind(modules: &Path, vendor: Leaf) -> Kind {
    let loaded = |name| modules.join(name).is_dir();
    // In the order of the text: EBX, EDX, ECX.
    let words = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    match words.as_flattened() {
        _ if loaded("kvm_pvm") => Kind::Software,
        b"AuthenticAMD" | b"HygonGenuine" if loaded("kvm_amd") => Kind::Svm,
        b"GenuineIntel" | b"CentaurHauls" | b"  Shanghai  " if loaded("kvm_intel") => Kind::Vmx,
        _ => Kind::Unknown,
    }
}

/// Whether the first hypervisor leaf is that of QEMU's software emulation.
fn is_emulated(hypervisor: Leaf) -> bool {
    hypervisor.signature() == *b"TCGTCGTCGTCG"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::*;

    #[test]
    fn the_module_goes_by_sysfs_and_vendor() {
        let vendor = |name: &[u8; 12]| {
            let in_order = Leaf::from_signature(0xD, *name);
            Leaf {
                ecx: in_order.edx,
                edx: in_order.ecx,
                ..in_order
            }
        };
        let (intel, amd) = (b"GenuineIntel", b"AuthenticAMD");
        let rows: [(&[&str], &[u8; 12], Kind); 8] = [
            (&["kvm", "kvm_intel"], intel, Kind::Vmx),
            (&["kvm", "kvm_amd"], amd, Kind::Svm),
            // Both are built in.
            (&["kvm", "kvm_amd", "kvm_intel"], intel, Kind::Vmx),
            (&["kvm", "kvm_amd", "kvm_intel"], amd, Kind::Svm),
            // Software needs nothing of the CPU, and may be built in beside them.
            (&["kvm", "kvm_pvm", "kvm_intel"], intel, Kind::Software),
            (&["kvm"], intel, Kind::Unknown),
            (&["kvm", "kvm_amd"], intel, Kind::Unknown),
            (
                &["kvm", "kvm_amd", "kvm_intel"],
                b"SomebodyElse",
                Kind::Unknown,
            ),
        ];
        for (modules, name, expected) in rows {
            let directory = tempfile::tempdir().unwrap();
            for module in modules {
                std::fs::create_dir(directory.path().join(module)).unwrap();
            }
            assert_eq!(
                kind(directory.path(), vendor(name)),
                expected,
                "{modules:?} {name:?}"
            );
        }
    }

    #[test]
    fn an_emulated_cpu_names_itself() {
        let is = |name: &[u8; 12]| is_emulated(Leaf::from_signature(0x4000_0001, *name));
        assert!(is(b"TCGTCGTCGTCG"));
        assert!(!is(b"KVMKVMKVM\0\0\0"));
        // No hypervisor at all.
        assert!(!is_emulated(Leaf::ZERO));
    }
}
