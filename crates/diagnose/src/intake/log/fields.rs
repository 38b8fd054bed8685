//! The small pieces of which a kernel line is made.

/// What follows `key`.
pub(super) fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let at = find(text, key)?;
    text.get(at + key.len()..)
}

/// Where `key` stands. In a line, stepping from one first letter to the next is quicker than preparing a cleverer search.
fn find(text: &str, key: &str) -> Option<usize> {
    let (text, key) = (text.as_bytes(), key.as_bytes());
    let first = *key.first()?;
    let mut from = 0;
    while let Some(at) = memchr::memchr(first, text.get(from..)?) {
        let at = from + at;
        if text[at..].starts_with(key) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

/// Whether `key` stands in the text.
pub(super) fn has(text: &str, key: &str) -> bool {
    find(text, key).is_some()
}

/// What stands between `start` and the next `end`.
pub(super) fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let rest = after(text, start)?;
    rest.split_once(end).map(|(inside, _)| inside)
}

/// A decimal number at the start, and what follows it. Blanks before it are passed over.
pub(super) fn leading_number(text: &str) -> Option<(u64, &str)> {
    let text = text.trim_start_matches([' ', '\t']);
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let value = text.get(..end)?.parse().ok()?;
    Some((value, &text[end..]))
}

/// A decimal number with an optional sign at the start.
pub(super) fn leading_signed(text: &str) -> Option<(i64, &str)> {
    let text = text.trim_start_matches([' ', '\t']);
    let sign = usize::from(text.starts_with(['-', '+']));
    let end = text[sign..]
        .find(|c: char| !c.is_ascii_digit())
        .map_or(text.len(), |end| end + sign);
    let value = text.get(..end)?.parse().ok()?;
    Some((value, &text[end..]))
}

/// A hexadecimal number at the start, with or without `0x`.
pub(super) fn leading_hex(text: &str) -> Option<u64> {
    let text = text.trim_start_matches([' ', '\t']);
    let text = text.strip_prefix("0x").unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_hexdigit())
        .unwrap_or(text.len());
    u64::from_str_radix(text.get(..end)?, 16).ok()
}

/// The decimal number after `key`.
pub(super) fn number(text: &str, key: &str) -> Option<u64> {
    leading_number(after(text, key)?).map(|(value, _)| value)
}

/// The signed decimal number after `key`.
pub(super) fn signed(text: &str, key: &str) -> Option<i64> {
    leading_signed(after(text, key)?).map(|(value, _)| value)
}

/// The hexadecimal number after `key`.
pub(super) fn hex(text: &str, key: &str) -> Option<u64> {
    leading_hex(after(text, key)?)
}

/// A number with up to three decimals at the start, in thousandths: `2700.280` gives 2 700 280.
pub(super) fn leading_thousandths(text: &str) -> Option<(u64, &str)> {
    decimals(text, 3)
}

/// A number with up to two decimals at the start, in hundredths: `5187.81` gives 518 781.
pub(super) fn leading_hundredths(text: &str) -> Option<(u64, &str)> {
    decimals(text, 2)
}

fn decimals(text: &str, places: usize) -> Option<(u64, &str)> {
    let (whole, mut rest) = leading_number(text)?;
    let mut value = whole;
    let fraction = rest.strip_prefix('.').unwrap_or("");
    let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
    for place in 0..places {
        let digit = fraction
            .as_bytes()
            .get(place)
            .filter(|_| place < digits)
            .map_or(0, |byte| u64::from(byte - b'0'));
        value = value.checked_mul(10)?.checked_add(digit)?;
    }
    if digits > 0 {
        rest = &fraction[digits..];
    }
    Some((value, rest))
}

/// A name of a clock source: letters, digits, `-` and `_`, as long as the kernel allows. Anything else is no name, so that
/// nothing from a damaged or foreign line gets into a report as one.
pub(super) fn name(text: &str) -> Option<String> {
    let text = text.trim();
    let fits = !text.is_empty()
        && text.len() <= 32
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    fits.then(|| text.to_owned())
}

/// The name between the first pair of single quotes.
pub(super) fn quoted_name(text: &str) -> Option<String> {
    name(between(text, "'", "'")?)
}

/// The first word as a name.
pub(super) fn first_name(text: &str) -> Option<String> {
    name(
        text.split_whitespace()
            .next()?
            .trim_end_matches([':', ',', '.']),
    )
}
