//! A counter read that traps: what `rdtsc` costs when somebody emulates it.
//!
//! # Theory
//!
//! Linux lets a thread forbid itself `rdtsc` and `rdtscp` (`PR_SET_TSC`). Each then raises SIGSEGV, and the handler does what an emulating
//! hypervisor does for a guest whose counter is intercepted: take a time from elsewhere, put it into EDX:EAX, step over the instruction. The price of
//! an exit is here the price of a signal; the shape is the same, and it needs no hypervisor's help.
//!
//! # Practice
//!
//! [`TrappedCounter::new`] installs the handler once for the process; any other SIGSEGV goes to whoever had it before. Only the thread that measures
//! is affected, and only while it does: the counter is forbidden after the loop's start was taken and allowed again before its end.
//!
//! # Caveats
//!
//! While it is forbidden the vDSO's clocks trap as well. The value is `CLOCK_MONOTONIC_RAW` in ns, taken by a system call, so that each read is a real
//! one; the two calls that forbid and allow are inside the time, so a batch has at least [`LEAST_READS`] reads.
//!
//! # References
//!
//! prctl(2), PR_SET_TSC; Linux `arch/x86/kernel/process.c`.

// Why unsafe: a signal handler that changes the registers of the interrupted code, and the calls that install it.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use chronovisor_abi::quantity::{Nanos, TscDelta};
use chronovisor_guest::counter;
use chronovisor_guest::linux::os_clock::ClockId;

use crate::timed_loop::Reads;

/// Fewest reads of a batch: the two calls around them are then below 2 % of it.
pub const LEAST_READS: u32 = 64;

/// `si_code` of a fault that carries no address: SI_KERNEL.
const SI_KERNEL: libc::c_int = 0x80;

/// Where SIGSEGV went before, for every fault that is not ours: the handler's address.
static PREVIOUS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

/// A counter that traps at each read.
#[derive(Debug)]
pub struct TrappedCounter {
    _installed: (),
}

impl TrappedCounter {
    /// Makes the counter trap, for those who ask through this.
    ///
    /// # Errors
    ///
    /// If the handler cannot be installed, or the kernel does not offer PR_SET_TSC.
    pub fn new() -> io::Result<Self> {
        static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
        let installed =
            INSTALLED.get_or_init(|| install().map_err(|error| error.raw_os_error().unwrap_or(0)));
        if let Err(errno) = installed {
            return Err(io::Error::from_raw_os_error(*errno));
        }
        set_counter(libc::PR_TSC_SIGSEGV).and_then(|()| set_counter(libc::PR_TSC_ENABLE))?;
        Ok(Self { _installed: () })
    }
}

impl Reads for TrappedCounter {
    fn time(&mut self, count: u32) -> TscDelta {
        let mut sum = 0_u64;
        let start = counter::read_fenced();
        if set_counter(libc::PR_TSC_SIGSEGV).is_ok() {
            for _ in 0..count {
                sum = sum.wrapping_add(counter::rdtsc().as_ticks()); // wrapping: only there to keep the value alive.
            }
            // It was allowed before, so it is allowed again.
            let _ = set_counter(libc::PR_TSC_ENABLE);
        }
        let end = counter::read_fenced();
        black_box(sum);
        end.wrapping_delta(start)
    }

    fn least(&self) -> u32 {
        LEAST_READS
    }

    fn collect(&mut self, values: &mut [u64]) {
        if set_counter(libc::PR_TSC_SIGSEGV).is_ok() {
            for value in values {
                *value = counter::rdtsc().as_ticks();
            }
            let _ = set_counter(libc::PR_TSC_ENABLE);
        }
    }
}

