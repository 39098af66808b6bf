//! The policies' view of the lines: last access, a byte of state, alternative locations. It has no
//! tags and payloads.

use crate::geometry::Geometry;
use crate::lifetime::{Clock, Lifetime, STAMP_FIRST};
use crate::place::Sets;

/// One line: a set, numbered through all banks, and a way. Banks follow each other: bank *b* has
/// the sets from `b × sets` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spot {
    /// Set, numbered through all banks.
    pub set: u32,
    /// Way in it.
    pub way: u32,
}

/// One access, as policies see it.
#[derive(Clone, Copy, Debug)]
pub struct Access<const B: usize> {
    /// The sets by the first functions, one in each bank.
    pub first: Sets<B>,
    /// The sets by the second functions.
    pub second: Sets<B>,
    /// 0 none, 1 closing (FIN or RST seen on this packet), 2 opening (first of a connection).
    pub hint: u8,
    /// The dense number in the lab, 32 hashed bits of the tag in the datapath: for ghosts.
    pub finger: u32,
}

/// The sets that the tag of a line can be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Homes<const B: usize> {
    /// By the first functions.
    pub first: Sets<B>,
    /// By the second functions.
    pub second: Sets<B>,
}

/// All lines of `B` banks of `W` ways. With `W` = 0 the number of ways is known only at run time:
/// rarely used shapes share their code. So use [`Lines::ways`], not `W`.
#[derive(Clone, Debug)]
pub struct Lines<const B: usize, const W: usize> {
    sets: u32,
    ways: u32,
    pub(crate) stamps: Vec<i32>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) homes: Vec<Homes<B>>,
    pub(crate) clock: Clock,
}

impl<const B: usize, const W: usize> Lines<B, W> {
    /// All empty. `homes` are kept only for policies that move lines.
    pub(crate) fn new(geometry: &Geometry, lifetime: Lifetime, homes: bool) -> Self {
        let count = geometry.lines() as usize;
        let nowhere = Homes {
            first: [0; B],
            second: [0; B],
        };
        let mut lines = Self {
            sets: geometry.sets(),
            ways: geometry.ways(),
            stamps: vec![0; count],
            bytes: vec![0; count],
            homes: vec![nowhere; if homes { count } else { 0 }],
            clock: Clock::new(lifetime),
        };
        for set in 0..geometry.banks() * geometry.sets() {
            for way in 0..geometry.ways() {
                lines.clear(Spot { set, way });
            }
        }
        lines
    }

    /// Sets of one bank.
    pub fn sets(&self) -> u32 {
        self.sets
    }

    /// Ways of a set.
    #[inline(always)]
    pub fn ways(&self) -> usize {
        if W == 0 { self.ways as usize } else { W }
    }

    /// Lines that a newcomer may have by its first sets.
    #[inline(always)]
    pub fn candidates(&self) -> usize {
        B * self.ways()
    }

    /// The lines of a set.
    #[inline(always)]
    fn of(&self, set: u32) -> core::ops::Range<usize> {
        let from = set as usize * self.ways();
        from..from + self.ways()
    }

    #[inline(always)]
    fn at(&self, spot: Spot) -> usize {
        spot.set as usize * self.ways() + spot.way as usize
    }

    /// The bank of a set.
    #[inline]
    pub fn bank(&self, set: u32) -> u32 {
        set / self.sets
    }

