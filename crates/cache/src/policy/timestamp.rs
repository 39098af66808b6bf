//! `timestamp`: recency by a stamp of few bits (paper, sections 3.4 and 4.4, "TCB (16)").

use super::{Choice, Parameters, Policy, Setup, StateBits};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines, Spot};

/// Each access writes the low bits of the count of accesses into its line. The newcomer takes the
/// line with the least stamp among its sets in all banks (the first of equals): "the line with the
/// least timestamp is replaced" (section 3.4). Stamps begin again at 0 after 2ⁿ accesses; what was
/// touched since then looks older than what was touched last before, which is what few bits cost.
#[derive(Clone, Debug)]
pub struct Timestamp {
    stamps: Vec<u32>,
    count: u32,
    mask: u32,
}

impl Timestamp {
    #[inline]
    fn stamp(&mut self, number: u32) {
        self.count = self.count.wrapping_add(1) & self.mask;
        self.stamps[number as usize] = self.count;
    }
}

impl<const B: usize, const W: usize> Policy<B, W> for Timestamp {
    /// The stamps, and the count.
    fn state_bits(_: &Geometry, parameters: &Parameters) -> StateBits {
        StateBits {
            line: parameters.stamp_bits,
            cache: parameters.stamp_bits.into(),
            ..StateBits::default()
        }
    }

    fn new(setup: &Setup) -> Self {
        let bits = setup.parameters.stamp_bits.clamp(1, 31);
        Self {
            stamps: vec![0; setup.geometry.lines() as usize],
            count: 0,
            mask: (1 << bits) - 1,
        }
    }

    #[inline]
    fn on_hit(&mut self, lines: &mut Lines<B, W>, spot: Spot, _: &Access<B>) {
        self.stamp(lines.number(spot));
    }

    #[inline]
    fn on_fill(&mut self, lines: &mut Lines<B, W>, spot: Spot, _: &Access<B>) {
        self.stamp(lines.number(spot));
    }

    #[inline]
    fn on_move(&mut self, lines: &mut Lines<B, W>, from: Spot, to: Spot) {
        self.stamps[lines.number(to) as usize] = self.stamps[lines.number(from) as usize];
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        let mut found = Spot {
            set: access.first[0],
            way: 0,
        };
        let mut least = None;
        for spot in lines.spots(&access.first) {
            if lines.is_empty(spot) {
                return Choice::Replace(spot);
            }
            let stamp = self.stamps[lines.number(spot) as usize];
            if least.is_none_or(|least| stamp < least) {
                (found, least) = (spot, Some(stamp));
            }
        }
        Choice::Replace(found)
    }
}
