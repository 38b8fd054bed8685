//! One vCPU's thread: runs the guest and answers its exits.

use std::sync::atomic::{AtomicBool, Ordering};

use kvm_ioctls::{SyncReg, VcpuExit, VcpuFd};
use vm_superio::Serial;

use super::devices::{Devices, SerialLog};
use super::inject;
use super::kick::Kicker;
use crate::contract::{CHECKPOINT_PORT, DONE_PORT, HELLO_PORT, NULL_MSR, SERIAL_PORT, TIME_PORT};

/// Why a vCPU stopped running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest said so, with this status.
    Done(u32),
    /// The VMM asked it to stop.
    Stopped,
    /// A triple fault.
    TripleFault,
    /// KVM gave up: the instruction at RIP cannot be emulated, most likely.
    InternalError,
    /// KVM could not enter the guest.
    FailEntry(u64),
    /// `hlt` without an in-kernel APIC and without a timer of ours.
    Halted,
    /// An exit that the lab knows nothing about.
    Unexpected(String),
    /// `KVM_RUN` itself failed, with this error number.
    RunFailed(i32),
}

struct NoTrigger;

impl vm_superio::Trigger for NoTrigger {
    type E = std::convert::Infallible;

    fn trigger(&self) -> Result<(), Self::E> {
        Ok(())
    }
}

/// Runs `fd` until the guest ends or `stop` is set and the thread kicked.
pub(super) fn run(
    vcpu: u32,
    fd: &mut VcpuFd,
    devices: &dyn Devices,
    log: &SerialLog,
    stop: &AtomicBool,
) -> End {
    let mut serial = Serial::new(NoTrigger, log);
    fd.set_sync_valid_reg(SyncReg::Register);
    let kicker = Kicker::of_this_thread();
    devices.started(vcpu, kicker.clone());
    loop {
        if stop.load(Ordering::Acquire) {
            return settle(fd);
        }
        match devices.pending_interrupt(vcpu) {
            Some(vector) => {
                if inject::offer(fd, vector) {
                    devices.acknowledge_interrupt(vcpu, vector);
                }
            }
            None => inject::withdraw(fd),
        }
        kicker.enter();
        let exit = fd.run();
        kicker.leave();
        let end = match exit {
            Ok(VcpuExit::X86Rdmsr(exit)) => {
                // The null MSR comes first: its cost is the yardstick for every other answer.
                if exit.index == NULL_MSR {
                    *exit.data = 0;
                } else {
                    match devices.read_msr(vcpu, exit.index) {
                        Ok(value) => *exit.data = value,
                        Err(_) => *exit.error = 1,
                    }
                }
                continue;
            }
            Ok(VcpuExit::X86Wrmsr(exit)) => {
                if devices.write_msr(vcpu, exit.index, exit.data).is_err() {
                    *exit.error = 1;
                }
                continue;
            }
            Ok(VcpuExit::IoOut(TIME_PORT, _)) => {
                let time = devices.time_call(vcpu);
                fd.sync_regs_mut().regs.rax = time;
                fd.set_sync_dirty_reg(SyncReg::Register);
                continue;
            }
            Ok(VcpuExit::IoOut(DONE_PORT, data)) => End::Done(number(data)),
            // A sign of life for whoever traces the exits.
            Ok(VcpuExit::IoOut(HELLO_PORT, _)) => continue,
            Ok(VcpuExit::IoOut(CHECKPOINT_PORT, _)) => {
                devices.checkpoint(vcpu);
                continue;
            }
            Ok(VcpuExit::IoOut(port, data)) => {
                if let (Some(offset), [byte]) = (serial_offset(port), data) {
                    // The log never fails; an error here could only mean a full FIFO of a receiver we do not have.
                    let _ = serial.write(offset, *byte);
                }
                continue;
            }
            Ok(VcpuExit::IoIn(port, data)) => {
                let value = serial_offset(port).map_or(0xFF, |offset| serial.read(offset));
                data.fill(value);
                continue;
            }
            // Holes in the memory map read as all ones and swallow writes, as on a bus.
            Ok(VcpuExit::MmioRead(_, data)) => {
                data.fill(0xFF);
                continue;
            }
            Ok(VcpuExit::MmioWrite(..)) => continue,
            Ok(VcpuExit::Intr) => continue,
            Ok(VcpuExit::Shutdown) => End::TripleFault,
            Ok(VcpuExit::InternalError) => End::InternalError,
            Ok(VcpuExit::FailEntry(reason, _)) => End::FailEntry(reason),
            Ok(VcpuExit::Hlt) => {
                while devices.pending_interrupt(vcpu).is_none() && !stop.load(Ordering::Acquire) {
                    if !devices.wait_halted(vcpu) {
                        return End::Halted;
                    }
                }
                continue;
            }
            Ok(VcpuExit::IrqWindowOpen) => continue,
            Ok(other) => End::Unexpected(format!("{other:?}")),
            Err(error) => match error.errno() {
                // EAGAIN: a vCPU that waits for its SIPI comes back once.
                libc::EINTR | libc::EAGAIN => continue,
                number => End::RunFailed(number),
            },
        };
        return end;
    }
}

/// Lets KVM finish the access it was in, so that the registers are those between two instructions.
fn settle(fd: &mut VcpuFd) -> End {
    fd.set_kvm_immediate_exit(1);
    let _ = fd.run();
    fd.set_kvm_immediate_exit(0);
    End::Stopped
}

fn serial_offset(port: u16) -> Option<u8> {
    port.checked_sub(SERIAL_PORT)
        .filter(|offset| *offset < 8)
        .and_then(|offset| u8::try_from(offset).ok())
}

fn number(data: &[u8]) -> u32 {
    let mut bytes = [0; 4];
    for (to, from) in bytes.iter_mut().zip(data) {
        *to = *from;
    }
    u32::from_le_bytes(bytes)
}
