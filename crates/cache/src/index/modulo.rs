//! `mod`: the lowest bits of the key (paper, section 2.3, "Mod").

use super::{FUNCTIONS, Index};
use crate::key::Bits;

/// Modulo a power of two. All banks have the same function, so that two banks of 4 ways are one
/// bank of 8.
#[derive(Debug)]
pub struct Modulo {
    mask: u32,
}

impl Modulo {
    /// For `sets`, a power of two.
    pub fn new(sets: u32) -> Self {
        Self {
            mask: sets.saturating_sub(1),
        }
    }
}

impl Index for Modulo {
    fn sets(&self, bits: &Bits) -> [u32; FUNCTIONS] {
        [bits.limbs[0] as u32 & self.mask; FUNCTIONS]
    }

    fn nests(&self) -> bool {
        true
    }

    fn is_linear(&self) -> bool {
        true
    }
}
