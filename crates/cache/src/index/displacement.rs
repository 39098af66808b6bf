//! `pdisp`: prime displacement (paper, section 2.3, "PDisp").

use super::{FUNCTIONS, Index};
use crate::key::Bits;

/// `(tag × prime + low) mod sets`, the tag being the key without its low bits; a prime for each
/// function. Only as many bits of the tag count as the index has.
#[derive(Debug)]
pub struct Displacement {
    width: u32,
}

/// Odd primes of the size that the literature uses, all different modulo 32.
const PRIMES: [u32; FUNCTIONS] = [19, 31, 37, 41, 43, 47, 53, 59];

impl Displacement {
    /// For `sets`, a power of two.
    pub fn new(sets: u32) -> Self {
        Self {
            width: sets.max(1).ilog2(),
        }
    }
}

impl Index for Displacement {
    fn sets(&self, bits: &Bits) -> [u32; FUNCTIONS] {
        if self.width == 0 {
            return [0; FUNCTIONS];
        }
        // Of a product modulo a power of two only the factors' low bits count.
        let tag = bits.above(self.width).chunk(0, self.width);
        let low = bits.chunk(0, self.width);
        PRIMES.map(|prime| tag.wrapping_mul(prime).wrapping_add(low) & ((1 << self.width) - 1))
    }
}
