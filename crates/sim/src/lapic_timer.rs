//! The trait through which a world drives a local APIC timer, ours and the historical ones alike.
//!
//! # Theory
//!
//! A hypervisor gives one timer two back-ends. While the vCPU runs, the preemption timer counts the guest's counter and stops the guest
//! when it is due. While the vCPU halts, a software timer counts the host's CLOCK_MONOTONIC. A model says which back-end it wants, with which
//! deadline; the world does what hardware and host kernel would do, and calls when a wake-up came.
//!
//! # Practice
//!
//! Each call gets a [`HostLook`]: counter and clock at one instant. After each call the world asks [`LapicTimer::wake`].
//!
//! # Migration
//!
//! Not part of the trait: the timer scenarios stay on one host.
//!
//! # Caveats
//!
//! The guest's counter equals the host's here (no offset, no scaling): neither matters to what the models differ in.
//!
//! # References
//!
//! Linux `arch/x86/kvm/lapic.c`.

use chronovisor_abi::quantity::{Nanos, Tsc};

use crate::host_machine::HostLook;

/// How the guest programmed the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One expiry for each start.
    OneShot,
    /// An expiry each period.
    Periodic,
}

/// What has to wake the model next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Nothing.
    Never,
    /// The software timer, when CLOCK_MONOTONIC is this or more, whatever the vCPU does.
    Monotonic(Nanos),
    /// The preemption timer, when the counter is this or more and the vCPU is in guest mode.
    GuestTsc(Tsc),
}

/// Whether an interrupt is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Raised {
    /// None.
    #[default]
    Nothing,
    /// One; further expiries have merged into it.
    Interrupt,
}

/// What a call led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[must_use = "an interrupt may have been raised"]
pub struct Fired {
    /// How many expiries the model took.
    pub expiries: u64,
    /// Whether the guest gets an interrupt.
    pub raised: Raised,
    /// How many times in a row the back-end was called without time to pass in between.
    pub callbacks: u64,
}

impl Fired {
    /// `expiries` expiries taken in as many calls, merged into one interrupt if there was any.
    pub(crate) fn merged(expiries: u64) -> Self {
        Self {
            expiries,
            raised: if expiries == 0 {
                Raised::Nothing
            } else {
                Raised::Interrupt
            },
            callbacks: expiries,
        }
    }
}

/// A local APIC timer with its back-ends.
pub trait LapicTimer {
    /// The guest writes the initial count: the timer starts, in guest mode.
    fn start(&mut self, mode: Mode, period: Nanos, look: HostLook) -> Fired;
    /// The vCPU enters guest mode after a halt or after it was off its CPU.
    fn enter_guest(&mut self, look: HostLook);
    /// The vCPU halts.
    fn halt(&mut self, look: HostLook) -> Fired;
    /// The wake-up that was asked for came; it may be late, and for the software timer early after a slew.
    fn fire(&mut self, look: HostLook) -> Fired;
    /// The wake-up that is wanted now.
    fn wake(&self) -> Wake;
    /// Periodic mode: brings the state to what it would be at `look` if the vCPU had halted since the start and every expiry had been taken by the
    /// software timer, in closed form. Returns how many expiries those were.
    fn fast_forward(&mut self, look: HostLook) -> u64;
    /// Whether the model's own clocks call the timer armed: one that is must want a wake-up.
    fn is_armed(&self) -> bool;
    /// How far apart the model's two copies of the deadline are, in ns of the counter at the kernel's rate; 0 for a model that has one.
    fn deadlines_apart(&self, look: HostLook) -> i64 {
        let _ = look;
        0
    }
}
