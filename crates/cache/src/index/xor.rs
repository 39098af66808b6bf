//! `xor`: folding (paper, section 2.3, "XOR"), skewed over several banks.

use super::{FUNCTIONS, Index};
use crate::key::Bits;

/// The key is cut into pieces as wide as the index, which are XORed. In bank *k* piece *j* is
/// turned left by *j·k* bits first, so that keys that meet in one bank part in another.
#[derive(Debug)]
pub struct Xor {
    width: u32,
}

impl Xor {
    /// For `sets`, a power of two.
    pub fn new(sets: u32) -> Self {
        Self {
            width: sets.max(1).ilog2(),
        }
    }

    fn turned(&self, piece: u32, by: u32) -> u32 {
        let by = by % self.width;
        let wide = u64::from(piece) << by;
        ((wide | (wide >> self.width)) & ((1u64 << self.width) - 1)) as u32
    }
}

impl Index for Xor {
    fn sets(&self, bits: &Bits) -> [u32; FUNCTIONS] {
        let mut sets = [0; FUNCTIONS];
        if self.width == 0 {
            return sets;
        }
        for (piece, from) in (0..bits.len).step_by(self.width as usize).enumerate() {
            let chunk = bits.chunk(from, self.width);
            for (variant, set) in sets.iter_mut().enumerate() {
                *set ^= self.turned(chunk, piece as u32 * variant as u32);
            }
        }
        sets
    }

    fn is_linear(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bank_0_is_plain_folding_and_bank_1_is_turned() {
        let bits = Bits {
            limbs: [0x1_1843, 0, 0],
            len: 18,
        };
        let sets = Xor::new(64).sets(&bits);
        let [low, middle, high] = [0, 6, 12].map(|from| bits.chunk(from, 6));
        assert_eq!(sets[0], low ^ middle ^ high);
        let turn = |piece: u32, by: u32| ((piece << by) | (piece >> (6 - by))) & 63;
        assert_eq!(sets[1], low ^ turn(middle, 1) ^ turn(high, 2));
    }
}
