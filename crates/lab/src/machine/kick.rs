//! Gets a thread out of `KVM_RUN`: a signal with an empty handler.
#![allow(unsafe_code)] // signal handlers and thread ids are libc's

use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::thread::JoinHandle;

extern "C" fn nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Installs the handler, once for the process.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The signal is one of the real-time ones that libc leaves free, so this cannot fail but for a wrong number.
        let installed = vmm_sys_util::signal::register_signal_handler(libc::SIGRTMIN(), nothing);
        debug_assert!(installed.is_ok());
    });
}

/// Sends the signal. A kick that comes just before `KVM_RUN` is lost, so the caller repeats it until the thread answers.
pub(super) fn kick<T>(thread: &JoinHandle<T>) {
    // SAFETY: the handle is borrowed, so it has not been joined and its thread id is valid; the handler is installed
    // before any vCPU thread starts.
    unsafe {
        libc::pthread_kill(thread.as_pthread_t(), libc::SIGRTMIN());
    }
}

/// Gets the thread that made it out of `KVM_RUN`.
#[derive(Clone, Debug)]
pub struct Kicker {
    process: libc::pid_t,
    thread: libc::pid_t,
    /// The thread is in `KVM_RUN`, or just before or after it.
    inside: Arc<AtomicBool>,
}

impl Kicker {
    /// A kicker of the calling thread, which is not in `KVM_RUN`.
    pub(super) fn of_this_thread() -> Self {
        // SAFETY: both calls only return a number.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        Self {
            process,
            thread,
            inside: Arc::new(AtomicBool::new(false)),
        }
    }

    /// The calling thread goes into `KVM_RUN`.
    pub(super) fn enter(&self) {
        self.inside.store(true, Ordering::Release);
    }

    /// It has come back.
    pub(super) fn leave(&self) {
        self.inside.store(false, Ordering::Release);
    }

    /// Gets the thread out of `KVM_RUN`; does nothing if it is not there. A kick that comes just before `KVM_RUN` is lost, so
    /// the caller repeats it as long as there is something to look at.
    pub fn kick(&self) {
        if !self.inside.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: a signal with an empty handler to a thread of this process; a number that is no thread any more is
        // refused by the kernel.
        unsafe {
            libc::syscall(
                libc::SYS_tgkill,
                self.process,
                self.thread,
                libc::SIGRTMIN(),
            );
        }
    }
}
