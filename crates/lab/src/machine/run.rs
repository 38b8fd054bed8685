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
                let (devices, serial, stop, sender) = (
                    Arc::clone(devices),
                    Arc::clone(&serial),
                    Arc::clone(&stop),
                    sender.clone(),
                );
                std::thread::spawn(move || {
                    let end = vcpu::run(index, &mut fd, devices.as_ref(), &serial, &stop);
                    // The receiver lives until the threads are joined.
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
    pub fn stop(&mut self, running: Running) -> Result<Run, LabError> {
        let Running {
            threads,
            ends,
            stop,
            serial,
        } = running;
        stop.store(true, Ordering::Release);
        drop(ends);
        while threads.iter().any(|thread| !thread.is_finished()) {
            for thread in threads.iter().filter(|thread| !thread.is_finished()) {
                kick::kick(thread);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut ended = Vec::new();
        for (index, thread) in (0..).zip(threads) {
            let (fd, end) = thread
                .join()
                .map_err(|_| LabError::Guest(format!("the thread of vCPU {index} panicked")))?;
            let registers = fd
                .get_regs()
                .map_err(LabError::vcpu("KVM_GET_REGS", index))?;
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
            serial: serial.text(),
            timed_out: false,
        })
    }
}

/// vCPU threads at work.
pub struct Running {
    threads: Vec<std::thread::JoinHandle<(VcpuFd, End)>>,
    ends: mpsc::Receiver<End>,
    stop: Arc<AtomicBool>,
    serial: Arc<devices::SerialLog>,
}

impl Run {
    /// Every vCPU said that it is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ended
            .iter()
            .all(|ended| ended.end == End::Done(crate::contract::status::DONE))
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
