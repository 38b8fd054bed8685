//! Takes out of evidence what no rule needs.

use super::log::clock_words;
use crate::evidence::{ClockEvent, Evidence, LoggedEvent, Part, UnstableReason};

/// Time daemons that a report may name.
const DAEMONS: [&str; 10] = [
    "chronyd",
    "ntpd",
    "ntpsec",
    "openntpd",
    "systemd-timesyncd",
    "timesyncd",
    "ptp4l",
    "phc2sys",
    "hv_utils",
    "VBoxService",
];

/// Hypervisors that Linux names.
const HYPERVISORS: [&str; 8] = [
    "KVM",
    "Microsoft Hyper-V",
    "VMware",
    "Xen HVM",
    "Xen PV",
    "ACRN",
    "Jailhouse",
    "Bhyve",
];

impl Evidence {
    /// Keeps only what the rules need: host names, addresses, serials and free texts go. The diagnosis stays the same.
    pub fn redact(&mut self) {
        self.label = None;
        self.complaints.clear();
        if let Part::Seen(text) = &mut self.command_line {
            *text = clock_words(text)
                .into_iter()
                .filter(|word| word.bytes().all(is_plain))
                .collect::<Vec<_>>()
                .join(" ");
        }
        if let Some(identity) = self.identity.seen_mut() {
            identity.kernel = identity.kernel.as_deref().map(|release| {
                release
                    .chars()
                    .take_while(|c| c.is_ascii_digit() || *c == '.')
                    .collect()
            });
        }
        if let Some(log) = self.kernel_log.seen_mut() {
            for boot in &mut log.boots {
                let events = &mut boot.events;
                for logged in events
                    .first
                    .iter_mut()
                    .chain(&mut events.middle)
                    .chain(&mut events.last)
                {
                    redact_event(logged);
                }
            }
        }
        for capture in self.interrupts.seen_mut().into_iter().flatten() {
            for row in &mut capture.rows {
                row.text.clear();
            }
        }
        if let Some(reference) = self.reference.seen_mut() {
            reference
                .daemons
                .retain(|daemon| DAEMONS.contains(&daemon.as_str()));
            reference.daemons_not_readable = None;
        }
        for cost in self.costs.seen_mut().into_iter().flatten() {
            cost.clock.retain(|c| c.is_ascii() && is_name(c));
        }
        for call in self.syscalls.seen_mut().into_iter().flatten() {
            call.call.retain(|c| c.is_ascii() && is_name(c));
        }
        self.redact_reasons();
    }

    /// Reasons may hold paths.
    fn redact_reasons(&mut self) {
        fn short<T>(part: &mut Part<T>) {
            if let Part::NotReadable(why) = part {
                "not readable".clone_into(why);
            }
        }
        short(&mut self.identity);
        short(&mut self.current_clocksource);
        short(&mut self.available_clocksources);
        short(&mut self.command_line);
        short(&mut self.kernel_log);
        short(&mut self.cpu_lines);
        short(&mut self.frequencies);
        short(&mut self.pvclock);
        short(&mut self.vdso);
        short(&mut self.vmclock);
        short(&mut self.reference_page);
        short(&mut self.privileges);
        short(&mut self.costs);
        short(&mut self.syscalls);
        short(&mut self.cpu_order);
        short(&mut self.rates);
        short(&mut self.cpu_time);
        short(&mut self.interrupts);
        short(&mut self.reference);
        short(&mut self.samples);
        short(&mut self.kvm_trace);
        short(&mut self.msr_counts);
    }
}

/// Bytes of a word about clocks: no address and no path is made of these alone.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'=' | b',')
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '@')
}

fn redact_event(logged: &mut LoggedEvent) {
    match &mut logged.event {
        ClockEvent::CommandLine { words } => {
            words.retain(|word| word.bytes().all(is_plain));
        }
        ClockEvent::HypervisorDetected { name } if !HYPERVISORS.contains(&name.as_str()) => {
            "other".clone_into(name);
        }
        ClockEvent::TscUnstable(UnstableReason::Other(text)) => "other".clone_into(text),
        _ => {}
    }
}
