//! `drrip`: predicted re-reference interval, with set dueling between two insertion policies (after
//! Jaleel et al., ISCA 2010).

use fairlead_base::Rng;

use super::{Choice, Parameters, Policy, Setup, StateBits, empty, number_bits};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines, Spot};

/// The farthest prediction of two bits.
const FAR: u8 = 3;
/// One in this many newcomers is inserted with a nearer prediction under the bimodal policy.
const NEARER_ONE_IN: u32 = 32;
/// The duel's counter goes from 0 to this; above the middle newcomers enter far.
const DUEL_MAX: u32 = 1023;

/// DRRIP over the candidates of all banks: a hit predicts near (0), a newcomer long (2) or, in the
/// other way, mostly far (3); the line that leaves is a far one, after all have been aged until
/// there is one, drawn in turn from the first bank on. Adapted: the sets that duel are those of the
/// left bank, one in 32 for each way (or one each, where there are fewer than 64).
#[derive(Clone, Debug)]
pub struct Drrip {
    rng: Rng,
    duel: u32,
    period: u32,
}

impl Drrip {
    /// Insertion policy for newcomers of a set of the left bank: always long, always far, or the
    /// winner of the duel.
    #[inline]
    fn enters_far(&self, set: u32) -> bool {
        match set % self.period {
            0 => false,
            at if at == self.period / 2 => true,
            _ => self.duel > DUEL_MAX / 2,
        }
    }
}

impl<const B: usize, const W: usize> Policy<B, W> for Drrip {
    /// The prediction; the duel's counter.
    fn state_bits(_: &Geometry, _: &Parameters) -> StateBits {
        StateBits {
            line: 2,
            cache: number_bits(DUEL_MAX + 1).into(),
            ..StateBits::default()
        }
    }

    fn new(setup: &Setup) -> Self {
        Self {
            rng: Rng::new(setup.seed),
            duel: DUEL_MAX / 2,
            period: setup.geometry.sets().clamp(2, 32),
        }
    }

    #[inline]
    fn on_hit(&mut self, lines: &mut Lines<B, W>, spot: Spot, _: &Access<B>) {
        lines.set_byte(spot, 0);
    }

    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        // A miss counts against the policy of its set.
        let at = access.first[0] % self.period;
        if at == 0 {
            self.duel = (self.duel + 1).min(DUEL_MAX);
        } else if at == self.period / 2 {
            self.duel = self.duel.saturating_sub(1);
        }
        if let Some(spot) = empty(lines, access) {
            return Choice::Replace(spot);
        }
        let farthest = lines
            .spots(&access.first)
            .map(|spot| lines.byte(spot))
            .max();
        let missing = FAR - farthest.unwrap_or(FAR).min(FAR);
        let mut found = None;
        for spot in lines.spots(&access.first) {
            let aged = lines.byte(spot) + missing;
            lines.set_byte(spot, aged);
            if aged == FAR && found.is_none() {
                found = Some(spot);
            }
        }
        Choice::Replace(found.unwrap_or(lines.oldest_of(&access.first)))
    }

    #[inline]
    fn on_fill(&mut self, lines: &mut Lines<B, W>, spot: Spot, access: &Access<B>) {
        let far = self.enters_far(access.first[0]) && self.rng.below(NEARER_ONE_IN) != 0;
        lines.set_byte(spot, if far { FAR } else { FAR - 1 });
    }
}
