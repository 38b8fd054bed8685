//! The lab's guest: a bare-metal program for x86-64 that measures clocks and timers from inside a VM.
//!
//! Ring 0 is small and plain integer code, since a software-only KVM interprets it. The experiments themselves run in
//! ring 3 and call down through `ud2` ([`gate`]). Ways in: [`boot`].
#![no_std]
#![no_main]

mod apic;
mod boot;
#[path = "../../crates/lab/src/contract.rs"]
#[allow(dead_code)]
mod contract;
mod cpu;
mod experiment;
mod gate;
mod instruction;
mod loops;
mod pages;
mod report;
mod serial;
mod trap;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    serial::line("panic");
    if let Some(place) = info.location() {
        serial::text(place.file());
        serial::text(" line ");
        serial::decimal(u64::from(place.line()));
        serial::line("");
    }
    report::finish(contract::status::PANIC)
}
