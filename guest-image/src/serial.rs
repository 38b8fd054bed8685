//! Text out of the first serial port. Works in both rings (the I/O bitmap opens its ports), and without `core::fmt`, whose code uses SSE.

use crate::contract::SERIAL_PORT;
use crate::instruction;

/// Writes `text`.
pub fn text(text: &str) {
    for byte in text.bytes() {
        instruction::out8(SERIAL_PORT, byte);
    }
}

/// Writes `text` and a line feed.
pub fn line(line: &str) {
    text(line);
    instruction::out8(SERIAL_PORT, b'\n');
}

/// Writes a number in base 10.
pub fn decimal(value: u64) {
    if value >= 10 {
        decimal(value / 10);
    }
    instruction::out8(SERIAL_PORT, b'0' + (value % 10) as u8);
}

/// Writes a number in base 16.
pub fn hex(value: u64) {
    text("0x");
    let mut shift = 60;
    while shift > 0 && value >> shift == 0 {
        shift -= 4;
    }
    loop {
        let digit = (value >> shift & 0xF) as u8;
        instruction::out8(
            SERIAL_PORT,
            if digit < 10 {
                b'0' + digit
            } else {
                b'a' - 10 + digit
            },
        );
        if shift == 0 {
            break;
        }
        shift -= 4;
    }
}
