//! `h3`: universal hashing by parities (paper, sections 3.1 and 3.2).

use fairlead_base::Rng;

use super::{FUNCTIONS, Index};
use crate::key::Bits;

/// Bits of the longest key.
const KEY_BITS: usize = 144;
/// Bits of the key per table lookup.
const PIECE: usize = 4;

/// Each output bit is the parity of the key under a mask: `h[i] = ⊕ q[b][i] ∧ x[b]`, the `q` drawn
/// from the seed. The eight functions share tables over four key bits each, so one pass of 12
/// look-ups hashes an IPv4 key for all of them.
pub struct Universal {
    mask: u32,
    /// By piece of the key and its value: the XOR of the columns of its ones, for each function.
    tables: Box<[[[u32; FUNCTIONS]; 1 << PIECE]; KEY_BITS / PIECE]>,
}

impl core::fmt::Debug for Universal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Universal({} sets)", self.mask + 1)
    }
}

/// The columns `q[b]`: for each key bit 32 output bits of every function. They depend on the seed
/// alone, so the low index bits are the same for every number of sets.
fn columns(seed: u64) -> Vec<[u32; FUNCTIONS]> {
    let mut rng = Rng::new(seed ^ 0x4833_7565_6e69_7631);
    (0..KEY_BITS)
        .map(|_| core::array::from_fn(|_| (rng.next_u64() >> 32) as u32))
        .collect()
}

impl Universal {
    /// For `sets`, a power of two, with functions drawn from `seed`.
    pub fn new(sets: u32, seed: u64) -> Self {
        let columns = columns(seed);
        let mut tables = Box::new([[[0; FUNCTIONS]; 1 << PIECE]; KEY_BITS / PIECE]);
        for (table, columns) in tables.iter_mut().zip(columns.chunks(PIECE)) {
            for (value, sums) in table.iter_mut().enumerate() {
                for (bit, column) in columns.iter().enumerate() {
                    for (sum, word) in sums.iter_mut().zip(column) {
                        *sum ^= if value >> bit & 1 == 1 { *word } else { 0 };
                    }
                }
            }
        }
        Self {
            mask: sets.saturating_sub(1),
            tables,
        }
    }
}

impl Index for Universal {
    #[inline]
    fn sets(&self, bits: &Bits) -> [u32; FUNCTIONS] {
        let mut sets = [0; FUNCTIONS];
        let pieces = (bits.len as usize).div_ceil(PIECE);
        for (at, table) in self.tables.iter().enumerate().take(pieces) {
            let value = (bits.limbs[at / 16] >> (at % 16 * PIECE)) & 0xf;
            for (set, word) in sets.iter_mut().zip(&table[value as usize]) {
                *set ^= word;
            }
        }
        sets.map(|set| set & self.mask)
    }

    fn nests(&self) -> bool {
        true
    }

    fn is_linear(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_the_parities_of_the_definition() {
        let (seed, mut rng) = (7, Rng::new(1));
        let family = Universal::new(64, seed);
        let q = columns(seed);
        for _ in 0..200 {
            let bits = Bits {
                limbs: [rng.next_u64(), rng.next_u64(), rng.next_u64() & 0xffff],
                len: 144,
            };
            let sets = family.sets(&bits);
            for function in 0..FUNCTIONS {
                let mut expected = 0;
                for output in 0..6 {
                    let parity = (0..144).fold(0, |sum, b| {
                        sum ^ (q[b as usize][function] >> output) & bits.chunk(b, 1)
                    });
                    expected |= (parity & 1) << output;
                }
                assert_eq!(sets[function], expected);
            }
        }
    }

    #[test]
    fn bits_that_are_zero_cost_nothing_and_change_nothing() {
        let family = Universal::new(1 << 10, 3);
        let short = Bits {
            limbs: [0x1234, 0, 0],
            len: 16,
        };
        let long = Bits { len: 144, ..short };
        assert_eq!(family.sets(&short), family.sets(&long));
    }
}