/// What this thread's counter instructions do from now on.
fn set_counter(state: libc::c_int) -> io::Result<()> {
    // SAFETY: PR_SET_TSC takes a number and no pointer. A handler for the fault is installed before anyone gets here (`new`).
    match unsafe { libc::prctl(libc::PR_SET_TSC, state) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn install() -> io::Result<()> {
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the structure is plain data, for which zeros are valid.
    let mut ours: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    ours.sa_sigaction = on_fault as *const () as usize;
    // ONSTACK: a stack overflow must still reach the handler that was here before.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both structures are ours and live over the call; the handler is of the type that SA_SIGINFO asks for and does only what a
    // signal handler may (a system call and changes to its own frame).
    let answer = unsafe { libc::sigaction(libc::SIGSEGV, &raw const ours, previous.as_mut_ptr()) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled the structure.
    let previous = unsafe { previous.assume_init() };
    let takes_information = previous.sa_flags & libc::SA_SIGINFO != 0;
    // A handler of the old one-argument form is not called: a fault that is not ours then ends the program, as it would have.
    let address = if takes_information {
        previous.sa_sigaction
    } else {
        libc::SIG_DFL
    };
    PREVIOUS.store(address, Ordering::Relaxed);
    Ok(())
}

/// Emulates the counter instruction that trapped; everything else goes to the handler before ours.
extern "C" fn on_fault(
    signal: libc::c_int,
    information: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo and a valid ucontext of the interrupted code, both ours until we return.
    let (code, registers) = unsafe {
        (
            (*information).si_code,
            &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs,
        )
    };
    const RIP: usize = libc::REG_RIP as usize; // `as`: an index that libc types as c_int
    let length = match code {
        SI_KERNEL => counter_instruction_at(registers[RIP]),
        _ => None,
    };
    let (Some(length), Some(time)) = (length, ClockId::MONOTONIC_RAW.now_by_system_call()) else {
        return pass_on(signal, information, context);
    };
    let ns = Nanos::as_ns(time).cast_signed();
    registers[libc::REG_RAX as usize] = ns & 0xffff_ffff;
    registers[libc::REG_RDX as usize] = (ns >> 32) & 0xffff_ffff;
    if length == 3 {
        registers[libc::REG_RCX as usize] = 0;
    }
    registers[RIP] += length;
}

/// Length of the `rdtsc` or `rdtscp` at `address`; `None` if it is another instruction.
fn counter_instruction_at(address: i64) -> Option<i64> {
    let code: *const u8 = ptr::with_exposed_provenance(usize::try_from(address).ok()?);
    // SAFETY: SI_KERNEL is a general protection fault, raised by an instruction that was fetched, so its first bytes are readable. The second is
    // read only if the first is that of a two-byte opcode, the third only if the second asks for it.
    unsafe {
        match (code.read(), || code.add(1).read(), || code.add(2).read()) {
            (0x0f, second, third) => match second() {
                0x31 => Some(2),
                0x01 if third() == 0xf9 => Some(3),
                _ => None,
            },
            _ => None,
        }
    }
}

fn pass_on(signal: libc::c_int, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    match PREVIOUS.load(Ordering::Relaxed) {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: back to the default; the instruction faults again and ends the program, as it would have without us.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        address => {
            // SAFETY: the address was registered with SA_SIGINFO (`install` keeps no other), so it is a function of this type.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(address) };
            handler(signal, information, context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Emulated reads advance, cost more than ten plain ones, and the thread's own counter works again afterwards.
    #[test]
    fn a_trapped_read_gives_a_time_and_leaves_no_trace() {
        let mut counter_that_traps = match TrappedCounter::new() {
            Ok(counter) => counter,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let mut values = [0; 20];
        counter_that_traps.collect(&mut values);
        let raw = ClockId::MONOTONIC_RAW.now().unwrap().as_ns();
        assert!(
            values.windows(2).all(|pair| pair[0] < pair[1]),
            "{values:?}"
        );
        assert!(values[0] > 0 && values[19] <= raw, "{values:?} after {raw}");
        let trapped = (0..5)
            .map(|_| counter_that_traps.time(100).as_ticks())
            .min();
        let plain = (0..5)
            .map(|_| crate::timed_loop::time(100, || counter::rdtsc().as_ticks()).as_ticks())
            .min();
        assert!(
            trapped > plain.map(|ticks| ticks * 10),
            "{trapped:?} against {plain:?}"
        );
    }

    #[test]
    fn only_counter_instructions_are_emulated() {
        let at = |code: &[u8; 3]| {
            counter_instruction_at(i64::try_from(code.as_ptr().expose_provenance()).unwrap())
        };
        assert_eq!(at(&[0x0f, 0x31, 0x90]), Some(2));
        assert_eq!(at(&[0x0f, 0x01, 0xf9]), Some(3));
        assert_eq!(at(&[0x0f, 0x01, 0xd0]), None, "xgetbv");
        assert_eq!(at(&[0x90, 0x0f, 0x31]), None);
    }
}
