//! The counters that a [`Clock`](super::Clock) can stand on, in the order in which it prefers them.

use core::fmt;

use chronovisor_abi::cpuid::{Interface, Leaf, interfaces, kvm, processor};
use chronovisor_abi::pvclock::{Flags, Record};
use chronovisor_abi::quantity::Hertz;
use chronovisor_abi::reference_tsc::ReferenceTscPage;
use chronovisor_abi::scale::ScaleError;
use chronovisor_abi::seqlock::ReadError;
use chronovisor_abi::seqlock::sync::{AtomicU32, Ordering};

use super::line::Line;
use super::machine::Machine;
use crate::linux::pages::KernelPages;
use crate::linux::time_data::{ClockMode, TimeDataPage};
use crate::pvclock::StableBit;

/// A kind of source, from the best to the last resort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// The kernel's pvclock page: the hypervisor's own line, and a version that changes with it.
    Pvclock,
    /// The kernel's Hyper-V page: the same, with a sequence.
    ReferencePage,
    /// The TSC, as long as the kernel's own clock runs on it; no word tells of a migration, and the kernel would not know of it either.
    KernelTsc,
    /// clock_gettime(2).
    OperatingSystem,
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pvclock => "pvclock page",
            Self::ReferencePage => "Hyper-V reference TSC page",
            Self::KernelTsc => "TSC",
            Self::OperatingSystem => "operating system's clock",
        })
    }
}

/// Why a source cannot be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The pvclock record is right on its own CPU only.
    #[error("the record is not stable over CPUs (flags {:#x}, stable bit {stable_bit:?})", flags.bits())]
    NotStable {
        /// The record's flags.
        flags: Flags,
        /// Whether the host advertised the flag.
        stable_bit: StableBit,
    },
    /// The page is invalid, or changed at every look.
    #[error("{0}")]
    Inconsistent(#[from] ReadError),
    /// The page's multiplier gives no line.
    #[error("{0}")]
    Damaged(#[from] ScaleError),
    /// The page's multiplier gives a line that no counter has.
    #[error(
        "the page's multiplier stands for a counter of {hz} Hz, and no processor's runs below 1 MHz or above 100 GHz: the page is damaged"
    )]
    ImplausibleRate {
        /// The rate, held at the ends of 64 bits.
        hz: u64,
    },
    /// The kernel does not read the TSC.
    #[error("the kernel's clock does not run on the TSC (vDSO clock mode {})", .0.0)]
    KernelMode(ClockMode),
    /// The source's rate is not that of the operating system's clock.
    #[error("it ran {ppm:+} ppm off the operating system's clock over {checks} checks")]
    RateDisagrees {
        /// How far, in ppm.
        ppm: i64,
        /// Over how many checks.
        checks: u32,
    },
    /// There is no counter to use.
    #[error("this machine offers no counter that stays right")]
    NoCounter,
}

/// A source that was passed over, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The source.
    pub source: SourceKind,
    /// Why, in a sentence.
    pub why: String,
}

/// What one look at a usable source saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usable {
    /// The source's own time, in ns.
    pub(crate) line: Line,
    /// The watched word that the line belongs to.
    pub(crate) tag: u32,
    /// Whether the host says that it stopped the guest.
    pub(crate) guest_was_stopped: bool,
}

/// A counter with a word that tells when its line ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Pvclock {
        record: &'static Record,
        stable_bit: StableBit,
    },
    ReferencePage(&'static ReferenceTscPage),
    KernelTsc(TimeDataPage),
    None,
}

/// How often a page is looked at before it counts as invalid: some 10 us of a writer that does not finish.
const TRIES: u32 = 1_000;

/// The word that is watched where there is nothing to watch.
static NEVER_CHANGES: AtomicU32 = AtomicU32::new(0);

impl Source {
    pub(crate) const fn kind(&self) -> SourceKind {
        match self {
            Self::Pvclock { .. } => SourceKind::Pvclock,
            Self::ReferencePage(_) => SourceKind::ReferencePage,
            Self::KernelTsc(_) => SourceKind::KernelTsc,
            Self::None => SourceKind::OperatingSystem,
        }
    }

    /// The word that changes when the source's line does.
    pub(crate) fn watched(&self) -> &'static AtomicU32 {
        match self {
            Self::Pvclock { record, .. } => record.version_word(),
            Self::ReferencePage(page) => page.sequence_word(),
            Self::KernelTsc(page) => page.mode_word(),
            Self::None => &NEVER_CHANGES,
        }
    }

    /// The line now; or why there is none, and the watched word for which that holds.
    pub(crate) fn look(&self, machine: &impl Machine) -> Result<Usable, (Unusable, u32)> {
        match self {
            Self::Pvclock { record, stable_bit } => look_at_record(record, *stable_bit),
            Self::ReferencePage(page) => look_at_page(page, machine),
            Self::KernelTsc(page) => look_at_kernel(page, machine),
            Self::None => Err((Unusable::NoCounter, 0)),
        }
    }
}

/// The line of a page that was read under `tag`, if it is a possible one. The limits are wide; what they keep out is a line so steep or so flat that the check
/// after its first millisecond would come at once, or not in years.
fn plausible(line: Result<Line, ScaleError>, tag: u32) -> Result<Line, (Unusable, u32)> {
    let line = line.map_err(|error| (error.into(), tag))?;
    let hz = line.frequency().map_or(u64::MAX, Hertz::rounded_hz);
    if (1_000_000..=100_000_000_000).contains(&hz) {
        Ok(line)
    } else {
        Err((Unusable::ImplausibleRate { hz }, tag))
    }
}

