//! The table of `sim clock-update`.

use chronovisor_sim::scenario::clock_update::ClockUpdate;

use super::document::Document;
use super::table::Render;
use crate::render::table::table;

impl Render for ClockUpdate {
    fn tables(document: &Document<Self>) -> String {
        let mut table = table(
            &[
                "clock",
                "updated by",
                "updates",
                "hot-plugs",
                "rates",
                "re-bases",
                "readings",
                "back",
                "largest jump ns",
                "measured ns",
                "largest error ns",
            ],
            2,
        );
        let number = |figure: Option<u64>| figure.map_or("-".to_owned(), |ns| ns.to_string());
        for row in &document.rows {
            let measured = document
                .seed_rows
                .iter()
                .find(|seed| seed.clock == row.clock && seed.policy == row.policy)
                .map(|seed| seed.largest_jump_ns);
            table.add_row([
                row.clock.name().to_owned(),
                row.policy.name().to_owned(),
                row.updates.to_string(),
                row.hot_plugs.to_string(),
                row.rate_changes.to_string(),
                row.rebases.to_string(),
                row.reads.to_string(),
                row.backward_steps.to_string(),
                number(row.largest_jump_ns),
                number(measured),
                number(row.largest_error_ns),
            ]);
        }
        let (vms, hours) = (document.runs, document.parameters.hours);
        format!(
            "{vms} machines, {hours} h each; measured: KVM's clock at a hot-plug after 40 h, on another rate\n{table}\n"
        )
    }
}
