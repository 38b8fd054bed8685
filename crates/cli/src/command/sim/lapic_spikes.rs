//! The tables of `sim lapic-spikes`.

use chronovisor_sim::scenario::lapic_spikes::{LapicSpikes, Row, SeedRow, TimerMode};
use comfy_table::Table;

use super::document::Document;
use super::table::Render;
use crate::render::table::table;

impl Render for LapicSpikes {
    fn tables(document: &Document<Self>) -> String {
        let mut text = format!(
            "Published in 2018 beside the simulated row: a Windows 10 guest, 150 000 timers of 1 ms, in us\n{}\n",
            published(document)
        );
        let mut last = None;
        for row in &document.rows {
            let heading = (row.mode, &row.load, row.uptime_s);
            if last == Some(heading) {
                continue;
            }
            last = Some(heading);
            let rows = document
                .rows
                .iter()
                .filter(|row| (row.mode, &row.load, row.uptime_s) == heading);
            text.push_str(&format!(
                "\n{} timer, {}, after {}, in us\n{}\n",
                match row.mode {
                    TimerMode::Periodic => "periodic",
                    TimerMode::OneShot => "one-shot",
                },
                row.load,
                uptime(row.uptime_s),
                simulated(rows)
            ));
        }
        text
    }
}

fn published(document: &Document<LapicSpikes>) -> Table {
    let mut table = table(
        &[
            "kernel",
            "load",
            "max",
            "mean",
            "deviation",
            "simulated max",
            "mean",
            "deviation",
        ],
        2,
    );
    for seed in &document.seed_rows {
        let mut cells = vec![
            seed.policy.name().to_owned(),
            seed.load.clone(),
            format!("{:.0}", seed.max_us),
            format!("{:.0}", seed.mean_us),
            format!("{:.0}", seed.deviation_us),
        ];
        match document.rows.iter().find(|row| is_of(seed, row)) {
            Some(row) => cells.extend([
                format!("{:.0}", row.max_us),
                format!("{:.0}", row.mean_us),
                format!("{:.0}", row.deviation_us),
            ]),
            None => cells.extend(["-", "-", "-"].map(str::to_owned)),
        }
        table.add_row(cells);
    }
    table
}

fn is_of(seed: &SeedRow, row: &Row) -> bool {
    row.policy == seed.policy
        && row.load == seed.load
        && row.mode == TimerMode::Periodic
        && row.uptime_s == seed.uptime_s.unwrap_or(0)
}

fn simulated<'a>(rows: impl Iterator<Item = &'a Row>) -> Table {
    let mut table = table(
        &[
            "policy",
            "max",
            "mean",
            "deviation",
            "p99.9",
            "merged",
            "missing",
            "early",
            "lost timers",
            "in a row",
            "drift",
        ],
        1,
    );
    for row in rows {
        table.add_row([
            row.policy.name().to_owned(),
            format!("{:.0}", row.max_us),
            format!("{:.2}", row.mean_us),
            format!("{:.1}", row.deviation_us),
            row.p99_9_us.map_or("-".to_owned(), |us| format!("{us:.0}")),
            row.ticks_merged.to_string(),
            row.periods_missing.to_string(),
            row.early_ticks.to_string(),
            row.lost_timers.to_string(),
            row.longest_burst.to_string(),
            format!("{:.1}", row.drift_us),
        ]);
    }
    table
}

fn uptime(seconds: u64) -> String {
    match seconds {
        0 => "boot".to_owned(),
        s if s % 86_400 == 0 => format!("{} days", s / 86_400),
        s if s % 3600 == 0 => format!("{} h", s / 3600),
        s => format!("{s} s"),
    }
}
