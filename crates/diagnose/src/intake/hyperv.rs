//! The Hyper-V files of an evidence tree.

use crate::evidence::ReferencePage;
use std::collections::BTreeMap;

/// `hyperv/tsc_page`: `sequence=`, `scale=`, `offset=` in hexadecimal, each optional.
///
/// # Errors
///
/// A text without any of the three, or a number that does not fit.
pub(super) fn tsc_page(text: &str) -> Result<ReferencePage, String> {
    let mut page = ReferencePage::default();
    let mut any = false;
    for (number, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let value = value.trim();
        let bad = || {
            format!(
                "line {}: {} is not a number of 64 bits",
                number + 1,
                key.trim()
            )
        };
        let (negative, digits) = match value.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, value),
        };
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        let parsed = u64::from_str_radix(digits, 16).map_err(|_| bad());
        match key.trim() {
            "sequence" => page.sequence = Some(u32::try_from(parsed?).map_err(|_| bad())?),
            "scale" => page.scale = Some(parsed?),
            "offset" => {
                let offset = parsed?.cast_signed();
                page.offset_100ns = Some(if negative {
                    offset.checked_neg().ok_or_else(bad)?
                } else {
                    offset
                });
            }
            _ => continue,
        }
        any = true;
    }
    if any {
        Ok(page)
    } else {
        Err("none of sequence, scale, offset in it".to_owned())
    }
}

/// `hyperv/privileges`: `NAME=0|1`, one a line.
///
/// # Errors
///
/// A text without any such line.
pub(super) fn privileges(text: &str) -> Result<BTreeMap<String, bool>, String> {
    let privileges: BTreeMap<String, bool> = text
        .lines()
        .filter_map(|line| {
            let (name, value) = line.split_once('=')?;
            let granted = match value.trim() {
                "0" => false,
                "1" => true,
                _ => return None,
            };
            let name = name.trim();
            let fits = !name.is_empty()
                && name.len() <= 64
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            fits.then(|| (name.to_owned(), granted))
        })
        .take(256)
        .collect();
    if privileges.is_empty() {
        Err("no line NAME=0 or NAME=1".to_owned())
    } else {
        Ok(privileges)
    }
}

#[cfg(test)]
mod tests {
    use super::{privileges, tsc_page};

    #[test]
    fn pages_are_read_in_hexadecimal() {
        let page =
            tsc_page("sequence=0x1\nscale=0xfc0fc0fc0fc0fc\noffset=0xffffffffffffff9c\n").unwrap();
        assert_eq!(page.sequence, Some(1));
        assert_eq!(page.scale, Some(0x00FC_0FC0_FC0F_C0FC));
        assert_eq!(page.offset_100ns, Some(-100));
        assert_eq!(tsc_page("offset=-0x64").unwrap().offset_100ns, Some(-100));
        assert!(tsc_page("sequence=0x1ffffffff").is_err());
        assert!(tsc_page("junk").is_err());
    }

    #[test]
    fn privileges_are_switches() {
        let map = privileges("AccessVpIndex=0\nAccessPartitionReferenceTsc=1\njunk=2\n").unwrap();
        assert_eq!(map.len(), 2);
        assert!(map["AccessPartitionReferenceTsc"]);
        assert!(privileges("").is_err());
    }
}
