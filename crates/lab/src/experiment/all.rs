//! `lab all`: every experiment in one run, and one table of the systems S1 to S9 beside the published figures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Place, Progress, clocks, migrate, smp, timers};
use crate::LabError;
use crate::backend::Backend;

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A few seconds: to see that everything works.
    Small,
    /// Half a minute.
    Usual,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    /// `S1` to `S9`.
    pub system: String,
    /// What was measured.
    pub what: String,
    /// The figure; none if this backend cannot run it.
    pub value: Option<f64>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    /// Its unit.
    pub unit: String,
    /// The published figure, in the same unit.
    pub published: Option<f64>,
    /// The backend that ran it.
    pub backend: String,
}

/// Everything.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Report {
    /// Where.
    pub place: Place,
    /// The table.
    pub rows: Vec<Line>,
    /// `lab clocks`.
    pub clocks: clocks::Report,
    /// `lab smp`.
    pub smp: smp::Report,
    /// `lab timers`.
    pub timers: timers::Report,
    /// `lab migrate`.
    pub migrate: migrate::Report,
}

impl Report {
    /// The clocks agree, and at a move none of ours stepped back, stood or jumped where the policy says otherwise.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.clocks.holds() && self.migrate.holds()
    }
}

/// Runs every experiment, with guests of `vcpus` vCPUs where clocks are read at once or moved.
///
/// # Errors
///
/// [`LabError`] of the experiment that failed.
pub fn run(
    backend: &Backend,
    size: Size,
    vcpus: u32,
    progress: Progress<'_>,
) -> Result<Report, LabError> {
    let small = size == Size::Small;
    let mut at_once = vec![1, vcpus];
    at_once.dedup();
    let options = clocks::Options {
        vcpus: at_once,
        ..clocks::Options::default()
    };
    let clocks = clocks::run(backend, &options, &mut |what, share| {
        progress(&format!("clocks: {what}"), share * 0.2);
    })?;
    let options = smp::Options {
        vcpus: if small { vec![4] } else { vec![16] },
        ..smp::Options::default()
    };
    let smp = smp::run(backend, &options, &mut |what, share| {
        progress(&format!("smp: {what}"), 0.2 + share * 0.2)
    })?;
    let loads = if small {
        vec![timers::Load::Idle]
    } else {
        vec![timers::Load::Idle, timers::Load::Stress]
    };
    let options = timers::Options {
        ticks: if small { 50 } else { 500 },
        loads,
        ..timers::Options::default()
    };
    let timers = timers::run(backend, &options, &mut |what, share| {
        progress(&format!("timers: {what}"), 0.4 + share * 0.3)
    })?;
    let options = migrate::Options {
        vcpus,
        count: if small { 3 } else { 20 },
        ..migrate::Options::default()
    };
    let migrate = migrate::run(backend, &options, &mut |what, share| {
        progress(&format!("migrate: {what}"), 0.7 + share * 0.3)
    })?;
    let place = Place::of(backend);
    let mut table = Table {
        backend: place.short(),
        lines: Vec::new(),
    };
    table.clocks(&clocks);
    table.moves(&migrate);
    table.bring_up(&smp);
    table.ticks(&timers);
    let rows = table.sorted();
    Ok(Report {
        place,
        rows,
        clocks,
        smp,
        timers,
        migrate,
    })
}

struct Table {
    backend: String,
    lines: Vec<Line>,
}

impl Table {
    /// By system; within one, as they came.
    fn sorted(mut self) -> Vec<Line> {
        self.lines.sort_by(|a, b| a.system.cmp(&b.system));
        self.lines
    }

    fn line(
        &mut self,
        system: &str,
        what: String,
        value: Result<f64, String>,
        unit: &str,
        published: Option<f64>,
    ) {
        let (value, why_not) = match value {
            Ok(value) => (Some(value), None),
            Err(why) => (None, Some(why)),
        };
        self.lines.push(Line {
            system: system.to_owned(),
            what,
            value,
            why_not,
            unit: unit.to_owned(),
            published,
            backend: self.backend.clone(),
        });
    }

