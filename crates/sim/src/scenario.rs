//! What can be run: built-in scenarios and those that a user writes, both as TOML.
//!
//! # Theory
//!
//! A scenario is a set of parameters and the units that follow from them. The built-in ones are TOML files of this crate, with a comment
//! at each parameter, so that `show` prints something to start from and nothing about a scenario is hidden in code.
//!
//! # Practice
//!
//! [`Scenario::from_toml`] reads a text; [`builtin`] finds a text by name.
//!
//! # Migration
//!
//! See [`migration`].
//!
//! # Caveats
//!
//! The figures of a scenario belong to its parameters. Change one and they are no longer the published ones.
//!
//! # References
//!
//! None.

pub mod clock_update;
pub mod guard_scaling;
pub mod lapic_spikes;
pub mod migration;
pub mod smp_boot;
mod text;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::runner::Units;

pub use text::{ScenarioError, kind_of, parse};

/// The built-in scenarios: name, one line about it, and its TOML.
pub const BUILTIN: &[Builtin] = &[
    Builtin {
        name: lapic_spikes::NAME,
        about: "a guest's 1 ms timer under our policies and five historical models, idle and stressed, after up to 30 days",
        toml: include_str!("scenario/lapic-spikes.toml"),
    },
    Builtin {
        name: migration::NAME,
        about: "machines that migrate once each, among hosts with other counters: backward steps, largest step, loss or gain of every clock",
        toml: include_str!("scenario/migration.toml"),
    },
    Builtin {
        name: clock_update::NAME,
        about: "vCPUs come, rates change, the time of day is told, every few minutes for 40 h: the jump of every clock at each update",
        toml: include_str!("scenario/clock-update.toml"),
    },
    Builtin {
        name: smp_boot::NAME,
        about: "16 and 32 CPUs brought up: every one calibrates its delay loop, copies it from a sibling, or is told",
        toml: include_str!("scenario/smp-boot.toml"),
    },
    Builtin {
        name: guard_scaling::NAME,
        about: "1 to 64 CPUs that read one clock without a guard, under a last value for all, and under a coarse one",
        toml: include_str!("scenario/guard-scaling.toml"),
    },
];

/// A scenario that comes with the program.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// How it is called.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Its parameters.
    pub toml: &'static str,
}

/// The built-in scenario called `name`.
#[must_use]
pub fn builtin(name: &str) -> Option<&'static Builtin> {
    BUILTIN.iter().find(|builtin| builtin.name == name)
}

/// The built-in name that is most like `name`, for a hint.
#[must_use]
pub fn nearest_name(name: &str) -> Option<&'static str> {
    text::nearest(name, BUILTIN.iter().map(|builtin| builtin.name))
}

/// What every scenario is.
pub trait Scenario: Units<Tally: Serialize + DeserializeOwned + JsonSchema> + Sized {
    /// The name, as a TOML's key `scenario` gives it.
    const NAME: &'static str;
    /// What a TOML file holds.
    type Parameters: DeserializeOwned + Serialize + JsonSchema + Clone;
    /// A row of results.
    type Row: Serialize + JsonSchema;
    /// A row of published figures, to stand beside.
    type SeedRow: Serialize + JsonSchema;

    /// A scenario with these parameters.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`] if a parameter is impossible.
    fn new(parameters: Self::Parameters) -> Result<Self, ScenarioError>;
    /// The parameters.
    fn parameters(&self) -> &Self::Parameters;
    /// How often everything is repeated, or how many machines there are.
    fn runs(&self) -> u64;
    /// Sets [`Units::seed`] and [`Self::runs`], where given.
    fn set(&mut self, seed: Option<u64>, runs: Option<u64>);
    /// The results.
    fn rows(&self, tally: &Self::Tally) -> Vec<Self::Row>;
    /// The published figures.
    fn seed_rows(&self) -> Vec<Self::SeedRow>;

    /// The scenario that `text` describes.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`], with the line and the nearest right key for a wrong one.
    fn from_toml(text: &str) -> Result<Self, ScenarioError> {
        Self::new(parse(text)?)
    }
}
