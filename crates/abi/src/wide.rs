//! Products of 256 bits: the exact arithmetic under rates and scaled counters.
//!
//! A 64-bit counter times 10^9 times a 64-bit denominator needs 158 bits, more than Rust's widest integer. Only three
//! operations are needed, so there are three.

/// The product as `(high, low)` halves of 128 bits, exact.
///
/// ```
/// # use chronovisor_abi::wide;
/// assert_eq!(wide::mul(u128::MAX, u128::MAX), (u128::MAX - 1, 1));
/// ```
#[must_use]
pub const fn mul(a: u128, b: u128) -> (u128, u128) {
    const LOW: u128 = (1 << 64) - 1;
    let (a1, a0, b1, b0) = (a >> 64, a & LOW, b >> 64, b & LOW);
    let (p00, p01, p10, p11) = (a0 * b0, a0 * b1, a1 * b0, a1 * b1);
    // At most 3 * (2^64 - 1): no overflow.
    let middle = (p00 >> 64) + (p01 & LOW) + (p10 & LOW);
    let high = p11 + (p01 >> 64) + (p10 >> 64) + (middle >> 64);
    (high, (middle << 64) | (p00 & LOW))
}

/// The distance between two 256-bit numbers given as `(high, low)`.
#[must_use]
pub const fn abs_diff(a: (u128, u128), b: (u128, u128)) -> (u128, u128) {
    let a_is_larger = a.0 > b.0 || (a.0 == b.0 && a.1 >= b.1);
    let (large, small) = if a_is_larger { (a, b) } else { (b, a) };
    let (low, borrow) = large.1.overflowing_sub(small.1);
    (large.0 - small.0 - if borrow { 1 } else { 0 }, low)
}

/// `floor(a * b / divisor)` with a 256-bit product, or `None` if the divisor is 0 or the quotient exceeds 128 bits.
///
/// ```
/// # use chronovisor_abi::wide;
/// assert_eq!(wide::mul_div_floor(u128::MAX, 10, 20), Some(u128::MAX / 2));
/// assert_eq!(wide::mul_div_floor(u128::MAX, 2, 1), None);
/// ```
#[must_use]
pub const fn mul_div_floor(a: u128, b: u128, divisor: u128) -> Option<u128> {
    match divide(mul(a, b), divisor) {
        Some((quotient, _)) => Some(quotient),
        None => None,
    }
}

/// `ceil(a * b / divisor)` with a 256-bit product, or `None` if the divisor is 0 or the quotient exceeds 128 bits.
#[must_use]
pub const fn mul_div_ceil(a: u128, b: u128, divisor: u128) -> Option<u128> {
    match divide(mul(a, b), divisor) {
        Some((quotient, 0)) => Some(quotient),
        Some((quotient, _)) => quotient.checked_add(1),
        None => None,
    }
}

/// `(quotient, remainder)` of a 256-bit number, or `None` if the divisor is 0 or the quotient exceeds 128 bits.
#[must_use]
pub const fn divide((high, low): (u128, u128), divisor: u128) -> Option<(u128, u128)> {
    if divisor == 0 || high >= divisor {
        return None;
    }
    if high == 0 {
        return Some((low / divisor, low % divisor));
    }
    if divisor < 1 << 64 {
        // Two steps of schoolbook division with 64-bit digits; each partial dividend fits 128 bits.
        let upper = (high << 64) | (low >> 64);
        let middle = ((upper % divisor) << 64) | (low & ((1 << 64) - 1));
        return Some((
            ((upper / divisor) << 64) | (middle / divisor),
            middle % divisor,
        ));
    }
    // Shift and subtract, one bit a step; the remainder is kept below the divisor, its carry in `carry`.
    let (mut remainder, mut quotient, mut bit) = (high, 0, 128);
    while bit > 0 {
        bit -= 1;
        let carry = remainder >> 127 == 1;
        remainder = (remainder << 1) | ((low >> bit) & 1);
        quotient <<= 1;
        if carry || remainder >= divisor {
            remainder = remainder.wrapping_sub(divisor); // wrapping: with a carry the true value is 2^128 higher.
            quotient |= 1;
        }
    }
    Some((quotient, remainder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An independent product: 16 digits of 32 bits, summed with carries.
    fn schoolbook(a: u128, b: u128) -> (u128, u128) {
        let mut digits = [0_u64; 8];
        for i in 0..4 {
            let mut carry = 0_u64;
            for j in 0..4 {
                let (x, y) = ((a >> (32 * i)) & 0xffff_ffff, (b >> (32 * j)) & 0xffff_ffff);
                let sum = u64::try_from(x * y).unwrap() + digits[i + j] + carry;
                digits[i + j] = sum & 0xffff_ffff;
                carry = sum >> 32;
            }
            digits[i + 4] += carry;
        }
        let join = |part: &[u64]| {
            part.iter()
                .rev()
                .fold(0_u128, |all, d| (all << 32) | u128::from(*d))
        };
        (join(&digits[4..]), join(&digits[..4]))
    }

    proptest! {
        #[test]
        fn product_equals_the_schoolbook(a: u128, b: u128, sa in 0_u32..128, sb in 0_u32..128) {
            prop_assert_eq!(mul(a >> sa, b >> sb), schoolbook(a >> sa, b >> sb));
        }

        /// quotient * divisor + remainder = dividend, remainder < divisor.
        #[test]
        fn division_is_undone_by_multiplication(a: u128, b: u128, d in 1_u128.., sa in 0_u32..128, sb in 0_u32..128, sd in 0_u32..128) {
            let (dividend, divisor) = (mul(a >> sa, b >> sb), (d >> sd).max(1));
            match divide(dividend, divisor) {
                Some((quotient, remainder)) => {
                    prop_assert!(remainder < divisor);
                    let (high, low) = mul(quotient, divisor);
                    let (low, carry) = low.overflowing_add(remainder);
                    prop_assert_eq!((high + u128::from(carry), low), dividend);
                }
                None => prop_assert!(dividend.0 >= divisor),
            }
        }
    }
}
