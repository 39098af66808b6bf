//! The mechanism: look-up, fill, removal, over the lines of a policy.

use fairlead_base::Endpoint;
use fearless_simd::Simd;

use crate::geometry::Geometry;
use crate::lines::{Access, Homes, Lines, Spot};
use crate::place::{Place, Places, Sets};
use crate::policy::{Block, Choice, Policy, Setup};
use crate::statistics::Statistics;
use crate::vector::{Kernel, Lanes, quads, quads_mut};

/// What identifies a line: the whole session identifier, or its dense number.
pub trait Tag: Copy + Eq + Send + 'static {
    /// A value that no session identifier has; it marks empty lines.
    const EMPTY: Self;

    /// 32 bits of it, for policies that remember evicted tags.
    fn finger(&self) -> u32;
}

impl Tag for u32 {
    const EMPTY: Self = Self::MAX;

    #[inline]
    fn finger(&self) -> u32 {
        *self
    }
}

impl Tag for u64 {
    const EMPTY: Self = Self::MAX;

    #[inline]
    fn finger(&self) -> u32 {
        (self.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
    }
}

impl Tag for Endpoint {
    /// The unspecified IPv6 address and port 0, which is never a source.
    const EMPTY: Self = Self {
        addr: fairlead_base::Address([0; 16]),
        port: 0,
    };

    #[inline]
    fn finger(&self) -> u32 {
        let address = u128::from_le_bytes(self.addr.0);
        ((address as u64) ^ ((address >> 64) as u64).rotate_left(31) ^ u64::from(self.port))
            .finger()
    }
}

/// A hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The line.
    pub line: u32,
    /// True when it stood in a set of a second function.
    pub second: bool,
}

/// What a fill did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled<T> {
    /// The newcomer's line; `None` when it was bypassed.
    pub line: Option<u32>,
    /// The line that was moved to make room, from and to.
    pub moved: Option<(u32, u32)>,
    /// The evicted tag.
    pub evicted: Option<T>,
}

/// What an access did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It was there.
    Hit(Found),
    /// It was not.
    Miss(Filled<T>),
}

/// A cache of `B` banks of `W` ways under a policy, or with `W` = 0 of as many ways as the geometry
/// says. Payloads belong to the caller, who keeps them
/// by line number and follows [`Filled::moved`].
#[derive(Clone, Debug)]
pub struct Cache<T, P, const B: usize, const W: usize> {
    geometry: Geometry,
    pub(crate) tags: Vec<T>,
    pub(crate) lines: Lines<B, W>,
    pub(crate) policy: P,
    pub(crate) statistics: Statistics,
}

impl<T: Tag, P: Policy<B, W>, const B: usize, const W: usize> Cache<T, P, B, W> {
    /// An empty cache. The geometry's banks and ways must be `B` and `W`
    /// (`registry::with_policy` sees to that).
    pub fn new(setup: &Setup) -> Self {
        let geometry = setup.geometry;
        Self {
            geometry,
            tags: vec![T::EMPTY; geometry.lines() as usize],
            lines: Lines::new(&geometry, setup.parameters.lifetime, P::MOVES),
            policy: P::new(setup),
            statistics: Statistics::default(),
        }
    }

    /// The geometry.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The lines, as the policy sees them.
    pub fn lines(&self) -> &Lines<B, W> {
        &self.lines
    }

    /// What was counted.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Counts from zero again, the contents kept: the end of a warm-up.
    pub fn reset_statistics(&mut self) {
        self.statistics = Statistics::default();
    }

    /// Lines in use, by set, bank after bank.
    pub fn occupancy(&self) -> Vec<u32> {
        let sets = 0..self.geometry.banks() * self.geometry.sets();
        sets.map(|set| self.lines.occupied(set)).collect()
    }

    /// ON lines, by set, bank after bank, at the tick of the last access.
    pub fn on_lines(&self) -> Vec<u32> {
        let sets = 0..self.geometry.banks() * self.geometry.sets();
        sets.map(|set| self.lines.on_count(set)).collect()
    }

    /// The tag of a line; `None` if it is empty or does not exist.
    pub fn tag(&self, line: u32) -> Option<T> {
        let tag = *self.tags.get(line as usize)?;
        (tag != T::EMPTY).then_some(tag)
    }

