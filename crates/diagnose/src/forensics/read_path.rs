//! Whether a clock is read in user space, told by what it costs.
//!
//! # Theory
//!
//! A read through the user-space entry point costs 0.1 to 0.3 of a raw system call while it stays in user space, and about as
//! much as one when it falls back into the kernel. From 0.7 on it is taken as fallen back. The step between readings tells
//! the counter behind: 100 ns for Hyper-V, 279.4 ns for the PM timer, 10 ns for an HPET at 100 MHz, 1 to 10 ms for ticks.
//!
//! # References
//!
//! Linux `arch/x86/include/asm/vdso/gettimeofday.h`, `lib/vdso/gettimeofday.c`.

/// From this ratio on a read has fallen back into the kernel.
pub const FALLBACK_RATIO: f64 = 0.7;

/// Whether a clock source can be read in user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserSpaceRead {
    /// Yes, as long as its page is valid.
    Yes,
    /// No, each read is a system call.
    No,
    /// It depends on the kernel and the hypervisor; only a measurement tells.
    Depends,
}

/// Whether the kernel offers a user-space read of a clock source. Whole names only: `hyperv_clocksource_tsc_page` is not `tsc`.
///
/// # Examples
///
/// ```
/// use chronovisor_diagnose::forensics::read_path::{UserSpaceRead, of_clocksource};
///
/// assert_eq!(of_clocksource("hpet"), Some(UserSpaceRead::No));
/// assert_eq!(of_clocksource("tsc"), Some(UserSpaceRead::Yes));
/// assert_eq!(of_clocksource("something-new"), None);
/// ```
#[must_use]
pub fn of_clocksource(name: &str) -> Option<UserSpaceRead> {
    Some(match name {
        "tsc" | "tsc-early" | "kvm-clock" | "hyperv_clocksource_tsc_page" => UserSpaceRead::Yes,
        "xen" => UserSpaceRead::Depends,
        "hpet"
        | "acpi_pm"
        | "pit"
        | "jiffies"
        | "refined-jiffies"
        | "hyperv_clocksource_msr"
        | "hyperv_clocksource" => UserSpaceRead::No,
        _ => return None,
    })
}

/// How quickly a source is read compared with others: lower is faster. Only the order counts.
#[must_use]
pub fn speed_class(name: &str) -> Option<u8> {
    Some(match name {
        "tsc" | "tsc-early" => 0,
        "kvm-clock" | "hyperv_clocksource_tsc_page" => 1,
        "xen" => 2,
        "hyperv_clocksource_msr" | "hyperv_clocksource" | "hpet" | "acpi_pm" | "pit" => 3,
        "jiffies" | "refined-jiffies" => 4,
        _ => return None,
    })
}
