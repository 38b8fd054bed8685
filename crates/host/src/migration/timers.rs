//! A vCPU's synthetic timers and interrupt controller as bytes, beside its clocks.

use chronovisor_abi::quantity::RefTime;
use chronovisor_abi::synthetic_timer::{Config, InterruptSource, SOURCES, TIMERS};

use super::bytes::{DecodeError, EncodeError, Reader, Writer, Written, decode, encode};
use crate::synic::SynicRegisters;
use crate::synthetic_timer::{SyntheticTimerState, VcpuTimersState};

const MAGIC: [u8; 4] = *b"CVst";

impl VcpuTimersState {
    /// The most bytes that a state needs.
    pub const MAX_BYTES: usize = 352;

    /// Writes the state into the caller's buffer and returns how many bytes it took.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] if the buffer is too small; its content is undefined then.
    pub fn encode(&self, buffer: &mut [u8]) -> Result<usize, EncodeError> {
        encode(MAGIC, buffer, |to| {
            to.u64(self.synic.control)?;
            to.u64(self.synic.event_flags_page)?;
            to.u64(self.synic.message_page)?;
            for source in self.synic.sources {
                to.u64(source.0)?;
            }
            self.timers.iter().try_for_each(|timer| to.timer(timer))
        })
    }

    /// The state that `bytes` hold. Whether it makes sense is asked when it is restored.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]: cut off, damaged, of an unknown version, or with a value that no save writes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode(MAGIC, bytes, |from| {
            let mut state = Self {
                synic: SynicRegisters {
                    control: from.u64()?,
                    event_flags_page: from.u64()?,
                    message_page: from.u64()?,
                    sources: [InterruptSource::RESET; SOURCES],
                },
                timers: [SyntheticTimerState::default(); TIMERS],
            };
            for source in &mut state.synic.sources {
                *source = InterruptSource(from.u64()?);
            }
            for timer in &mut state.timers {
                *timer = from.timer()?;
            }
            Ok(state)
        })
    }
}

impl Writer<'_> {
    fn timer(&mut self, timer: &SyntheticTimerState) -> Written {
        self.u64(timer.config.0)?;
        self.u64(timer.count)?;
        for time in [timer.due, timer.undelivered, timer.last_signal] {
            self.option(time, |to, time| to.u64(time.as_100ns()))?;
        }
        self.u32(timer.backlog)
    }
}

impl Reader<'_> {
    fn timer(&mut self) -> Result<SyntheticTimerState, DecodeError> {
        let (config, count) = (Config(self.u64()?), self.u64()?);
        let mut time = || self.option(|from| from.u64().map(RefTime::from_100ns));
        let (due, undelivered, last_signal) = (time()?, time()?, time()?);
        Ok(SyntheticTimerState {
            config,
            count,
            due,
            undelivered,
            backlog: self.u32()?,
            last_signal,
        })
    }
}
