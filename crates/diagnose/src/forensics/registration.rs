//! The frequency of a clock source, read off the line with which the kernel registers it.
//!
//! # Theory
//!
//! The kernel computes for each counter how many cycles and how many nanoseconds it may go unread, and prints both. Both
//! describe one span, so their ratio is the rate, once the kernel's two margins are undone: 11 % for adjustments of the
//! multiplier, and half of the nanoseconds for safety.
//!
//! ```text
//! f = 0.89 * 10^9 * max_cycles / (2 * max_idle_ns)          [Hz]
//! ```
//!
//! # Practice
//!
//! `jiffies` is registered like any counter, so its line tells the kernel's HZ.
//!
//! # Caveats
//!
//! It is the rate that the kernel believed when it registered the source. The multiplier's rounding costs below 3e-7 for every
//! counter above 1 MHz.
//!
//! # References
//!
//! Linux `kernel/time/clocksource.c`, `clocks_calc_max_nsecs`.

use super::Frequency;

/// The frequency that a registration line implies, or `None` if its numbers give none.
///
/// # Examples
///
/// ```
/// use chronovisor_diagnose::forensics::registration::frequency;
///
/// let tsc = frequency(0x26e_c470_9d71, 440_795_243_778).expect("a whole line");
/// assert_eq!(tsc.to_string(), "2700.280 MHz");
/// ```
#[must_use]
pub fn frequency(max_cycles: u64, max_idle_ns: u64) -> Option<Frequency> {
    Frequency::from_ratio(
        u128::from(max_cycles) * 890_000_000,
        u128::from(max_idle_ns) * 2,
    )
}

/// The rate at which a clock source of that name counts wherever it stands, if it is one with a fixed rate.
#[must_use]
pub fn fixed_frequency(name: &str) -> Option<Frequency> {
    let hz = match name {
        "acpi_pm" => 3_579_545,
        "pit" => 1_193_182,
        "kvm-clock" | "xen" => 1_000_000_000,
        "hyperv_clocksource_tsc_page" | "hyperv_clocksource_msr" | "hyperv_clocksource" => {
            10_000_000
        }
        _ => return None,
    };
    Frequency::from_hz(hz)
}

/// Whether the clock source counts interrupts, so that it loses time when one is missed.
#[must_use]
pub fn counts_interrupts(name: &str) -> bool {
    matches!(name, "jiffies" | "refined-jiffies")
}

#[cfg(test)]
mod tests {
    use super::frequency;

    /// f = 0.89e9 * C / (2 I), each row a line of a public log.
    #[test]
    fn known_lines_give_their_known_rate() {
        for (name, cycles, idle, microhertz) in [
            (
                "tsc 2700.280",
                0x26e_c470_9d71,
                440_795_243_778,
                2_700_280_022_917_464_u64,
            ),
            (
                "tsc-early 2100.055",
                0x1e4_5649_026e,
                440_795_259_094,
                2_100_054_912_960_116,
            ),
            (
                "page 10 MHz",
                0x2_4e6a_1710,
                440_795_202_120,
                10_000_000_000_181,
            ),
            (
                "hpet 100 MHz",
                0xffff_ffff,
                19_112_604_467,
                99_999_999_996_336,
            ),
            (
                "jiffies 250",
                0xffff_ffff,
                7_645_041_785_100_000,
                250_000_000,
            ),
            (
                "jiffies 1000",
                0xffff_ffff,
                1_911_260_446_275_000,
                1_000_000_000,
            ),
        ] {
            let rate = frequency(cycles, idle).unwrap().microhertz();
            let off = rate.abs_diff(microhertz);
            assert!(off * 100_000_000 <= microhertz, "{name}: {rate}");
        }
        assert_eq!(frequency(7, 0), None);
        assert_eq!(frequency(0, 7), None);
        assert_eq!(frequency(u64::MAX, 1), None);
    }
}
