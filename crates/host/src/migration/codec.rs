//! The states as bytes: little endian, with a header and a checksum.
//!
//! ```text
//! magic (4) | version (2) | length of the payload (2) | payload | CRC-32 of all before (4)
//! ```

use chronovisor_abi::quantity::{Nanos, Ppb, RefTime, Tsc, TscDelta};
use chronovisor_abi::reference_tsc::Parameters;
use chronovisor_abi::scale::{PvclockScale, ReferenceScale};
use chronovisor_abi::vmclock::{ClockStatus, LeapIndicator, Period, WallTime};

use super::bytes::{DecodeError, EncodeError, Reader, Writer, Written, decode, encode};
use super::state::{ClockState, VcpuState, VmState};
use crate::kvmclock::{StopUnanswered, VcpuTsc};
use crate::partition_clock::{
    Counter, ExactNanos, Master, PvclockLine, ReferenceLine, ReferenceStart as Start, TimeOfDay,
    Wall,
};
use crate::reenlightenment::{Emulation, Reenlightenment};
use crate::vmclock::{Line, Notification, Offered, Outlook, Publisher};

const VM_MAGIC: [u8; 4] = *b"CVvm";
const VCPU_MAGIC: [u8; 4] = *b"CVvc";

impl VmState {
    /// The most bytes that a state needs.
    pub const MAX_BYTES: usize = 424;

    /// Writes the state into the caller's buffer and returns how many bytes it took.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] if the buffer is too small; its content is undefined then.
    pub fn encode(&self, buffer: &mut [u8]) -> Result<usize, EncodeError> {
        encode(VM_MAGIC, buffer, |to| {
            let clock = &self.clock;
            to.u64(clock.saved_at.as_ticks())?;
            to.u64(clock.budget.as_ns())?;
            to.u8(u8::from(clock.counter == Counter::Varying))?;
            to.u64(clock.lead.as_ticks())?;
            to.master(&clock.master)?;
            to.pvclock(&clock.pvclock)?;
            to.reference(&clock.reference)?;
            to.u64(clock.page_register)?;
            to.u32(clock.page_sequence)?;
            to.option(clock.last_count, |to, count| to.u64(count.as_100ns()))?;
            to.option(clock.wall, |to, wall| to.wall(&wall))?;
            to.u64(clock.wall_clock_register)?;
            to.u32(clock.wall_clock_version)?;
            to.vmclock(&clock.vmclock)?;
            to.u64(self.reenlightenment.control())?;
            to.u64(self.reenlightenment.emulation_control())?;
            to.option(self.reenlightenment.emulation(), |to, running| {
                to.u64(running.raw.as_ticks())?;
                to.u64(running.seen.as_ticks())?;
                to.hertz(running.old)?;
                to.hertz(running.new)
            })?;
            to.u64(self.guest_os_id)?;
            to.u64(self.hypercall)?;
            to.u64(self.invariant_control)
        })
    }

    /// The state that `bytes` hold.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]: cut off, damaged, of an unknown version, or with a value that no save writes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode(VM_MAGIC, bytes, |from| {
            let clock = ClockState {
                saved_at: Tsc::from_ticks(from.u64()?),
                budget: Nanos::from_ns(from.u64()?),
                counter: if from.flag()? {
                    Counter::Varying
                } else {
                    Counter::Invariant
                },
                lead: TscDelta::from_ticks(from.u64()?),
                master: from.master()?,
                pvclock: from.pvclock()?,
                reference: from.reference()?,
                page_register: from.u64()?,
                page_sequence: from.u32()?,
                last_count: from.option(|from| Ok(RefTime::from_100ns(from.u64()?)))?,
                wall: from.option(Reader::wall)?,
                wall_clock_register: from.u64()?,
                wall_clock_version: from.u32()?,
                vmclock: from.vmclock()?,
            };
            let (control, emulation_control) = (from.u64()?, from.u64()?);
            let emulation = from.option(|from| {
                Ok(Emulation {
                    raw: Tsc::from_ticks(from.u64()?),
                    seen: Tsc::from_ticks(from.u64()?),
                    old: from.hertz()?,
                    new: from.hertz()?,
                })
            })?;
            Ok(Self {
                clock,
                reenlightenment: Reenlightenment::restored(control, emulation_control, emulation),
                guest_os_id: from.u64()?,
                hypercall: from.u64()?,
                invariant_control: from.u64()?,
            })
        })
    }
}

