//! `clock`: first in, first out, with a second chance for accessed lines.

use super::{Choice, Order, Parameters, Policy, Setup, StateBits, empty};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines, Spot};

/// CLOCK in its queue form, within the candidates of each newcomer: the oldest entry is evicted
/// unless it was accessed since; then its bit is cleared and it is queued again. Adapted: the queue
/// is that of the `B × W` lines that the newcomer may have, not of the whole cache.
#[derive(Clone, Debug)]
pub struct SecondChance {
    order: Order,
}

impl<const B: usize, const W: usize> Policy<B, W> for SecondChance {
    /// A bit, and the order of entry.
    fn state_bits(geometry: &Geometry, _: &Parameters) -> StateBits {
        let order = Order::state_bits(geometry);
        StateBits {
            line: 1 + order.line,
            ..order
        }
    }

    fn new(setup: &Setup) -> Self {
        Self {
            order: Order::new(&setup.geometry),
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
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        if let Some(spot) = empty(lines, access) {
            return Choice::Replace(spot);
        }
        let mut oldest = self.order.oldest(lines, access, |_| true);
        // Each turn takes one bit, so the last of them finds none.
        for _ in 0..lines.candidates() {
            if lines.byte(oldest) == 0 {
                break;
            }
            lines.set_byte(oldest, 0);
            self.order.enter(lines.number(oldest));
            oldest = self.order.oldest(lines, access, |_| true);
        }
        Choice::Replace(oldest)
    }
}
