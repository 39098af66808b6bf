//! `rr`: banks in turn (paper, section 4.4, "TCB (RR)").

use super::{Choice, Parameters, Policy, Setup, StateBits, number_bits, rank_bits};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines};

/// Each newcomer goes to the next bank, over the least recent line of its set there.
#[derive(Clone, Copy, Debug)]
pub struct RoundRobin {
    next: usize,
}

impl<const B: usize, const W: usize> Policy<B, W> for RoundRobin {
    /// Recency within the sets, and the next bank.
    fn state_bits(geometry: &Geometry, _: &Parameters) -> StateBits {
        StateBits {
            line: rank_bits(geometry),
            cache: u64::from(number_bits(geometry.banks())),
            ..StateBits::default()
        }
    }

    fn new(_: &Setup) -> Self {
        Self { next: 0 }
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        let set = access.first[self.next % B];
        self.next = (self.next + 1) % B;
        Choice::Replace(lines.oldest(set))
    }
}
