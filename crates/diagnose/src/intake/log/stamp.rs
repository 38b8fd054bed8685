//! The time stamp in front of a kernel line.

use crate::evidence::TimeStamp;

/// The stamp `[  123.456789]` that stands in `prefix`, the part of the line before the message.
///
/// Stamps in wall time (`[Tue Mar  8 ..]`, a syslog date) tell no time since boot and give none.
pub(super) fn find(prefix: &[u8]) -> Option<TimeStamp> {
    let mut rest = prefix;
    while let Some(open) = memchr::memchr(b'[', rest) {
        rest = &rest[open + 1..];
        if let Some(close) = memchr::memchr(b']', rest)
            && let Some(stamp) = parse(&rest[..close])
        {
            return Some(stamp);
        }
    }
    None
}

fn parse(inside: &[u8]) -> Option<TimeStamp> {
    let text = core::str::from_utf8(inside).ok()?.trim();
    let (seconds, micros) = text.split_once('.')?;
    if micros.len() != 6 || !micros.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds: u64 = seconds.parse().ok()?;
    let micros: u64 = micros.parse().ok()?;
    let us = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
    Some(TimeStamp { us })
}

#[cfg(test)]
mod tests {
    use super::find;

    /// us = seconds * 10^6 + six digits.
    #[test]
    fn stamps_are_found_behind_any_prefix() {
        for (prefix, us) in [
            ("[    0.000000] ", Some(0)),
            ("<6>[   12.345678] ", Some(12_345_678)),
            ("kern  :info  : [271095.072610] ", Some(271_095_072_610)),
            (
                "Sep 23 21:33:08 c4v3 kernel: [14669.048261] ",
                Some(14_669_048_261),
            ),
            ("[    0.000000][    T0] ", Some(0)),
            ("[Tue Mar  8 13:19:34 2022] ", None),
            ("Mar  8 13:19:34 h kernel[12]: ", None),
            ("[99999999999999999999.000000] ", None),
            ("[ 1.5] ", None),
            ("", None),
        ] {
            assert_eq!(
                find(prefix.as_bytes()).map(|stamp| stamp.us),
                us,
                "{prefix}"
            );
        }
    }
}
