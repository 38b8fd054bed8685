//! A vCPU's state: taken from one VM, put into another.
#![allow(unsafe_code)] // the TSC offset is a device attribute that KVM reads and writes by address

use kvm_bindings::{
    KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, kvm_device_attr, kvm_regs, kvm_sregs, kvm_vcpu_events,
    kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::ioctl::{ioctl_with_mut_ref, ioctl_with_ref};
use vmm_sys_util::ioctl_iow_nr;

use crate::LabError;

// kvm-ioctls has the two for Arm's vCPUs only.
ioctl_iow_nr!(
    KVM_SET_DEVICE_ATTR,
    kvm_bindings::KVMIO,
    0xE1,
    kvm_device_attr
);
ioctl_iow_nr!(
    KVM_GET_DEVICE_ATTR,
    kvm_bindings::KVMIO,
    0xE2,
    kvm_device_attr
);

/// What a stopped vCPU without an in-kernel APIC is made of, clocks excepted: those are the experiment's business.
pub struct VcpuState {
    regs: kvm_regs,
    sregs: kvm_sregs,
    events: kvm_vcpu_events,
    xcrs: Option<kvm_xcrs>,
    xsave: kvm_xsave,
}

impl VcpuState {
    /// Takes the state of vCPU `index`.
    ///
    /// # Errors
    ///
    /// [`LabError::Kvm`] names the call.
    pub fn save(fd: &VcpuFd, index: u32) -> Result<Self, LabError> {
        Ok(Self {
            regs: fd
                .get_regs()
                .map_err(LabError::vcpu("KVM_GET_REGS", index))?,
            sregs: fd
                .get_sregs()
                .map_err(LabError::vcpu("KVM_GET_SREGS", index))?,
            events: fd
                .get_vcpu_events()
                .map_err(LabError::vcpu("KVM_GET_VCPU_EVENTS", index))?,
            // A CPU without XSAVE has none.
            xcrs: fd.get_xcrs().ok(),
            xsave: fd
                .get_xsave()
                .map_err(LabError::vcpu("KVM_GET_XSAVE", index))?,
        })
    }

    /// Puts the state into a fresh vCPU. The order is: control registers first, since they say what the rest means;
    /// pending events last.
    ///
    /// # Errors
    ///
    /// [`LabError::Kvm`] names the call.
    pub fn restore(&self, fd: &VcpuFd, index: u32) -> Result<(), LabError> {
        fd.set_sregs(&self.sregs)
            .map_err(LabError::vcpu("KVM_SET_SREGS", index))?;
        fd.set_regs(&self.regs)
            .map_err(LabError::vcpu("KVM_SET_REGS", index))?;
        if let Some(xcrs) = &self.xcrs {
            fd.set_xcrs(xcrs)
                .map_err(LabError::vcpu("KVM_SET_XCRS", index))?;
        }
        // SAFETY: the area comes from a vCPU of the same kernel with the same features, and no feature beyond the first
        // 4096 bytes was ever enabled.
        unsafe { fd.set_xsave(&self.xsave) }.map_err(LabError::vcpu("KVM_SET_XSAVE", index))?;
        fd.set_vcpu_events(&self.events)
            .map_err(LabError::vcpu("KVM_SET_VCPU_EVENTS", index))
    }
}

fn offset_attribute(value: &mut u64) -> kvm_device_attr {
    kvm_device_attr {
        flags: 0,
        group: KVM_VCPU_TSC_CTRL,
        attr: u64::from(KVM_VCPU_TSC_OFFSET),
        addr: std::ptr::from_mut(value) as u64,
    }
}

/// Guest TSC minus host TSC, modulo 2^64, as KVM tells it.
///
/// # Errors
///
/// [`LabError::Kvm`] where KVM has no such attribute. A fresh vCPU's counter then starts at 0 or anywhere else.
pub fn tsc_offset(fd: &VcpuFd, index: u32) -> Result<u64, LabError> {
    let mut value = 0_u64;
    let mut attribute = offset_attribute(&mut value);
    // SAFETY: the descriptor is a vCPU's; the attribute is 8 bytes, which KVM writes to `value` during the call.
    match unsafe { ioctl_with_mut_ref(fd, KVM_GET_DEVICE_ATTR(), &mut attribute) } {
        0 => Ok(value),
        _ => Err(LabError::vcpu("KVM_GET_DEVICE_ATTR(TSC_OFFSET)", index)(
            vmm_sys_util::errno::Error::last(),
        )),
    }
}

/// Sets guest TSC minus host TSC. KVM may accept and ignore it: read it back.
///
/// # Errors
///
/// [`LabError::Kvm`] where KVM has no such attribute.
pub fn set_tsc_offset(fd: &VcpuFd, index: u32, offset: u64) -> Result<(), LabError> {
    let mut value = offset;
    let attribute = offset_attribute(&mut value);
    // SAFETY: the descriptor is a vCPU's; KVM reads 8 bytes from `value` during the call.
    match unsafe { ioctl_with_ref(fd, KVM_SET_DEVICE_ATTR(), &attribute) } {
        0 => Ok(()),
        _ => Err(LabError::vcpu("KVM_SET_DEVICE_ATTR(TSC_OFFSET)", index)(
            vmm_sys_util::errno::Error::last(),
        )),
    }
}
