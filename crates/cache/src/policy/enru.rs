//! `enru`: enhanced not-recently-used, for several banks (paper, sections 2.3 and 4.1).

use fairlead_base::Rng;

use super::{Choice, Policy, Setup, empty};
use crate::lines::{Access, Lines, Spot};

/// One bit a line, set at every access. The newcomer takes an empty line, else one of the lines
/// without the bit, drawn from the seed; when all of them have it, it is taken from all of them
/// first. The paper names the policy without describing it; this is not-recently-used over the
/// candidate lines of all banks.
#[derive(Clone, Debug)]
pub struct Enru {
    rng: Rng,
}

impl<const B: usize, const W: usize> Policy<B, W> for Enru {
    fn new(setup: &Setup) -> Self {
        Self {
            rng: Rng::new(setup.seed),
        }
    }

    #[inline]
    fn on_hit(&mut self, lines: &mut Lines<B, W>, spot: Spot, _: &Access<B>) {
        lines.set_byte(spot, 1);
    }

    #[inline]
    fn on_fill(&mut self, lines: &mut Lines<B, W>, spot: Spot, _: &Access<B>) {
        lines.set_byte(spot, 1);
    }

    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        if let Some(spot) = empty(lines, access) {
            return Choice::Replace(spot);
        }
        let mut unmarked = lines
            .spots(&access.first)
            .filter(|spot| lines.byte(*spot) == 0)
            .count() as u32;
        if unmarked == 0 {
            for spot in lines.spots(&access.first) {
                lines.set_byte(spot, 0);
            }
            unmarked = (B * W) as u32;
        }
        let drawn = self.rng.below(unmarked) as usize;
        let spot = lines
            .spots(&access.first)
            .filter(|spot| lines.byte(*spot) == 0)
            .nth(drawn);
        Choice::Replace(spot.unwrap_or(lines.oldest_of(&access.first)))
    }
}
