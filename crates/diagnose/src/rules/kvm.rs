//! What a KVM host's trace says about the guest's TSC offsets.

use super::Facts;
use crate::code::Code;
use crate::finding::Finding;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    offsets(facts).into_iter().collect()
}

fn offsets(facts: &Facts<'_>) -> Option<Finding> {
    let trace = facts.evidence.kvm_trace.seen()?;
    let mut last: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for write in &trace.offset_writes {
        last.insert(write.vcpu, (write.next, write.line));
    }
    let distinct: BTreeSet<u64> = last.values().map(|(offset, _)| *offset).collect();
    if last.len() < 2 || distinct.len() < 2 {
        return None;
    }
    // Offsets are numbers modulo 2^64 that stand close together; distances are taken from one of them.
    let base = *distinct.first()?;
    let distances: Vec<i64> = distinct
        .iter()
        .map(|offset| offset.wrapping_sub(base).cast_signed())
        .collect();
    let spread = i128::from(*distances.iter().max()?) - i128::from(*distances.iter().min()?);
    let list = last
        .iter()
        .take(8)
        .map(|(vcpu, (offset, line))| {
            format!("vCPU {vcpu}: {} (line {line})", offset.cast_signed())
        })
        .collect::<Vec<_>>()
        .join(", ");
    Some(
        Finding::new(
            Code::VcpuOffsetsDiffer,
            format!(
                "the TSC offsets last written to {} vCPUs take {} different values",
                last.len(),
                distinct.len()
            ),
        )
        .seen(
            format!("{list}{}", if last.len() > 8 { ", .." } else { "" }),
            "kvm/trace",
        )
        .because("Each vCPU's TSC was written at another moment. KVM then cannot express the guest's time as one line over the TSC: it turns its master clock off, clears the stable bit of kvm-clock and leaves the Hyper-V page at sequence 0.")
        .count("vcpus", i128::try_from(last.len()).unwrap_or(i128::MAX))
        .count("distinct_offsets", i128::try_from(distinct.len()).unwrap_or(i128::MAX))
        .count("spread_cycles", spread),
    )
}
