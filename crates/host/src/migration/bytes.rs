//! Bytes with a header and a checksum, and the errors of reading them.

use chronovisor_abi::quantity::Hertz;

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

pub(super) fn encode(
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

pub(super) fn decode<T>(
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

/// CRC-32 (IEEE 802.3) of each byte.
const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let (mut byte, mut seed) = (0, 0);
    while byte < 256 {
        let (mut crc, mut bit) = (seed, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
        seed += 1;
    }
    table
};

/// CRC-32 (IEEE 802.3).
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        let [low, ..] = crc.to_le_bytes();
        crc = (crc >> 8) ^ CRC_TABLE[usize::from(low ^ byte)];
    }
    !crc
}

pub(super) struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

pub(super) type Written = Result<(), EncodeError>;

impl Writer<'_> {
    pub(super) fn put(&mut self, bytes: &[u8]) -> Written {
        let size = self.buffer.len();
        let room = self.buffer.get_mut(self.at..self.at + bytes.len());
        room.ok_or(EncodeError { size })?.copy_from_slice(bytes);
        self.at += bytes.len();
        Ok(())
    }

    pub(super) fn u8(&mut self, value: u8) -> Written {
        self.put(&[value])
    }

    pub(super) fn u32(&mut self, value: u32) -> Written {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> Written {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u128(&mut self, value: u128) -> Written {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn hertz(&mut self, rate: Hertz) -> Written {
        self.u64(rate.numerator())?;
        self.u64(rate.denominator())
    }

    pub(super) fn option<T>(
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
}

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let cut_off = DecodeError::CutOff {
            at: self.bytes.len(),
        };
        let bytes = self.bytes.get(self.at..self.at + N).ok_or(cut_off)?;
        self.at += N;
        bytes.try_into().map_err(|_| cut_off)
    }

    pub(super) const fn impossible(&self) -> DecodeError {
        DecodeError::ImpossibleValue { at: self.at }
    }

    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take().map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Result<u128, DecodeError> {
        self.take().map(u128::from_le_bytes)
    }

    pub(super) fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.impossible()),
        }
    }

    pub(super) fn option<T>(
        &mut self,
        body: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.flag()? {
            body(self).map(Some)
        } else {
            Ok(None)
        }
    }

    pub(super) fn hertz(&mut self) -> Result<Hertz, DecodeError> {
        let (numerator, denominator) = (self.u64()?, self.u64()?);
        Hertz::from_ratio(u128::from(numerator), u128::from(denominator))
            .filter(|rate| rate.numerator() == numerator)
            .ok_or(self.impossible())
    }
}

#[cfg(test)]
mod tests {
    use super::crc32;

    /// The check value of CRC-32/ISO-HDLC.
    #[test]
    fn the_checksum_is_the_known_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
