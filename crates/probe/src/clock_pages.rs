//! The kernel's own clock pages, live: the pvclock record with its offset and drift, the Hyper-V page, the time data.

use chronovisor_abi::pvclock::Contents;
use chronovisor_diagnose::evidence::{Part, PvclockRecord, ReferencePage, VdsoData};
use chronovisor_guest::counter::Ordered;
use chronovisor_guest::frequency::Estimate;
use chronovisor_guest::linux::os_clock::ClockId;
use chronovisor_guest::linux::pages::{HypervPage, KernelPages, PvclockPage};
use chronovisor_guest::linux::time_data::{ClockMode, TimeData};
use chronovisor_guest::pvclock::{PvclockError, StableBit};

use crate::bracket::Sandwich;
use crate::rate::{as_hz, clock_rate};

/// Reads of which the narrowest is kept.
const TRIES: u32 = 40;

/// The pages of this process, each there or not.
#[derive(Debug)]
pub struct Pages {
    /// The kernel's pvclock records.
    pub pvclock: Result<PvclockPage, String>,
    /// The kernel's Hyper-V page.
    pub hyperv: Result<HypervPage, String>,
    /// What the vDSO reads.
    pub vdso: Part<VdsoData>,
    /// The TSC's rate as the vDSO has it.
    pub kernel_rate: Option<Estimate>,
}

impl Pages {
    /// Looks for them; touches none that is not present.
    #[must_use]
    pub fn find() -> Self {
        match KernelPages::find() {
            Ok(pages) => {
                let data = time_data(&pages);
                Self {
                    pvclock: pages.pvclock().map_err(|why| why.to_string()),
                    hyperv: pages.hyperv().map_err(|why| why.to_string()),
                    kernel_rate: data.as_ref().ok().and_then(TimeData::estimate),
                    vdso: Part::from_result(data.as_ref().map(vdso)),
                }
            }
            Err(why) => Self {
                pvclock: Err(why.to_string()),
                hyperv: Err(why.to_string()),
                vdso: Part::NotReadable(why.to_string()),
                kernel_rate: None,
            },
        }
    }
}

fn time_data(pages: &KernelPages) -> Result<TimeData, String> {
    let page = pages.time_data().map_err(|why| why.to_string())?;
    page.read()
        .ok_or_else(|| "the kernel was writing the time data page at every look".to_owned())
}

fn vdso(data: &TimeData) -> VdsoData {
    VdsoData {
        mode: match data.mode {
            ClockMode::NONE => "none".to_owned(),
            ClockMode::TSC => "tsc".to_owned(),
            ClockMode::PVCLOCK => "pvclock".to_owned(),
            ClockMode::HVCLOCK => "hyperv".to_owned(),
            ClockMode(other) => other.to_string(),
        },
        mult: data.mult,
        shift: data.shift,
        implied: data.frequency().map(as_hz),
    }
}

/// The pvclock record at one end of a window.
#[derive(Clone, Copy, Debug)]
pub struct PvclockSample {
    version: u32,
    contents: Contents,
    boottime: Option<Sandwich>,
    raw: Option<Sandwich>,
}

impl PvclockSample {
    /// Reads the record, and its time between reads of the system's clocks.
    ///
    /// # Errors
    ///
    /// [`PvclockError`] if no time can be told from the record.
    pub fn take(page: &PvclockPage) -> Result<Self, PvclockError> {
        let clock = page.reader(Ordered::detect(), StableBit::Advertised);
        let time = || clock.observe().ok().map(|seen| seen.reading.time);
        let against = |other: ClockId| Sandwich::narrowest(TRIES, time, || other.now());
        let version = clock.version();
        Ok(Self {
            contents: clock.observe()?.contents,
            version,
            boottime: against(ClockId::BOOTTIME),
            raw: against(ClockId::MONOTONIC_RAW),
        })
    }

    /// The record's fields.
    #[must_use]
    pub const fn contents(&self) -> &Contents {
        &self.contents
    }
}

