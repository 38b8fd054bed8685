//! The kernel's clock discipline, asked without changing it.
//!
//! # References
//!
//! adjtimex(2).

// Why unsafe: adjtimex takes a pointer to a structure that it reads and fills.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;

use chronovisor_diagnose::evidence::Adjtimex;

/// What the kernel says.
///
/// # Errors
///
/// If the call is refused, as in some sandboxes.
pub fn read() -> io::Result<Adjtimex> {
    // SAFETY: the structure is plain integers, for which zeros are valid; modes = 0 asks and changes nothing.
    let mut state: libc::timex = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the pointer is to our own structure, which lives over the call.
    let answer = unsafe { libc::adjtimex(&raw mut state) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    let in_ns = state.status & libc::STA_NANO != 0;
    Ok(Adjtimex {
        state: answer,
        status: state.status,
        freq_ppm_scaled: state.freq,
        offset_ns: if in_ns {
            state.offset
        } else {
            state.offset.saturating_mul(1000)
        },
        maxerror_us: state.maxerror,
        esterror_us: state.esterror,
        tick_us: state.tick,
        tai_s: state.tai,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_with_a_plausible_tick() {
        let state = read().unwrap();
        assert!((9_000..=11_000).contains(&state.tick_us), "{state:?}");
        assert!((0..=5).contains(&state.state));
    }
}
