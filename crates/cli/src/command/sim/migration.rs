//! The tables of `sim migration`.

use std::fmt::Write;

use chronovisor_sim::scenario::migration::{Migration, Policy};

use super::document::Document;
use super::table::Render;
use crate::render::table::table;

impl Render for Migration {
    fn tables(document: &Document<Self>) -> String {
        let mut text = String::new();
        let mut policies: Vec<Policy> = document.rows.iter().map(|row| row.policy).collect();
        policies.dedup();
        for policy in policies {
            let mut table = table(
                &[
                    "clock",
                    "readings",
                    "back",
                    "largest step",
                    "loss (mean)",
                    "largest loss",
                    "largest gain",
                    "largest error",
                    "unavailable",
                    "fell back",
                ],
                1,
            );
            let mut vms = 0;
            let mut timers = String::new();
            for row in document.rows.iter().filter(|row| row.policy == policy) {
                vms = row.vms;
                timers = format!(
                    "Deadline timers: {} fired before the move, {} after it, {} stranded by a counter that jumped; none early, none lost",
                    row.timers_before, row.timers_after, row.timers_stranded
                );
                table.add_row([
                    row.clock.name().to_owned(),
                    row.reads.to_string(),
                    row.backward_steps.to_string(),
                    time(row.largest_step_ns),
                    signed(row.loss_ns),
                    time(row.largest_loss_ns),
                    time(row.largest_gain_ns),
                    row.largest_error_ns.map_or("-".to_owned(), time),
                    row.unavailable.to_string(),
                    row.fallbacks.to_string(),
                ]);
            }
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "{vms} machines, each moved once; clocks {} while the guest does not run\n{table}\n{timers}\n",
                match policy {
                    Policy::Stop => "stop",
                    Policy::Advance => "go on",
                }
            );
        }
        text.push_str("Said in 2019, without a figure\n");
        for seed in &document.seed_rows {
            let _ = writeln!(text, "  {}: {}", seed.clock.name(), seed.said);
        }
        text
    }
}

/// ns in a unit that a person reads.
#[expect(clippy::cast_precision_loss, reason = "for print")]
fn time(ns: u64) -> String {
    signed(ns as f64)
}

fn signed(ns: f64) -> String {
    match ns.abs() {
        size if size < 1e4 => format!("{ns:.0} ns"),
        size if size < 1e7 => format!("{:.1} us", ns / 1e3),
        size if size < 1e10 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.1} s", ns / 1e9),
    }
}
