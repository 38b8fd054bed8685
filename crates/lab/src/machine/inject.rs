//! Hands an interrupt to a vCPU that has no in-kernel APIC.
#![allow(unsafe_code)] // KVM_INTERRUPT

use kvm_bindings::{KVMIO, kvm_interrupt};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::ioctl_iow_nr;

ioctl_iow_nr!(KVM_INTERRUPT, KVMIO, 0x86, kvm_interrupt);

/// Injects `vector` if the guest can take it now, else asks KVM to exit as soon as it can. Says whether it was injected.
pub(super) fn offer(fd: &mut VcpuFd, vector: u8) -> bool {
    let run = fd.get_kvm_run();
    let ready = run.ready_for_interrupt_injection != 0 && run.if_flag != 0;
    run.request_interrupt_window = u8::from(!ready);
    if !ready {
        return false;
    }
    let interrupt = kvm_interrupt {
        irq: u32::from(vector),
    };
    // SAFETY: the descriptor is a vCPU's; KVM reads the struct during the call.
    unsafe { ioctl_with_ref(fd, KVM_INTERRUPT(), &interrupt) == 0 }
}

/// Nothing to inject: takes back what [`offer`] asked for, since KVM would exit for it for ever once the guest can take an
/// interrupt.
pub(super) fn withdraw(fd: &mut VcpuFd) {
    fd.get_kvm_run().request_interrupt_window = 0;
}
