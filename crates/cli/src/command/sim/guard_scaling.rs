//! The table of `sim guard-scaling`.

use chronovisor_sim::scenario::guard_scaling::{GuardScaling, Row};

use super::document::Document;
use super::table::Render;
use super::threads::Comparison;
use crate::render::table::table;

impl Render for GuardScaling {
    fn tables(document: &Document<Self>) -> String {
        let mut table = table(
            &[
                "read",
                "guard",
                "CPUs",
                "us/call",
                "published us",
                "x none",
                "transfers/read",
                "back",
                "by ns",
                "stalls",
            ],
            2,
        );
        for row in &document.rows {
            table.add_row([
                row.series.clone(),
                row.guard.name().to_owned(),
                row.cpus.to_string(),
                format!("{:.4}", row.us_per_call),
                published(document, row),
                row.ratio_to_none
                    .map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
                format!("{:.2}", row.transfers_per_read),
                row.backward_steps.to_string(),
                row.largest_back_ns.to_string(),
                row.stalls.to_string(),
            ]);
        }
        let mut text =
            format!("CPUs that do nothing but read one clock, whose records disagree\n{table}\n");
        if let Some(measured) = &document.measured {
            text.push_str(&threads(measured));
        }
        text
    }
}

/// Real threads beside the model.
fn threads(measured: &Comparison) -> String {
    let mut table = table(&["guard", "CPUs", "us/call here", "modelled us"], 1);
    for row in &measured.rows {
        table.add_row([
            row.guard.name().to_owned(),
            row.cpus.to_string(),
            row.us_per_call
                .map_or("-".to_owned(), |us| format!("{us:.4}")),
            format!("{:.4}", row.modelled_us_per_call),
        ]);
    }
    let costs = measured.costs;
    format!(
        "\nReal threads on this machine, beside the model with its costs: hit {} ns, atomic {} ns, transfer {} ns\n{table}\n",
        costs.hit_ns, costs.atomic_ns, costs.near_ns
    )
}

fn published(document: &Document<GuardScaling>, row: &Row) -> String {
    document
        .seed_rows
        .iter()
        .find(|seed| {
            seed.clock == "kvm-clock"
                && (&seed.series, seed.cpus, seed.guard) == (&row.series, row.cpus, row.guard)
        })
        .map_or("-".to_owned(), |seed| format!("{:.4}", seed.us_per_call))
}
