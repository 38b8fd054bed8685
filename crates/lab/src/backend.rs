//! Which KVM this is, and what it can do.

use std::io::ErrorKind;
use std::path::Path;

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
    /// No module is to be seen; built in, or sysfs is not mounted.
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
    /// KVM emulates Hyper-V itself.
    pub has_hyperv: bool,
    /// Guest TSC can run at another rate than the host's.
    pub has_tsc_scaling: bool,
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
        for (capability, name) in [
            (Cap::X86UserSpaceMsr, "KVM_CAP_X86_USER_SPACE_MSR"),
            (Cap::X86MsrFilter, "KVM_CAP_X86_MSR_FILTER"),
            (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
        ] {
            if !kvm.check_extension(capability) {
                return Err(LabError::MissingCapability { name });
            }
        }
        Ok(Self {
            kind: kind(Path::new("/sys/module")),
            has_hyperv: kvm.check_extension(Cap::Hyperv),
            has_tsc_scaling: kvm.check_extension(Cap::TscControl),
            max_vcpus: u32::try_from(kvm.get_max_vcpus()).unwrap_or(u32::MAX),
            kvm,
        })
    }
}

fn kind(modules: &Path) -> Kind {
    let loaded = |name| modules.join(name).is_dir();
    if loaded("kvm_pvm") {
        Kind::Software
    } else if loaded("kvm_amd") {
        Kind::Svm
    } else if loaded("kvm_intel") {
        Kind::Vmx
    } else {
        Kind::Unknown
    }
}