/// The record as evidence: the later sample's fields and offsets, the drift over the window.
#[must_use]
pub fn pvclock_record(first: &PvclockSample, second: &PvclockSample) -> PvclockRecord {
    let Contents {
        tsc_timestamp,
        system_time,
        mul,
        shift,
        flags,
    } = second.contents;
    let drift =
        |start: Option<Sandwich>, end: Option<Sandwich>| clock_rate(start.as_ref()?, end.as_ref()?);
    let boottime = drift(first.boottime, second.boottime);
    let raw = drift(first.raw, second.raw);
    let offset = |at: &Option<Sandwich>| {
        let (ns, _) = at.as_ref()?.offset();
        i64::try_from(ns).ok()
    };
    PvclockRecord {
        version: second.version,
        tsc_timestamp: tsc_timestamp.as_ticks(),
        system_time_ns: system_time.as_ns(),
        mul,
        shift,
        flags: flags.bits(),
        implied: second
            .contents
            .scale()
            .and_then(chronovisor_abi::scale::PvclockScale::frequency)
            .ok()
            .map(as_hz),
        offset_boottime_ns: offset(&second.boottime),
        offset_monotonic_raw_ns: offset(&second.raw),
        drift_boottime_ppb: boottime.map(|rate| rate.excess_ppb),
        drift_monotonic_raw_ppb: raw.map(|rate| rate.excess_ppb),
        drift_error_ppb: [boottime, raw]
            .into_iter()
            .flatten()
            .map(|rate| rate.error_ppb)
            .max(),
        window_ns: raw.or(boottime).map(|rate| rate.window_ns),
    }
}

/// The Hyper-V page as evidence.
#[must_use]
pub fn reference_page(page: &HypervPage) -> ReferencePage {
    let reader = page.reader(Ordered::detect());
    let sequence = reader.sequence();
    let parameters = reader.parameters().ok();
    ReferencePage {
        sequence: Some(sequence),
        scale: parameters.map(|line| line.scale.as_raw()),
        offset_100ns: parameters.map(|line| line.offset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronovisor_abi::pvclock::Flags;
    use chronovisor_abi::quantity::{Nanos, Tsc};

    fn sample(at: u64, value: u64) -> PvclockSample {
        let ns = Nanos::from_ns;
        let sandwich = Some(Sandwich {
            before: ns(at),
            value: ns(value),
            after: ns(at + 20),
        });
        PvclockSample {
            version: 4,
            contents: Contents {
                tsc_timestamp: Tsc::from_ticks(9),
                system_time: ns(5),
                mul: 0xC4EC_4EC4,
                shift: -1,
                flags: Flags::TSC_STABLE,
            },
            boottime: sandwich,
            raw: sandwich,
        }
    }

    /// A record that is 1 s ahead and gains 1000 ns in a second: 1000 ppb.
    #[test]
    fn offset_and_drift_are_told() {
        let record = pvclock_record(
            &sample(1_000_000_000, 2_000_000_010),
            &sample(2_000_000_000, 3_000_001_010),
        );
        assert_eq!(record.offset_boottime_ns, Some(1_000_001_000));
        assert_eq!(record.drift_monotonic_raw_ppb, Some(1000));
        assert!(record.drift_error_ppb.is_some_and(|error| error < 30));
        let implied = record.implied.unwrap();
        assert_eq!(implied.numerator / implied.denominator, 2_600_000_000);
    }

    #[test]
    fn a_record_without_a_possible_scale_has_no_frequency() {
        let mut second = sample(2_000, 3_000);
        second.contents.mul = 0;
        assert_eq!(pvclock_record(&sample(1_000, 1_000), &second).implied, None);
    }

    #[test]
    fn this_process_has_a_time_data_page() {
        let pages = Pages::find();
        assert!(pages.vdso.seen().is_some(), "{:?}", pages.vdso);
    }
}