    /// Ensures that stamps suffice for a block of accesses.
    #[inline]
    pub(crate) fn make_room(&mut self) {
        if self.lines.clock.is_full() {
            let policy = &mut self.policy;
            self.lines
                .compress(|renumbered| policy.on_compress(renumbered));
        }
    }

    fn access_of(&self, tag: T, place: &Place, hint: u8) -> Access<B> {
        let sets = self.geometry.sets();
        let through = |of: &[u32]| -> Sets<B> {
            core::array::from_fn(|bank| bank as u32 * sets + of[bank] % sets)
        };
        Access {
            first: through(&place.first),
            second: through(&place.second),
            hint,
            finger: tag.finger(),
        }
    }

    /// Looks a tag up at tick `now`. A hit touches its line.
    pub fn lookup(&mut self, tag: T, place: &Place, now: u32, hint: u8) -> Option<Found> {
        let access = self.access_of(tag, place, hint);
        self.make_room();
        self.lines.clock.advance(now);
        self.statistics.accesses += 1;
        let found = self.hit(tag, &access);
        self.statistics.misses += u64::from(found.is_none());
        found.map(|(spot, second)| Found {
            line: self.lines.number(spot),
            second,
        })
    }

    /// The line that a look-up would find, untouched and not counted.
    pub fn peek(&self, tag: T, place: &Place) -> Option<u32> {
        let (spot, _) = self.find(tag, &self.access_of(tag, place, 0))?;
        Some(self.lines.number(spot))
    }

    /// Inserts a tag after a lookup that missed; an existing tag keeps its line.
    pub fn fill(&mut self, tag: T, place: &Place, now: u32, hint: u8) -> Filled<T> {
        let access = self.access_of(tag, place, hint);
        self.make_room();
        self.lines.clock.advance(now);
        if tag == T::EMPTY {
            self.statistics.bypasses += 1;
            return Filled {
                line: None,
                moved: None,
                evicted: None,
            };
        }
        if let Some((spot, _)) = self.find(tag, &access) {
            return Filled {
                line: Some(self.lines.number(spot)),
                moved: None,
                evicted: None,
            };
        }
        self.put(tag, &access)
    }

    /// Look-up, and fill if that fails.
    pub fn access(&mut self, tag: T, place: &Place, now: u32, hint: u8) -> Outcome<T> {
        match self.lookup(tag, place, now, hint) {
            Some(found) => Outcome::Hit(found),
            None => Outcome::Miss(self.fill(tag, place, now, hint)),
        }
    }

    /// Empties the line of a tag, and says which it was.
    pub fn remove(&mut self, tag: T, place: &Place) -> Option<u32> {
        let access = self.access_of(tag, place, 0);
        let (spot, _) = self.find(tag, &access)?;
        self.policy.on_remove(&mut self.lines, spot);
        self.tags[self.lines.number(spot) as usize] = T::EMPTY;
        self.lines.clear(spot);
        Some(self.lines.number(spot))
    }

    #[inline]
    fn find_in(&self, tag: T, sets: &Sets<B>) -> Option<Spot> {
        for set in sets {
            let ways = self.lines.ways();
            let tags = &self.tags[*set as usize * ways..][..ways];
            let mut found = 0u32;
            for (way, other) in tags.iter().enumerate() {
                found |= u32::from(*other == tag) << way;
            }
            if found != 0 {
                let way = found.trailing_zeros();
                return Some(Spot { set: *set, way });
            }
        }
        None
    }

    #[inline]
    fn find(&self, tag: T, access: &Access<B>) -> Option<(Spot, bool)> {
        if tag == T::EMPTY {
            return None;
        }
        if let Some(spot) = self.find_in(tag, &access.first) {
            return Some((spot, false));
        }
        if P::MOVES {
            return Some((self.find_in(tag, &access.second)?, true));
        }
        None
    }

    #[inline]
    fn hit(&mut self, tag: T, access: &Access<B>) -> Option<(Spot, bool)> {
        let (spot, second) = self.find(tag, access)?;
        self.statistics.second_lookup_hits += u64::from(second);
        self.lines.touch(spot);
        self.policy.on_hit(&mut self.lines, spot, access);
        Some((spot, second))
    }

    /// Clears an evicted line.
    #[inline]
    fn evict(&mut self, spot: Spot) -> Option<T> {
        if self.lines.is_empty(spot) {
            return None;
        }
        let tag = self.tags[self.lines.number(spot) as usize];
        self.statistics.evictions += 1;
        self.statistics.evicted_on += u64::from(self.lines.is_on(spot));
        self.policy.on_evict(&mut self.lines, spot, tag.finger());
        Some(tag)
    }

