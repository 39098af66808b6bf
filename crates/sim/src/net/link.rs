//! One direction of a link: delay, jitter, loss, duplication, reordering, bit errors, and a router
//! hop with an MTU of its own.

use core::time::Duration;

use fairlead_base::Instant;

use crate::dice::Dice;

/// What a link does to packets. Rates are parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Packets that vanish.
    pub loss_ppm: u32,
    /// Packets that arrive twice.
    pub duplicate_ppm: u32,
    /// Packets that later ones may overtake.
    pub reorder_ppm: u32,
    /// Packets that arrive with one bit flipped.
    pub corrupt_ppm: u32,
    /// Time on the way.
    pub delay: Duration,
    /// Up to so much more, drawn anew for each packet; order is kept.
    pub jitter: Duration,
}

impl Faults {
    /// Nothing but this delay.
    pub const fn none(delay: Duration) -> Self {
        Self {
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            corrupt_ppm: 0,
            delay,
            jitter: Duration::ZERO,
        }
    }

    /// True when packets may fail to arrive as they were sent.
    pub fn lossy(&self) -> bool {
        self.loss_ppm > 0 || self.corrupt_ppm > 0
    }
}

/// A host's link, both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPlan {
    /// From the host to the switch.
    pub up: Faults,
    /// From the switch to the host.
    pub down: Faults,
    /// Longest packet a router on the way up carries.
    pub mtu_up: usize,
    /// Longest packet a router on the way down carries.
    pub mtu_down: usize,
}

