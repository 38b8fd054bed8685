//! The tables of `sim smp-boot`.

use chronovisor_sim::scenario::smp_boot::{Row, SeedRow, SmpBoot};

use super::document::Document;
use super::table::Render;
use crate::render::table::table;

impl Render for SmpBoot {
    fn tables(document: &Document<Self>) -> String {
        let mut table = table(
            &[
                "vCPUs",
                "nodes",
                "lpj from",
                "load",
                "boots",
                "mean ms",
                "max ms",
                "published ms",
                "ms/CPU",
                "calibrations",
                "searches",
                "lpj low ppm",
                "lpj high ppm",
            ],
            4,
        );
        for row in &document.rows {
            let published = document
                .seed_rows
                .iter()
                .find(|seed| is_of(seed, row))
                .map_or("-".to_owned(), |seed| format!("{:.1}", seed.mean_ms));
            table.add_row([
                row.vcpus.to_string(),
                row.numa_nodes.to_string(),
                row.method.name().to_owned(),
                row.load.clone(),
                row.boots.to_string(),
                format!("{:.1}", row.mean_ms),
                format!("{:.1}", row.max_ms),
                published,
                format!("{:.2}", row.per_cpu_ms),
                format!("{:.1}", row.calibrations),
                row.searches.to_string(),
                format!("{:.3}", row.lpj_low_ppm),
                format!("{:.3}", row.lpj_high_ppm),
            ]);
        }
        format!("Bringing up the CPUs of a guest, one after the other\n{table}\n")
    }
}

/// The report measured a quiet machine, or does not say otherwise.
fn is_of(seed: &SeedRow, row: &Row) -> bool {
    seed.vcpus == row.vcpus
        && seed.numa_nodes == row.numa_nodes
        && seed.method == row.method
        && row.load == "quiet"
}
