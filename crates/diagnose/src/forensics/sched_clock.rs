//! How far the scheduler clock has parted from the clock that it is held against.
//!
//! # Theory
//!
//! When the TSC is withdrawn the kernel prints `sched_clock: Marking unstable (G, GO)<-(R, RO)`: `G` is the clock by ticks and
//! `GO` its offset; `R` the raw clock and `RO` its offset; `G + GO` equals `R + RO` up to tens of microseconds. `GO` grows with
//! the drift between the two, so the drift is `GO / G`; if the log also has `Marking stable (G0, GO0)`, the start is taken off:
//! `(GO - GO0) / (G - G0)`.
//!
//! # Caveats
//!
//! `R - G` is no drift: it holds the offset that the clock had when the machine started.
//!
//! # References
//!
//! Linux `kernel/sched/clock.c`, `__set_sched_clock_stable` and `__sched_clock_work`.

use super::real;
use crate::evidence::SchedClockLine;

/// Drift of the scheduler clock against the ticks, in ppm. `None` if no time passed.
///
/// # Examples
///
/// ```
/// use chronovisor_diagnose::evidence::SchedClockLine;
/// use chronovisor_diagnose::forensics::sched_clock::drift_ppm;
///
/// let line = |ticks_ns, ticks_offset_ns| SchedClockLine {
///     ticks_ns, ticks_offset_ns, raw_ns: 0, raw_offset_ns: 0,
/// };
/// let stable = line(1_385_398_995, 152_117);
/// let unstable = line(8_996_101_633_485, 42_749_061);
/// let ppm = drift_ppm(unstable, Some(stable)).expect("time passed");
/// assert!((ppm - 4.736).abs() < 0.001);
/// ```
#[must_use]
pub fn drift_ppm(unstable: SchedClockLine, stable: Option<SchedClockLine>) -> Option<f64> {
    let (start, start_offset) = stable.map_or((0, 0), |line| (line.ticks_ns, line.ticks_offset_ns));
    let passed = i128::from(unstable.ticks_ns) - i128::from(start);
    if passed <= 0 {
        return None;
    }
    let parted = i128::from(unstable.ticks_offset_ns) - i128::from(start_offset);
    Some(real(parted) / real(passed) * 1e6)
}