    /// The number of a line among all: `set × ways + way`.
    #[inline]
    pub fn number(&self, spot: Spot) -> u32 {
        self.at(spot) as u32
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The last accesses of the lines of a set. Those of empty lines are smaller than all others
    /// and differ among the lines of one [`Access`], so a minimum is always one line.
    #[inline]
    pub fn stamps(&self, set: u32) -> &[i32] {
        &self.stamps[self.of(set)]
    }

    /// The last access of a line.
    #[inline]
    pub fn stamp(&self, spot: Spot) -> i32 {
        self.stamps[self.at(spot)]
    }

    /// True if the line is empty.
    #[inline]
    pub fn is_empty(&self, spot: Spot) -> bool {
        self.stamp(spot) < STAMP_FIRST
    }

    /// True when the line is ON.
    #[inline]
    pub fn is_on(&self, spot: Spot) -> bool {
        self.stamp(spot) >= self.clock.on_since()
    }

    /// How many lines of a set are ON.
    #[inline]
    pub fn on_count(&self, set: u32) -> u32 {
        let since = self.clock.on_since();
        self.stamps(set)
            .iter()
            .map(|stamp| u32::from(*stamp >= since))
            .sum()
    }

    /// Number of occupied lines of a set.
    pub fn occupied(&self, set: u32) -> u32 {
        self.stamps(set)
            .iter()
            .map(|stamp| u32::from(*stamp >= STAMP_FIRST))
            .sum()
    }

    /// The least recent line of one set, an empty one first.
    #[inline]
    pub fn oldest(&self, set: u32) -> Spot {
        let stamps = self.stamps(set);
        let (mut way, mut least) = (0, stamps[0]);
        for (at, stamp) in stamps.iter().enumerate().skip(1) {
            let less = *stamp < least;
            way = if less { at } else { way };
            least = if less { *stamp } else { least };
        }
        Spot {
            set,
            way: way as u32,
        }
    }

    /// The least recent line of several sets, an empty one first, the earlier set on a tie.
    #[inline]
    pub fn oldest_of(&self, sets: &[u32]) -> Spot {
        let mut found = Spot { set: 0, way: 0 };
        let mut least = i32::MAX;
        for set in sets {
            let spot = self.oldest(*set);
            if self.stamp(spot) < least {
                (found, least) = (spot, self.stamp(spot));
            }
        }
        found
    }

    /// The lines of several sets, set after set, way after way.
    pub fn spots<'a>(&self, sets: &'a [u32]) -> impl Iterator<Item = Spot> + use<'a, B, W> {
        let ways = self.ways() as u32;
        sets.iter()
            .flat_map(move |set| (0..ways).map(move |way| Spot { set: *set, way }))
    }

    /// The policy's own byte of a line; 0 when it is filled, and it moves with the line.
    #[inline]
    pub fn byte(&self, spot: Spot) -> u8 {
        self.bytes[self.at(spot)]
    }

    /// The policy's own bytes of the lines of a set.
    #[inline]
    pub fn bytes(&self, set: u32) -> &[u8] {
        &self.bytes[self.of(set)]
    }

    /// Sets the policy's own byte of a line.
    #[inline]
    pub fn set_byte(&mut self, spot: Spot, byte: u8) {
        let at = self.at(spot);
        self.bytes[at] = byte;
    }

    /// The locations of a line's tag; only with `Policy::MOVES`.
    #[inline]
    pub fn homes(&self, spot: Spot) -> &Homes<B> {
        &self.homes[self.at(spot)]
    }

    #[inline]
    pub(crate) fn touch(&mut self, spot: Spot) {
        let at = self.at(spot);
        self.stamps[at] = self.clock.take();
    }

    #[inline]
    pub(crate) fn occupy(&mut self, spot: Spot, access: &Access<B>) {
        self.touch(spot);
        self.set_byte(spot, 0);
        let at = self.at(spot);
        if let Some(homes) = self.homes.get_mut(at) {
            *homes = Homes {
                first: access.first,
                second: access.second,
            };
        }
    }

    #[inline]
    pub(crate) fn relocate(&mut self, from: Spot, to: Spot) {
        let (source, target) = (self.at(from), self.at(to));
        self.stamps[target] = self.stamps[source];
        self.set_byte(to, self.byte(from));
        if !self.homes.is_empty() {
            self.homes[target] = self.homes[source];
        }
        self.clear(from);
    }

    /// Makes a line empty. Its stamp then is its number among the lines of one set in every bank.
    pub(crate) fn clear(&mut self, spot: Spot) {
        let lane = self.bank(spot.set) * self.ways() as u32 + spot.way + 1;
        let at = self.at(spot);
        self.stamps[at] = lane as i32;
        self.set_byte(spot, 0);
    }

    /// Before stamps run out, those in use are renumbered 65, 66, … in order; `on_compress`
    /// receives the mapping.
    #[cold]
    pub(crate) fn compress(&mut self, on_compress: impl FnOnce(&dyn Fn(i32) -> i32)) {
        let all = self.stamps.iter().copied();
        let mut used: Vec<i32> = all.filter(|stamp| *stamp >= STAMP_FIRST).collect();
        used.sort_unstable();
        let renumbered =
            |stamp: i32| STAMP_FIRST + used.partition_point(|other| *other < stamp) as i32;
        for stamp in &mut self.stamps {
            if *stamp >= STAMP_FIRST {
                *stamp = renumbered(*stamp);
            }
        }
        let last = STAMP_FIRST + used.len() as i32 - 1;
        on_compress(&renumbered);
        self.clock.compress(last, renumbered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_that_run_out_are_compressed_in_their_order() {
        let geometry = Geometry::new(1024, 64, 2, 4).unwrap();
        let mut lines = Lines::<2, 4>::new(&geometry, Lifetime::default(), false);
        let spot = |way| Spot { set: 1, way };
        for (way, tick) in [(0, 0), (1, 1), (2, 9), (3, 10)] {
            lines.clock.advance(tick);
            if way == 2 {
                lines.clock.set_stamp(i32::MAX - 2);
            }
            lines.touch(spot(way));
        }
        assert!(lines.clock.is_full());
        lines.compress(|_| {});
        let stamps: Vec<_> = (0..4).map(|way| lines.stamp(spot(way))).collect();
        assert_eq!(stamps, [65, 66, 67, 68]);
        assert_eq!((lines.on_count(1), lines.clock.stamp()), (2, 68));
        assert_eq!((lines.occupied(1), lines.occupied(0)), (4, 0));
        lines.clock.advance(14);
        assert_eq!(lines.on_count(1), 0);
    }
}
