//! Which scenarios there are: the one place that names each type.

use chronovisor_sim::scenario::{
    self, ScenarioError, clock_update, guard_scaling, lapic_spikes, migration, smp_boot,
};

use super::Options;
use super::merge::{self, Part};
use crate::exit::Exit;

/// A kind of scenario, as a TOML's key `scenario` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    ClockUpdate,
    GuardScaling,
    LapicSpikes,
    Migration,
    SmpBoot,
}

impl Kind {
    pub(super) fn of_name(name: &str) -> Option<Self> {
        match name {
            clock_update::NAME => Some(Self::ClockUpdate),
            guard_scaling::NAME => Some(Self::GuardScaling),
            lapic_spikes::NAME => Some(Self::LapicSpikes),
            migration::NAME => Some(Self::Migration),
            smp_boot::NAME => Some(Self::SmpBoot),
            _ => None,
        }
    }

    pub(super) fn of_text(text: &str) -> anyhow::Result<Self> {
        let name = scenario::kind_of(text)?;
        Self::of_name(&name).ok_or_else(|| {
            let hint = scenario::nearest_name(&name)
                .map(|near| format!(" (did you mean `{near}`?)"))
                .unwrap_or_default();
            let reason = format!("there is no kind `{name}`{hint}");
            let key = "scenario".to_owned();
            ScenarioError::Impossible { key, reason }.into()
        })
    }

    pub(super) fn simulate(self, text: &str, options: &Options) -> anyhow::Result<Exit> {
        match self {
            Self::ClockUpdate => super::simulate::<clock_update::ClockUpdate>(text, options),
            Self::GuardScaling => super::simulate::<guard_scaling::GuardScaling>(text, options),
            Self::LapicSpikes => super::simulate::<lapic_spikes::LapicSpikes>(text, options),
            Self::Migration => super::simulate::<migration::Migration>(text, options),
            Self::SmpBoot => super::simulate::<smp_boot::SmpBoot>(text, options),
        }
    }

    pub(super) fn merge(self, parts: Vec<Part>, options: &merge::Args) -> anyhow::Result<Exit> {
        match self {
            Self::ClockUpdate => merge::merge::<clock_update::ClockUpdate>(parts, options),
            Self::GuardScaling => merge::merge::<guard_scaling::GuardScaling>(parts, options),
            Self::LapicSpikes => merge::merge::<lapic_spikes::LapicSpikes>(parts, options),
            Self::Migration => merge::merge::<migration::Migration>(parts, options),
            Self::SmpBoot => merge::merge::<smp_boot::SmpBoot>(parts, options),
        }
    }
}