    /// Gives a line to a tag that has none.
    #[inline]
    fn put(&mut self, tag: T, access: &Access<B>) -> Filled<T> {
        let choice = self.policy.choose(&mut self.lines, access);
        let (spot, moved, evicted) = match choice {
            Choice::Replace(spot) => (spot, None, self.evict(spot)),
            Choice::Relocate { from, to } if from != to => {
                let evicted = self.evict(to);
                let numbers = (self.lines.number(from), self.lines.number(to));
                self.tags[numbers.1 as usize] = self.tags[numbers.0 as usize];
                self.lines.relocate(from, to);
                self.policy.on_move(&mut self.lines, from, to);
                self.statistics.migrations += 1;
                (from, Some(numbers), evicted)
            }
            Choice::Relocate { from, .. } => (from, None, self.evict(from)),
            Choice::Bypass => {
                self.statistics.bypasses += 1;
                return Filled {
                    line: None,
                    moved: None,
                    evicted: None,
                };
            }
        };
        self.statistics.fills += 1;
        self.tags[self.lines.number(spot) as usize] = tag;
        self.lines.occupy(spot, access);
        self.policy.on_fill(&mut self.lines, spot, access);
        Filled {
            line: Some(self.lines.number(spot)),
            moved,
            evicted,
        }
    }
}

impl<P: Policy<B, W>, const B: usize, const W: usize> Cache<u32, P, B, W> {
    /// The accesses of a block, one by one: the reference for policies with a faster
    /// implementation.
    #[inline]
    pub(crate) fn run_plainly(&mut self, block: &Block<'_, B>) {
        for (at, id) in block.ids.iter().enumerate() {
            self.lines.clock.advance(block.ticks[at]);
            self.access_plainly(*id, &block.access(at));
        }
        self.statistics.accesses += block.ids.len() as u64;
    }

    /// Computes the homes of all lines of some sets, if they were not stored.
    pub(crate) fn find_homes(&mut self, sets: &Sets<B>, places: &Places) {
        for spot in self.lines.spots(sets) {
            let line = self.lines.number(spot) as usize;
            let tag = self.tags[line];
            if let Some(place) = places.at(tag as usize) {
                let Access { first, second, .. } = self.access_of(tag, &place, 0);
                self.lines.homes[line] = Homes { first, second };
            }
        }
    }

    /// One access at the present tick; not counted among the accesses.
    #[inline]
    pub(crate) fn access_plainly(&mut self, id: u32, access: &Access<B>) {
        if self.hit(id, access).is_none() {
            self.statistics.misses += 1;
            self.put(id, access);
        }
    }
}

/// A block under any policy: hits are found and stamped in vectors, the rest is plain.
pub(crate) struct HitsByVectors<'a, P, const B: usize, const W: usize> {
    /// The cache.
    pub(crate) cache: &'a mut Cache<u32, P, B, W>,
    /// The accesses.
    pub(crate) block: &'a Block<'a, B>,
}

impl<P: Policy<B, W>, const B: usize, const W: usize> Kernel for HitsByVectors<'_, P, B, W> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { cache, block } = self;
        for (at, id) in block.ids.iter().enumerate() {
            cache.lines.clock.advance(block.ticks[at]);
            let sets = &block.first[at];
            let wanted = Lanes::<S, B, W>::splat(simd, *id as i32);
            let found = Lanes::tags(simd, quads(&cache.tags), sets).equals(&wanted);
            let bits = found.bits();
            if bits == 0 {
                cache.access_plainly(*id, &block.access(at));
                continue;
            }
            let newest = Lanes::splat(simd, cache.lines.clock.take());
            let stamps = Lanes::stamps(simd, quads(&cache.lines.stamps), sets);
            let stamps = found.pick(&newest, &stamps);
            stamps.store_stamps(quads_mut(&mut cache.lines.stamps), sets);
            let lane = bits.trailing_zeros() as usize;
            let spot = Spot {
                set: sets[lane / W % B],
                way: (lane % W) as u32,
            };
            cache
                .policy
                .on_hit(&mut cache.lines, spot, &block.access(at));
        }
        cache.statistics.accesses += block.ids.len() as u64;
    }
}
