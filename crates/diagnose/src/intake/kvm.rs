//! Tracepoint lines of a KVM host.

use super::complaint::Complaints;
use crate::evidence::{KvmTrace, OffsetWrite};

/// Offset writes that are kept.
const MOST_WRITES: usize = 100_000;

/// `kvm/trace`: lines of `kvm_write_tsc_offset`, with or without the prefix of the tracer.
///
/// # Errors
///
/// A text without any KVM tracepoint.
pub(super) fn trace(
    text: &str,
    file: &str,
    complaints: &mut Complaints,
) -> Result<KvmTrace, String> {
    let mut trace = KvmTrace::default();
    let mut any = false;
    for (i, line) in text.lines().enumerate() {
        trace.lines += 1;
        any |= line.contains("kvm");
        let Some((_, fields)) = line.split_once("kvm_write_tsc_offset:") else {
            continue;
        };
        let number = trace.lines;
        let field = |key: &str| {
            fields
                .split([' ', ',', '\t'])
                .find_map(|word| word.strip_prefix(key))
        };
        let write = (|| {
            Some(OffsetWrite {
                line: number,
                vcpu: field("vcpu=")?.parse().ok()?,
                previous: offset(field("prev=")?)?,
                next: offset(field("next=")?)?,
            })
        })();
        match write {
            Some(write) if trace.offset_writes.len() < MOST_WRITES => {
                trace.offset_writes.push(write);
            }
            Some(_) => complaints.add(format!(
                "{file} line {}: more than {MOST_WRITES} offset writes, passed over",
                i + 1
            )),
            None => complaints.add(format!("{file} line {}: not vcpu=, prev=, next=", i + 1)),
        }
    }
    if any {
        Ok(trace)
    } else {
        Err("no KVM tracepoint in it".to_owned())
    }
}

/// An offset modulo 2^64: decimal, with or without a sign, or hexadecimal.
fn offset(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if text.starts_with('-') => text.parse().ok().map(i64::cast_unsigned),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::complaint::Complaints;
    use super::trace;

    #[test]
    fn offsets_are_read_with_any_prefix() {
        let mut complaints = Complaints::default();
        let text = "qemu-1234 [001] d..1 99.5: kvm_write_tsc_offset: vcpu=1 prev=0 next=-5\nkvm_write_tsc_offset: vcpu=0 prev=0x10 next=18446744073709551611\nkvm_track_tsc: vcpu_id 0\nkvm_write_tsc_offset: vcpu=x\n";
        let trace = trace(text, "kvm/trace", &mut complaints).unwrap();
        assert_eq!(trace.offset_writes.len(), 2);
        assert_eq!(trace.offset_writes[0].next, trace.offset_writes[1].next);
        assert_eq!(complaints.into_lines().len(), 1);
        assert!(super::trace("hello", "f", &mut Complaints::default()).is_err());
    }
}
