//! `fifo`: first in, first out.

use super::{Choice, Order, Parameters, Policy, Setup, StateBits, empty};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines, Spot};

/// The candidate that was filled first is evicted, whatever was accessed since.
#[derive(Clone, Debug)]
pub struct Fifo {
    order: Order,
}

impl<const B: usize, const W: usize> Policy<B, W> for Fifo {
    fn state_bits(geometry: &Geometry, _: &Parameters) -> StateBits {
        Order::state_bits(geometry)
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
