//! `sieve`: one bit, one hand, nothing moves (after Zhang et al., NSDI 2024).

use super::{Choice, Order, Parameters, Policy, Setup, StateBits, empty, order_bits};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines, Spot};

/// SIEVE within the candidates of each newcomer. A hand goes from the oldest entry to the newest,
/// taking the bit of what was touched, and stops at what was not; what it passes stays in place.
/// Where the newest entry leaves, the hand goes back to the oldest, not on to the newcomer.
/// Adapted: every set has a hand of its own (the entry it last looked at), and a search goes over
/// the sets of all banks, taking the oldest entry that the hand of its set has not passed; with
/// one bank this is SIEVE of a queue of `W`.
#[derive(Clone, Debug)]
pub struct Sieve {
    order: Order,
    hands: Vec<u64>,
}

impl Sieve {
    /// The hand of the set of `leaving` has nothing to go on to: everything else in the set is
    /// older than what it last looked at.
    #[inline]
    fn ends<const B: usize, const W: usize>(&self, lines: &Lines<B, W>, leaving: Spot) -> bool {
        let hand = self.hands[leaving.set as usize];
        let ways = 0..lines.ways() as u32;
        ways.map(|way| Spot { way, ..leaving })
            .filter(|spot| *spot != leaving && !lines.is_empty(*spot))
            .all(|spot| self.order.of(lines, spot) <= hand)
    }
}

impl<const B: usize, const W: usize> Policy<B, W> for Sieve {
    /// The bit and the order of entry; a hand a set.
    fn state_bits(geometry: &Geometry, _: &Parameters) -> StateBits {
        let order = order_bits(geometry);
        StateBits {
            line: 1 + order,
            set: order,
            cache: 0,
        }
    }

    fn new(setup: &Setup) -> Self {
        let geometry = setup.geometry;
        Self {
            order: Order::new(&geometry),
            hands: vec![0; (geometry.banks() * geometry.sets()) as usize],
        }
    }

    #[inline]
    fn on_hit(&mut self, lines: &mut Lines<B, W>, spot: Spot, _: &Access<B>) {
        lines.set_byte(spot, 1);
    }

    #[inline]
    fn on_fill(&mut self, lines: &mut Lines<B, W>, spot: Spot, _: &Access<B>) {
        self.order.enter(lines.number(spot));
    }

    #[inline]
    fn on_remove(&mut self, lines: &mut Lines<B, W>, spot: Spot) {
        if self.ends(lines, spot) {
            self.hands[spot.set as usize] = 0;
        }
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        if let Some(spot) = empty(lines, access) {
            return Choice::Replace(spot);
        }
        // Once around takes every bit, so at the latest the second time around finds one.
        for _ in 0..2 * lines.candidates() + 1 {
            let ahead = lines
                .spots(&access.first)
                .filter(|spot| self.order.of(lines, *spot) > self.hands[spot.set as usize])
                .min_by_key(|spot| self.order.of(lines, *spot));
            let Some(spot) = ahead else {
                for set in &access.first {
                    self.hands[*set as usize] = 0;
                }
                continue;
            };
            self.hands[spot.set as usize] = self.order.of(lines, spot);
            if lines.byte(spot) == 0 {
                if self.ends(lines, spot) {
                    self.hands[spot.set as usize] = 0;
                }
                return Choice::Replace(spot);
            }
            lines.set_byte(spot, 0);
        }
        Choice::Replace(lines.oldest_of(&access.first))
    }
}
