//! What can go wrong before and while a guest runs.

use std::io;

/// Why a lab could not be set up or a guest did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// There is no KVM on this machine.
    #[error(
        "no /dev/kvm: this machine offers no hardware virtualisation to us; load kvm_intel or kvm_amd, or run the \
         lab on stock KVM in an emulator with scripts/nested"
    )]
    NoKvm,
    /// /dev/kvm is there but may not be opened.
    #[error("no permission for /dev/kvm: add yourself to the group kvm, or run as root")]
    NoPermission,
    /// /dev/kvm could not be opened for another reason.
    #[error("cannot open /dev/kvm")]
    Open(#[source] io::Error),
    /// The kernel's KVM lacks something without which nothing works.
    #[error(
        "this KVM lacks {name}: the lab answers clock MSRs in user space, at the counter that the guest sees, and cannot \
         do without; Linux {since} has it"
    )]
    MissingCapability {
        /// The capability's name in the kernel's header.
        name: &'static str,
        /// The first Linux that has it.
        since: &'static str,
    },
    /// The kernel's KVM emulates no Hyper-V, so there is nothing to put beside ours.
    #[error(
        "this KVM has no Hyper-V of its own (KVM_CAP_HYPERV): nothing to compare with; run it on stock KVM with \
         scripts/nested"
    )]
    NoHypervInKvm,
    /// A call into KVM failed.
    #[error("{call} failed on vCPU {vcpu:?}")]
    Kvm {
        /// The call.
        call: &'static str,
        /// The vCPU, if the call was for one.
        vcpu: Option<u32>,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Guest memory could not be had or written.
    #[error("guest memory: {what}")]
    Memory {
        /// What was tried.
        what: String,
    },
    /// No vCPU, or more of them than the image or KVM has room for.
    #[error("{asked} vCPUs asked for; 1 to {most} are possible here")]
    TooManyVcpus {
        /// The number asked for.
        asked: u32,
        /// The limit.
        most: u32,
    },
    /// A VM that was asked for its counter has no vCPU.
    #[error("a VM without vCPUs has no counter")]
    NoVcpus,
    /// KVM says that the guest's counter does not count.
    #[error("KVM says that the guest's TSC runs at 0 kHz")]
    NoTscRate,
    /// The host has no timer to wake a vCPU with.
    #[error("cannot make a timerfd")]
    Timer(#[source] io::Error),
    /// The host's wall clock is not set.
    #[error("this machine's clock stands before 1970: set it first")]
    ClockBefore1970,
    /// The CPUID leaves of a guest could not be made.
    #[error("CPUID leaves for the guest: {what}")]
    Cpuid {
        /// What was tried, and why it failed.
        what: String,
    },
    /// The guest's clocks refused a step.
    #[error("{step}: {why}")]
    Clocks {
        /// The step.
        step: &'static str,
        /// Their reason.
        why: String,
    },
    /// A vCPU's thread panicked.
    #[error("the thread of vCPU {vcpu} panicked")]
    Panicked {
        /// The vCPU.
        vcpu: u32,
    },
    /// A guest did not end as it should, or its report is not what it should be.
    #[error("the guest did not end well: {0}")]
    Guest(String),
}

impl LabError {
    pub(crate) fn kvm(call: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Self {
        move |error| Self::Kvm {
            call,
            vcpu: None,
            source: error.into(),
        }
    }

    pub(crate) fn vcpu(call: &'static str, vcpu: u32) -> impl FnOnce(kvm_ioctls::Error) -> Self {
        move |error| Self::Kvm {
            call,
            vcpu: Some(vcpu),
            source: error.into(),
        }
    }

    /// For a step of the guest's clocks that may be refused.
    pub(crate) fn clocks<E: std::fmt::Display>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Clocks {
            step,
            why: error.to_string(),
        }
    }

    /// Whether it means "not possible here" rather than "broken".
    #[must_use]
    pub fn is_not_possible_here(&self) -> bool {
        matches!(
            self,
            Self::NoKvm | Self::NoPermission | Self::MissingCapability { .. } | Self::NoHypervInKvm
        )
    }
}