impl VcpuState {
    /// The most bytes that a state needs.
    pub const MAX_BYTES: usize = 50;

    /// Writes the state into the caller's buffer and returns how many bytes it took.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] if the buffer is too small; its content is undefined then.
    pub fn encode(&self, buffer: &mut [u8]) -> Result<usize, EncodeError> {
        encode(VCPU_MAGIC, buffer, |to| {
            to.u64(self.record.register)?;
            to.u32(self.record.version)?;
            to.u8(u8::from(self.record.stop_unanswered == StopUnanswered::Yes))?;
            let skew = match self.record.tsc {
                VcpuTsc::Equal => None,
                VcpuTsc::Skewed { offset, bound } => Some((offset, bound)),
            };
            to.option(skew, |to, (offset, bound)| {
                to.u64(offset.as_ticks())?;
                to.u64(bound.as_ticks())
            })?;
            to.u64(self.assist_page)
        })
    }

    /// The state that `bytes` hold.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]: cut off, damaged, of an unknown version, or with a value that no save writes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode(VCPU_MAGIC, bytes, |from| {
            Ok(Self {
                record: crate::partition_clock::RecordState {
                    register: from.u64()?,
                    version: from.u32()?,
                    stop_unanswered: if from.flag()? {
                        StopUnanswered::Yes
                    } else {
                        StopUnanswered::No
                    },
                    tsc: from
                        .option(|from| {
                            Ok(VcpuTsc::Skewed {
                                offset: TscDelta::from_ticks(from.u64()?),
                                bound: TscDelta::from_ticks(from.u64()?),
                            })
                        })?
                        .unwrap_or(VcpuTsc::Equal),
                },
                assist_page: from.u64()?,
            })
        })
    }
}

impl Writer<'_> {
    fn master(&mut self, master: &Master) -> Written {
        self.u64(master.base().as_ticks())?;
        self.u128(master.at(master.base()).as_raw())?;
        self.hertz(master.rate())
    }

    fn pvclock(&mut self, line: &PvclockLine) -> Written {
        self.u64(line.timestamp().as_ticks())?;
        self.u64(line.time().as_ns())?;
        self.u32(line.scale().mul())?;
        self.put(&line.scale().shift().to_le_bytes())?;
        self.u64(line.since().as_ticks())
    }

    fn reference(&mut self, line: &ReferenceLine) -> Written {
        match line.parts() {
            Ok(parameters) => {
                self.u8(1)?;
                self.u64(parameters.scale.as_raw())?;
                self.u64(parameters.offset.cast_unsigned())?;
            }
            Err(start) => {
                self.u8(0)?;
                self.u64(start.value.as_100ns())?;
                self.u64(start.phase)?;
            }
        }
        self.u64(line.since().as_ticks())?;
        self.u128(line.behind().as_raw())
    }

    fn wall(&mut self, wall: &Wall) -> Written {
        self.u128(wall.origin())?;
        let told = wall.told();
        self.u64(told.tsc.as_ticks())?;
        self.u64(told.tai.sec)?;
        self.u64(told.tai.frac_sec)?;
        self.option(told.tai_offset_sec, |to, sec| to.put(&sec.to_le_bytes()))?;
        self.u8(told.leap.0)?;
        self.u8(told.status.0)?;
        for error in [told.estimated_error, told.maximum_error] {
            self.option(error, |to, error| to.u64(error.as_ns()))?;
        }
        for error in [told.rate_estimated_error, told.rate_maximum_error] {
            self.option(error, |to, error| to.u64(error.as_femto().cast_unsigned()))?;
        }
        Ok(())
    }

    fn vmclock(&mut self, page: &Publisher) -> Written {
        self.u8(u8::from(page.offered == Offered::Yes))?;
        self.u32(page.sequence)?;
        self.u64(page.disruption_marker)?;
        self.u64(page.generation)?;
        self.u8(match page.outlook {
            Outlook::Calm => 0,
            Outlook::WithinDay => 1,
            Outlook::WithinHour => 2,
        })?;
        self.u8(u8::from(page.notification == Notification::Present))?;
        self.option(page.line, |to, line| {
            to.u64(line.counter.as_ticks())?;
            to.u128(line.time)?;
            to.u64(line.period.frac_sec)?;
            to.u8(line.period.shift)?;
            to.u128(line.ahead.cast_unsigned())
        })
    }
}

