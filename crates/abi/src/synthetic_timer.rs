//! Hyper-V synthetic timers: their registers, and the message slots of the synthetic interrupt controller through which they report.
//!
//! # Theory
//!
//! Each virtual processor has four timers, each a pair of MSRs: CONFIG says what happens, COUNT says when, in reference time of 100 ns
//! (an absolute time for a one-shot, the period for a periodic timer). An expiry is told either by an interrupt of its own (direct mode) or by a
//! message of 24 bytes in slot n of the message page, with the interrupt of synthetic source n.
//!
//! A slot is free when its type is 0. The hypervisor fills it, type last; the guest reads it and sets the type to 0. If the slot is
//! taken, the hypervisor sets the flag "message pending" in it and looks once more; the guest looks at that flag after it has freed the slot, and
//! if it is set writes the end-of-message register. Each side writes first and reads then, with a full barrier in between, so one of the two sees the other.
//!
//! # Practice
//!
//! [`Config`] and [`InterruptSource`] are the registers, whatever a guest wrote. [`MessageSlot::post`] is the hypervisor's half of the protocol,
//! [`MessageSlot::take`] the guest's.
//!
//! # Migration
//!
//! The message page is guest memory and moves with it. A message that waits for its slot is the hypervisor's state.
//!
//! # Caveats
//!
//! The page belongs to the guest, which may write anything at any time: a slot whose type is not 0 is taken, whatever else it holds.
//!
//! # References
//!
//! Hyper-V TLFS, "Timers" (synthetic timers) and "Inter-Partition Communication" (SynIC, messages).

use core::fmt;

use crate::quantity::RefTime;
use crate::seqlock::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Timers of one virtual processor. TLFS, "Synthetic timers".
pub const TIMERS: usize = 4;
/// Synthetic interrupt sources of one virtual processor, and slots of a message page. TLFS, "SynIC".
pub const SOURCES: usize = 16;
/// Bytes of a message page: 16 slots of 256.
pub const MESSAGE_PAGE_BYTES: usize = 4096;
/// Type of a message that a timer has expired, HvMessageTimerExpired. TLFS, "Message types".
pub const MESSAGE_TIMER_EXPIRED: u32 = 0x8000_0010;
/// Bytes of a timer message's payload.
pub const TIMER_PAYLOAD_BYTES: u8 = 24;

/// HV_X64_MSR_STIMERn_CONFIG. TLFS, "Synthetic timer configuration register".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Config(pub u64);

impl Config {
    /// Bit 0: the timer is running.
    pub const ENABLED: u64 = 1 << 0;
    /// Bit 1: COUNT is a period.
    pub const PERIODIC: u64 = 1 << 1;
    /// Bit 2: ticks of a processor that does not run may be skipped.
    pub const LAZY: u64 = 1 << 2;
    /// Bit 3: a COUNT that is not 0 enables the timer.
    pub const AUTO_ENABLE: u64 = 1 << 3;
    /// Bit 12: an expiry raises a vector of its own. CPUID 0x40000003.EDX\[19\].
    pub const DIRECT_MODE: u64 = 1 << 12;
    /// Bits 15:13 and 63:20: should be 0.
    pub const RESERVED: u64 = !0xf_1fff;

    /// Whether `bit` (one of the constants) is set.
    #[must_use]
    pub const fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    /// The same with `bit` set.
    #[must_use]
    pub const fn with(self, bit: u64) -> Self {
        Self(self.0 | bit)
    }

    /// The same with `bit` clear.
    #[must_use]
    pub const fn without(self, bit: u64) -> Self {
        Self(self.0 & !bit)
    }

    /// The vector of direct mode, bits 11:4.
    #[must_use]
    pub const fn vector(self) -> u8 {
        (self.0 >> 4).to_le_bytes()[0]
    }

    /// The synthetic interrupt source, bits 19:16.
    #[must_use]
    pub const fn source(self) -> u8 {
        (self.0 >> 16).to_le_bytes()[0] & 0xf
    }

    /// A configuration without flags that reports to `source` (its low four bits).
    #[must_use]
    pub const fn for_source(source: u8) -> Self {
        // Widening; From is not const.
        Self(((source & 0xf) as u64) << 16)
    }

