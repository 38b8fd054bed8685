//! The kernel's counters at one moment: time of the CPUs (steal among it) and interrupts.

use chronovisor_diagnose::evidence::{CpuLine, CpuStat, InterruptCapture, Part};
use chronovisor_diagnose::intake::proc;

use crate::text_file;

/// Captures of one moment, each read or not.
#[derive(Clone, Debug)]
pub struct Moment {
    stat: Result<CpuStat, String>,
    interrupts: Result<InterruptCapture, String>,
}

impl Moment {
    /// Reads `/proc/stat` and `/proc/interrupts`.
    #[must_use]
    pub fn take() -> Self {
        let text = |path: &str| text_file::whole(path).map_err(|why| why.to_string());
        let parsed = |path: &str, why: String| format!("{path}: {why}");
        Self {
            stat: text("/proc/stat")
                .and_then(|text| proc::stat(&text).map_err(|why| parsed("/proc/stat", why))),
            interrupts: text("/proc/interrupts").and_then(|text| {
                proc::interrupts(&text).map_err(|why| parsed("/proc/interrupts", why))
            }),
        }
    }
}

/// The time of the CPUs at two moments.
#[must_use]
pub fn cpu_time(first: &Moment, second: &Moment) -> Part<Vec<CpuStat>> {
    both(&first.stat, &second.stat)
}

/// The interrupts at two moments.
#[must_use]
pub fn interrupts(first: &Moment, second: &Moment) -> Part<Vec<InterruptCapture>> {
    both(&first.interrupts, &second.interrupts)
}

/// The lines of `/proc/cpuinfo` that matter.
#[must_use]
pub fn cpu_lines() -> Part<Vec<CpuLine>> {
    Part::from_result(text_file::whole("/proc/cpuinfo").map(|text| proc::cpuinfo(&text)))
}

fn both<T: Clone>(first: &Result<T, String>, second: &Result<T, String>) -> Part<Vec<T>> {
    match (first, second) {
        (Ok(first), Ok(second)) => Part::Seen(vec![first.clone(), second.clone()]),
        (Err(why), _) | (_, Err(why)) => Part::NotReadable(why.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_do_not_go_back() {
        let (first, second) = (Moment::take(), Moment::take());
        let stat = cpu_time(&first, &second);
        let captures = stat.seen().unwrap();
        let (before, after) = (captures[0].total.unwrap(), captures[1].total.unwrap());
        assert!(before.user <= after.user && before.steal <= after.steal);
        assert!(interrupts(&first, &second).seen().is_some());
        assert!(cpu_lines().seen().is_some_and(|lines| !lines.is_empty()));
    }

    #[test]
    fn a_moment_that_was_not_read_is_told() {
        let part = both(&Ok(1), &Err("gone".to_owned()));
        assert_eq!(part.why_not(), Some("gone"));
    }
}
