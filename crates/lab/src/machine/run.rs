//! A run: vCPU threads, the watchdog, and what became of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kvm_bindings::kvm_regs;
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

use super::{Devices, End, Machine, devices, kick, vcpu};
use crate::LabError;

/// How one vCPU's run went.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Why it stopped.
    pub end: End,
    /// Its registers then.
    pub registers: kvm_regs,
    /// The bytes at its instruction pointer, if that lies in guest memory.
    pub code: Option<[u8; 8]>,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Run {
    /// Each vCPU's end.
    pub ended: Vec<Ended>,
    /// What the guest wrote to its serial port.
    pub serial: String,
    /// The watchdog had to end it.
    pub timed_out: bool,
}

impl Machine {
    /// Lets all vCPUs run until the guest ends, a vCPU dies, or `patience` is over.
    ///
    /// # Errors
    ///
    /// [`LabError::Kvm`] if registers cannot be read afterwards.
    pub fn run(&mut self, devices: &Arc<dyn Devices>, patience: Duration) -> Result<Run, LabError> {
        let running = self.start(devices);
        self.finish(running, patience)
    }

    /// Starts all vCPUs and comes back at once.
    #[must_use]
    pub fn start(&mut self, devices: &Arc<dyn Devices>) -> Running {
        kick::install();
        let stop = Arc::new(AtomicBool::new(false));
        let serial = Arc::new(devices::SerialLog::default());
        let (sender, ends) = mpsc::channel();
        let threads = (0..)
            .zip(self.vcpus.drain(..))
            .map(|(index, mut fd)| {
                let (devices, serial, stop, sender, memory) = (
                    Arc::clone(devices),
                    Arc::clone(&serial),
                    Arc::clone(&stop),
                    sender.clone(),
                    self.memory.clone(),
                );
                std::thread::spawn(move || {
                    let end = vcpu::run(index, &mut fd, devices.as_ref(), &serial, &stop);
                    // The machine may be gone by now: the guest needs its memory as long as it runs, and no longer.
                    drop(memory);
                    // Who stops the run may not want to hear of it.
                    let _ = sender.send(end.clone());
                    (fd, end)
                })
            })
            .collect();
        Running {
            threads,
            ends,
            stop,
            serial,
        }
    }

    /// Waits for a run to end; when `patience` is over, ends it.
    ///
    /// # Errors
    ///
    /// [`LabError::Kvm`] if registers cannot be read afterwards.
    pub fn finish(&mut self, running: Running, patience: Duration) -> Result<Run, LabError> {
        let deadline = Instant::now() + patience;
        let mut left = running.threads.len();
        let mut timed_out = false;
        while left > 0 {
            match running
                .ends
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(End::Done(crate::contract::status::DONE)) => left -= 1,
                // One vCPU died or failed: the others would wait for it for ever.
                Ok(_) => break,
                Err(_) => {
                    timed_out = true;
                    break;
                }
            }
        }
        let mut run = self.stop(running)?;
        run.timed_out = timed_out;
        Ok(run)
    }

    /// Stops all vCPUs between two instructions.
    ///
    /// # Errors
    ///
    /// [`LabError::Kvm`] if registers cannot be read afterwards.
    pub fn stop(&mut self, mut running: Running) -> Result<Run, LabError> {
        let mut ended = Vec::new();
        for (vcpu, joined) in (0..).zip(running.end()) {
            let (fd, end) = joined.map_err(|_| LabError::Panicked { vcpu })?;
            let registers = fd
                .get_regs()
                .map_err(LabError::vcpu("KVM_GET_REGS", vcpu))?;
            let code = self.memory.read_obj(GuestAddress(registers.rip)).ok();
            ended.push(Ended {
                end,
                registers,
                code,
            });
            self.vcpus.push(fd);
        }
        Ok(Run {
            ended,
            serial: running.serial.text(),
            timed_out: false,
        })
    }
}

/// vCPU threads at work. Dropped, it stops them and waits for their end: no guest goes on unseen.
pub struct Running {
    threads: Vec<std::thread::JoinHandle<(VcpuFd, End)>>,
    ends: mpsc::Receiver<End>,
    stop: Arc<AtomicBool>,
    serial: Arc<devices::SerialLog>,
}

impl Running {
    /// Stops all threads and takes what they leave behind.
    fn end(&mut self) -> Vec<std::thread::Result<(VcpuFd, End)>> {
        self.stop.store(true, Ordering::Release);
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            for thread in self.threads.iter().filter(|thread| !thread.is_finished()) {
                kick::kick(thread);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        self.threads
            .drain(..)
            .map(std::thread::JoinHandle::join)
            .collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // How they ended is nobody's concern any more; after `stop` there are none left.
        drop(self.end());
    }
}

impl Run {
    /// Every vCPU said that it is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let done = |ended: &Ended| ended.end == End::Done(crate::contract::status::DONE);
        !self.ended.is_empty() && self.ended.iter().all(done)
    }

    /// In words, what went wrong; with the registers of the vCPU that it concerns.
    #[must_use]
    pub fn trouble(&self) -> String {
        let blamed = |ended: &&Ended| {
            !matches!(
                ended.end,
                End::Stopped | End::Done(crate::contract::status::DONE)
            )
        };
        let found = (0..)
            .zip(&self.ended)
            .find(|(_, ended)| blamed(ended))
            .or_else(|| {
                (0..)
                    .zip(&self.ended)
                    .find(|(_, ended)| ended.end == End::Stopped)
            });
        if self.ended.is_empty() {
            return "no vCPU ran".into();
        }
        let Some((vcpu, ended)) = found else {
            return "nothing: every vCPU is done".into();
        };
        let code = ended.code.map_or_else(
            || "outside guest memory".to_owned(),
            |bytes| bytes.map(|byte| format!("{byte:02x}")).join(" "),
        );
        let r = &ended.registers;
        let what = match &ended.end {
            End::Done(status) => format!("the guest gave up with status {status:#x}"),
            End::Stopped if self.timed_out => "the guest hung and the watchdog ended it".into(),
            End::Stopped => "it was stopped".into(),
            End::TripleFault => "triple fault".into(),
            End::InternalError => {
                "KVM cannot run an instruction of the guest (emulation failure)".into()
            }
            End::FailEntry(reason) => {
                format!("KVM could not enter the guest (hardware reason {reason:#x})")
            }
            End::Halted => "the guest halted with nothing to wake it".into(),
            End::Unexpected(exit) => format!("unexpected exit {exit}"),
            End::RunFailed(number) => {
                format!(
                    "KVM_RUN failed: {}",
                    std::io::Error::from_raw_os_error(*number)
                )
            }
        };
        let serial = if self.serial.is_empty() {
            String::new()
        } else {
            format!("; serial: {}", self.serial.trim_end())
        };
        format!(
            "vCPU {vcpu}: {what}; rip {:#x} [{code}] rsp {:#x} rax {:#x} rcx {:#x} rdx {:#x} rdi {:#x} rsi {:#x} \
             flags {:#x}{serial}",
            r.rip, r.rsp, r.rax, r.rcx, r.rdx, r.rdi, r.rsi, r.rflags
        )
    }
}