    /// A direct-mode configuration without other flags that raises `vector`.
    ///
    /// ```
    /// # use chronovisor_abi::synthetic_timer::Config;
    /// // What Linux writes for its first timer.
    /// let linux = Config::for_vector(0xed).with(Config::AUTO_ENABLE | Config::ENABLED);
    /// assert_eq!(linux.0, 0x1ed9);
    /// ```
    #[must_use]
    pub const fn for_vector(vector: u8) -> Self {
        // Widening; From is not const.
        Self(Self::DIRECT_MODE | ((vector as u64) << 4))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Config({:#x})", self.0)
    }
}

/// HV_X64_MSR_SINTn: one synthetic interrupt source. TLFS, "SINTx registers".
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct InterruptSource(pub u64);

impl InterruptSource {
    /// After reset: masked, vector 0.
    pub const RESET: Self = Self(Self::MASKED);
    /// Bit 16: no interrupt.
    pub const MASKED: u64 = 1 << 16;
    /// Bit 17: the interrupt ends itself when it is delivered.
    pub const AUTO_EOI: u64 = 1 << 17;
    /// Bit 18: the guest polls the slot; no interrupt.
    pub const POLLING: u64 = 1 << 18;

    /// The vector, bits 7:0.
    #[must_use]
    pub const fn vector(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Whether `bit` (one of the constants) is set.
    #[must_use]
    pub const fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }
}

impl fmt::Debug for InterruptSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InterruptSource({:#x})", self.0)
    }
}

/// What a timer tells its guest. TLFS, "Timer expiration message".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerMessage {
    /// Which of the four timers.
    pub timer: u32,
    /// The reference time at which it was due.
    pub expiration: RefTime,
    /// The reference time at which the message was put into its slot.
    pub delivery: RefTime,
}

/// One of the 16 slots of a message page: 256 bytes, little endian.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct MessageSlot {
    kind: AtomicU32,
    /// Payload size in bits 7:0, flags in 15:8.
    size_and_flags: AtomicU32,
    origin: AtomicU64,
    payload: [AtomicU64; 3],
    #[cfg(not(loom))]
    rest: [AtomicU64; 27],
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<MessageSlot>() == 256);
    assert!(offset_of!(MessageSlot, kind) == 0);
    assert!(offset_of!(MessageSlot, size_and_flags) == 4);
    assert!(offset_of!(MessageSlot, origin) == 8);
    assert!(offset_of!(MessageSlot, payload) == 16);
    assert!(offset_of!(MessageSlot, rest) == 40);
    assert!(size_of::<MessagePage>() == MESSAGE_PAGE_BYTES);
};

/// Flag "message pending" in the second word: bit 0 of byte 5.
const PENDING: u32 = 1 << 8;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is in the slot: raise the source's interrupt.
    Delivered,
    /// The slot is taken and marked: keep the message and try again when the guest writes the end-of-message register.
    SlotTaken,
}

/// Whether the guest, having emptied a slot, owes the hypervisor an end-of-message write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOfMessage {
    /// Write the end-of-message register: another message waits.
    Write,
    /// Nothing waits.
    NotNeeded,
}

impl MessageSlot {
    /// An empty slot.
    #[must_use]
    #[cfg_attr(loom, expect(clippy::new_without_default))]
    pub fn new() -> Self {
        Self {
            kind: AtomicU32::new(0),
            size_and_flags: AtomicU32::new(0),
            origin: AtomicU64::new(0),
            payload: core::array::from_fn(|_| AtomicU64::new(0)),
            #[cfg(not(loom))]
            rest: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// The hypervisor's half: puts `message` into the slot if it is free, else marks that one waits. Only one thread may post at a time.
    pub fn post(&self, message: TimerMessage) -> Posted {
        if self.kind.load(Ordering::Acquire) != 0 {
            self.size_and_flags.fetch_or(PENDING, Ordering::Relaxed);
            // Pairs with the fence in `take`: either the guest sees the flag, or we see the free slot.
            fence(Ordering::SeqCst);
            if self.kind.load(Ordering::Acquire) != 0 {
                return Posted::SlotTaken;
            }
        }
        let words = [
            u64::from(message.timer),
            message.expiration.as_100ns(),
            message.delivery.as_100ns(),
        ];
        for (field, word) in self.payload.iter().zip(words) {
            field.store(word, Ordering::Relaxed);
        }
        self.origin.store(0, Ordering::Relaxed);
        self.size_and_flags
            .store(u32::from(TIMER_PAYLOAD_BYTES), Ordering::Relaxed);
        // Pairs with the acquiring load in `take`: who sees the type sees the message.
        self.kind.store(MESSAGE_TIMER_EXPIRED, Ordering::Release);
        Posted::Delivered
    }

    /// The guest's half: takes the timer message out of the slot, if there is one, and says whether an end-of-message write is due.
    pub fn take(&self) -> Option<(TimerMessage, EndOfMessage)> {
        if self.kind.load(Ordering::Acquire) != MESSAGE_TIMER_EXPIRED {
            return None;
        }
        let [timer, expiration, delivery] = &self.payload;
        let timer = timer.load(Ordering::Relaxed) & u64::from(u32::MAX);
        let message = TimerMessage {
            timer: u32::try_from(timer).unwrap_or(0),
            expiration: RefTime::from_100ns(expiration.load(Ordering::Relaxed)),
            delivery: RefTime::from_100ns(delivery.load(Ordering::Relaxed)),
        };
        // Release: the payload is read before the slot is free for the next message.
        self.kind.store(0, Ordering::Release);
        // Pairs with the fence in `post`.
        fence(Ordering::SeqCst);
        let pending = self.size_and_flags.load(Ordering::Relaxed) & PENDING != 0;
        let end = if pending {
            EndOfMessage::Write
        } else {
            EndOfMessage::NotNeeded
        };
        Some((message, end))
    }

    /// Whether the slot holds a message.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.kind.load(Ordering::Acquire) != 0
    }
}

#[cfg(not(loom))]
impl Default for MessageSlot {
    fn default() -> Self {
        Self::new()
    }
}

/// A message page: one slot for each synthetic interrupt source.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct MessagePage {
    slots: [MessageSlot; SOURCES],
}

impl MessagePage {
    /// A page of empty slots.
    #[must_use]
    #[cfg_attr(loom, expect(clippy::new_without_default))]
    pub fn new() -> Self {
        Self {
            slots: core::array::from_fn(|_| MessageSlot::new()),
        }
    }

    /// The slot of `source` (its low four bits).
    #[must_use]
    pub fn slot(&self, source: u8) -> &MessageSlot {
        &self.slots[usize::from(source & 0xf)]
    }
}

#[cfg(not(loom))]
impl Default for MessagePage {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
