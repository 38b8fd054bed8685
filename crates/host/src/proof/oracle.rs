//! Exact time, by other means than the code under test: plain 128-bit division, one epoch after the other.

/// A rate as a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) n: u64,
    pub(super) d: u64,
}

impl Rate {
    /// ns that `ticks` take, in 2^-64 ns, rounded down. Epochs are short enough for 128 bits.
    pub(super) fn time(self, ticks: u64) -> u128 {
        let product = u128::from(ticks) * 1_000_000_000 * u128::from(self.d);
        let n = u128::from(self.n);
        ((product / n) << 64) + ((product % n) << 64) / n
    }

    /// Ticks in `ns`, rounded down.
    pub(super) fn ticks(self, ns: u64) -> u64 {
        u64::try_from(u128::from(ns) * u128::from(self.n) / (1_000_000_000 * u128::from(self.d)))
            .expect("spans of a test fit")
    }
}

/// The master as it must be: at most 2^-64 ns is lost an epoch, and nothing else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Oracle {
    base: u64,
    time: u128,
    pub(super) rate: Rate,
    /// Reference time stands this far behind, in 2^-64 ns.
    pub(super) behind: u128,
    /// True TAI when the master stood at 0, in 2^-64 ns, less the time that the partition was stopped.
    pub(super) tai_origin: u128,
    /// How many epochs there were, each worth an error of one unit.
    epochs: u128,
}

impl Oracle {
    pub(super) fn new(base: u64, rate: Rate, tai_origin: u128) -> Self {
        Self {
            base,
            time: 0,
            rate,
            behind: 0,
            tai_origin,
            epochs: 1,
        }
    }

    /// The master at `tsc`, in 2^-64 ns.
    pub(super) fn at(&self, tsc: u64) -> u128 {
        self.time + self.rate.time(tsc.wrapping_sub(self.base))
    }

    /// The rounding that `at` and the code under test may differ by.
    pub(super) fn slack(&self) -> u128 {
        2 * self.epochs
    }

    pub(super) fn change_rate(&mut self, tsc: u64, rate: Rate) {
        self.time = self.at(tsc);
        self.base = tsc;
        self.rate = rate;
        self.epochs += 1;
    }

    pub(super) fn move_counter(&mut self, ahead: u64) {
        self.base = self.base.wrapping_add(ahead);
    }

    /// TAI at `tsc`, in 2^-64 ns.
    pub(super) fn tai(&self, tsc: u64) -> u128 {
        self.tai_origin + self.at(tsc)
    }
}

/// Random numbers: SplitMix64.
#[derive(Clone, Copy, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        u64::try_from((u128::from(self.next()) * u128::from(end)) >> 64).expect("below a u64")
    }

    /// A number below 2^`bits`, every magnitude as likely as the next.
    pub(super) fn magnitude(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits + 1);
        self.next() & ((1 << bits) - 1)
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(u64::try_from(from.len()).expect("short"))).expect("short")]
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
