//! Gets a thread out of `KVM_RUN`: a signal with an empty handler.
#![allow(unsafe_code)] // signal handlers and thread ids are libc's

use std::os::unix::thread::JoinHandleExt;
use std::sync::Once;
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

/// Kicks the thread that made it.
#[derive(Clone, Copy, Debug)]
pub struct Kicker {
    process: libc::pid_t,
    thread: libc::pid_t,
}

impl Kicker {
    /// A kicker of the calling thread.
    pub(super) fn of_this_thread() -> Self {
        // SAFETY: both calls only return a number.
        unsafe {
            Self {
                process: libc::getpid(),
                thread: libc::gettid(),
            }
        }
    }

    /// Gets the thread out of `KVM_RUN`, or out of a wait. Does nothing if the thread has ended.
    pub fn kick(self) {
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
