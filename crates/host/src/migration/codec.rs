//! The states as bytes: little endian, with a header and a checksum.
//!
//! ```text
//! magic (4) | version (2) | length of the payload (2) | payload | CRC-32 of all before (4)
//! ```

use chronovisor_abi::quantity::{Hertz, Nanos, Ppb, RefTime, Tsc, TscDelta};
use chronovisor_abi::reference_tsc::Parameters;
use chronovisor_abi::scale::{PvclockScale, ReferenceScale};
use chronovisor_abi::vmclock::{ClockStatus, LeapIndicator, Period, WallTime};

use super::state::{ClockState, VcpuState, VmState};
use crate::kvmclock::{StopUnanswered, VcpuTsc};
use crate::partition_clock::{
    Counter, ExactNanos, Master, PvclockLine, ReferenceLine, TimeOfDay, Wall,
};
use crate::reenlightenment::{Emulation, Reenlightenment};
use crate::vmclock::{Line, Notification, Offered, Outlook, Publisher};

/// The buffer is too small for the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the state needs more than the buffer's {size} bytes: give MAX_BYTES")]
pub struct EncodeError {
    /// The buffer's size.
    pub size: usize,
}

/// Why bytes are no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the header says.
    #[error("the state is cut off at byte {at}")]
    CutOff {
        /// Where it ends.
        at: usize,
    },
    /// The first bytes are others.
    #[error("the bytes begin with {found:02x?}: this is no clock state")]
    NotAState {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version that this program does not know.
    #[error(
        "the state has version {found}, this program knows {}: restore it with a newer one",
        VERSION
    )]
    UnknownVersion {
        /// The version.
        found: u16,
    },
    /// The checksum does not fit.
    #[error(
        "the state's checksum is {found:#010x}, its bytes give {computed:#010x}: it is damaged"
    )]
    Checksum {
        /// What stands there.
        found: u32,
        /// What it should be.
        computed: u32,
    },
    /// A field has a value that no save writes.
    #[error("the state's field before byte {at} has an impossible value")]
    ImpossibleValue {
        /// Where the field ends.
        at: usize,
    },
    /// Bytes are left over.
    #[error("the state ends at byte {at}, but there are more bytes")]
    LeftOver {
        /// Where it ends.
        at: usize,
    },
}

const VERSION: u16 = 1;
const HEADER_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 4;
const VM_MAGIC: [u8; 4] = *b"CVvm";
const VCPU_MAGIC: [u8; 4] = *b"CVvc";

