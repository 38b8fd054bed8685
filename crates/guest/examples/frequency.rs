//! The counter's rate by every channel that this machine has, how far any two are apart, and which clock source to use.
//!
//! `cargo run --release -p chronovisor-guest --example frequency`

use chronovisor_abi::cpuid::{
    Base, HYPERVISOR_BASE, HYPERVISOR_FREQUENCIES, Interface, PROCESSOR_FREQUENCIES,
    TSC_AND_CRYSTAL, interfaces,
};
use chronovisor_guest::counter::Ordered;
use chronovisor_guest::cpuid::{leaf, processor_leaf};
use chronovisor_guest::frequency::{Estimate, Granularity, disagreements, most_exact};
use chronovisor_guest::linux::pages::KernelPages;
use chronovisor_guest::pvclock::StableBit;
use chronovisor_guest::select::Machine;

fn main() {
    let mut estimates = Vec::new();
    estimates.extend(Estimate::from_crystal(processor_leaf(TSC_AND_CRYSTAL)));
    estimates.extend(Estimate::from_nominal(processor_leaf(
        PROCESSOR_FREQUENCIES,
    )));
    // Hyper-V's own leaves may reach as far one day and mean something else there.
    let reaches = |base: Base| {
        base.base == HYPERVISOR_BASE
            && base.last >= HYPERVISOR_FREQUENCIES
            && base.interface != Interface::HyperV
    };
    if interfaces(leaf).any(reaches) {
        estimates.extend(Estimate::from_hypervisor_leaf(leaf(HYPERVISOR_FREQUENCIES)));
    }
    match KernelPages::find() {
        Ok(pages) => {
            match pages.pvclock() {
                Ok(page) => {
                    let reader = page.reader(Ordered::detect(), StableBit::Advertised);
                    if let Ok(seen) = reader.observe() {
                        estimates.extend(Estimate::from_pvclock(
                            &seen.contents,
                            Granularity::Kilohertz,
                        ));
                    }
                }
                Err(error) => eprintln!("no pvclock channel: {error}"),
            }
            match pages.hyperv().map(|page| page.parameters()) {
                Ok(Ok(page)) => {
                    estimates.extend(Estimate::from_reference_page(&page, Granularity::Kilohertz))
                }
                Ok(Err(error)) => eprintln!("no Hyper-V channel: {error}"),
                Err(error) => eprintln!("no Hyper-V channel: {error}"),
            }
            let kernel = pages.time_data().ok().and_then(|page| page.read());
            estimates.extend(kernel.and_then(|data| data.estimate()));
        }
        Err(error) => eprintln!("no channel of the kernel's: {error}"),
    }

    for estimate in &estimates {
        println!("{estimate}");
    }
    if let Some(best) = most_exact(&estimates) {
        println!("most exact: {}", best.channel);
    }
    for (first, second, apart) in disagreements(&estimates) {
        let verdict = if apart.is_explained() {
            "as their forms allow"
        } else {
            "one of them is of another counter"
        };
        println!(
            "{} - {}: {:+.3} ppm, {verdict}",
            first.channel,
            second.channel,
            apart.difference.as_ppm_f64()
        );
    }

    println!();
    for row in Machine::from_cpuid(leaf)
        .ranking()
        .rows()
        .filter(|row| row.rating > 0)
    {
        println!(
            "{:4} {:28} {}",
            row.rating,
            row.source.to_string(),
            row.reason
        );
    }
}
