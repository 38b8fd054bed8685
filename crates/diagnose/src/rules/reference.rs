//! Whether the wall clock's rightness can be judged at all.

use super::Facts;
use crate::code::Code;
use crate::evidence::PtpDevice;
use crate::finding::Finding;
use crate::forensics::seconds;

/// `STA_UNSYNC`.
const UNSYNCHRONISED: i32 = 0x40;

/// What the kernel lets an error bound grow to when nobody tends it, in us.
const UNTENDED_US: i64 = 16_000_000;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    unsynchronised(facts).into_iter().collect()
}

fn unsynchronised(facts: &Facts<'_>) -> Option<Finding> {
    let reference = facts.evidence.reference.seen()?;
    let best: Option<&PtpDevice> = reference
        .ptp
        .iter()
        .filter(|device| device.offset_ns.is_some() && device.bound_ns.is_some())
        .min_by_key(|device| device.bound_ns);
    let undisciplined = reference.adjtimex.is_none_or(|state| {
        state.status & UNSYNCHRONISED != 0 || state.state == 5 || state.maxerror_us >= UNTENDED_US
    });
    if !undisciplined {
        return None;
    }
    let mut finding = Finding::new(
        Code::ClockUnsynchronised,
        if best.is_some() {
            "nothing disciplines the wall clock; its offset is known from a hardware clock"
        } else {
            "no reference: rightness of the wall clock not judged"
        },
    );
    if let Some(state) = reference.adjtimex {
        finding = finding.seen(
            format!(
                "status {:#x}{}, largest error {} us",
                state.status,
                if state.status & UNSYNCHRONISED != 0 {
                    " (unsynchronised)"
                } else {
                    ""
                },
                state.maxerror_us
            ),
            "adjtimex",
        );
        if best.is_none() && state.maxerror_us < UNTENDED_US {
            finding = finding.real("bound_s", seconds(i128::from(state.maxerror_us) * 1000));
        }
    }
    finding = finding.seen(
        if reference.daemons.is_empty() {
            reference
                .daemons_not_readable
                .clone()
                .unwrap_or_else(|| "no time daemon runs".to_owned())
        } else {
            format!("running: {}", reference.daemons.join(", "))
        },
        "time daemons",
    );
    for device in &reference.ptp {
        finding = finding.seen(
            match (device.offset_ns, device.bound_ns, &device.not_readable) {
                (Some(offset), Some(bound), _) => format!(
                    "{}: the wall clock is off by {:.9} s, known to {:.9} s",
                    device.clock_name,
                    seconds(i128::from(offset)),
                    seconds(i128::from(bound))
                ),
                (_, _, Some(why)) => format!("{}: {why}", device.clock_name),
                _ => format!("{}: not read", device.clock_name),
            },
            device.device.clone(),
        );
    }
    if let Some(device) = best {
        finding = finding
            .real_if(
                "offset_s",
                device.offset_ns.map(|ns| seconds(i128::from(ns))),
            )
            .real_if("bound_s", device.bound_ns.map(|ns| seconds(i128::from(ns))));
    }
    Some(finding.because("No daemon keeps the wall clock, or it has not told the kernel a bound. A clock that nobody compares with anything may be right; nobody knows."))
}