impl LinkPlan {
    /// A link without faults.
    pub const fn clean(delay: Duration) -> Self {
        let faults = Faults::none(delay);
        Self {
            up: faults,
            down: faults,
            mtu_up: usize::MAX,
            mtu_down: usize::MAX,
        }
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crossing {
    /// On its way.
    Sent,
    /// On its way twice.
    Twice,
    /// On its way with a flipped bit.
    Corrupted,
    /// On its way, late.
    Late,
    /// Gone.
    Lost,
    /// Longer than the router's MTU.
    TooBig,
}

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct Link {
    faults: Faults,
    mtu: usize,
    dice: Dice,
    /// Arrivals fall on multiples of this, so that several packets arrive at once.
    grid: Duration,
    last_arrival: Instant,
}

/// A reordered packet is held back by up to this many delays.
const REORDER_DELAYS: u32 = 4;

impl Link {
    pub(crate) fn new(faults: Faults, mtu: usize, grid: Duration, dice: Dice) -> Self {
        Self {
            faults,
            mtu,
            dice,
            grid,
            last_arrival: Instant::ZERO,
        }
    }

    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// From now on nothing but delay; the MTU stays.
    pub(crate) fn calm(&mut self) {
        self.faults = Faults {
            jitter: self.faults.jitter,
            ..Faults::none(self.faults.delay)
        };
    }

    /// Takes a packet; pushes when it arrives, once, twice or never.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        bytes: Vec<u8>,
        arrivals: &mut Vec<(Instant, Vec<u8>)>,
    ) -> Crossing {
        // Every draw happens for every packet: what one rate is does not shift the others' luck.
        let lost = self.dice.chance(self.faults.loss_ppm);
        let twice = self.dice.chance(self.faults.duplicate_ppm);
        let late = self.dice.chance(self.faults.reorder_ppm);
        let corrupt = self.dice.chance(self.faults.corrupt_ppm);
        let jitter = self.dice.micros(self.faults.jitter);
        if bytes.len() > self.mtu {
            return Crossing::TooBig;
        }
        if lost {
            return Crossing::Lost;
        }
        let mut at = self.on_grid(now + self.faults.delay + jitter);
        if late {
            let most = self.faults.delay * REORDER_DELAYS + Duration::from_micros(500);
            let held = self.dice.micros(most);
            at = self.on_grid(at + held);
        } else {
            at = at.max(self.last_arrival);
            self.last_arrival = at;
        }
        let mut fate = if late { Crossing::Late } else { Crossing::Sent };
        if twice {
            let most = self.faults.delay * REORDER_DELAYS + Duration::from_micros(500);
            let behind = self.dice.micros(most);
            let again = self.on_grid(at + behind);
            arrivals.push((again, bytes.clone()));
            fate = Crossing::Twice;
        }
        let mut bytes = bytes;
        if corrupt && self.flip(&mut bytes) {
            fate = Crossing::Corrupted;
        }
        arrivals.push((at, bytes));
        fate
    }

    fn on_grid(&self, at: Instant) -> Instant {
        let grid = self.grid.as_nanos().max(1) as u64;
        Instant::from_nanos(at.as_nanos().div_ceil(grid) * grid)
    }

    /// Flips one bit, which every Internet checksum catches. Two flips could cancel out, and the
    /// length field of IPv6 is only protected as long as the bytes cut off do not happen to sum up
    /// right: neither would be a fault of the switch.
    fn flip(&mut self, bytes: &mut [u8]) -> bool {
        if bytes.is_empty() {
            return false;
        }
        let at = self.dice.between(0, bytes.len() as u32 - 1) as usize;
        let bit = self.dice.between(0, 7);
        if bytes[0] >> 4 == 6 && (4..6).contains(&at) {
            return false;
        }
        bytes[at] ^= 1 << bit;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(faults: Faults) -> Link {
        Link::new(
            faults,
            1_500,
            Duration::from_micros(1),
            Dice::new(3, "link"),
        )
    }

    #[test]
    fn a_clean_link_keeps_order_and_bytes() {
        let faults = Faults {
            jitter: Duration::from_millis(3),
            ..Faults::none(Duration::from_millis(1))
        };
        let mut link = link(faults);
        let mut arrivals = Vec::new();
        for number in 0..100u8 {
            let now = Instant::from_micros(u64::from(number));
            assert_eq!(
                link.send(now, vec![number; 40], &mut arrivals),
                Crossing::Sent
            );
        }
        assert_eq!(arrivals.len(), 100);
        assert!(arrivals.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        assert!(
            arrivals
                .iter()
                .zip(0u8..)
                .all(|((_, bytes), number)| *bytes == [number; 40])
        );
    }

    #[test]
    fn rates_are_about_what_they_say_until_calm() {
        let mut link = link(Faults {
            loss_ppm: 100_000,
            duplicate_ppm: 50_000,
            corrupt_ppm: 50_000,
            ..Faults::none(Duration::from_millis(1))
        });
        let mut arrivals = Vec::new();
        let mut fates = Vec::new();
        for _ in 0..10_000 {
            fates.push(link.send(Instant::ZERO, vec![0x45; 100], &mut arrivals));
        }
        let count = |fate| fates.iter().filter(|&&one| one == fate).count();
        assert!((800..1_200).contains(&count(Crossing::Lost)));
        assert!((300..600).contains(&count(Crossing::Corrupted)));
        let flipped = arrivals
            .iter()
            .map(|(_, bytes)| bytes.iter().map(|b| (b ^ 0x45).count_ones()).sum::<u32>());
        assert!(flipped.clone().all(|bits| bits <= 1));
        assert!(flipped.sum::<u32>() > 300);
        link.calm();
        for _ in 0..1_000 {
            assert_eq!(
                link.send(Instant::ZERO, vec![0; 100], &mut arrivals),
                Crossing::Sent
            );
        }
    }

    #[test]
    fn a_router_refuses_what_is_too_long() {
        let mut link = link(Faults::none(Duration::ZERO));
        let mut arrivals = Vec::new();
        assert_eq!(
            link.send(Instant::ZERO, vec![0; 1_501], &mut arrivals),
            Crossing::TooBig
        );
        assert_eq!(
            link.send(Instant::ZERO, vec![0; 1_500], &mut arrivals),
            Crossing::Sent
        );
        assert_eq!(arrivals.len(), 1);
    }
}