impl VmState {
    /// The most bytes that a state needs.
    pub const MAX_BYTES: usize = 511;

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
    pub const MAX_BYTES: usize = 64;

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

fn encode(
    magic: [u8; 4],
    buffer: &mut [u8],
    body: impl FnOnce(&mut Writer<'_>) -> Result<(), EncodeError>,
) -> Result<usize, EncodeError> {
    let mut writer = Writer { buffer, at: 0 };
    writer.put(&magic)?;
    writer.put(&VERSION.to_le_bytes())?;
    writer.put(&[0, 0])?;
    body(&mut writer)?;
    let length = u16::try_from(writer.at - HEADER_BYTES).unwrap_or(u16::MAX);
    let end = writer.at;
    writer.at = HEADER_BYTES - 2;
    writer.put(&length.to_le_bytes())?;
    writer.at = end;
    let checksum = crc32(writer.buffer.get(..end).unwrap_or_default());
    writer.put(&checksum.to_le_bytes())?;
    Ok(writer.at)
}

fn decode<T>(
    magic: [u8; 4],
    bytes: &[u8],
    body: impl FnOnce(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let mut header = Reader { bytes, at: 0 };
    let found = header.take()?;
    if found != magic {
        return Err(DecodeError::NotAState { found });
    }
    let version = u16::from_le_bytes(header.take()?);
    if version != VERSION {
        return Err(DecodeError::UnknownVersion { found: version });
    }
    let end = HEADER_BYTES + usize::from(u16::from_le_bytes(header.take()?));
    let checked = bytes
        .get(..end)
        .ok_or(DecodeError::CutOff { at: bytes.len() })?;
    let mut trailer = Reader { bytes, at: end };
    let (found, computed) = (u32::from_le_bytes(trailer.take()?), crc32(checked));
    if found != computed {
        return Err(DecodeError::Checksum { found, computed });
    }
    if bytes.len() > end + CHECKSUM_BYTES {
        return Err(DecodeError::LeftOver {
            at: end + CHECKSUM_BYTES,
        });
    }
    let mut reader = Reader {
        bytes: checked,
        at: HEADER_BYTES,
    };
    let value = body(&mut reader)?;
    if reader.at < end {
        return Err(DecodeError::LeftOver { at: reader.at });
    }
    Ok(value)
}

/// CRC-32 (IEEE 802.3), bit by bit: a state has a few hundred bytes.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

type Written = Result<(), EncodeError>;

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> Written {
        let size = self.buffer.len();
        let room = self.buffer.get_mut(self.at..self.at + bytes.len());
        room.ok_or(EncodeError { size })?.copy_from_slice(bytes);
        self.at += bytes.len();
        Ok(())
    }

    fn u8(&mut self, value: u8) -> Written {
        self.put(&[value])
    }

    fn u32(&mut self, value: u32) -> Written {
        self.put(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> Written {
        self.put(&value.to_le_bytes())
    }

    fn u128(&mut self, value: u128) -> Written {
        self.put(&value.to_le_bytes())
    }

    fn hertz(&mut self, rate: Hertz) -> Written {
        self.u64(rate.numerator())?;
        self.u64(rate.denominator())
    }

    fn option<T>(
        &mut self,
        value: Option<T>,
        body: impl FnOnce(&mut Self, T) -> Written,
    ) -> Written {
        match value {
            None => self.u8(0),
            Some(value) => {
                self.u8(1)?;
                body(self, value)
            }
        }
    }

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
        self.option(line.parameters(), |to, parameters| {
            to.u64(parameters.scale.as_raw())?;
            to.u64(parameters.offset.cast_unsigned())
        })?;
        self.u64(line.floor().as_100ns())?;
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
            to.u128(line.ahead)
        })
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let cut_off = DecodeError::CutOff {
            at: self.bytes.len(),
        };
        let bytes = self.bytes.get(self.at..self.at + N).ok_or(cut_off)?;
        self.at += N;
        bytes.try_into().map_err(|_| cut_off)
    }

    const fn impossible(&self) -> DecodeError {
        DecodeError::ImpossibleValue { at: self.at }
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    fn u128(&mut self) -> Result<u128, DecodeError> {
        self.take().map(u128::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.impossible()),
        }
    }

    fn option<T>(
        &mut self,
        body: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.flag()? {
            body(self).map(Some)
        } else {
            Ok(None)
        }
    }

    fn hertz(&mut self) -> Result<Hertz, DecodeError> {
        let (numerator, denominator) = (self.u64()?, self.u64()?);
        Hertz::from_ratio(u128::from(numerator), u128::from(denominator))
            .filter(|rate| rate.numerator() == numerator)
            .ok_or(self.impossible())
    }

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
        let parameters = self.option(|from| {
            Ok(Parameters {
                scale: ReferenceScale::from_raw(from.u64()?),
                offset: from.u64()?.cast_signed(),
            })
        })?;
        if parameters.is_some_and(|line| line.scale.as_raw() == 0) {
            return Err(self.impossible());
        }
        let floor = RefTime::from_100ns(self.u64()?);
        let since = Tsc::from_ticks(self.u64()?);
        let behind = ExactNanos::from_raw(self.u128()?);
        Ok(ReferenceLine::from_parts(parameters, floor, since, behind))
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
                    ahead: from.u128()?,
                })
            })?,
        })
    }
}
