//! `access`: replace in the bank with the less accessed set (paper, section 4.4, "TCB (Access)").

use super::{Choice, Parameters, Policy, Setup, StateBits, rank_bits};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines, Spot};

/// Bits of a count: it must not run over, and the paper does not say when it begins again.
const COUNT_BITS: u32 = 32;

/// Counts the hits and fills of every set. The newcomer goes where fewer were counted, the left
/// bank on a tie, over the least recent line there.
#[derive(Clone, Debug)]
pub struct AccessCount {
    counts: Vec<u64>,
}

impl<const B: usize, const W: usize> Policy<B, W> for AccessCount {
    /// Recency within the sets, and their counts.
    fn state_bits(geometry: &Geometry, _: &Parameters) -> StateBits {
        StateBits {
            line: rank_bits(geometry),
            set: COUNT_BITS,
            ..StateBits::default()
        }
    }

    fn new(setup: &Setup) -> Self {
        let geometry = setup.geometry;
        Self {
            counts: vec![0; (geometry.banks() * geometry.sets()) as usize],
        }
    }

    #[inline]
    fn on_hit(&mut self, _: &mut Lines<B, W>, spot: Spot, _: &Access<B>) {
        self.counts[spot.set as usize] += 1;
    }

    #[inline]
    fn on_fill(&mut self, _: &mut Lines<B, W>, spot: Spot, _: &Access<B>) {
        self.counts[spot.set as usize] += 1;
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        let count = |set: &u32| self.counts[*set as usize];
        // The first of equal ones.
        let least = access.first.iter().copied().min_by_key(count);
        Choice::Replace(lines.oldest(least.unwrap_or(access.first[0])))
    }
}
