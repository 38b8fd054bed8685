//! VMClock: one page with the time of day, its rate, its error bounds, and markers of disruptions.
//!
//! # Theory
//!
//! ```text
//! time = time_ref + (counter - counter_value) * period / 2^(64 + shift)     [s, 64 bits of fraction]
//! maximum error = time_maxerror + (counter - counter_value) * period_maxerror / 2^(64 + shift)
//! ```
//!
//! Below a precise clock lie two counters that say when to distrust it: the disruption marker changes whenever the counter may have jumped (a live
//! migration), the VM generation counter when the machine's state was copied (a snapshot loaded, a clone).
//!
//! # Practice
//!
//! A guest takes consistent [`Contents`] with [`Page::read`] and turns a counter value into time with [`Contents::time_at`]; a host
//! changes them between [`Page::mark`] and [`Page::publish`]. [`Page::write_constants`] is done once, before the guest runs.
//!
//! # Migration
//!
//! The markers change, then time, period and bounds fit the new host; the sequence goes on counting.
//!
//! # Caveats
//!
//! TAI, not UTC: UTC = TAI - `tai_offset_sec` (37 s in 2026). A page of another time type, another counter or an unknown status gives no
//! time ([`TimeError`]). Time is never smeared. Two printings of the specification differ from the header in the position of the generation
//! counter and in flags 7 to 9; the header's layout, which producers use, stands here.
//!
//! # References
//!
//! UAPI.13 "VMClock" 1.0; Linux `include/uapi/linux/vmclock-abi.h`.

mod page;
mod time;

pub use page::{PAGE_BYTES, Page, SIZE_BYTES};
pub use time::{Bounds, Period, PeriodError, TimeError, WallTime};

use crate::quantity::Tsc;

/// "VCLK", the page's first word.
pub const MAGIC: u32 = u32::from_le_bytes(*b"VCLK");
/// The version described here.
pub const VERSION: u16 = 1;

macro_rules! open_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $value:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl $name {
            $($(#[$variant_doc])* pub const $variant: Self = Self($value);)*
        }
    };
}

open_enum! {
    /// Which counter the page's values are of; any value may stand in a page.
    CounterId {
        /// Arm's virtual counter.
        ARM_VCNT = 0;
        /// The x86 time-stamp counter.
        X86_TSC = 1;
        /// No counter: the page carries markers only.
        INVALID = 0xff;
    }
}

open_enum! {
    /// Which time the page gives; any value may stand in a page.
    TimeType {
        /// UTC since 1970, leap seconds left out.
        UTC = 0;
        /// TAI since 1970.
        TAI = 1;
        /// A monotonic clock of unknown origin.
        MONOTONIC = 2;
    }
}

open_enum! {
    /// How good the clock is; any value may stand in a page.
    ClockStatus {
        /// Nothing is known: time fields are not valid.
        UNKNOWN = 0;
        /// Being set: time fields are not valid.
        INITIALIZING = 1;
        /// Set and disciplined.
        SYNCHRONIZED = 2;
        /// Set and no longer disciplined.
        FREERUNNING = 3;
        /// Broken: do not use.
        UNRELIABLE = 4;
    }
}

open_enum! {
    /// Whether a leap second is near; any value may stand in a page.
    LeapIndicator {
        /// None known.
        NONE = 0;
        /// A second will be inserted at the end of the month.
        PRE_POSITIVE = 1;
        /// A second will be left out at the end of the month.
        PRE_NEGATIVE = 2;
        /// It is 23:59:60 now.
        POSITIVE = 3;
        /// A second was inserted at the end of the last month.
        POST_POSITIVE = 4;
        /// A second was left out at the end of the last month.
        POST_NEGATIVE = 5;
    }
}

open_enum! {
    /// How the guest is asked to smear a leap second towards its users; the page's own time is never smeared.
    SmearingHint {
        /// Not at all.
        STRICT = 0;
        /// Linearly from noon to noon.
        NOON_LINEAR = 1;
        /// UTC-SLS.
        UTC_SLS = 2;
    }
}

