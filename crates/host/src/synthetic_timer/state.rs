//! Synthetic timers at rest.

use chronovisor_abi::quantity::RefTime;
use chronovisor_abi::synthetic_timer::{Config, TIMERS};

use super::mutant::{Mutant, is};
use super::timer::Timer;
use super::{DirectMode, Settings, VcpuTimers};
use crate::synic::{Fault, Synic, SynicRegisters};

/// One timer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SyntheticTimerState {
    /// CONFIG.
    pub config: Config,
    /// COUNT, in 100 ns.
    pub count: u64,
    /// The next time at which it is due, in reference time: for a periodic timer the phase of its grid.
    pub due: Option<RefTime>,
    /// When the message that waits for its slot was due.
    pub undelivered: Option<RefTime>,
    /// Ticks that a catch-up owes.
    pub backlog: u32,
    /// The reference time of the last signal.
    pub last_signal: Option<RefTime>,
}

/// The state of one virtual processor's timers and interrupt controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuTimersState {
    /// The interrupt controller.
    pub synic: SynicRegisters,
    /// The timers.
    pub timers: [SyntheticTimerState; TIMERS],
}

/// Why a state is no state of these timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The interrupt controller's registers are impossible.
    #[error("synthetic interrupt controller: {0}")]
    Synic(Fault),
    /// CONFIG has bits that no write can set.
    #[error("timer {timer}: config {:#x} has reserved bits set: the state is damaged or from a newer model", config.0)]
    ReservedBits {
        /// The timer.
        timer: usize,
        /// Its CONFIG.
        config: Config,
    },
    /// The timer reports directly, which the settings do not offer.
    #[error(
        "timer {timer} was saved in direct mode, which this vm does not offer: set cpuid 0x40000003.edx[19] before the restore"
    )]
    DirectModeNotOffered {
        /// The timer.
        timer: usize,
    },
    /// The timer is armed without being enabled, or with a count of 0.
    #[error("timer {timer} is due although it is disabled or its count is 0: the state is damaged")]
    ArmedWhileDisabled {
        /// The timer.
        timer: usize,
    },
    /// The timer is enabled with a count, and has neither a time at which it is due nor a way to tell it: it would never come.
    #[error(
        "timer {timer} is enabled but never due, or reports to no source: the state is damaged"
    )]
    EnabledButNeverDue {
        /// The timer.
        timer: usize,
    },
    /// A message waits that the timer could not have sent.
    #[error("timer {timer} holds a message but reports to no source: the state is damaged")]
    MessageWithoutSource {
        /// The timer.
        timer: usize,
    },
}

impl VcpuTimers {
    /// The state. Nothing is lost by saving it before a due timer was signalled: its due time is in it.
    #[must_use]
    pub fn save(&self) -> VcpuTimersState {
        VcpuTimersState {
            synic: self.synic.registers(),
            timers: self.timers.map(|timer| SyntheticTimerState {
                config: timer.config,
                count: timer.count,
                due: timer.due,
                undelivered: timer.undelivered,
                backlog: timer.backlog,
                last_signal: timer.last_signal,
            }),
        }
    }

    /// Timers with `state`, going on when reference time does. Ask for [`Self::next_due`] and set the wake-up.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state contradicts itself or the settings.
    pub fn restore(settings: Settings, state: &VcpuTimersState) -> Result<Self, StateError> {
        let mut timers = Self::new(settings);
        timers.synic = Synic::restore(state.synic).map_err(StateError::Synic)?;
        for (index, saved) in state.timers.iter().enumerate() {
            judge(index, saved, settings)?;
            timers.timers[index] = Timer {
                config: saved.config,
                count: saved.count,
                due: saved.due,
                undelivered: saved
                    .undelivered
                    .filter(|_| !is(Mutant::RestoreForgetsMessage)),
                backlog: saved.backlog,
                last_signal: saved.last_signal,
            };
        }
        Ok(timers)
    }
}

fn judge(timer: usize, saved: &SyntheticTimerState, settings: Settings) -> Result<(), StateError> {
    let config = saved.config;
    if config.has(Config::RESERVED) {
        return Err(StateError::ReservedBits { timer, config });
    }
    let direct = config.has(Config::DIRECT_MODE);
    if direct && settings.direct_mode == DirectMode::Absent {
        return Err(StateError::DirectModeNotOffered { timer });
    }
    if saved.due.is_some() && (!config.has(Config::ENABLED) || saved.count == 0) {
        return Err(StateError::ArmedWhileDisabled { timer });
    }
    let silent = !direct && config.source() == 0;
    let enabled = config.has(Config::ENABLED);
    if enabled && (silent || (saved.due.is_none() && saved.count != 0)) {
        return Err(StateError::EnabledButNeverDue { timer });
    }
    if saved.undelivered.is_some() && (direct || silent) {
        return Err(StateError::MessageWithoutSource { timer });
    }
    Ok(())
}
