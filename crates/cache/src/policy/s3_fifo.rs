//! `s3-fifo`: a small queue for newcomers, a main queue, ghosts (after Yang et al., SOSP 2023).

use super::{Choice, Order, Parameters, Policy, Setup, StateBits, empty, order_bits, rank_bits};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines, Spot};

/// The line is in the main queue.
const MAIN: u8 = 0b100;
/// Touches since entry, up to 3.
const COUNT: u8 = 0b011;

/// A ghost is a whole session identifier, 48 bits of an IPv4 one.
const GHOST_BITS: u32 = 48;

/// S3-FIFO within the candidates of each newcomer. Adapted: the queues are marks on the `B × W`
/// lines that the newcomer may have, a tenth of them (at least one) meant for the small queue; what
/// was touched twice or more while there goes to the main queue, the rest leaves and is remembered
/// among the ghosts of its set, `W` of them; whoever is found there enters the main queue at once.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    order: Order,
    /// By set and place in the ring: the finger and one, 0 for none.
    ghosts: Vec<u64>,
    /// By set: the ring's next place.
    next: Vec<u8>,
    enters_main: bool,
    ways: usize,
}

fn count(byte: u8) -> u8 {
    byte & COUNT
}

impl S3Fifo {
    fn forget(&mut self, set: u32, finger: u32) -> bool {
        let ring = &mut self.ghosts[set as usize * self.ways..][..self.ways];
        let found = ring
            .iter_mut()
            .find(|ghost| **ghost == u64::from(finger) + 1);
        found.map(|ghost| *ghost = 0).is_some()
    }

    /// The oldest of one queue, the touched ones of it served on the way.
    fn leaving<const B: usize, const W: usize>(
        &mut self,
        lines: &mut Lines<B, W>,
        access: &Access<B>,
    ) -> Spot {
        // Every turn lowers a count or ends a stay in the small queue.
        for _ in 0..5 * lines.candidates() {
            let small = lines
                .spots(&access.first)
                .filter(|spot| lines.byte(*spot) & MAIN == 0)
                .count();
            let queue = if small * 10 >= lines.candidates() {
                0
            } else {
                MAIN
            };
            let number_of = |spot: Spot| lines.byte(spot) & MAIN == queue;
            let spot = self.order.oldest(lines, access, number_of);
            let byte = lines.byte(spot);
            if queue == 0 {
                if count(byte) < 2 {
                    return spot;
                }
                lines.set_byte(spot, MAIN);
            } else {
                if count(byte) == 0 {
                    return spot;
                }
                lines.set_byte(spot, byte - 1);
            }
            self.order.enter(lines.number(spot));
        }
        lines.oldest_of(&access.first)
    }
}

impl<const B: usize, const W: usize> Policy<B, W> for S3Fifo {
    /// The queue, the count, the order of entry and a ghost for each line; a place in each ring.
    fn state_bits(geometry: &Geometry, _: &Parameters) -> StateBits {
        StateBits {
            line: 3 + order_bits(geometry) + GHOST_BITS,
            set: rank_bits(geometry),
            cache: 0,
        }
    }

    fn new(setup: &Setup) -> Self {
        let geometry = setup.geometry;
        let sets = (geometry.banks() * geometry.sets()) as usize;
        Self {
            order: Order::new(&geometry),
            ghosts: vec![0; geometry.lines() as usize],
            next: vec![0; sets],
            enters_main: false,
            ways: geometry.ways() as usize,
        }
    }

    #[inline]
    fn on_hit(&mut self, lines: &mut Lines<B, W>, spot: Spot, _: &Access<B>) {
        let byte = lines.byte(spot);
        let counted = (count(byte) + 1).min(COUNT);
        lines.set_byte(spot, byte & MAIN | counted);
    }

    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        self.enters_main = false;
        for set in &access.first {
            self.enters_main |= self.forget(*set, access.finger);
        }
        if let Some(spot) = empty(lines, access) {
            return Choice::Replace(spot);
        }
        Choice::Replace(self.leaving(lines, access))
    }

    #[inline]
    fn on_evict(&mut self, lines: &mut Lines<B, W>, spot: Spot, finger: u32) {
        if lines.byte(spot) & MAIN == 0 {
            let set = spot.set as usize;
            let next = usize::from(self.next[set]) % self.ways;
            self.ghosts[set * self.ways + next] = u64::from(finger) + 1;
            self.next[set] = ((next + 1) % self.ways) as u8;
        }
    }

    #[inline]
    fn on_fill(&mut self, lines: &mut Lines<B, W>, spot: Spot, _: &Access<B>) {
        lines.set_byte(spot, if self.enters_main { MAIN } else { 0 });
        self.order.enter(lines.number(spot));
    }
}
