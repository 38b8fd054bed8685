//! What a stream of bytes holds: compressed or not, an archive, JSON, or text of one or two bytes a character.

use flate2::read::MultiGzDecoder;
use std::io::{self, Cursor, Read};

/// What the bytes are, once they are unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Empty,
    Json,
    Tar,
    Text,
}

type Input = Box<dyn Read + Send>;

/// Bytes that decide.
const HEAD: usize = 512;

/// Packings inside each other that are undone.
const LAYERS: usize = 2;

/// Undoes compression and says what is inside.
///
/// # Errors
///
/// The first error of the input.
pub(super) fn unpack(mut input: Input) -> io::Result<(Kind, Input)> {
    for _ in 0..=LAYERS {
        let (head, rest) = peek(input)?;
        if head.starts_with(&[0x1f, 0x8b]) {
            input = Box::new(MultiGzDecoder::new(rest));
        } else if head.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
            input = Box::new(lzma_rust2::XzReader::new(rest, true));
        } else if head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]) {
            input = Box::new(TwoByteText::new(rest, head[0] == 0xff));
        } else {
            return Ok((kind(&head), rest));
        }
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "packed more often than twice",
    ))
}

fn kind(head: &[u8]) -> Kind {
    let text = head.strip_prefix(&[0xef, 0xbb, 0xbf]).unwrap_or(head);
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    if head.is_empty() {
        Kind::Empty
    } else if head.get(257..262) == Some(b"ustar") {
        Kind::Tar
    } else if first == Some(&b'{') {
        Kind::Json
    } else {
        Kind::Text
    }
}

/// The first bytes, and the input with them still in front.
fn peek(mut input: Input) -> io::Result<(Vec<u8>, Input)> {
    let mut head = vec![0; HEAD];
    let mut filled = 0;
    while filled < HEAD {
        match input.read(&mut head[filled..]) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What came before the damage is still worth reading.
            Err(_) if filled > 0 => break,
            Err(error) => return Err(error),
        }
    }
    head.truncate(filled);
    let rest: Input = Box::new(Cursor::new(head.clone()).chain(input));
    Ok((head, rest))
}

/// Text of two bytes a character, as some shells write it, turned into UTF-8 on the way.
struct TwoByteText {
    input: Input,
    low_first: bool,
    ready: Vec<u8>,
    given: usize,
    odd: Option<u8>,
    high: Option<u16>,
}

impl TwoByteText {
    fn new(input: Input, low_first: bool) -> Self {
        Self {
            input,
            low_first,
            ready: Vec::new(),
            given: 0,
            odd: None,
            high: None,
        }
    }

    fn unit(&mut self, unit: u16) {
        if unit == 0xfeff {
            return;
        }
        let units = match (self.high.take(), unit) {
            (None, 0xd800..=0xdbff) => {
                self.high = Some(unit);
                return;
            }
            (Some(high), _) => vec![high, unit],
            (None, _) => vec![unit],
        };
        for c in char::decode_utf16(units) {
            let c = c.unwrap_or(char::REPLACEMENT_CHARACTER);
            self.ready
                .extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

impl Read for TwoByteText {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.ready.len() {
            self.ready.clear();
            self.given = 0;
            let mut block = [0; 8192];
            let got = self.input.read(&mut block)?;
            if got == 0 {
                return Ok(0);
            }
            for byte in &block[..got] {
                match self.odd.take() {
                    None => self.odd = Some(*byte),
                    Some(first) => {
                        let pair = [first, *byte];
                        self.unit(if self.low_first {
                            u16::from_le_bytes(pair)
                        } else {
                            u16::from_be_bytes(pair)
                        });
                    }
                }
            }
        }
        let n = buffer.len().min(self.ready.len() - self.given);
        buffer[..n].copy_from_slice(&self.ready[self.given..self.given + n]);
        self.given += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, unpack};
    use std::io::{Cursor, Read, Write};

    fn unpacked(bytes: Vec<u8>) -> (Kind, String) {
        let (kind, mut rest) = unpack(Box::new(Cursor::new(bytes))).unwrap();
        let mut text = String::new();
        rest.read_to_string(&mut text).unwrap();
        (kind, text)
    }

    fn gzipped(text: &[u8]) -> Vec<u8> {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(text).unwrap();
        gz.finish().unwrap()
    }

    #[test]
    fn kinds_are_told_by_their_first_bytes() {
        assert_eq!(unpacked(Vec::new()).0, Kind::Empty);
        assert_eq!(unpacked(b" \n{\"a\":1}".to_vec()).0, Kind::Json);
        assert_eq!(unpacked(b"[    0.0] x".to_vec()).0, Kind::Text);
        assert_eq!(
            unpacked(gzipped(b"[    0.0] x")),
            (Kind::Text, "[    0.0] x".to_owned())
        );
        assert_eq!(
            unpacked(gzipped(&gzipped(b"{}"))),
            (Kind::Json, "{}".to_owned())
        );
    }

    #[test]
    fn two_byte_text_becomes_plain() {
        let text = "tsc: x\u{1f552}\r\n";
        let mut little = vec![0xff, 0xfe];
        let mut big = vec![0xfe, 0xff];
        for unit in text.encode_utf16() {
            little.extend(unit.to_le_bytes());
            big.extend(unit.to_be_bytes());
        }
        assert_eq!(unpacked(little), (Kind::Text, text.to_owned()));
        assert_eq!(unpacked(big), (Kind::Text, text.to_owned()));
    }

    #[test]
    fn packings_without_end_are_refused() {
        let bomb = gzipped(&gzipped(&gzipped(&gzipped(b"x"))));
        assert!(unpack(Box::new(Cursor::new(bomb))).is_err());
    }
}