impl Reader<'_> {
    fn master(&mut self) -> Result<Master, DecodeError> {
        let base = Tsc::from_ticks(self.u64()?);
        let time = ExactNanos::from_raw(self.u128()?);
        Ok(Master::new(base, time, self.hertz()?))
    }

    fn pvclock(&mut self) -> Result<PvclockLine, DecodeError> {
        let timestamp = Tsc::from_ticks(self.u64()?);
        let time = Nanos::from_ns(self.u64()?);
        let (mul, shift) = (self.u32()?, i8::from_le_bytes(self.take()?));
        let scale = PvclockScale::from_raw(mul, shift).map_err(|_| self.impossible())?;
        Ok(PvclockLine::from_parts(
            timestamp,
            time,
            scale,
            Tsc::from_ticks(self.u64()?),
        ))
    }

    fn reference(&mut self) -> Result<ReferenceLine, DecodeError> {
        let parts = if self.flag()? {
            Ok(Parameters {
                scale: ReferenceScale::from_raw(self.u64()?),
                offset: self.u64()?.cast_signed(),
            })
        } else {
            Err(Start {
                value: RefTime::from_100ns(self.u64()?),
                phase: self.u64()?,
            })
        };
        if parts.is_ok_and(|line| line.scale.as_raw() == 0) {
            return Err(self.impossible());
        }
        let since = Tsc::from_ticks(self.u64()?);
        let behind = ExactNanos::from_raw(self.u128()?);
        Ok(ReferenceLine::from_parts(parts, since, behind))
    }

    fn wall(&mut self) -> Result<Wall, DecodeError> {
        let origin = self.u128()?;
        let told = TimeOfDay {
            tsc: Tsc::from_ticks(self.u64()?),
            tai: WallTime {
                sec: self.u64()?,
                frac_sec: self.u64()?,
            },
            tai_offset_sec: self.option(|from| from.take().map(i16::from_le_bytes))?,
            leap: LeapIndicator(self.u8()?),
            status: ClockStatus(self.u8()?),
            estimated_error: self.option(|from| from.u64().map(Nanos::from_ns))?,
            maximum_error: self.option(|from| from.u64().map(Nanos::from_ns))?,
            rate_estimated_error: self.option(Self::ppb)?,
            rate_maximum_error: self.option(Self::ppb)?,
        };
        Ok(Wall::restored(origin, told))
    }

    fn ppb(&mut self) -> Result<Ppb, DecodeError> {
        Ok(Ppb::from_femto(self.u64()?.cast_signed()))
    }

    fn vmclock(&mut self) -> Result<Publisher, DecodeError> {
        Ok(Publisher {
            offered: if self.flag()? {
                Offered::Yes
            } else {
                Offered::No
            },
            sequence: self.u32()?,
            disruption_marker: self.u64()?,
            generation: self.u64()?,
            outlook: match self.u8()? {
                0 => Outlook::Calm,
                1 => Outlook::WithinDay,
                2 => Outlook::WithinHour,
                _ => return Err(self.impossible()),
            },
            notification: if self.flag()? {
                Notification::Present
            } else {
                Notification::Absent
            },
            line: self.option(|from| {
                let (counter, time) = (Tsc::from_ticks(from.u64()?), from.u128()?);
                let period = Period {
                    frac_sec: from.u64()?,
                    shift: from.u8()?,
                };
                if period.shift > 63 {
                    return Err(from.impossible());
                }
                Ok(Line {
                    counter,
                    time,
                    period,
                    ahead: from.u128()?.cast_signed(),
                })
            })?,
        })
    }
}
