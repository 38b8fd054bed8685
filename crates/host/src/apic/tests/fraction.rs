//! Exact non-negative fractions of two 128-bit numbers. An overflow is a panic, never a wrong value.

use core::cmp::Ordering;

/// `n / d`, reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fraction {
    n: u128,
    d: u128,
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        if let (Ok(mut x), Ok(mut y)) = (u64::try_from(a), u64::try_from(b)) {
            while y != 0 {
                (x, y) = (y, x % y);
            }
            return u128::from(x);
        }
        (a, b) = (b, a % b);
    }
    a
}

fn mul(a: u128, b: u128) -> u128 {
    a.checked_mul(b)
        .expect("the model's fractions fit 128 bits")
}

impl Fraction {
    pub(super) const ZERO: Self = Self { n: 0, d: 1 };

    pub(super) fn new(n: u128, d: u128) -> Self {
        let g = gcd(n, d);
        Self { n: n / g, d: d / g }
    }

    pub(super) fn whole(n: u128) -> Self {
        Self { n, d: 1 }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        if self.d == other.d {
            return Self::new(self.n + other.n, self.d);
        }
        let g = gcd(self.d, other.d);
        let n = mul(self.n, other.d / g)
            .checked_add(mul(other.n, self.d / g))
            .expect("the model's fractions fit 128 bits");
        Self::new(n, mul(self.d, other.d / g))
    }

    pub(super) fn minus(self, other: Self) -> Self {
        let g = gcd(self.d, other.d);
        let (a, b) = (mul(self.n, other.d / g), mul(other.n, self.d / g));
        Self::new(
            a.checked_sub(b).expect("the model never goes below zero"),
            mul(self.d, other.d / g),
        )
    }

    pub(super) fn times(self, factor: u128) -> Self {
        let g = gcd(factor, self.d);
        Self {
            n: mul(self.n, factor / g),
            d: self.d / g,
        }
    }

    pub(super) fn times_fraction(self, other: Self) -> Self {
        let (g, h) = (gcd(self.n, other.d), gcd(other.n, self.d));
        Self {
            n: mul(self.n / g, other.n / h),
            d: mul(self.d / h, other.d / g),
        }
    }

    pub(super) fn inverse(self) -> Self {
        Self {
            n: self.d,
            d: self.n,
        }
    }

    pub(super) fn floor(self) -> u128 {
        self.n / self.d
    }

    pub(super) fn ceil(self) -> u128 {
        self.n.div_ceil(self.d)
    }

    pub(super) fn max(self, other: Self) -> Self {
        if self < other { other } else { self }
    }

    pub(super) fn min(self, other: Self) -> Self {
        if other < self { other } else { self }
    }
}

impl Ord for Fraction {
    fn cmp(&self, other: &Self) -> Ordering {
        // Whole parts first: most comparisons end there and cannot overflow.
        self.floor()
            .cmp(&other.floor())
            .then_with(|| mul(self.n % self.d, other.d).cmp(&mul(other.n % other.d, self.d)))
    }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