/// Tries `look` until the page is consistent.
fn retry<T>(
    mut look: impl FnMut() -> Result<T, u32>,
    is_invalid: fn(u32) -> bool,
) -> Result<T, (Unusable, u32)> {
    let mut seen = 0;
    for _ in 0..TRIES {
        match look() {
            Ok(found) => return Ok(found),
            Err(word) => seen = word,
        }
        core::hint::spin_loop();
    }
    let error = if is_invalid(seen) {
        ReadError::Invalid {
            sequence: seen,
            tries: TRIES,
        }
    } else {
        ReadError::Busy { tries: TRIES }
    };
    Err((error.into(), seen))
}

fn look_at_record(record: &Record, stable_bit: StableBit) -> Result<Usable, (Unusable, u32)> {
    let (contents, tag) = retry(
        || {
            record
                .try_read(|| ())
                .map(|(contents, (), version)| (contents, version))
        },
        |version| version & 1 == 1,
    )?;
    let flags = contents.flags;
    if stable_bit == StableBit::NotAdvertised || !flags.contains(Flags::TSC_STABLE) {
        return Err((Unusable::NotStable { flags, stable_bit }, tag));
    }
    let line = plausible(Line::from_pvclock(&contents), tag)?;
    Ok(Usable {
        line,
        tag,
        guest_was_stopped: flags.contains(Flags::GUEST_STOPPED),
    })
}

fn look_at_page(
    page: &ReferenceTscPage,
    machine: &impl Machine,
) -> Result<Usable, (Unusable, u32)> {
    let invalid = |sequence| sequence == 0 || sequence == u32::MAX;
    let sequence = page.sequence();
    if invalid(sequence) {
        // At once: a reader of the page would not wait either.
        return Err((ReadError::Invalid { sequence, tries: 1 }.into(), sequence));
    }
    let (parameters, tsc, tag) = retry(|| page.try_read(|| machine.counter()), invalid)?;
    let line = plausible(Line::from_reference(&parameters, tsc), tag)?;
    Ok(Usable {
        line,
        tag,
        guest_was_stopped: false,
    })
}

fn look_at_kernel(page: &TimeDataPage, machine: &impl Machine) -> Result<Usable, (Unusable, u32)> {
    let mode = ClockMode(page.mode_word().load(Ordering::Relaxed));
    let busy = (ReadError::Busy { tries: TRIES }.into(), mode.0);
    let data = page.read().ok_or(busy)?;
    if data.mode != ClockMode::TSC || mode != data.mode {
        return Err((Unusable::KernelMode(data.mode), mode.0));
    }
    let line = data
        .frequency()
        .and_then(|rate: Hertz| Line::from_rate(machine.counter(), 0, rate))
        .ok_or((Unusable::Damaged(ScaleError::ZeroMultiplier), mode.0))?;
    Ok(Usable {
        line,
        tag: mode.0,
        guest_was_stopped: false,
    })
}

/// The sources that this machine has, best first, and those that it has not, with the reason.
pub(crate) fn candidates(leaf: impl Fn(u32) -> Leaf) -> (Vec<Source>, Vec<Rejected>) {
    let (mut sources, mut rejected) = (Vec::new(), Vec::new());
    let mut reject = |source, why: String| rejected.push(Rejected { source, why });
    let pages = match KernelPages::find() {
        Ok(pages) => pages,
        Err(error) => {
            for source in [
                SourceKind::Pvclock,
                SourceKind::ReferencePage,
                SourceKind::KernelTsc,
            ] {
                reject(source, error.to_string());
            }
            return (sources, rejected);
        }
    };
    match pages.pvclock() {
        Ok(page) => sources.push(Source::Pvclock {
            record: page.record(),
            stable_bit: stable_bit(&leaf),
        }),
        Err(error) => reject(SourceKind::Pvclock, error.to_string()),
    }
    match pages.hyperv() {
        Ok(page) => sources.push(Source::ReferencePage(page.page())),
        Err(error) => reject(SourceKind::ReferencePage, error.to_string()),
    }
    let invariant = leaf(0x8000_0000).eax >= 0x8000_0007
        && leaf(0x8000_0007).edx & processor::EXTENDED7_EDX_INVARIANT_TSC != 0;
    match pages.time_data() {
        Ok(_) if !invariant => reject(
            SourceKind::KernelTsc,
            "CPUID does not promise that the TSC runs at one rate (0x80000007.EDX[8] is clear)"
                .into(),
        ),
        Ok(page) => sources.push(Source::KernelTsc(page)),
        Err(error) => reject(SourceKind::KernelTsc, error.to_string()),
    }
    (sources, rejected)
}

/// Whether the record's stable flag counts: KVM advertises it in CPUID; Xen's records always have it. Stops at the first of the two: each leaf is an exit.
fn stable_bit(leaf: impl Fn(u32) -> Leaf) -> StableBit {
    let advertised = interfaces(&leaf).find_map(|base| match base.interface {
        Interface::Kvm => Some(leaf(base.base + kvm::FEATURES).eax & kvm::CLOCKSOURCE_STABLE != 0),
        Interface::Xen => Some(true),
        _ => None,
    });
    if advertised == Some(true) {
        StableBit::Advertised
    } else {
        StableBit::NotAdvertised
    }
}
