//! The order in which lines were filled, for policies that queue.

use super::{STAMP_BITS_EXACT, StateBits, rank_bits};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines, Spot};

/// By line number, when it entered its queue: larger is later, 0 is never.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    entries: Vec<u64>,
    last: u64,
}

impl Order {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self {
            entries: vec![0; geometry.lines() as usize],
            last: 0,
        }
    }

    /// What the order takes: a hand where all candidates are one set, else a stamp for each line.
    pub(crate) fn state_bits(geometry: &Geometry) -> StateBits {
        let one_set = geometry.banks() == 1;
        StateBits {
            line: if one_set { 0 } else { STAMP_BITS_EXACT },
            set: if one_set { rank_bits(geometry) } else { 0 },
            cache: 0,
        }
    }

    /// The line enters at the end.
    #[inline]
    pub(crate) fn enter(&mut self, number: u32) {
        self.last += 1;
        self.entries[number as usize] = self.last;
    }

    /// When the line entered.
    #[inline]
    pub(crate) fn of<const B: usize, const W: usize>(
        &self,
        lines: &Lines<B, W>,
        spot: Spot,
    ) -> u64 {
        self.entries[lines.number(spot) as usize]
    }

    /// The candidate that entered first, of those that `counts` holds for; the first candidate when
    /// there is none.
    #[inline]
    pub(crate) fn oldest<const B: usize, const W: usize>(
        &self,
        lines: &Lines<B, W>,
        access: &Access<B>,
        counts: impl Fn(Spot) -> bool,
    ) -> Spot {
        let first = Spot {
            set: access.first[0],
            way: 0,
        };
        lines
            .spots(&access.first)
            .filter(|spot| counts(*spot))
            .min_by_key(|spot| self.of(lines, *spot))
            .unwrap_or(first)
    }
}