    fn clocks(&mut self, report: &clocks::Report) {
        let one = report.rows.iter().map(|row| row.vcpus).min().unwrap_or(1);
        let most = report.rows.iter().map(|row| row.vcpus).max().unwrap_or(1);
        let find = |clock: &str, ring, vcpus| {
            report
                .rows
                .iter()
                .find(|row| row.clock == clock && row.ring == ring && row.vcpus == vcpus)
                .map_or_else(
                    || Err("not measured".to_owned()),
                    |row| match row.cycles {
                        Some(_) if !row.at_once => Err(format!(
                            "this host was busy and ran the {vcpus} vCPUs in turns: not at once"
                        )),
                        Some(cycles) => Ok(cycles),
                        None => Err(row.why_not.clone().unwrap_or_default()),
                    },
                )
        };
        for (system, clock, ring, published) in [
            ("S1", "sched-clock-page", 0, Some(49.0)),
            ("S1", "reference-tsc-page", 3, Some(131.0)),
            ("S2", "sched-clock-msr", 0, Some(3361.0)),
            ("S2", "reference-counter-msr", 3, Some(5664.0)),
            ("S2", "null-msr-exit", 0, None),
            ("S4", "rdtsc", 3, Some(72.0)),
            ("S4", "rdtscp", 3, None),
            ("S4", "pvclock-page", 3, Some(240.0)),
            ("S4", "pvclock-page-ours", 3, None),
            ("S6", "trapped-rdtsc", 3, Some(1080.0)),
            ("S6", "hypercall-time", 3, Some(780.0)),
            ("S6", "hypercall-clock-pairing", 0, Some(780.0)),
        ] {
            self.line(
                system,
                format!("{clock}, ring {ring}"),
                find(clock, ring, one),
                "cycles",
                published,
            );
        }
        if let Some(first) = report.sched_clock_first_ns {
            let us = std::time::Duration::from_nanos(first).as_secs_f64() * 1e6;
            self.line(
                "S1",
                "sched_clock at its first read".to_owned(),
                Ok(us),
                "us",
                None,
            );
        }
        for ratio in &report.ratios {
            let wanted = match ratio.name {
                "counter MSR / reference page" => "S2",
                "reference page / rdtscp" => "S1",
                "kvm-clock / rdtscp" => "S4",
                _ => continue,
            };
            if ratio.ring == 3 && ratio.vcpus == one {
                self.line(
                    wanted,
                    format!("{}, ring 3", ratio.name),
                    Ok(ratio.ratio),
                    "ratio",
                    ratio.seed,
                );
            }
        }
        let mut at_once = vec![one, most];
        at_once.dedup();
        for vcpus in at_once {
            for clock in [
                "rdtscp",
                "pvclock-page",
                "pvclock-guarded",
                "pvclock-guarded-coarse",
            ] {
                let seed = match (clock, vcpus == one) {
                    ("rdtscp", true) => Some(31.5),
                    ("pvclock-guarded", true) => Some(211.2),
                    _ => None,
                };
                let ns = if report.runs_at_once(vcpus) {
                    find(clock, 3, vcpus).map(|cycles| cycles * 1e9 / hz(report.tsc_hz))
                } else {
                    Err(format!(
                        "{vcpus} vCPUs take turns on {} CPU{} of this host: not at once",
                        report.host_cpus,
                        if report.host_cpus == 1 { "" } else { "s" }
                    ))
                };
                self.line(
                    "S5",
                    format!(
                        "{clock}, {vcpus} vCPU{} at once",
                        if vcpus == 1 { "" } else { "s" }
                    ),
                    ns,
                    "ns",
                    seed,
                );
            }
        }
    }

    fn moves(&mut self, report: &migrate::Report) {
        // A read counts if it was less than any before, so one step of a clock is many of them.
        let steps = |clock: &str| -> (f64, f64) {
            let rows = report.rows.iter().filter(|row| row.clock == clock);
            rows.fold((0.0, 0.0), |(steps, reads), row| {
                (steps + count(row.steps_back), reads + count(row.reads))
            })
        };
        let moves: u32 = report.moves.iter().map(|moves| moves.count).sum();
        let (raw, _) = steps("raw tsc");
        let jumped = report.moves.iter().any(|moves| moves.largest_tsc_jump > 0);
        let raw = if jumped {
            Ok(raw)
        } else {
            Err("this KVM ignores TSC offsets".to_owned())
        };
        self.line(
            "S3",
            "raw TSC: reads that went back at moves".to_owned(),
            raw,
            "reads",
            None,
        );
        for clock in [
            "sched-clock-page",
            "reference-tsc-page",
            "reference-counter-msr",
            "pvclock-page-ours",
        ] {
            let (back, reads) = steps(clock);
            let what = format!("{clock}: went back, of {reads:.0} reads, {moves} moves");
            self.line(
                if clock == "sched-clock-page" {
                    "S3"
                } else {
                    "S9"
                },
                what,
                Ok(back),
                "reads",
                Some(0.0),
            );
        }
    }

    fn bring_up(&mut self, report: &smp::Report) {
        for row in &report.rows {
            let published = match (row.method, row.vcpus) {
                ("each-calibrates", 16) => Some(1300.0),
                ("preset", 16) => Some(130.0),
                _ => None,
            };
            self.line(
                "S7",
                format!("{} vCPUs up, {}", row.vcpus, row.method),
                Ok(row.ms),
                "ms",
                published,
            );
        }
    }

    fn ticks(&mut self, report: &timers::Report) {
        for row in &report.rows {
            let [max, mean, deviation] = match row.load {
                timers::Load::Idle => [1834.0, 1100.0, 59.0],
                timers::Load::Stress => [32_000.0, 1006.0, 140.0],
            };
            let load = match row.load {
                timers::Load::Idle => "idle",
                timers::Load::Stress => "stress",
            };
            // The report of 2018 is about the periodic timer of KVM's APIC; ours stands beside it.
            if row.timer != "periodic" {
                continue;
            }
            for (figure, value, published) in [
                ("max", row.max_us, max),
                ("mean", row.mean_us, mean),
                ("deviation", row.deviation_us, deviation),
            ] {
                self.line(
                    "S8",
                    format!("1 ms periodic, {}, {load}: {figure}", row.apic),
                    Ok(value),
                    "us",
                    Some(published),
                );
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "figures for a table")]
fn hz(hz: u64) -> f64 {
    hz as f64
}

#[allow(clippy::cast_precision_loss, reason = "figures for a table")]
fn count(count: u64) -> f64 {
    count as f64
}