/// The page's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Flags(u64);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Bit 0: the TAI offset is valid.
    pub const TAI_OFFSET_VALID: Self = Self(1);
    /// Bit 1: a disruption is planned within a day.
    pub const DISRUPTION_SOON: Self = Self(1 << 1);
    /// Bit 2: a disruption is planned within an hour.
    pub const DISRUPTION_IMMINENT: Self = Self(1 << 2);
    /// Bit 3: the estimated error of the period is valid.
    pub const PERIOD_ESTERROR_VALID: Self = Self(1 << 3);
    /// Bit 4: the maximum error of the period is valid.
    pub const PERIOD_MAXERROR_VALID: Self = Self(1 << 4);
    /// Bit 5: the estimated error of the time is valid.
    pub const TIME_ESTERROR_VALID: Self = Self(1 << 5);
    /// Bit 6: the maximum error of the time is valid.
    pub const TIME_MAXERROR_VALID: Self = Self(1 << 6);
    /// Bit 7: the time never goes back, leap seconds of UTC excepted.
    pub const TIME_MONOTONIC: Self = Self(1 << 7);
    /// Bit 8: the VM generation counter is there.
    pub const GENERATION_PRESENT: Self = Self(1 << 8);
    /// Bit 9: the device notifies its guest of each change.
    pub const NOTIFICATION_PRESENT: Self = Self(1 << 9);

    /// The flag word as it stands in a page.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The flag word.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These flags without those of `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// The fields that never change while the page exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Constants {
    /// Bytes of the region that the structure lies in.
    pub size_bytes: u32,
    /// The version of the structure.
    pub version: u16,
    /// Which counter.
    pub counter_id: CounterId,
    /// Which time.
    pub time_type: TimeType,
}

/// The fields under the sequence count, taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Contents {
    /// Changes whenever the counter may have jumped; a value is not used twice.
    pub disruption_marker: u64,
    /// Flags.
    pub flags: Flags,
    /// How good the clock is.
    pub status: ClockStatus,
    /// How to smear a leap second towards users.
    pub smearing_hint: SmearingHint,
    /// TAI less UTC, in s.
    pub tai_offset_sec: i16,
    /// Whether a leap second is near.
    pub leap_indicator: LeapIndicator,
    /// The period's unit is 2^-(64 + shift) s.
    pub period_shift: u8,
    /// The counter at the reference time.
    pub counter_value: Tsc,
    /// One tick, in 2^-(64 + shift) s.
    pub period_frac_sec: u64,
    /// The period's estimated error, in its unit.
    pub period_esterror: u64,
    /// The period's maximum error, in its unit.
    pub period_maxerror: u64,
    /// The reference time's whole seconds.
    pub time_sec: u64,
    /// The reference time's fraction, in 2^-64 s.
    pub time_frac_sec: u64,
    /// The time's estimated error, in ns.
    pub time_esterror_ns: u64,
    /// The time's maximum error, in ns.
    pub time_maxerror_ns: u64,
    /// Changes whenever the machine's state was copied.
    pub vm_generation_counter: u64,
}

/// Why the page's fixed fields make it unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The first word is not "VCLK".
    #[error("the page begins with {found:#010x}, not with \"VCLK\": it is no VMClock page")]
    NotVmclock {
        /// The word found.
        found: u32,
    },
    /// The region is too small for the fields up to the generation counter, or larger than the page that is mapped.
    #[error(
        "the page says that it has {found} bytes; {} to {PAGE_BYTES} are needed",
        SIZE_BYTES
    )]
    BadSize {
        /// The size found.
        found: u32,
    },
    /// Another version of the structure.
    #[error("the page has version {found}, this reader knows version {VERSION}")]
    UnknownVersion {
        /// The version found.
        found: u16,
    },
}

impl Constants {
    /// The fields for an x86 counter and TAI, which is what the specification advises.
    pub const X86_TAI: Self = Self {
        size_bytes: 4096,
        version: VERSION,
        counter_id: CounterId::X86_TSC,
        time_type: TimeType::TAI,
    };
}
