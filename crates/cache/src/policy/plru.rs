//! `plru`: pseudo-LRU by a binary tree, as first-level caches often have it.

use super::{Choice, Parameters, Policy, Setup, StateBits, empty};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines, Spot};

/// A set has a bit for each inner node of a binary tree over its ways. An access turns the nodes
/// above its way to the other half; a newcomer follows the nodes from the root. For one bank, and
/// ways that are a power of two.
#[derive(Clone, Debug)]
pub struct TreePlru {
    /// By set; bit 1 is the root, and bits 2n and 2n + 1 are below bit n. A 1 points to the upper
    /// half.
    trees: Vec<u32>,
    levels: u32,
}

impl TreePlru {
    #[inline]
    fn turn_away(&mut self, spot: Spot) {
        let tree = &mut self.trees[spot.set as usize];
        let mut node = 1;
        for level in (0..self.levels).rev() {
            let upper = spot.way >> level & 1;
            *tree = *tree & !(1 << node) | (1 - upper) << node;
            node = 2 * node + upper;
        }
    }

    #[inline]
    fn victim(&self, set: u32) -> u32 {
        let tree = self.trees[set as usize];
        let mut node = 1;
        for _ in 0..self.levels {
            node = 2 * node + (tree >> node & 1);
        }
        node - (1 << self.levels)
    }
}

impl<const W: usize> Policy<1, W> for TreePlru {
    /// One bit less than there are ways.
    fn state_bits(geometry: &Geometry, _: &Parameters) -> StateBits {
        StateBits {
            set: geometry.ways() - 1,
            ..StateBits::default()
        }
    }

    fn new(setup: &Setup) -> Self {
        let ways = setup.geometry.ways();
        debug_assert!(ways.is_power_of_two() && ways <= 16);
        Self {
            trees: vec![0; setup.geometry.sets() as usize],
            levels: ways.ilog2(),
        }
    }

    #[inline]
    fn on_hit(&mut self, _: &mut Lines<1, W>, spot: Spot, _: &Access<1>) {
        self.turn_away(spot);
    }

    #[inline]
    fn on_fill(&mut self, _: &mut Lines<1, W>, spot: Spot, _: &Access<1>) {
        self.turn_away(spot);
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<1, W>, access: &Access<1>) -> Choice {
        if let Some(spot) = empty(lines, access) {
            return Choice::Replace(spot);
        }
        let [set] = access.first;
        let way = self.victim(set);
        Choice::Replace(Spot { set, way })
    }
}
