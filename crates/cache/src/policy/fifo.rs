//! `fifo`: first in, first out.

use super::{
    Choice, Order, Parameters, Policy, STAMP_BITS_EXACT, Setup, StateBits, empty, rank_bits,
};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines, Spot};

/// The candidate that was filled first is evicted, whatever was accessed since.
#[derive(Clone, Debug)]
pub struct Fifo {
    order: Order,
}

impl<const B: usize, const W: usize> Policy<B, W> for Fifo {
    /// The order of entry: a hand where all candidates are one set, else stamps.
    fn state_bits(geometry: &Geometry, _: &Parameters) -> StateBits {
        let one_set = geometry.banks() == 1;
        StateBits {
            line: if one_set { 0 } else { STAMP_BITS_EXACT },
            set: if one_set { rank_bits(geometry) } else { 0 },
            cache: 0,
        }
    }

    fn new(setup: &Setup) -> Self {
        Self {
            order: Order::new(&setup.geometry),
        }
    }

    #[inline]
    fn on_fill(&mut self, lines: &mut Lines<B, W>, spot: Spot, _: &Access<B>) {
        self.order.enter(lines.number(spot));
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        if let Some(spot) = empty(lines, access) {
            return Choice::Replace(spot);
        }
        Choice::Replace(self.order.oldest(lines, access, |_| true))
    }
}
