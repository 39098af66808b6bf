//! `pmod`: modulo a prime (paper, section 2.3, "PMod").

use super::{FUNCTIONS, Index};
use crate::key::Bits;

/// Modulo the largest prime that is at most the number of sets, in all banks; the sets from the
/// prime on stay empty (61 of 64 are used).
#[derive(Debug)]
pub struct PrimeModulo {
    prime: u32,
}

fn is_prime(number: u32) -> bool {
    let end = number.isqrt();
    number >= 2 && (2..=end).all(|divisor| !number.is_multiple_of(divisor))
}

impl PrimeModulo {
    /// For `sets`; a single set is always set 0.
    pub fn new(sets: u32) -> Self {
        let prime = (2..=sets).rev().find(|number| is_prime(*number));
        Self {
            prime: prime.unwrap_or(1),
        }
    }
}

impl Index for PrimeModulo {
    fn sets(&self, bits: &Bits) -> [u32; FUNCTIONS] {
        [bits.modulo(self.prime); FUNCTIONS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_prime_below_is_taken() {
        let primes = [1, 2, 4, 64, 128, 1 << 16].map(|sets| PrimeModulo::new(sets).prime);
        assert_eq!(primes, [1, 2, 3, 61, 127, 65_521]);
        let bits = Bits {
            limbs: [1000, 0, 0],
            len: 48,
        };
        assert_eq!(PrimeModulo::new(64).sets(&bits), [1000 % 61; FUNCTIONS]);
    }
}
