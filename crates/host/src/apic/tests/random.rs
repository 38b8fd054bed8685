//! A pinned generator: a seed names a history for ever. (PCG XSH RR 64/32, the reference constants.)

/// The generator.
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self { state: 0 };
        random.next();
        random.state = random.state.wrapping_add(seed);
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u32 {
        let old = self.state;
        self.state = old
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let shifted = ((old >> 18) ^ old) >> 27;
        let low = u32::try_from(shifted & 0xffff_ffff).unwrap();
        low.rotate_right(u32::try_from(old >> 59).unwrap())
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        (u64::from(self.next()) << 32) | u64::from(self.next())
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        u32::try_from((u64::from(self.next()) * u64::from(limit)) >> 32).unwrap()
    }

    /// Whether an event of one in `n` happens.
    pub(crate) fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    /// A number below 2^`bits`, each number of bits as likely as the others.
    pub(crate) fn magnitude(&mut self, bits: u32) -> u64 {
        let bits = self.below(bits) + 1;
        self.next_u64() >> (64 - bits)
    }

    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        let len = u32::try_from(items.len()).unwrap();
        items[usize::try_from(self.below(len)).unwrap()]
    }
}
