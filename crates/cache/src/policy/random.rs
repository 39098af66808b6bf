//! `random`: any line that the newcomer may have.

use fairlead_base::Rng;

use super::{Choice, Parameters, Policy, Setup, StateBits, empty};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines, Spot};

/// An empty line, else a random one of the `B × W` candidates.
#[derive(Clone, Debug)]
pub struct Random {
    rng: Rng,
}

impl<const B: usize, const W: usize> Policy<B, W> for Random {
    /// Nothing.
    fn state_bits(_: &Geometry, _: &Parameters) -> StateBits {
        StateBits::default()
    }

    fn new(setup: &Setup) -> Self {
        Self {
            rng: Rng::new(setup.seed),
        }
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        if let Some(spot) = empty(lines, access) {
            return Choice::Replace(spot);
        }
        let ways = lines.ways() as u32;
        let drawn = self.rng.below(lines.candidates() as u32);
        Choice::Replace(Spot {
            set: access.first[(drawn / ways) as usize],
            way: drawn % ways,
        })
    }
}
