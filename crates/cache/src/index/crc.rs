//! `crc`: CRC-32C (paper, section 2.3, "CRC"; the polynomial of RFC 9260, appendix A).

use super::{FUNCTIONS, Index};
use crate::key::Bits;

/// CRC-32C of the key's bytes, most significant first. Function *k* takes the index bits from bit
/// 4·*k* on, around the end: another start value would only shift all sets alike. Eight functions
/// have 4 bits each to themselves; above 16 sets neighbours share bits, 2 of them at 64 sets, 6 at
/// 1,024. The step does not depend on the number of sets, so that places for many serve for few.
#[derive(Debug)]
pub struct Crc {
    mask: u32,
}

const fn table() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = (rest >> 1) ^ (0x82F6_3B78 & (rest & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
}

const TABLE: [u32; 256] = table();

fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(!0, |rest: u32, byte| {
        (rest >> 8) ^ TABLE[((rest ^ u32::from(byte)) & 0xff) as usize]
    })
}

impl Crc {
    /// For `sets`, a power of two.
    pub fn new(sets: u32) -> Self {
        Self {
            mask: sets.saturating_sub(1),
        }
    }
}

impl Index for Crc {
    fn sets(&self, bits: &Bits) -> [u32; FUNCTIONS] {
        let octets = bits.len.div_ceil(8);
        let crc = crc32c((0..octets).rev().map(|at| bits.chunk(at * 8, 8) as u8));
        core::array::from_fn(|function| crc.rotate_right(4 * function as u32) & self.mask)
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
    fn the_check_value_of_crc_32c() {
        assert_eq!(crc32c(b"123456789".iter().copied()), 0xE306_9283);
    }

    #[test]
    fn neighbours_share_what_is_above_4_bits() {
        let bits = Bits {
            limbs: [0x0102_0304_0506, 0, 0],
            len: 48,
        };
        for (sets, shared) in [(16, 0), (64, 2), (1024, 6)] {
            let found = Crc::new(sets).sets(&bits);
            for two in found.windows(2) {
                assert_eq!(two[0] >> 4, two[1] & ((1 << shared) - 1), "{sets} sets");
            }
        }
    }

    #[test]
    fn the_bytes_are_taken_most_significant_first() {
        let bits = Bits {
            limbs: [0x0102_0304_0506, 0, 0],
            len: 48,
        };
        let crc = crc32c([1, 2, 3, 4, 5, 6].into_iter());
        assert_eq!(Crc::new(1 << 16).sets(&bits)[0], crc & 0xffff);
    }
}
